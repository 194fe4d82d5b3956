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
#: Two layers for further tokens: the second one reads the rows of the first.
CHAINED = {"mtp_num_hidden_layers": 2}


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


def mtp_model(model: Any, changes: dict[str, Any]) -> Any:
    """Return transformers' layers for further tokens, with the drawn weights."""
    import torch
    from transformers.modeling_layers import MtpModel

    text = files.text_of(changes)
    layers = text["mtp_num_hidden_layers"]
    model.config.num_mtp_layers, model.config.mtp_layer_types = layers, ["full_attention"] * layers
    extra = MtpModel(model, layers).eval()
    tensors = {key: files.drawn(key, shape, "qwen3.5") for key, shape in files.mtp_shapes(text).items()}
    if "num_experts" in text:
        tensors = files.fuse_experts(tensors)
    parts = {
        "mtp.fc.": "eh_proj.",
        "mtp.pre_fc_norm_embedding.": "enorm.",
        "mtp.pre_fc_norm_hidden.": "hnorm.",
        "mtp.norm.": "post_norm.",
    }
    state = {}
    for layer in range(layers):
        of_layer = {**parts, f"mtp.layers.{layer}.": "mtp_block."}
        for key, array in tensors.items():
            start = next((part for part in of_layer if key.startswith(part)), None)
            if start is not None:
                state[f"layers.{layer}.{of_layer[start]}{key.removeprefix(start)}"] = torch.tensor(array)
    missing, unexpected = extra.load_state_dict(state, strict=False)
    assert not unexpected, unexpected
    assert not [key for key in missing if key.startswith("layers.")], missing
    return extra


def mtp_logits(model: Any, name: str) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return hidden rows, and the logits that the layer for further tokens makes of them."""
    hidden, found = chained_logits(model, name, files.CASES[name])
    return hidden, found[0]


def chained_logits(
    model: Any, name: str, changes: dict[str, Any]
) -> tuple[npt.NDArray[np.float32], list[npt.NDArray[np.float32]]]:
    """Return hidden rows, and the logits of each layer for further tokens."""
    import torch

    extra = mtp_model(model, changes)
    ids = torch.tensor(draw_ids(f"qwen3.5:{name}", MTP_LENGTH, files.VOCAB))[None]
    found = []
    with torch.no_grad():
        hidden = rows = model.model(ids).last_hidden_state
        for layer in range(len(extra.layers)):
            positions = torch.arange(1 + layer, MTP_LENGTH)[None]
            rows = extra.forward_layer(layer, rows[:, :-1], positions, None, input_ids=ids[:, 1 + layer :])
            found.append(np.asarray(model.lm_head(rows)[0].numpy(), np.float32))
    return np.asarray(hidden[0, :-1].numpy(), np.float32), found


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
            if name == "double":
                _, (first, outputs[f"chained-{name}"]) = chained_logits(model, name, files.CASES[name] | CHAINED)
                assert np.array_equal(first, outputs[f"mtp-{name}"])
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
