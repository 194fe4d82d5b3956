"""Writes torch_trajectories.npz: the first 100 steps of PyTorch's optimizers.

The file lies in packages/lattice-fann/tests/data.

Run with the versions named in VERSIONS installed:

    python tools/goldens/fann_goldens.py packages/lattice-fann/tests/data/torch_trajectories.npz

Each optimizer trains the same network, 6 -> Tanh(12) -> GELU(7) -> Softmax(3), by cross-entropy on the same 40 samples,
all in one batch, in the order given. Weight decay applies to weights only. Stored are the data, the first weights, and
for each optimizer the loss at every step and the parameters after the last.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch  # type: ignore[import-not-found, unused-ignore]

VERSIONS = {"torch": "2.13.0", "numpy": "2.4.6"}
STEPS = {"rprop": 40}  # later its steps overshoot a loss of zero: chaos, not arithmetic
DEFAULT_STEPS = 100
DECAY = 0.01
OPTIMIZERS = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9),
    "nesterov": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda groups: torch.optim.Adam(groups, lr=0.01),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.01),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, lr=0.01),
    "rprop": lambda groups: torch.optim.Rprop(
        [parameter for group in groups for parameter in group["params"]], lr=0.01
    ),
}


def model(weights: list[np.ndarray], biases: list[np.ndarray]) -> torch.nn.Sequential:
    sizes = [(6, 12), (12, 7), (7, 3)]
    layers = [torch.nn.Linear(*size) for size in sizes]
    with torch.no_grad():
        for layer, weight, bias in zip(layers, weights, biases, strict=True):
            layer.weight.copy_(torch.from_numpy(weight))
            layer.bias.copy_(torch.from_numpy(bias))
    return torch.nn.Sequential(layers[0], torch.nn.Tanh(), layers[1], torch.nn.GELU(), layers[2])


def main(path: str) -> None:
    installed = {"torch": torch.__version__.split("+")[0], "numpy": np.__version__}
    if installed != VERSIONS:
        raise SystemExit(f"these goldens are made with {VERSIONS}, installed are {installed}")
    torch.set_num_threads(1)
    generator = np.random.RandomState(20240607)
    x = generator.standard_normal((40, 6)).astype(np.float32)
    classes = generator.randint(0, 3, 40)
    weights = [
        (generator.standard_normal(shape) * (2.0 / sum(shape)) ** 0.5).astype(np.float32)
        for shape in [(12, 6), (7, 12), (3, 7)]
    ]
    biases = [np.zeros(len(weight), dtype=np.float32) for weight in weights]
    stored: dict[str, Any] = {"versions": np.array(str(VERSIONS)), "inputs": x, "classes": classes}
    stored |= {f"weight_{i}": weight for i, weight in enumerate(weights)}
    for name, make in OPTIMIZERS.items():
        network = model(weights, biases)
        linear = [layer for layer in network if isinstance(layer, torch.nn.Linear)]
        decay = 0.0 if name == "rprop" else DECAY
        optimizer: Any = make(  # type: ignore[no-untyped-call, unused-ignore]
            [
                {"params": [layer.weight for layer in linear], "weight_decay": decay},
                {"params": [layer.bias for layer in linear], "weight_decay": 0.0},
            ]
        )
        losses = []
        for _ in range(STEPS.get(name, DEFAULT_STEPS)):
            optimizer.zero_grad()
            loss: Any = torch.nn.functional.cross_entropy(network(torch.from_numpy(x)), torch.from_numpy(classes))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        stored[f"{name}_losses"] = np.array(losses)
        for i, layer in enumerate(linear):
            stored[f"{name}_weight_{i}"] = layer.weight.detach().numpy()
            stored[f"{name}_bias_{i}"] = layer.bias.detach().numpy()
    np.savez_compressed(path, **stored)


if __name__ == "__main__":
    main(sys.argv[1])
