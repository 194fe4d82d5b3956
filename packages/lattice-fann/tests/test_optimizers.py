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
from lattice_fann.errors import InvalidInputError
from lattice_fann.training.flat_update import update_parameters

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


def test_vectors_that_are_none_and_numbers_without_sense_are_refused() -> None:
    def vectors(size: int = 16) -> list[np.ndarray]:
        return [np.zeros(size, np.float32) for _ in range(4)]

    read_only = np.zeros(16, np.float32)
    read_only.flags.writeable = False
    for given in (
        [3] * 4,
        [None] * 4,
        [[0.0] * 16] * 4,
        vectors(15),
        [*vectors()[:3], np.zeros(32, np.float32)],
        [np.float32(0)] * 4,
        [np.zeros((4, 4), np.float32)] * 4,
        [np.zeros(16)] * 4,
        [np.zeros(32, np.float32)[::2]] * 4,
        [read_only, *vectors()[:3]],
    ):
        with pytest.raises(InvalidInputError, match="must be float32 vectors of one size"):
            update_parameters(Optimizer.ADAM, *given, learning_rate=0.1, step=1)  # type: ignore[arg-type]
    for name, value in (("step", 10**400), ("step", 0), ("epsilon", 1e-50), ("gradient_scale", 1e39), ("beta1", 1.0)):
        options = {"learning_rate": 0.1, "step": 1} | {name: value}
        with pytest.raises(InvalidInputError, match=name):
            update_parameters(Optimizer.ADAM, *vectors(), **options)  # type: ignore[arg-type]
    parameters, gradients_of, *moments = vectors()
    update_parameters(Optimizer.ADAM, parameters, gradients_of, *moments, learning_rate=0.1, step=1, epsilon=2**-126)
    assert not parameters.any()  # and no NaN, where gradients are 0
