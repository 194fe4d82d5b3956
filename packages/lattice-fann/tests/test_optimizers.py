"""Optimizers against PyTorch: goldens made by tools/goldens/fann_goldens.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lattice_fann import (
    Activation,
    BackpropTrainer,
    Layer,
    Network,
    NetworkBuilder,
    Optimizer,
    TrainingConfig,
    gradients,
)

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


@pytest.mark.slow
def test_a_step_moves_every_parameter_of_a_wide_layer_once() -> None:
    """Wide layers are updated in blocks; the first block moves the biases, and no other."""
    network = NetworkBuilder().input(400).hidden(200, Activation.TANH).output(3, Activation.SOFTMAX).build(seed=0)
    generator = np.random.RandomState(0)
    x, labels = generator.standard_normal((50, 400)).astype(np.float32), generator.randint(0, 3, 50)
    before, step = network.parameter_vector(), gradients(network, x, labels).vector()
    assert np.abs(step).min() < np.abs(step).max()
    config = TrainingConfig(learning_rate=0.5, momentum=0.0, weight_decay=0.0, batch_size=50, max_epochs=1, seed=0)
    BackpropTrainer(network, config).train(x, labels)
    assert network.parameter_vector() - before == pytest.approx(-0.5 * step, rel=1e-3, abs=1e-6)
    assert np.abs(network.layers[0].biases).min() > 0
