"""Training: what it learns, and the rules it keeps."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from lattice_fann import (
    Activation,
    BackpropTrainer,
    CosineDecay,
    EpochRecord,
    ExponentialDecay,
    FormatError,
    GradientError,
    GradientGuardStrategy,
    InvalidInputError,
    LinearDecay,
    Loss,
    Network,
    NetworkBuilder,
    NumericInstability,
    Optimizer,
    SizeMismatchError,
    StepDecay,
    TrainingConfig,
    TrainingError,
    TrainingResult,
    TrainingState,
    Warmup,
    gradients,
    set_num_threads,
)

XOR = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], dtype=np.float32), np.array([0, 1, 1, 0], dtype=np.float32)


def blobs(count: int = 300, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Three clusters that overlap a little."""
    generator = np.random.RandomState(seed)
    labels = generator.randint(0, 3, count)
    centres = np.array([[0, 2, 0, 1], [2, 0, 1, 0], [-1, -1, 0, 2]])
    return (centres[labels] + generator.standard_normal((count, 4)) * 0.7).astype(np.float32), labels


def classifier(seed: int = 0) -> Network:
    return NetworkBuilder().input(4).hidden(16, Activation.TANH).output(3, Activation.SOFTMAX).build(seed=seed)


def train(network: Network, x: object, y: object, **options: object) -> TrainingResult:
    keywords = {
        name: options.pop(name)
        for name in ("sample_weight", "class_weight", "validation", "callbacks", "resume_from")
        if name in options
    }
    defaults = {"optimizer": Optimizer.ADAM, "learning_rate": 0.01, "max_epochs": 20, "target_error": None, "seed": 5}
    config = TrainingConfig(**{**defaults, **options})  # type: ignore[arg-type]
    return BackpropTrainer(network, config).train(x, y, **keywords)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(5))
def test_xor_is_learned(seed: int) -> None:
    network = NetworkBuilder().input(2).hidden(8, Activation.TANH).output(1, Activation.SIGMOID).build(seed=seed)
    config = TrainingConfig(learning_rate=0.5, max_epochs=3000, batch_size=4, weight_decay=0.0, seed=seed)
    result = BackpropTrainer(network, config).train(*XOR)
    assert result.converged
    assert result.final_error < 0.001
    assert (np.round(network.forward_batch(XOR[0])).ravel() == XOR[1]).all()


def test_a_line_is_learned_with_the_defaults() -> None:
    x = np.linspace(-1, 1, 50, dtype=np.float32).reshape(-1, 1)
    network = NetworkBuilder().input(1).output(1).build(seed=0)
    result = BackpropTrainer(network).train(x, 3 * x - 1)
    assert result.converged
    assert network.forward([0.5])[0] == pytest.approx(0.5, abs=0.1)


def test_a_curve_is_learned() -> None:
    x = np.linspace(-3, 3, 400, dtype=np.float32).reshape(-1, 1)
    network = NetworkBuilder().input(1).hidden(32, Activation.SILU).hidden(32, Activation.SILU).output(1).build(seed=0)
    train(network, x, np.sin(x), max_epochs=300, weight_decay=0.0, schedule=CosineDecay())
    residual = network.forward_batch(x) - np.sin(x)
    assert 1 - residual.var() / np.sin(x).var() > 0.999


@pytest.mark.slow
def test_digits_are_learned() -> None:
    """97 % of scikit-learn's digits, on samples kept out."""
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    order = np.random.RandomState(0).permutation(len(digits.data))
    x, labels = (digits.data / 16).astype(np.float32)[order], digits.target[order]
    network = NetworkBuilder().input(64).hidden(128, Activation.RELU).output(10, Activation.SOFTMAX).build(seed=1)
    result = train(network, x[:1437], labels[:1437], learning_rate=2e-3, max_epochs=30, seed=1)
    assert (network.forward_batch(x[1437:]).argmax(axis=1) == labels[1437:]).mean() >= 0.97
    assert result.epochs_trained == 30


