"""Makes the results of PEFT with low-rank adapters merged into small drawn models.

A case has a base (of tests/data/decoders or tests/data/architectures), the settings of a LoraConfig, and the names and
shapes of what PEFT saves for it; the numbers are drawn from the names (tests/models/drawn_adapters.py).
Writes tests/data/lora: cases.json, and outputs.npz with the logits after merge_and_unload and, for adapters of pairs only,
with the adapter beside its base. ``--check`` makes them again and compares, has PEFT load every adapter that
save_peft_safetensors writes, and compares its logits. Needs torch, transformers and peft==0.21.2.
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
TARGET = TESTS / "data" / "lora"
LIMIT = 1e-5

sys.path.insert(0, str(TESTS / "models"))
from drawn_adapters import write_adapter  # noqa: E402
from drawn_checkpoints import draw_ids, write_directory  # noqa: E402

DECODERS = json.loads((TESTS / "data" / "decoders" / "cases.json").read_text())["cases"]
ENCODERS = json.loads((TESTS / "data" / "architectures" / "cases.json").read_text())["cases"]
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]

#: Base, and the settings of LoraConfig.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}),
    "llama-all-linear": (
        "llama",
        {
            "r": 4,
            "lora_alpha": 3.5,
            "target_modules": "all-linear",
            "use_rslora": True,
            "rank_pattern": {"up_proj": 2, r"layers\.1\.self_attn\.q_proj": 6},
            "alpha_pattern": {"down_proj": 1.5},
        },
    ),
    "llama-dora": ("llama", {"r": 2, "lora_alpha": 4, "target_modules": [*ATTENTION, "lm_head"], "use_dora": True}),
    "qwen2": (
        "qwen2",
        {"r": 3, "lora_alpha": 6, "target_modules": ATTENTION[:3], "lora_bias": True, "bias": "lora_only"},
    ),
    "qwen2-plain": ("qwen2", {"r": 5, "lora_alpha": 10, "target_modules": "all-linear"}),
    "qwen3": (
        "qwen3",
        {
            "r": 4,
            "lora_alpha": 16,
            "target_modules": ["q_proj", "gate_proj", "down_proj"],
            "layers_to_transform": [0, 2],
            "layers_pattern": "layers",
        },
    ),
    "qwen3-expression": (
        "qwen3",
        {
            "r": 4,
            "lora_alpha": 4,
            "target_modules": r".*\.layers\.\d+\.mlp\.(gate|up)_proj",
            "exclude_modules": r".*1\.mlp.*",
        },
    ),
    "bert": (
        "cross-encoder-bert-logits",
        {
            "r": 4,
            "lora_alpha": 8,
            "target_modules": ["query", "value", "intermediate.dense"],
            "modules_to_save": ["classifier"],
            "bias": "all",
        },
    ),
    "bert-plain": (
        "cross-encoder-bert-logits",
        {"r": 4, "lora_alpha": 8, "target_modules": ["query", "key", "value", "dense", "classifier"]},
    ),
}
#: Cases without biases, DoRA and heads, which are also run beside their base.
PLAIN = ("llama", "llama-all-linear", "qwen2-plain", "qwen3", "qwen3-expression", "bert-plain")


def base_case(base: str) -> dict[str, Any]:
    found: dict[str, Any] = DECODERS[base] if base in DECODERS else ENCODERS[base]
    return found


def load_base(base: str, folder: Path) -> Any:
    import torch
    import transformers

    directory = folder / f"base-{base}"
    if not directory.exists():
        write_directory(directory, base_case(base))
    kind = getattr(transformers, base_case(base)["files"]["config.json"]["architectures"][0])
    return kind.from_pretrained(directory, dtype=torch.float32).eval()


def case(name: str, folder: Path) -> dict[str, Any]:
    """What PEFT saves for a case."""
    import peft
    from safetensors import safe_open

    base, settings = CASES[name]
    kind = "SEQ_CLS" if "modules_to_save" in settings else None
    model = peft.get_peft_model(load_base(base, folder), peft.LoraConfig(task_type=kind, **settings))
    model.save_pretrained(folder / f"saved-{name}")
    config = json.loads((folder / f"saved-{name}" / "adapter_config.json").read_text())
    if isinstance(config["target_modules"], list):
        config["target_modules"] = sorted(config["target_modules"])
    config["base_model_name_or_path"] = f"drawn/{base}"
    with safe_open(folder / f"saved-{name}" / "adapter_model.safetensors", "np") as file:
        tensors = {key: list(file.get_slice(key).get_shape()) for key in sorted(file.keys())}
    return {"base": base, "config": config, "tensors": tensors}


def logits(base: str, adapter: Path, folder: Path, *, merged: bool = True) -> npt.NDArray[np.float32]:
    """What PEFT computes with an adapter, merged into its base or beside it."""
    import peft
    import torch

    model = peft.PeftModel.from_pretrained(load_base(base, folder), adapter)
    model = (model.merge_and_unload() if merged else model).eval()
    with torch.no_grad():
        if base in DECODERS:
            ids = torch.tensor(draw_ids(base, DECODERS[base]["length"], 128), dtype=torch.long)[None]
            return np.asarray(model(ids).logits[0, DECODERS[base]["rows"]].numpy(), np.float32)
        import transformers

        tokenizer = transformers.AutoTokenizer.from_pretrained(folder / f"base-{base}")
        rows = [model(**tokenizer(*pair, return_tensors="pt")).logits[0] for pair in ENCODERS[base]["pairs"][:2]]
        return np.asarray(torch.stack(rows).numpy(), np.float32)


def check_ours(name: str, made: dict[str, Any], folder: Path) -> None:
    """Have PEFT load what we write of a case."""
    from lattice_inference.lora import load_adapter_file, save_peft_safetensors

    adapter = load_adapter_file(folder / name)
    if adapter.replaced or any(site.bias is not None for site in adapter.sites.values()):
        return
    ours = save_peft_safetensors(adapter, folder / f"ours-{name}")
    expected = logits(made["base"], folder / name, folder)
    got = logits(made["base"], ours, folder)
    print(f"{name}: {np.abs(expected - got).max():.2g} between PEFT's logits with its adapter and with ours")
    assert np.abs(expected - got).max() <= LIMIT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the committed files, write nothing")
    arguments = parser.parse_args()
    import peft
    import torch
    import transformers

    outputs = {}
    cases = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name in CASES:
            cases[name] = case(name, folder)
            write_adapter(folder / name, name, cases[name])
            outputs[name] = logits(cases[name]["base"], folder / name, folder)
            if name in PLAIN:
                outputs[f"{name} attached"] = logits(cases[name]["base"], folder / name, folder, merged=False)
            if arguments.check:
                check_ours(name, cases[name], folder)
    made_with = {each.__name__: each.__version__ for each in (torch, transformers, peft)}
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
