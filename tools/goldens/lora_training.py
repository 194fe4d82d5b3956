"""Makes what PyTorch gives for parts of training: AdamW, and losses with gradients.

Writes packages/lattice-tune/tests/data/lora/torch.npz; ``--check`` makes it again and compares. The losses are written
here as sentence-transformers defines them. Needs torch.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cosine_similarity, cross_entropy, normalize

TARGET = Path(__file__).resolve().parents[2] / "packages" / "lattice-tune" / "tests" / "data" / "lora" / "torch.npz"


def adamw(found: dict[str, np.ndarray], *, steps: int = 100) -> None:
    """Train a vector on drawn gradients, clipped by their norm; A and B have rates 1:4."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(48, generator=generator) for _ in range(2))
    found["adamw_start"] = torch.cat([a, b]).numpy()
    gradients = torch.randn(steps, 96, generator=generator) * torch.rand(steps, 1, generator=generator) * 0.3
    found["adamw_gradients"] = gradients.numpy()
    parameters = [torch.nn.Parameter(a.clone()), torch.nn.Parameter(b.clone())]
    groups = [{"params": [parameters[0]], "lr": 1e-2}, {"params": [parameters[1]], "lr": 4e-2}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.05)
    for step in range(steps):
        for parameter, part in zip(parameters, gradients[step].split(48), strict=True):
            parameter.grad = part.clone()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
    found["adamw_end"] = torch.cat([parameter.detach() for parameter in parameters]).numpy()


def losses(found: dict[str, np.ndarray]) -> None:
    """Evaluate each loss on drawn vectors."""
    generator = torch.Generator().manual_seed(1)
    a, b, c = (torch.randn(6, 5, generator=generator, dtype=torch.float64) for _ in range(3))
    scores = torch.tensor([0.1, 0.9, 0.4, 0.4, 1.0, 0.0], dtype=torch.float64)
    logits = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    classes = torch.tensor([0, 3, 1, 1, 2, 0])
    found |= {name: value.numpy() for name, value in {"a": a, "b": b, "c": c, "scores": scores}.items()}
    found |= {"logits": logits.numpy(), "classes": classes.numpy()}

    def note(name: str, loss: torch.Tensor, *inputs: torch.Tensor) -> None:
        found[name] = loss.detach().numpy()
        for place, gradient in enumerate(torch.autograd.grad(loss, inputs)):
            found[f"{name}_d{place}"] = gradient.numpy()

    x, y, z, w = (value.clone().requires_grad_() for value in (a, b, c, logits))
    candidates = torch.cat([y, z])
    similar = 20.0 * normalize(x) @ normalize(candidates).T
    note("ranking", cross_entropy(similar, torch.arange(6)), x, y, z)
    cosines = cosine_similarity(x, y)
    pairs = 20.0 * (cosines[:, None] - cosines[None, :])
    kept = torch.where(scores[:, None] < scores[None, :], pairs, torch.full_like(pairs, -1e12))
    note("cosent", torch.logsumexp(torch.cat([torch.zeros(1, dtype=pairs.dtype), kept.reshape(-1)]), 0), x, y)
    note("cosine", torch.nn.functional.mse_loss(cosine_similarity(x, y), scores), x, y)
    near, far = 1 - cosine_similarity(x, y), 1 - cosine_similarity(x, z)
    note("triplet", torch.relu(near - far + 0.5).mean(), x, y, z)
    note("ce", cross_entropy(w, classes), w)
    column = w[:, 0]
    note("bce", binary_cross_entropy_with_logits(column, scores), w)


def main() -> None:
    """Write or compare the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    torch.set_num_threads(1)
    found: dict[str, np.ndarray] = {}
    adamw(found)
    losses(found)
    if not check:
        TARGET.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(TARGET, allow_pickle=False, **found)
        return
    with np.load(TARGET) as stored:
        assert set(stored.files) == set(found)
        for name, value in found.items():
            np.testing.assert_allclose(value, stored[name], rtol=1e-5, atol=1e-6, err_msg=name)


if __name__ == "__main__":
    main()