@pytest.mark.parametrize("optimizer", list(Optimizer))
def test_same_seed_gives_the_same_bits_on_any_threads(optimizer: Optimizer) -> None:
    generator = np.random.RandomState(0)
    x, labels = generator.standard_normal((700, 200)), generator.randint(0, 3, 700)
    results = []
    for threads in (1, 2, 4):
        set_num_threads(threads)
        network = NetworkBuilder().input(200).dense(130).output(3, Activation.SOFTMAX).build(seed=0)
        train(network, x, labels, optimizer=optimizer, max_epochs=3, batch_size=256, max_gradient_norm=0.5)
        results.append(network.to_bytes())
    assert results[0] == results[1] == results[2]


def test_shuffles_differ_by_epoch_and_seed() -> None:
    def history(seed: int | None, shuffle: bool = True) -> list[float]:
        # batches of one sample: the mean loss of an epoch depends on the order
        return train(classifier(), *blobs(40), batch_size=1, seed=seed, shuffle=shuffle, max_epochs=2).error_history

    assert history(1) == history(1)
    assert history(1) != history(2)
    assert history(1) != history(1, shuffle=False)
    assert history(None) != history(None)
    from lattice_fann.initialization import random_generator

    orders = [random_generator(1, 1, epoch).permutation(50).tolist() for epoch in range(3)]
    assert orders[0] != orders[1] != orders[2]


def test_the_loss_reported_is_the_mean_over_samples() -> None:
    network, (x, labels) = classifier(), blobs(50)
    wanted = gradients(network, x, labels).loss
    # a rate this small leaves the weights as they are
    result = train(network, x, labels, optimizer=Optimizer.SGD, learning_rate=1e-30, batch_size=7, max_epochs=1)
    assert result.final_error == pytest.approx(wanted, rel=1e-6)


def test_weight_decay_does_not_depend_on_the_batch_size() -> None:
    """With a gradient of zero, a step shrinks the weights by rate times decay, whatever the batch."""
    for batch_size in (1, 8, 64):
        network = NetworkBuilder().input(3).output(1).build(seed=0)
        before = network.layers[0].weights.copy()
        train(
            network, np.zeros((64, 3)), np.zeros(64), optimizer=Optimizer.SGD, momentum=0.0, learning_rate=0.1,
            weight_decay=0.5, batch_size=batch_size, max_epochs=batch_size,
        )  # fmt: skip
        # every batch size makes 64 steps
        assert network.layers[0].weights == pytest.approx(before * 0.95**64, rel=1e-4)


def test_biases_are_decayed_only_on_request() -> None:
    for decay_biases in (False, True):
        network = NetworkBuilder().input(1).output(1).build(seed=0)
        network.layers[0].weights, network.layers[0].biases = [[0.0]], [1.0]
        train(
            network, [[0.0]], [1.0], optimizer=Optimizer.SGD, momentum=0.0, learning_rate=0.1, weight_decay=1.0,
            decay_biases=decay_biases, max_epochs=1,
        )  # fmt: skip
        assert network.layers[0].biases[0] == pytest.approx(0.9 if decay_biases else 1.0)


def test_clipping_by_norm_shortens_the_step() -> None:
    network = NetworkBuilder().input(2).output(1).build(seed=0)
    before = np.append(network.layers[0].weights, network.layers[0].biases)
    train(
        network, [[3.0, 4.0]], [1000.0], optimizer=Optimizer.SGD, momentum=0.0, learning_rate=1.0, weight_decay=0.0,
        max_gradient_norm=0.25, max_epochs=1,
    )  # fmt: skip
    step = np.append(network.layers[0].weights, network.layers[0].biases) - before
    assert np.linalg.norm(step) == pytest.approx(0.25, rel=1e-5)
    assert step / np.linalg.norm(step) == pytest.approx(np.array([3, 4, 1]) / 26**0.5, rel=1e-4)


