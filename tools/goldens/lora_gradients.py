"""Makes the gradients that PyTorch and PEFT compute for factors of small drawn models.

A case has a base (of tests/data/decoders or tests/data/architectures), settings of a LoraConfig, and for an encoder a
pooling. Factors and tokens are drawn from names. Writes tests/data/gradients/gradients.npz: the loss of each case, and every
eleventh number of dA and dB of each site, in float32. ``--check`` makes them again and compares. Needs torch, transformers
and peft==0.21.2.
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
TARGET = TESTS / "data" / "gradients"
LIMIT = 1e-5

sys.path.insert(0, str(TESTS / "models"))
from drawn_checkpoints import write_directory  # noqa: E402
from training_cases import CASES, RANK, base_case, drawn_batch, drawn_factors, path_stem, sample  # noqa: E402


def adapted(name: str, folder: Path) -> Any:
    """Return the base of a case with PEFT's layers, and our drawn factors in them."""
    import peft
    import torch
    import transformers

    case = CASES[name]
    directory = write_directory(folder / name, base_case(case.base))
    kind = getattr(transformers, base_case(case.base)["files"]["config.json"]["architectures"][0])
    if case.loss == "vectors":
        kind = transformers.AutoModel
    base = kind.from_pretrained(directory, dtype=torch.float64, attn_implementation="eager").eval()
    sites = "all-linear" if case.sites == "all-linear" else list(case.sites)
    config = peft.LoraConfig(
        r=RANK, lora_alpha=case.scaling * RANK, target_modules=sites, exclude_modules=["pooler.dense"]
    )
    model = peft.get_peft_model(base, config).eval()
    for path, layer in model.base_model.model.named_modules():
        if hasattr(layer, "lora_A"):
            site = layer.lora_A["default"].weight.shape[1], layer.lora_B["default"].weight.shape[0]
            a, b = drawn_factors(path, *site)
            layer.lora_A["default"].weight.data = torch.from_numpy(a).double()
            layer.lora_B["default"].weight.data = torch.from_numpy(b).double()
    return model.double()


def loss_of(name: str, model: Any) -> Any:
    """Return the loss of a case's packed batch: each sequence is run alone."""
    import torch

    case = CASES[name]
    batch = drawn_batch(name)
    total = torch.zeros((), dtype=torch.float64)
    for index, (start, end) in enumerate(zip(batch.cu_seqlens[:-1], batch.cu_seqlens[1:], strict=True)):
        ids = torch.from_numpy(batch.token_ids[start:end].astype(np.int64))[None]
        if case.loss == "tokens":
            logits = model(ids).logits[0]
            targets = torch.from_numpy(batch.targets[start:end].astype(np.int64))
            losses = torch.nn.functional.cross_entropy(logits, targets, reduction="none", ignore_index=-100)
            total = total + (losses * torch.from_numpy(batch.weights[start:end]).double()).sum()
            continue
        vector = model(ids).logits[0] if case.loss == "scores" else pooled(case, model(ids).last_hidden_state[0])
        total = total + (vector * torch.from_numpy(batch.d_vectors[index, : len(vector)]).double()).sum()
    return total


def pooled(case: Any, states: Any) -> Any:
    import torch

    vector = {"mean": states.mean(0), "cls": states[0], "last": states[-1]}[case.pooling]
    return torch.nn.functional.normalize(vector, dim=0) if case.normalize else vector


def gradients(name: str, folder: Path) -> dict[str, npt.NDArray[Any]]:
    """Return the loss and the gradients of each site by its path."""
    model = adapted(name, folder)
    loss = loss_of(name, model)
    loss.backward()
    made: dict[str, npt.NDArray[Any]] = {f"{name}/loss": np.array(loss.detach().numpy(), np.float64)}
    for path, layer in model.base_model.model.named_modules():
        if hasattr(layer, "lora_A"):
            for matrix, part in (("a", layer.lora_A), ("b", layer.lora_B)):
                made[f"{name}/{path_stem(path)}/{matrix}"] = sample(part["default"].weight.grad.numpy())
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the committed files, write nothing")
    arguments = parser.parse_args()
    made: dict[str, npt.NDArray[Any]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for name in CASES:
            made |= gradients(name, Path(temporary))
            print(f"{name}: loss {made[f'{name}/loss']:.6f}")
    if not arguments.check:
        TARGET.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(TARGET / "gradients.npz", allow_pickle=False, **made)
        return
    with np.load(TARGET / "gradients.npz") as old:
        assert set(old.files) == set(made), "the committed file has other sites"
        for name in CASES:
            keys = [key for key in made if key.startswith(f"{name}/")]
            largest = max(np.abs(made[key]).max() for key in keys if not key.endswith("/loss"))
            worst = max(np.abs(old[key] - made[key]).max() / largest for key in keys if not key.endswith("/loss"))
            print(f"{name}: {worst:.2g} of the largest gradient from the committed ones")
            assert worst <= LIMIT


if __name__ == "__main__":
    main()
