"""Makes the results of transformers for small decoders of every kind, with drawn weights.

Weights and token ids are not stored but drawn from names; see packages/lattice-inference/tests/models/drawn_checkpoints.py.
Writes tests/data/decoders: configurations (cases.json), and the logits of some rows (outputs.npz). ``--check`` makes them
again and compares. Needs torch and transformers.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "packages" / "lattice-inference" / "tests"
TARGET = TESTS / "data" / "decoders"
LIMIT = 1e-5
VOCAB = 128
LENGTH = 90
LONG = 32_768

sys.path.insert(0, str(TESTS / "models"))
from drawn_checkpoints import draw_ids, write_directory  # noqa: E402


def config(kind: str, **changes: Any) -> dict[str, Any]:
    """A config.json of a small decoder."""
    return {
        "architectures": [f"{kind}ForCausalLM"],
        "model_type": kind.lower(),
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_act": "silu",
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **changes,
    }


def rope(kind: str, **values: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10_000.0, **values}}


LLAMA3 = {
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"factor": 4.0, "original_max_position_embeddings": 64}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": config("Llama", **rope("default")),
    "llama-tied": config("Llama", tie_word_embeddings=True, num_key_value_heads=4, **rope("default")),
    "llama-wide-heads": config(
        "Llama", head_dim=24, attention_bias=True, mlp_bias=True, num_key_value_heads=1, **rope("default")
    ),
    "llama3-rope": config("Llama", **rope("llama3", **LLAMA3)),
    "linear-rope": config("Llama", **rope("linear", factor=3.0)),
    "dynamic-rope": config("Llama", **rope("dynamic", factor=2.0)),
    "yarn-rope": config("Llama", **rope("yarn", **YARN)),
    "yarn-rope-with-its-own-factor": config(
        "Llama", **rope("yarn", attention_factor=1.3, beta_fast=16.0, beta_slow=2.0, truncate=False, **YARN)
    ),
    "yarn-rope-with-mscale": config("Llama", **rope("yarn", mscale=0.8, mscale_all_dim=0.3, **YARN)),
    "mistral": config("Mistral", sliding_window=20, head_dim=16, **rope("default")),
    "mistral-without-window": config("Mistral", sliding_window=None, head_dim=16, **rope("default")),
    "qwen2": config("Qwen2", tie_word_embeddings=True, rms_norm_eps=1e-6, **rope("default", rope_theta=1e6)),
    "qwen2-with-windows": config(
        "Qwen2", use_sliding_window=True, sliding_window=16, max_window_layers=1, **rope("default", rope_theta=1e6)
    ),
    "qwen3": config(
        "Qwen3", tie_word_embeddings=True, head_dim=24, rms_norm_eps=1e-6, **rope("default", rope_theta=1e6)
    ),
    "qwen3-with-windows": config(
        "Qwen3",
        head_dim=40,
        num_key_value_heads=1,
        attention_bias=True,
        use_sliding_window=True,
        sliding_window=16,
        max_window_layers=1,
        **rope("default", rope_theta=1e6),
    ),
    "long-llama": config(
        "Llama",
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        max_position_embeddings=LONG,
        **rope("llama3", **LLAMA3),
    ),
}


def case(settings: dict[str, Any], name: str) -> dict[str, Any]:
    import transformers

    kind = getattr(transformers, settings["architectures"][0])
    values = {key: value for key, value in settings.items() if key not in ("architectures", "model_type")}
    # a copy: transformers changes what it is given
    made = kind(kind.config_class(**json.loads(json.dumps(values))))
    tensors = {key: list(value.shape) for key, value in made.state_dict().items()}
    if settings["tie_word_embeddings"]:
        del tensors["lm_head.weight"]
    long = name.startswith("long")
    return {
        "files": {"config.json": settings},
        "tokenizer": "bert",
        "tensors": {"model.safetensors": tensors},
        "length": LONG if long else LENGTH,
        "rows": [LONG - 2, LONG - 1] if long else [0, 1, 15, 16, 33, 64, LENGTH - 1],
    }


def logits(name: str, case: dict[str, Any], folder: Path) -> npt.NDArray[np.float32]:
    import torch
    import transformers

    directory = write_directory(folder / name, case)
    kind = getattr(transformers, case["files"]["config.json"]["architectures"][0])
    model = kind.from_pretrained(directory, dtype=torch.float32).eval()
    ids = torch.tensor(draw_ids(name, case["length"], VOCAB), dtype=torch.long)[None]
    with torch.no_grad():
        states = model.model(ids).last_hidden_state[0, case["rows"]]
        return np.asarray(model.lm_head(states).numpy(), np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the committed files, write nothing")
    arguments = parser.parse_args()
    import torch
    import transformers

    cases = {name: case(settings, name) for name, settings in CONFIGS.items()}
    with tempfile.TemporaryDirectory() as folder:
        outputs = {name: logits(name, cases[name], Path(folder)) for name in cases}
    made_with = {"torch": torch.__version__, "transformers": transformers.__version__}
    if arguments.check:
        stored = json.loads((TARGET / "cases.json").read_text())["cases"]
        assert stored == json.loads(json.dumps(cases)), "cases.json is not what this program makes"
        with np.load(TARGET / "outputs.npz") as old:
            for name, new in outputs.items():
                print(f"{name}: {np.abs(old[name] - new).max():.2g} from the committed logits")
                assert np.abs(old[name] - new).max() <= LIMIT
        return
    TARGET.mkdir(parents=True, exist_ok=True)
    (TARGET / "cases.json").write_text(json.dumps({"made_with": made_with, "cases": cases}, indent=1) + "\n")
    np.savez_compressed(TARGET / "outputs.npz", allow_pickle=False, **outputs)


if __name__ == "__main__":
    main()