def test_clipping_leaves_a_short_gradient_alone() -> None:
    def trained(limit: float | None) -> bytes:
        network = classifier()
        train(network, *blobs(40), max_epochs=2, batch_size=8, max_gradient_norm=limit)
        return network.to_bytes()

    assert trained(1e6) == trained(None)


def test_gains_below_min_delta_count_as_none() -> None:
    """The loss falls by about 0.004 an epoch: the first is the best, and three without a gain of 0.1 end it."""
    network = NetworkBuilder().input(1).output(1).build(seed=0)
    result = train(
        network, [[1.0]], [3.0], optimizer=Optimizer.SGD, momentum=0.0, learning_rate=1e-4, weight_decay=0.0,
        min_delta=0.1, patience=3, max_epochs=50,
    )  # fmt: skip
    assert result.epochs_trained == 4
    assert sorted(set(result.error_history), reverse=True) == result.error_history  # each is a gain, a small one


def test_clipping_by_value_bounds_each_entry() -> None:
    network = NetworkBuilder().input(2).output(1).build(seed=0)
    before = network.layers[0].weights.copy()
    train(
        network, [[3.0, 1e-6]], [1000.0], optimizer=Optimizer.SGD, momentum=0.0, learning_rate=1.0, weight_decay=0.0,
        max_gradient_value=0.5, max_epochs=1,
    )  # fmt: skip
    assert (network.layers[0].weights - before)[0] == pytest.approx([0.5, 2e-3], rel=0.01)


def test_sample_weights_count_as_repetitions() -> None:
    x, labels = blobs(30)
    weights = np.random.RandomState(0).randint(0, 4, 30)
    weighted = gradients(classifier(), x, labels, sample_weight=weights)
    repeated = gradients(classifier(), np.repeat(x, weights, axis=0), np.repeat(labels, weights))
    assert weighted.loss == pytest.approx(repeated.loss, rel=1e-5)
    for a, b in zip(weighted.weights, repeated.weights, strict=True):
        assert a == pytest.approx(b, abs=1e-6)


def test_samples_without_weight_may_hold_anything() -> None:
    x, labels = blobs(30)
    x = np.vstack([x, np.full((1, 4), np.nan, dtype=np.float32)])
    result = train(
        classifier(), x, np.append(labels, 0), sample_weight=np.append(np.ones(30), 0.0), batch_size=31, max_epochs=2
    )
    assert math.isfinite(result.final_error)


def test_class_weights_move_the_decision() -> None:
    x, labels = blobs(300)
    shares = []
    for weight in (0.05, 1.0, 20.0):
        network = classifier()
        train(network, x, labels, class_weight={2: weight})
        shares.append((network.forward_batch(x).argmax(axis=1) == 2).mean())
    assert shares[0] < shares[1] < shares[2]


def test_balanced_classes_weigh_alike() -> None:
    x, labels = blobs(300)
    keep = (labels != 1) | (np.arange(300) < 30)
    x, labels = x[keep], labels[keep]
    counts = np.bincount(labels)
    balanced, by_hand = classifier(), classifier()
    train(balanced, x, labels, class_weight="balanced")
    train(by_hand, x, labels, sample_weight=(1 / counts)[labels])
    assert balanced.layers[0].weights == pytest.approx(by_hand.layers[0].weights, abs=1e-4)


def test_early_stopping_restores_the_best_weights() -> None:
    x, labels = blobs(60)
    held_x, held_labels = blobs(200, seed=9)
    network = classifier()
    result = train(
        network, x, labels, validation=(held_x, held_labels), patience=5, max_epochs=500, learning_rate=0.1,
        weight_decay=0.0,
    )  # fmt: skip
    assert result.stopped_early
    losses = [record.validation_loss for record in result.history]
    assert result.best_epoch == int(np.argmin(losses))
    assert result.epochs_trained == result.best_epoch + 6
    assert gradients(network, held_x, held_labels).loss == pytest.approx(min(losses), rel=1e-5)
    record = result.history[result.best_epoch]
    assert record.validation_accuracy == (network.forward_batch(held_x).argmax(axis=1) == held_labels).mean()


