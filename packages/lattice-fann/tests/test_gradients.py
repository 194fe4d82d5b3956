"""Gradients against finite differences, and the kernels against float64."""

from __future__ import annotations

import numpy as np
import pytest

from lattice_fann import (
    Activation,
    InvalidInputError,
    Loss,
    Network,
    NetworkBuilder,
    available_isas,
    check_gradients,
    gradients,
    mixed_targets,
    set_num_threads,
)

EVERY_ACTIVATION = [
    Activation.LINEAR,
    Activation.SIGMOID,
    Activation.TANH,
    Activation.RELU,
    Activation.LEAKY_RELU,
    Activation.GELU,
    Activation.SILU,
]


OUTPUTS = {
    Loss.MSE: [*EVERY_ACTIVATION, Activation.SOFTMAX],
    Loss.HUBER: [*EVERY_ACTIVATION, Activation.SOFTMAX],
    Loss.CROSS_ENTROPY: [Activation.SOFTMAX],
    Loss.KL: [Activation.SOFTMAX],
    Loss.BINARY_CROSS_ENTROPY: [Activation.SIGMOID],
    Loss.DISTILLATION: [Activation.SOFTMAX],
}
PAIRS = [(loss, output) for loss, outputs in OUTPUTS.items() for output in outputs]


def problem(loss: Loss, output: Activation, hidden: Activation, isa: str | None = None) -> tuple[Network, ...]:
    generator = np.random.RandomState(5)
    network = NetworkBuilder().input(9).hidden(20, hidden).hidden(7, hidden).output(5, output).build(seed=3, isa=isa)
    for layer in network.layers:
        layer.biases = generator.standard_normal(layer.num_outputs) * 0.1
    x = generator.standard_normal((33, 9)).astype(np.float32)
    if loss is Loss.DISTILLATION:
        t = mixed_targets(generator.dirichlet(np.ones(5), 33), temperature=2.5, hard_share=0.5)
    elif loss.wants_distributions:
        t = generator.dirichlet(np.ones(5), 33)
    elif loss is Loss.BINARY_CROSS_ENTROPY:
        t = generator.uniform(size=(33, 5))
    else:
        t = generator.standard_normal((33, 5))
    return network, x, t


ISAS = available_isas()
GRID = []  # the quick run has every pair of an instruction set, a loss and an activation; the slow one has all of them
for row, (loss, output) in enumerate(PAIRS):
    for column, hidden in enumerate(EVERY_ACTIVATION):
        for place, isa in enumerate(ISAS):
            quick = (row + column) % len(ISAS) == place
            # The differences are those of the float64 reference, the same whatever computes the gradients.
            case = (loss, output, hidden, isa, 60 if quick else 1)
            name = f"{loss.name}-{output.name}-{hidden.name}-{isa}"
            GRID.append(pytest.param(*case, id=name, marks=[] if quick else [pytest.mark.slow]))


@pytest.mark.parametrize(("loss", "output", "hidden", "isa", "samples"), GRID)
def test_gradients_are_those_of_the_loss(
    loss: Loss, output: Activation, hidden: Activation, isa: str, samples: int
) -> None:
    network, x, t = problem(loss, output, hidden, isa)
    weights = np.random.RandomState(1).uniform(0.1, 2, 33)
    check = check_gradients(
        network, x, t, loss=loss, sample_weight=weights, huber_delta=0.7, temperature=2.5, samples=samples
    )
    assert check.finite_difference_error <= 1e-6
    assert check.float32_error <= 1e-6


def test_input_scaling_takes_part_in_gradients() -> None:
    network, x, t = problem(Loss.MSE, Activation.LINEAR, Activation.TANH)
    network.fit_input_scaling(x * 3 + 1)
    check = check_gradients(network, x * 3 + 1, t)
    assert check.finite_difference_error <= 1e-6
    assert check.float32_error <= 1e-6


def test_wide_and_deep_networks_agree_with_float64() -> None:
    network = (
        NetworkBuilder()
        .input(300)
        .hidden(130, Activation.GELU)
        .hidden(70, Activation.SILU)
        .output(4, Activation.SOFTMAX)
    ).build(seed=0)
    generator = np.random.RandomState(0)
    check = check_gradients(network, generator.standard_normal((200, 300)), generator.randint(0, 4, 200), samples=20)
    assert check.finite_difference_error <= 1e-6
    assert check.float32_error <= 1e-6


def test_gradients_have_the_same_bits_on_any_threads() -> None:
    network = NetworkBuilder().input(300).dense(130).dense(70).output(4, Activation.SOFTMAX).build(seed=0)
    generator = np.random.RandomState(0)
    x, labels = generator.standard_normal((301, 300)), generator.randint(0, 4, 301)
    results = []
    for threads in (1, 2, 3, 5):
        set_num_threads(threads)
        results.append(gradients(network, x, labels))
    for result in results[1:]:
        assert result.loss == results[0].loss
        for mine, first in zip(
            [*result.weights, *result.biases], [*results[0].weights, *results[0].biases], strict=True
        ):
            assert (mine == first).all()


def test_kl_is_zero_where_the_student_is_the_teacher() -> None:
    network, x, _ = problem(Loss.KL, Activation.SOFTMAX, Activation.TANH)
    result = gradients(network, x, network.forward_batch(x), loss=Loss.KL)
    assert result.loss == pytest.approx(0, abs=1e-6)
    assert max(np.abs(w).max() for w in result.weights) < 1e-6


def test_kl_accepts_hard_targets() -> None:
    network, x, _ = problem(Loss.KL, Activation.SOFTMAX, Activation.TANH)
    labels = np.arange(33) % 5
    soft = gradients(network, x, labels, loss=Loss.KL)
    assert soft.loss == pytest.approx(gradients(network, x, labels).loss, rel=1e-6)


def test_extreme_logits_keep_loss_and_gradient_finite() -> None:
    for output, loss in ((Activation.SOFTMAX, Loss.CROSS_ENTROPY), (Activation.SIGMOID, Loss.BINARY_CROSS_ENTROPY)):
        network = NetworkBuilder().input(2).output(2, output).build(seed=0)
        network.layers[0].weights = [[500, 0], [0, 500]]
        result = gradients(network, [[1, -1]], np.array([[0.0, 1.0]]), loss=loss)
        assert result.loss == pytest.approx(1000 if output.is_softmax else 500, rel=1e-5)
        assert np.isfinite(result.weights[0]).all()
        assert np.abs(result.weights[0]).max() > 0.4


@pytest.mark.parametrize(
    ("loss", "output"),
    [
        (Loss.CROSS_ENTROPY, Activation.LINEAR),
        (Loss.KL, Activation.SIGMOID),
        (Loss.BINARY_CROSS_ENTROPY, Activation.SOFTMAX),
    ],
)
def test_losses_refuse_outputs_that_they_are_not_defined_for(loss: Loss, output: Activation) -> None:
    network = NetworkBuilder().input(2).output(2, output).build(seed=0)
    with pytest.raises(InvalidInputError, match=f"{loss.name} needs a"):
        gradients(network, [[1, 2]], [[0, 1]], loss=loss)
