"""Schedules, early stopping, metrics and configurations."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from lattice_tune import (
    ConfigError,
    EarlyStopping,
    EpochMetrics,
    InvalidInputError,
    LRSchedule,
    Optimizer,
    OptimizerConfig,
    RegularizationConfig,
    TrainingConfig,
    TrainingMetrics,
)


def epoch(number: int, train: float = 1.0, loss: float | None = 1.0, accuracy: float | None = 0.5) -> EpochMetrics:
    return EpochMetrics(
        epoch=number,
        train_loss=train,
        val_loss=loss,
        val_accuracy=accuracy,
        learning_rate=0.1,
        gradient_norm=1.0,
        duration_seconds=0.0,
        examples_seen=10,
    )


def test_schedules_follow_their_formulas() -> None:
    base = 0.1
    assert LRSchedule.constant().get_lr(base, 1000, 1000) == base
    assert LRSchedule.step_decay(10, 0.5).get_lr(base, 0, 25) == pytest.approx(0.1 * 0.25)
    assert LRSchedule.exponential_decay(0.9).get_lr(base, 0, 3) == pytest.approx(0.1 * 0.729)
    cosine = LRSchedule.cosine_annealing(0.01, 20)
    assert cosine.get_lr(base, 0, 0) == pytest.approx(0.1)
    assert cosine.get_lr(base, 0, 10) == pytest.approx(0.055)
    assert cosine.get_lr(base, 0, 20) == pytest.approx(0.1)  # it begins anew
    both = LRSchedule.cosine_annealing_warmup(4, 0.01, 20)
    assert [both.get_lr(base, step, 0) for step in range(4)] == pytest.approx([0.025, 0.05, 0.075, 0.1])
    assert both.get_lr(base, 100, 5) == pytest.approx(0.01 + 0.09 * (1 + math.cos(math.pi / 4)) / 2)


def test_warmup_does_not_begin_at_zero() -> None:
    warmup = LRSchedule.linear_warmup(10)
    assert warmup.get_lr(1.0, 0, 0) == pytest.approx(0.1)
    assert warmup.get_lr(1.0, 9, 0) == 1.0
    assert warmup.get_lr(1.0, 10, 0) == 1.0


def test_one_cycle_never_falls_below_its_floor() -> None:
    cycle = LRSchedule.one_cycle(0.5, 0.25, 100)
    rates = [cycle.get_lr(0.1, step, 0) for step in range(300)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[25] == pytest.approx(0.5)
    assert rates[100] == rates[299] == pytest.approx(0.001)
    assert min(rates) >= 0.001 - 1e-12
    assert all(after <= before for before, after in pairwise(rates[25:]))


@pytest.mark.parametrize(
    "make",
    [
        lambda: LRSchedule(kind="other"),
        lambda: LRSchedule.linear_warmup(0),
        lambda: LRSchedule.step_decay(0, 0.5),
        lambda: LRSchedule.exponential_decay(float("nan")),
        lambda: LRSchedule.exponential_decay(1.1),
        lambda: LRSchedule.one_cycle(0.1, 1.0, 10),
        lambda: LRSchedule.cosine_annealing(-1.0, 10),
        lambda: OptimizerConfig(learning_rate=0),
        lambda: OptimizerConfig(learning_rate=float("inf")),
        lambda: OptimizerConfig(beta1=1.0),
        lambda: OptimizerConfig(optimizer="adam"),  # type: ignore[arg-type]
        lambda: RegularizationConfig(dropout=1.0),
        lambda: RegularizationConfig(label_smoothing=float("nan")),
        lambda: RegularizationConfig(gradient_clip=0),
        lambda: EarlyStopping(patience=0),
        lambda: EarlyStopping(monitor="loss"),
        lambda: EarlyStopping(mode="most"),
        lambda: TrainingConfig(epochs=0),
        lambda: TrainingConfig(batch_size=8193),
        lambda: TrainingConfig(val_split=0.95),
        lambda: TrainingConfig(val_split=0),
        lambda: TrainingConfig(seed=-1),
        lambda: TrainingConfig(optimizer=None),  # type: ignore[arg-type]
    ],
)
def test_configurations_that_make_no_sense_are_refused(make: object) -> None:
    with pytest.raises(ConfigError):
        make()  # type: ignore[operator]


def test_presets_are_valid() -> None:
    assert TrainingConfig.quick().epochs == 10
    assert TrainingConfig.thorough().schedule.kind == "cosine_annealing_warmup"
    assert RegularizationConfig.none().gradient_clip is None
    assert RegularizationConfig.light().dropout < RegularizationConfig.strong().dropout
    assert TrainingConfig().to_dict()["optimizer"]["optimizer"] == Optimizer.ADAMW.value


def test_early_stopping_finds_the_minimum_and_the_maximum() -> None:
    stopping = EarlyStopping(patience=2, min_delta=0.05)
    state = stopping.begin()
    for number, loss in enumerate([1.0, 0.9, 0.87, 0.88]):
        state = stopping.observe(state, epoch(number, loss=loss))
    assert (state.best, state.best_epoch, state.waited, stopping.is_over(state)) == (0.9, 1, 2, True)
    for accuracy in (
        EarlyStopping(monitor="val_accuracy", patience=2),
        EarlyStopping(monitor="val_accuracy", mode="max"),
    ):
        state = accuracy.begin()
        for number, value in enumerate([0.5, 0.6, 0.55]):
            state = accuracy.observe(state, epoch(number, accuracy=value))
        assert (state.best, state.best_epoch, state.waited) == (0.6, 1, 1)


def test_a_value_that_is_not_a_number_is_never_better() -> None:
    for stopping in (EarlyStopping(), EarlyStopping(monitor="val_accuracy")):
        state = stopping.observe(stopping.begin(), epoch(0, loss=math.nan, accuracy=math.nan))
        assert (state.best_epoch, state.waited) == (None, 1)
    with pytest.raises(InvalidInputError, match="val_split"):
        EarlyStopping().observe(EarlyStopping().begin(), epoch(0, loss=None))


def test_overfitting_is_seen() -> None:
    history = [epoch(i, train=1.0 - i / 10, loss=1.0 + i / 10) for i in range(4)]
    metrics = TrainingMetrics((epoch(0, loss=0.5), *history))
    assert metrics.is_overfitting(3)
    assert not metrics.is_overfitting(5)
    assert not TrainingMetrics(tuple(history[::-1])).is_overfitting(2)
    assert (metrics.best_val_loss, TrainingMetrics().best_epoch) == (0.5, None)