def test_a_validation_split_keeps_the_classes_shares() -> None:
    x, labels = blobs(400)
    seen: list[int] = []
    result = train(classifier(), x, labels, validation_fraction=0.25, max_epochs=2)
    assert all(record.validation_loss is not None for record in result.history)
    from lattice_fann.initialization import random_generator
    from lattice_fann.training.data import prepare, split

    data = prepare(classifier(), x, labels, Loss.CROSS_ENTROPY)
    kept, held = split(data, 0.25, random_generator(0), stratify=True)
    assert (len(kept), len(held)) == (300, 100)
    shares = held.targets.mean(axis=0) - data.targets.mean(axis=0)
    assert np.abs(shares).max() < 0.02
    rows = {tuple(row) for row in np.vstack([kept.inputs, held.inputs]).tolist()}
    assert len(rows) == 400
    assert not seen


def test_the_target_error_stops_training() -> None:
    result = train(classifier(), *blobs(), target_error=0.5, max_epochs=100)
    assert result.converged
    assert not result.stopped_early
    assert result.error_history[-1] < 0.5 <= min(result.error_history[:-1])


def test_no_epochs_leave_the_network_alone() -> None:
    network = classifier()
    before = network.to_bytes()
    result = train(network, *blobs(), max_epochs=0)
    assert (result.final_error, result.epochs_trained, result.history) == (math.inf, 0, [])
    assert network.to_bytes() == before


def test_callbacks_see_every_epoch_and_may_stop() -> None:
    seen: list[EpochRecord] = []

    def note(record: EpochRecord) -> bool:
        seen.append(record)
        return record.epoch == 3

    result = train(classifier(), *blobs(), callbacks=[note, lambda record: None])
    assert [record.epoch for record in seen] == [0, 1, 2, 3]
    assert seen == result.history
    assert result.stopped_early
    assert all(record.gradient_norm > 0 for record in seen)


@pytest.mark.parametrize("optimizer", list(Optimizer))
def test_resuming_gives_the_bits_of_an_unbroken_training(optimizer: Optimizer, tmp_path: Path) -> None:
    options = {"optimizer": optimizer, "patience": 50, "validation_fraction": 0.2, "schedule": CosineDecay()}
    whole, broken = classifier(), classifier()
    unbroken = train(whole, *blobs(), max_epochs=10, **options)
    stop = [lambda record: record.epoch == 3]
    first = train(broken, *blobs(), max_epochs=10, callbacks=stop, **options)
    first.state.save(tmp_path / "state.npz")
    other = classifier(seed=99)
    second = train(other, *blobs(), max_epochs=10, resume_from=TrainingState.load(tmp_path / "state.npz"), **options)
    assert first.error_history + second.error_history == unbroken.error_history
    assert other.to_bytes() == whole.to_bytes()
    assert [record.epoch for record in second.history] == [4, 5, 6, 7, 8, 9]


def test_a_state_of_another_network_is_refused(tmp_path: Path) -> None:
    state = train(classifier(), *blobs(), max_epochs=1).state
    other = NetworkBuilder().input(4).output(3, Activation.SOFTMAX).build(seed=0)
    with pytest.raises(InvalidInputError, match="the state is of a network"):
        train(other, *blobs(), resume_from=state)
    (tmp_path / "no.npz").write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(FormatError, match="no training state"):
        TrainingState.load(tmp_path / "no.npz")


def spoilt() -> tuple[np.ndarray, np.ndarray]:
    x, labels = blobs(64)
    x[17, 2] = np.nan
    return x, labels


def test_the_guard_names_the_sample_and_restores_the_weights() -> None:
    network = classifier()
    before = network.to_bytes()
    with pytest.raises(NumericInstability, match="value 2 of row 17 of the input"):
        train(network, *spoilt(), batch_size=8, gradient_guard=GradientGuardStrategy.ERROR)
    assert network.to_bytes() == before


