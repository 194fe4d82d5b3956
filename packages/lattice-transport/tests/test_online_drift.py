import math

import numpy as np
import pytest

from lattice_transport import (
    DimensionMismatchError,
    InvalidInputError,
    MixedModelsError,
    NonFinitePointError,
    OnlineDriftDetector,
    PointClouds,
    SinkhornConfig,
    TooFewSamplesError,
    Verdict,
    sinkhorn_divergence,
)


def stream(seed, n, d=6, shift=0.0):
    return np.random.default_rng(seed).normal(size=(n, d)) + shift


def feed(detector, vectors):
    return [detector.observe(vector) for vector in vectors]


@pytest.fixture
def detector():
    made = OnlineDriftDetector(32, check_interval=8, permutations=99, false_alarm_rate=0.05)
    feed(made, stream(0, 64))
    return made


def test_windows_fill_before_the_first_check():
    detector = OnlineDriftDetector(16, check_interval=4, permutations=99)
    statuses = [observation.status for observation in feed(detector, stream(0, 40))]
    assert statuses[:32] == ["warming"] * 32
    assert statuses[32:36] == ["skipped"] * 3 + [statuses[35]]
    assert statuses[35] in ("stable", "drift")
    assert detector.samples_seen == 40


@pytest.mark.parametrize("metric", ["sqeuclidean", "euclidean", "cosine"])
def test_check_is_the_divergence_of_the_windows(metric):
    detector = OnlineDriftDetector(32, check_interval=7, permutations=99, metric=metric)
    vectors = stream(1, 100, shift=0.5)
    feed(detector, vectors)
    observation = detector.check()
    np.testing.assert_array_equal(detector.window(), vectors[-32:])
    config = SinkhornConfig(epsilon=detector.epsilon, convergence_threshold=1e-10, max_iterations=5000)
    expected = sinkhorn_divergence(None, None, PointClouds(vectors[-32:], vectors[:32], metric), config=config)
    assert observation.divergence == pytest.approx(expected.value, abs=1e-6)


def test_shift_is_found_and_cools_down(detector):
    observations = feed(detector, stream(1, 64, shift=1.5))
    statuses = [observation.status for observation in observations]
    assert "drift" in statuses
    first = statuses.index("drift")
    alarm = observations[first]
    assert alarm.divergence > alarm.threshold
    assert alarm.p_value <= 0.05
    assert alarm.verdict.decision in (Verdict.WATCH, Verdict.REINDEX)
    after = [status for status in statuses[first + 1 : first + 32] if status != "skipped"]
    assert set(after) == {"cooling"}
    assert detector.check().verdict.decision is Verdict.REINDEX


@pytest.mark.slow
def test_stable_stream_seldom_alarms():
    """300 checks of independent windows at 5 %: within the binomial 99.9 % band."""
    alarms = 0
    for seed in range(300):
        vectors = stream(seed, 48, 3)
        detector = OnlineDriftDetector(16, check_interval=16, permutations=39, false_alarm_rate=0.05, seed=seed)
        feed(detector, vectors[:47])
        alarms += detector.observe(vectors[47]).status == "drift"
    assert 3 <= alarms <= 29


def test_refused_vectors_leave_the_detector_as_it_was(detector):
    detector.observe(stream(5, 1)[0], fingerprint="a")
    before = detector.window(), detector.samples_seen
    for bad, error in (
        (np.zeros(5), DimensionMismatchError),
        (np.full(6, math.nan), NonFinitePointError),
        (np.r_[np.zeros(5), math.inf], NonFinitePointError),
        (np.zeros((2, 3)), InvalidInputError),
        (["x"] * 6, InvalidInputError),
        (np.zeros(0), InvalidInputError),
    ):
        with pytest.raises(error):
            detector.observe(bad)
    with pytest.raises(MixedModelsError):
        detector.observe(np.zeros(6), fingerprint="b")
    np.testing.assert_array_equal(detector.window(), before[0])
    assert detector.samples_seen == before[1]


