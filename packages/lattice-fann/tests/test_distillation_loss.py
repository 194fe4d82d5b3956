"""Distillation: two cross-entropies with one row of targets, and dropout of inputs."""

from __future__ import annotations

import numpy as np
import pytest

from lattice_fann import (
    Activation,
    BackpropTrainer,
    InvalidInputError,
    Loss,
    Network,
    NetworkBuilder,
    SizeMismatchError,
    TrainingConfig,
    TrainingState,
    gradients,
    mixed_targets,
    set_num_threads,
)


def problem() -> tuple[Network, np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.RandomState(0)
    network = NetworkBuilder().input(6).dense(12).output(4, Activation.SOFTMAX).build(seed=1)
    x = generator.standard_normal((40, 6)).astype(np.float32)
    return network, x, generator.dirichlet(np.ones(4), 40), generator.randint(0, 4, 40)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_its_gradient_is_that_of_kl_and_cross_entropy_mixed(temperature: float, share: float) -> None:
    network, x, soft, hard = problem()
    targets = mixed_targets(soft, hard, temperature=temperature, hard_share=share)
    mixed = gradients(network, x, targets, loss=Loss.DISTILLATION, temperature=temperature, hard_share=share)
    kl = gradients(network, x, soft, loss=Loss.KL, temperature=temperature)
    entropy = gradients(network, x, hard)
    np.testing.assert_allclose(
        mixed.vector(), (1 - share) * kl.vector() + share * entropy.vector(), rtol=1e-4, atol=1e-6
    )
    of_the_teacher = -(soft * np.log(soft)).sum(axis=1).mean() * temperature**2
    assert mixed.loss == pytest.approx((1 - share) * (kl.loss + of_the_teacher) + share * entropy.loss, rel=1e-4)


def test_large_sums_lose_nothing() -> None:
    network, x, soft, hard = problem()
    network.layers[-1].biases = [3e4, 3e4, 3e4, 3e4]
    targets = mixed_targets(soft, hard, temperature=2.0, hard_share=0.5)
    moved = gradients(network, x, targets, loss=Loss.DISTILLATION, temperature=2.0, hard_share=0.5).loss
    network.layers[-1].biases = [0.0] * 4
    still = gradients(network, x, targets, loss=Loss.DISTILLATION, temperature=2.0, hard_share=0.5).loss
    assert moved == pytest.approx(still, rel=1e-2)


def test_training_learns_both_targets() -> None:
    network, x, soft, hard = problem()
    config = TrainingConfig(
        loss=Loss.DISTILLATION, temperature=2.0, hard_share=0.5, max_epochs=40, seed=0, batch_size=8
    )
    targets = mixed_targets(soft, hard, temperature=2.0, hard_share=0.5)
    result = BackpropTrainer(network, config).train(x, targets, validation=(x, targets))
    assert result.history[-1].loss < result.history[0].loss
    assert result.history[-1].validation_loss == pytest.approx(
        gradients(network, x, targets, loss=Loss.DISTILLATION, temperature=2.0, hard_share=0.5).loss, rel=1e-5
    )


def test_hard_targets_default_to_the_most_probable_class() -> None:
    _, _, soft, _ = problem()
    assert (
        mixed_targets(soft, temperature=2.0, hard_share=0.4)
        == mixed_targets(soft, soft.argmax(axis=1), temperature=2.0, hard_share=0.4)
    ).all()


def test_rows_of_another_temperature_are_refused() -> None:
    network, x, soft, hard = problem()
    with pytest.raises(InvalidInputError, match="mixed_targets"):
        gradients(
            network,
            x,
            mixed_targets(soft, hard, temperature=2.0, hard_share=0.5),
            loss=Loss.DISTILLATION,
            temperature=4.0,
        )


@pytest.mark.parametrize(
    ("soft", "hard", "error"),
    [
        ([0.5, 0.5], None, SizeMismatchError),
        ([[0.5, 0.6]], None, InvalidInputError),
        ([[1.5, -0.5]], None, InvalidInputError),
        ([[np.nan, 1.0]], None, InvalidInputError),
        ([[0.5, 0.5]], [2], InvalidInputError),
        ([[0.5, 0.5]], [0, 1], SizeMismatchError),
        ([[0.5, 0.5]], [[0.5, 0.4]], InvalidInputError),
    ],
)
def test_targets_that_are_none_are_refused(soft: list, hard: list | None, error: type[Exception]) -> None:
    with pytest.raises(error):
        mixed_targets(soft, hard, temperature=1.0, hard_share=0.5)


def dropped(**more: object) -> TrainingConfig:
    return TrainingConfig(**({"max_epochs": 6, "seed": 3, "batch_size": 8, "input_dropout": 0.3} | more))


def test_dropout_does_not_depend_on_threads_and_can_be_resumed(tmp_path) -> None:
    _, x, _, hard = problem()
    results = []
    for threads in (1, 3):
        set_num_threads(threads)
        network = problem()[0]
        BackpropTrainer(network, dropped()).train(x, hard)
        results.append(network.parameters.copy())
    network = problem()[0]
    half = BackpropTrainer(network, dropped(max_epochs=3)).train(x, hard)
    half.state.save(tmp_path / "state.npz")
    BackpropTrainer(network, dropped()).train(x, hard, resume_from=TrainingState.load(tmp_path / "state.npz"))
    assert (results[0] == results[1]).all()
    assert (results[0] == network.parameters).all()


def test_dropout_sets_its_part_of_the_inputs_to_zero_and_keeps_the_mean() -> None:
    """One linear layer with MSE and zero targets: its bias gradient's linear part tells what went in."""
    inputs, rows = 500, 64
    network = NetworkBuilder().input(inputs).output(1).build(seed=0)
    network.layers[0].weights = np.ones((1, inputs), np.float32)
    config = dropped(max_epochs=1, batch_size=rows, learning_rate=1e-30, weight_decay=0.0, input_dropout=0.25)
    ones = np.ones((rows, inputs), np.float32)
    record = BackpropTrainer(network, config).train(ones, np.zeros(rows)).history[0]
    # a row's sum is Binomial(n, 0.75) / 0.75: its mean square is n^2 + n / 3
    assert record.loss == pytest.approx(inputs**2 + inputs / 3, rel=0.02)
    assert record.loss != pytest.approx(inputs**2, rel=1e-6)


def test_without_dropout_training_is_what_it_was() -> None:
    _, x, _, hard = problem()
    first, second = problem()[0], problem()[0]
    BackpropTrainer(first, dropped(input_dropout=0.0)).train(x, hard)
    BackpropTrainer(second, TrainingConfig(max_epochs=6, seed=3, batch_size=8)).train(x, hard)
    assert (first.parameters == second.parameters).all()


@pytest.mark.parametrize("part", [-0.1, 1.0, np.nan, "0.1", True])
def test_a_part_that_is_none_is_refused(part: object) -> None:
    with pytest.raises(InvalidInputError, match="input_dropout"):
        TrainingConfig(input_dropout=part)  # type: ignore[arg-type]