def test_the_guard_skips_a_batch() -> None:
    result = train(classifier(), *spoilt(), batch_size=8, gradient_guard=GradientGuardStrategy.SKIP_BATCH, max_epochs=3)
    assert [record.skipped_batches for record in result.history] == [1, 1, 1]
    assert all(math.isfinite(error) for error in result.error_history)


def test_the_guard_leaves_out_the_sample() -> None:
    x, labels = spoilt()
    guarded, clean = classifier(), classifier()
    result = train(
        guarded, x, labels, batch_size=64, shuffle=False, gradient_guard=GradientGuardStrategy.SANITIZE, max_epochs=3
    )
    train(clean, np.delete(x, 17, axis=0), np.delete(labels, 17), batch_size=63, shuffle=False, max_epochs=3)
    assert result.history[0].skipped_batches == 0
    assert guarded.layers[0].weights == pytest.approx(clean.layers[0].weights, abs=1e-5)


def test_validation_measures_the_samples_that_count() -> None:
    x, labels = spoilt()
    skip = GradientGuardStrategy.SKIP_BATCH
    result = train(classifier(), x, labels, gradient_guard=skip, validation_fraction=0.5, batch_size=1, max_epochs=2)
    assert all(math.isfinite(record.validation_loss or math.nan) for record in result.history)
    bad = np.full((3, 4), np.nan)
    with pytest.raises(InvalidInputError, match="no validation sample counts"):
        train(classifier(), *blobs(), gradient_guard=skip, validation=(bad, [0, 1, 2]))
    with pytest.raises(NumericInstability, match="row 0 of the input"):
        train(classifier(), *blobs(), validation=(bad, [0, 1, 2]))


@pytest.mark.parametrize("guard", list(GradientGuardStrategy))
def test_an_epoch_without_a_usable_batch_is_an_error(guard: GradientGuardStrategy) -> None:
    with pytest.raises((TrainingError, NumericInstability)):
        train(classifier(), np.full((8, 4), np.nan), np.zeros(8, dtype=int), gradient_guard=guard)


def test_the_guard_covers_the_forward_pass_of_hidden_layers() -> None:
    """The reference guarded gradients only: a forward value that overflowed ended training under every strategy."""
    x = np.array([[1.0, 1.0], [3e38, 3e38]], dtype=np.float32)
    for guard in (GradientGuardStrategy.SKIP_BATCH, GradientGuardStrategy.SANITIZE):
        network = NetworkBuilder().input(2).hidden(4, Activation.RELU).output(1).build(seed=0)
        network.layers[0].weights = np.ones((4, 2))
        result = train(network, x, [0.0, 0.0], batch_size=1, gradient_guard=guard, max_epochs=2)
        assert result.history[0].skipped_batches == 1
        assert math.isfinite(result.final_error)


def test_the_guard_covers_the_backward_pass() -> None:
    """A forward pass that is finite, and gradients that are not."""
    x = np.array([[1e20], [1.0]], dtype=np.float32)
    y = np.array([-1e19, 0.5], dtype=np.float32)

    def network() -> Network:
        network = NetworkBuilder().input(1).output(1).build(seed=0)
        network.layers[0].weights = [[0.1]]
        return network

    options = {"batch_size": 1, "max_epochs": 1, "optimizer": Optimizer.SGD, "learning_rate": 1e-3}
    with pytest.raises(GradientError, match="not finite"):
        train(network(), x, y, **options)
    result = train(network(), x, y, gradient_guard=GradientGuardStrategy.SKIP_BATCH, **options)
    assert result.history[0].skipped_batches == 1


def test_divergence_is_an_error_of_its_own_and_keeps_the_last_good_weights() -> None:
    """scikit-learn 29504: divergence under early stopping crashed in the scorer."""
    network = NetworkBuilder().input(4).hidden(16, Activation.RELU).output(1).build(seed=0)
    x, _ = blobs()
    with pytest.raises((NumericInstability, GradientError)):
        train(
            network, x, x[:, 0] * 10, optimizer=Optimizer.SGD, learning_rate=1e3, validation_fraction=0.2, patience=5,
            max_epochs=200,
        )  # fmt: skip
    assert np.isfinite(network.parameters).all()
    assert np.isfinite(network.forward_batch(x)).all()