def test_reference_of_another_model_may_be_given():
    detector = OnlineDriftDetector(
        16, reference=stream(0, 50), reference_fingerprint="old", permutations=99, check_interval=1
    )
    assert detector.threshold is not None
    observations = [detector.observe(vector, fingerprint="new") for vector in stream(1, 16, shift=3.0)]
    assert [observation.status for observation in observations] == ["warming"] * 15 + ["drift"]
    assert any("two models" in reason for reason in observations[-1].verdict.reasons)


def test_reference_must_be_large_enough_to_calibrate():
    with pytest.raises(TooFewSamplesError, match="32"):
        OnlineDriftDetector(16, reference=stream(0, 31))


def test_reset_takes_the_window_as_reference(detector):
    feed(detector, stream(1, 64, shift=2.0))
    assert detector.check().status == "drift"
    detector.reset_reference()
    assert detector.threshold is None
    with pytest.raises(TooFewSamplesError):
        detector.check()
    with pytest.raises(TooFewSamplesError):
        detector.reset_reference()
    observations = feed(detector, stream(2, 32, shift=2.0))
    assert {observation.status for observation in observations} == {"warming"}
    assert detector.check().effect_size < 0.5


@pytest.mark.parametrize("taken", [0, 10, 40, 64, 70, 150])
def test_restored_detector_goes_on_with_the_same_bits(tmp_path, taken):
    vectors = stream(3, 200)
    vectors[150:] += 1.0
    whole = OnlineDriftDetector(32, check_interval=8, permutations=99)
    feed(whole, vectors[:taken])
    whole.save(tmp_path / "state.npz")
    restored = OnlineDriftDetector.restore(tmp_path / "state.npz")
    assert repr(restored) == repr(whole)
    assert feed(restored, vectors[taken:]) == feed(whole, vectors[taken:])
    assert [path.name for path in tmp_path.iterdir()] == ["state.npz"]


def test_damaged_files_are_refused(tmp_path, detector):
    path = tmp_path / "state.npz"
    detector.save(path)
    data = path.read_bytes()
    for damaged in (b"", b"x", data[:100], data[: len(data) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(InvalidInputError):
            OnlineDriftDetector.restore(path)
    np.savez(path, state=np.zeros(3, np.uint8))
    with pytest.raises(InvalidInputError):
        OnlineDriftDetector.restore(path)
    with pytest.raises(FileNotFoundError):
        OnlineDriftDetector.restore(tmp_path / "none.npz")


@pytest.mark.parametrize(
    "settings",
    [
        {"window_size": 15},
        {"window_size": 5000},
        {"check_interval": 0},
        {"false_alarm_rate": 1.0},
        {"false_alarm_rate": 0.001},
        {"epsilon": 0.0},
        {"cooldown": -1},
        {"metric": "x"},
        {"reindex_effect": math.nan},
    ],
)
def test_bad_settings_are_refused(settings):
    with pytest.raises(InvalidInputError):
        OnlineDriftDetector(**settings)


def test_a_detector_takes_one_thread_at_a_time(tmp_path):
    import threading

    from lattice_transport import BusyError

    vectors = np.random.default_rng(0).normal(size=(60, 3))
    alone, detector, ends = OnlineDriftDetector(window_size=16), OnlineDriftDetector(window_size=16), []

    class Vector:
        """What NumPy asks for its numbers while the detector looks at it."""

        def __init__(self, numbers):
            self.numbers = numbers

        def __array__(self, dtype=None, copy=None):
            def work():
                for call in (
                    lambda: detector.observe(np.ones(3)),
                    detector.check,
                    detector.reset_reference,
                    detector.window,
                    lambda: detector.save(tmp_path / "d"),
                ):
                    try:
                        call()
                    except BusyError as error:
                        ends.append(error)

            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            return self.numbers

    for vector in vectors:
        expected = alone.observe(vector)
        found = detector.observe(Vector(vector))
        assert found == expected
    assert ends
    assert len(ends) % 5 == 0
