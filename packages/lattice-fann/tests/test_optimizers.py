"""Optimizers against PyTorch: goldens made by tools/goldens/fann_goldens.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lattice_fann import Activation, BackpropTrainer, Layer, Network, Optimizer, TrainingConfig

GOLDENS = Path(__file__).parent / "data" / "torch_trajectories.npz"


@pytest.fixture(scope="module")
def goldens() -> dict[str, np.ndarray]:
    with np.load(GOLDENS) as archive:
        return {name: archive[name] for name in archive.files}


@pytest.mark.parametrize("name", ["sgd", "nesterov", "adam", "adamw", "rmsprop", "rprop"])
def test_trajectories_are_those_of_pytorch(goldens: dict[str, np.ndarray], name: str, isa: str) -> None:
    activations = [Activation.TANH, Activation.GELU, Activation.SOFTMAX]
    starts = [goldens[f"weight_{i}"] for i in range(3)]
    network = Network([Layer(w, np.zeros(len(w)), a) for w, a in zip(starts, activations, strict=True)], isa=isa)
    steps = goldens[f"{name}_losses"].size
    config = TrainingConfig(
        optimizer=Optimizer[name.upper()],
        learning_rate=0.1 if name in ("sgd", "nesterov") else 0.01,
        weight_decay=0.0 if name == "rprop" else 0.01,
        batch_size=40,
        shuffle=False,
        max_epochs=steps,
        target_error=None,
    )
    result = BackpropTrainer(network, config).train(goldens["inputs"], goldens["classes"])
    assert result.error_history == pytest.approx(goldens[f"{name}_losses"].tolist(), abs=1e-5)
    for i, layer in enumerate(network.layers):
        for mine, wanted in (
            (layer.weights, goldens[f"{name}_weight_{i}"]),
            (layer.biases, goldens[f"{name}_bias_{i}"]),
        ):
            assert np.linalg.norm(mine - wanted) <= 1e-5 * np.linalg.norm(wanted)