@pytest.mark.parametrize(
    ("schedule", "wanted"),
    [
        (StepDecay(every=2, factor=0.5), [1, 1, 0.5, 0.5, 0.25]),
        (ExponentialDecay(0.9), [0.9**i for i in range(5)]),
        (LinearDecay(end=0.5), [1, 0.9, 0.8, 0.7, 0.6]),
        (CosineDecay(), [0.5 * (1 + math.cos(math.pi * i / 5)) for i in range(5)]),
        (Warmup(2, LinearDecay()), [0, 0.5, 1, 2 / 3, 1 / 3]),
        (Warmup(4, start=0.2), [0.2, 0.4, 0.6, 0.8, 1]),
        (lambda epoch, max_epochs: 1 / (1 + epoch), [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5]),
    ],
)
def test_schedules_scale_the_rate(schedule: object, wanted: list[float]) -> None:
    x, labels = blobs(30)
    result = train(classifier(), x, labels, batch_size=30, schedule=schedule, max_epochs=5, learning_rate=0.1)
    assert [record.learning_rate for record in result.history] == pytest.approx([0.1 * factor for factor in wanted])


def test_schedules_move_within_an_epoch() -> None:
    result = train(classifier(), *blobs(30), batch_size=10, schedule=LinearDecay(), max_epochs=2, learning_rate=1.0)
    assert result.history[0].learning_rate == pytest.approx(1 - (2 / 3) / 2)


def test_a_schedule_that_gives_no_factor_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="the schedule gave"):
        train(classifier(), *blobs(30), schedule=lambda epoch, max_epochs: math.nan)


@pytest.mark.parametrize(
    "options",
    [
        {"learning_rate": 0.0},
        {"learning_rate": math.nan},
        {"momentum": 1.0},
        {"weight_decay": -1.0},
        {"weight_decay": math.inf},
        {"max_epochs": -1},
        {"batch_size": 0},
        {"batch_size": 1.5},
        {"patience": 0},
        {"beta2": 1.0},
        {"epsilon": 0.0},
        {"epsilon": 1e-50},
        {"validation_fraction": 1.0},
        {"max_gradient_norm": math.nan},
        {"temperature": 0.0},
        {"huber_delta": -1.0},
        {"loss": "mse"},
        {"optimizer": 3},
    ],
    ids=str,
)
def test_impossible_configurations_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(options))):
        TrainingConfig(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.empty((0, 4)), np.empty(0, dtype=int), "no samples"),
        (np.zeros((3, 5)), np.zeros(3, dtype=int), r"\(samples, 4\)"),
        (np.zeros((3, 4)), np.zeros(2, dtype=int), "3 inputs and 2 targets"),
        (np.zeros((3, 4)), [0, 1, 3], "from 0 to 2"),
        (np.zeros((3, 4)), [0, -1, 2], "from 0 to 2"),
        (np.zeros((3, 4)), np.full((3, 3), 0.5), "sum to 1"),
        (np.zeros((3, 4)), np.full((3, 3), 0.2), "sum to 1"),
        (np.zeros((3, 4)), np.full((3, 3), np.nan), "not finite"),
        (np.zeros((3, 4)), np.zeros((3, 2)), r"\(samples, 3\)"),
        (np.zeros((3, 4)), ["a", "b", "c"], "numbers"),
    ],
)
def test_data_that_do_not_fit_are_refused(x: object, y: object, message: str) -> None:
    with pytest.raises((SizeMismatchError, InvalidInputError), match=message):
        train(classifier(), x, y)


def test_an_interrupt_leaves_whole_weights() -> None:
    network = classifier()
    states: list[bytes] = []

    def interrupt(record: EpochRecord) -> None:
        states.append(network.to_bytes())
        if record.epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(network, *blobs(), callbacks=[interrupt])
    assert network.to_bytes() == states[-1]
