"""Makes the results of transformers for small Qwen3.5 models with drawn weights.

The directories are those of qwen35_files.py in packages/lattice-inference/tests/models. Writes
tests/data/qwen35/outputs.npz. It has logits of a sequence of 5,000 tokens at every length up to 200, at 1,000 and at the
end. It also has the last hidden rows of 100 tokens, and what the layer that predicts a further token (``MtpModel``) makes of
them. ``--check`` makes them again and compares. Needs torch and transformers.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "packages" / "lattice-inference" / "tests"
TARGET = TESTS / "data" / "qwen35" / "outputs.npz"
LIMIT = 1e-5

sys.path.insert(0, str(TESTS / "models"))
import qwen35_files as files  # noqa: E402
from drawn_checkpoints import draw_ids  # noqa: E402

LENGTH = 5000
ROWS = [*range(200), 999, 4999]
MTP_LENGTH = 100
#: MtpModel takes the last layer's first norm, so the last layer has to attend.
MTP_CASES = ("double", "wide", "experts")


def load(name: str, folder: Path) -> Any:
    """Return transformers' model of a case."""
    import torch
    import transformers

    changes = files.NEXT if name == "next" else files.CASES[name]
    directory = files.write(folder / name, changes)
    has_experts = "_moe" in files.text_of(changes)["model_type"]
    kind = transformers.Qwen3_5MoeForCausalLM if has_experts else transformers.Qwen3_5ForCausalLM
    if name == "next":
        kind, has_experts = transformers.Qwen3NextForCausalLM, True
    options = {"experts_implementation": "eager"} if has_experts else {}  # the others take no widths such as these
    model, report = kind.from_pretrained(directory, dtype=torch.float32, output_loading_info=True, **options)
    assert not any(report.values()), report
    return model.eval()


def logits(model: Any, name: str) -> npt.NDArray[np.float32]:
    """Return logits at some rows."""
    import torch

    with torch.no_grad():
        found = model(torch.tensor(draw_ids(f"qwen3.5:{name}", LENGTH, files.VOCAB))[None]).logits[0, ROWS]
    return np.asarray(found.numpy(), np.float32)


def mtp_logits(model: Any, name: str) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return hidden rows, and the logits that the layer for further tokens makes of them."""
    import torch
    from transformers.modeling_layers import MtpModel

    model.config.num_mtp_layers, model.config.mtp_layer_types = 1, ["full_attention"]
    extra = MtpModel(model, 1).eval()
    text = files.text_of(files.CASES[name])
    tensors = {key: files.drawn(key, shape, "qwen3.5") for key, shape in files.mtp_shapes(text).items()}
    if "num_experts" in text:
        tensors = files.fuse_experts(tensors)
    parts = {
        "mtp.fc.": "eh_proj.",
        "mtp.pre_fc_norm_embedding.": "enorm.",
        "mtp.pre_fc_norm_hidden.": "hnorm.",
        "mtp.norm.": "post_norm.",
        "mtp.layers.0.": "mtp_block.",
    }
    state = {}
    for key, array in tensors.items():
        start = next(part for part in parts if key.startswith(part))
        state[f"layers.0.{parts[start]}{key.removeprefix(start)}"] = torch.tensor(array)
    missing, unexpected = extra.load_state_dict(state, strict=False)
    assert not unexpected, unexpected
    assert not [key for key in missing if key.startswith("layers.")], missing
    ids = torch.tensor(draw_ids(f"qwen3.5:{name}", MTP_LENGTH, files.VOCAB))[None]
    with torch.no_grad():
        hidden = model.model(ids).last_hidden_state
        positions = torch.arange(1, MTP_LENGTH)[None]
        rows = extra.forward_layer(0, hidden[:, :-1], positions, None, input_ids=ids[:, 1:])
        found = model.lm_head(rows)[0]
    return np.asarray(hidden[0, :-1].numpy(), np.float32), np.asarray(found.numpy(), np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the committed file, write nothing")
    arguments = parser.parse_args()
    outputs = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in (*files.CASES, "next"):
            model = load(name, Path(folder))
            outputs[f"logits-{name}"] = logits(model, name)
            if name in MTP_CASES:
                outputs[f"hidden-{name}"], outputs[f"mtp-{name}"] = mtp_logits(model, name)
    if arguments.check:
        with np.load(TARGET) as old:
            assert set(old.files) == set(outputs)
            for case, new in outputs.items():
                print(f"{case}: {np.abs(old[case] - new).max():.2g} from the committed numbers")
                assert np.abs(old[case] - new).max() <= LIMIT
        return
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(TARGET, allow_pickle=False, **outputs)


if __name__ == "__main__":
    main()
