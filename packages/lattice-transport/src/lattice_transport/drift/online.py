"""Drift in a stream: a frozen reference window against a sliding window of what came last."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lattice_transport import _transport
from lattice_transport.arrays import as_numbers
from lattice_transport.atomic_file import as_path
from lattice_transport.checks import check_choice, check_count, check_kind, check_number, check_positive, check_seed
from lattice_transport.costs import METRICS, Metric, as_points, cost_matrix, points_that_fit
from lattice_transport.drift.detect import choose_epsilon, effect_size
from lattice_transport.drift.report import DriftVerdict, check_rate, judge
from lattice_transport.drift.state import check_state, read_state, write_state
from lattice_transport.drift.statistic import PooledDivergence, quantile_threshold
from lattice_transport.errors import (
    DimensionMismatchError,
    InvalidInputError,
    MixedModelsError,
    NonFinitePointError,
    TooFewSamplesError,
)
from lattice_transport.one_thread import one_thread

__all__ = ["DriftObservation", "OnlineDriftDetector"]

_Float64 = npt.NDArray[np.float64]
Status = Literal["warming", "skipped", "stable", "drift", "cooling"]

_WINDOW_LIMITS = (16, 4096)
_NORM_FLOOR = 1e-12
_SOLVE_THRESHOLD = 1e-5
_MOST_ITERATIONS = 500
_MOST_PERMUTATIONS = 100_000
_MOST_WORK = 1 << 34  # permutations times the costs of a window
_SUSPICION = 4.0  # a threshold this much looser than the rate misses little that a permutation test would confirm


@dataclass(frozen=True)
class DriftObservation:
    """What the detector made of one vector.

    Attributes:
        status: ``warming`` windows fill; ``skipped`` no check was due; ``stable`` or ``drift`` a check was made;
            ``cooling`` a check was due, but an alarm was raised shortly before.
        samples_seen: vectors taken in so far.
        divergence: of a check: between the reference and the window; else None.
        threshold: what a divergence must exceed to be suspect; None until it is calibrated.
        p_value: of a suspect divergence: from the permutation test that confirms an alarm. A test that cannot confirm
            any more ends early, and its p-value is then rough.
        effect_size: of a check: the shift in units of the reference's spread.
        verdict: of a check: what to do, and why.
    """

    status: Status
    samples_seen: int
    divergence: float | None = None
    threshold: float | None = None
    p_value: float | None = None
    effect_size: float | None = None
    verdict: DriftVerdict | None = None


_alone = one_thread("this detector")


class OnlineDriftDetector:
    """Watches a stream of vectors for drift away from a reference.

    The first ``window_size`` vectors are the reference, the next as many calibrate. Random halvings of the two together
    give the divergence's distribution without drift. The threshold is the quantile of it that leaves the upper four
    ``false_alarm_rate`` above. From then on every ``check_interval``-th vector has the last ``window_size`` vectors
    compared with the reference. A divergence above the threshold is a suspicion, which a permutation test of reference
    and window confirms or not: an alarm needs both. Under no drift the two are exchangeable, so the test, hence the
    alarm, keeps the stated rate whatever the distribution. The rate is one of each check; checks closer than a window
    share vectors, so their alarms come together.

    A vector that is refused (wrong length, not finite, another model's) leaves the detector as it was. A call from a
    second thread beside another one raises :class:`BusyError`.

    Args:
        window_size: vectors a window, 16 to 4,096.
        check_interval: vectors between two checks.
        false_alarm_rate: of a check on a stream that does not drift.
        reference: at least ``2 window_size`` vectors to start with: no warming up then but for the sliding window.
        metric: as for :class:`~lattice_transport.PointClouds`.
        epsilon: strength of the entropic term, in units of the cost; None takes half of the mean cost at calibration.
        cooldown: vectors after an alarm for which no other is raised; None for ``window_size``.
        reindex_effect: the effect size from which the verdict is ``reindex``.
        permutations: halvings to calibrate with, and permutations of a confirmation: at most 100,000, and at most 2^34
            divided by the square of ``window_size``.
        seed: of both.
        reference_fingerprint: what model made ``reference``.

    Raises:
        InvalidInputError: and its kinds, for settings or a reference that cannot be.

    >>> import numpy as np
    >>> random = np.random.default_rng(0)
    >>> detector = OnlineDriftDetector(32, check_interval=16)
    >>> def alarms(vectors):
    ...     return sum(detector.observe(vector).status == "drift" for vector in vectors)
    >>> alarms(random.normal(size=(128, 4))), alarms(random.normal(loc=2.0, size=(64, 4))) > 0
    (0, True)
    """

    def __init__(
        self,
        window_size: int = 128,
        *,
        check_interval: int = 16,
        false_alarm_rate: float = 0.01,
        reference: npt.ArrayLike | None = None,
        metric: Metric = "sqeuclidean",
        epsilon: float | None = None,
        cooldown: int | None = None,
        reindex_effect: float = 0.5,
        permutations: int = 199,
        seed: int = 0,
        reference_fingerprint: str | None = None,
    ) -> None:
        window_size = check_count("window_size", window_size, least=_WINDOW_LIMITS[0], most=_WINDOW_LIMITS[1])
        check_interval = check_count("check_interval", check_interval)
        # the work of a calibration: a damaged or foreign state must not keep a stream waiting for hours
        most = min(_MOST_PERMUTATIONS, _MOST_WORK // window_size**2)
        permutations = check_count("permutations", permutations, most=most)
        false_alarm_rate = check_number("false_alarm_rate", false_alarm_rate)
        seed = check_seed(seed)
        check_rate(false_alarm_rate, permutations)
        reindex_effect = check_positive("reindex_effect", reindex_effect)
        if epsilon is not None:
            epsilon = check_positive("epsilon", epsilon)
        if cooldown is not None:
            cooldown = check_count("cooldown", cooldown, least=0)
        check_choice("metric", metric, METRICS)
        if reference_fingerprint is not None:
            check_kind("reference_fingerprint", reference_fingerprint, str)
        self.window_size = window_size
        self.check_interval = check_interval
        self.false_alarm_rate = false_alarm_rate
        self._suspicion_rate = min(_SUSPICION * false_alarm_rate, 0.5)
        self.metric: Metric = metric
        self.cooldown: int = window_size if cooldown is None else cooldown
        self.reindex_effect = reindex_effect
        self.permutations = permutations
        self.seed = seed
        self._given_epsilon = epsilon
        self._epsilon = epsilon
        self._dimension: int | None = None
        self._reference: _Float64 | None = None
        self._pending: list[_Float64] = []  # vectors of the windows that still fill
        self._window: _Float64 | None = None
        self._position = 0  # the window's oldest vector: the next to be replaced
        self._filled = 0
        self._null: _Float64 | None = None
        self._threshold: float | None = None
        self._spread = 0.0
        self._reference_term = 0.0
        self._reference_fingerprint = reference_fingerprint
        self._fingerprint: str | None = None
        self._samples_seen = 0
        self._since_check = 0
        self._cooling = 0
        self._last: DriftObservation | None = None
        if reference is not None:
            self._start_from(as_points(reference, "the reference").astype(np.float64))

    @property
    def samples_seen(self) -> int:
        """Vectors taken in so far, those of a given reference left out."""
        return self._samples_seen

    @property
    def threshold(self) -> float | None:
        """What a divergence must exceed to be suspect; None until calibrated."""
        return self._threshold

    @property
    def epsilon(self) -> float | None:
        """Strength of the entropic term; None until calibrated, unless given."""
        return self._epsilon

    @property
    def null(self) -> _Float64 | None:
        """The divergences that calibration drew; None until then."""
        return None if self._null is None else self._null.copy()

    @property
    def last_check(self) -> DriftObservation | None:
        """The last observation with a divergence."""
        return self._last

    def _start_from(self, vectors: _Float64) -> None:
        needed = 2 * self.window_size
        if len(vectors) < needed:
            raise TooFewSamplesError("the reference", len(vectors), needed)
        chosen = np.random.default_rng(self.seed).permutation(len(vectors))[:needed]
        self._dimension = vectors.shape[1]
        self._calibrate(vectors[chosen[: self.window_size]], vectors[chosen[self.window_size :]])

    def _calibrate(self, reference: _Float64, other: _Float64) -> None:
        """Set reference, epsilon and threshold from two windows of vectors that have not drifted."""
        size = self.window_size
        pooled = np.concatenate([reference, other])
        costs = cost_matrix(pooled, pooled, self.metric)
        self._epsilon = choose_epsilon(costs) if self._given_epsilon is None else self._given_epsilon
        divergence = PooledDivergence(costs, np.full(2 * size, 1.0 / (2 * size)), self._epsilon, size)
        random = np.random.default_rng(self.seed)
        null = []
        for _ in range(self.permutations):
            order = random.permutation(2 * size)
            null.append(divergence.between(order[:size], order[size:])[0])
        self._null = np.array(null)
        self._threshold = quantile_threshold(self._null, self._suspicion_rate)
        self._reference = reference.copy()
        # not a part of `costs`, whose last bits depend on the other window: a restored detector has the reference only
        self._prepare(np.asarray(cost_matrix(reference, reference, self.metric)))

    def _prepare(self, within: _Float64) -> None:
        """Prepare checks: the reference's self term, solvers, and matrices to fill row by row."""
        size, assumed = self.window_size, self._epsilon
        assert assumed is not None
        assert self._reference is not None
        self._spread = 0.5 * float(within.sum()) / (size * (size - 1))
        self._self_solver = _transport.Solver(size, size, double_precision=True)
        self._cross_solver = _transport.Solver(size, size, double_precision=True)
        uniform = np.full(size, 1.0 / size)
        within = np.ascontiguousarray(within)
        self._within = within
        self._self_solver.bind_matrix(within)
        self._self_solver.set_weights(uniform, uniform)
        self._self_solver.configure(assumed, symmetric=True)
        self._self_solver.run(_MOST_ITERATIONS, _SOLVE_THRESHOLD, adapt=False)
        self._reference_term = assumed * self._self_solver.dual
        # checks start from the potentials of the reference, then from those of the check before
        self._cross_solver.bind_matrix(within)
        self._cross_solver.set_weights(uniform, uniform)
        self._cross_solver.v[:size] = self._self_solver.v[:size]
        self._reference_ready = self._ready_points(self._reference)
        self._cross_costs = np.zeros((size, size))
        self._own_costs = np.zeros((size, size))
        self._window = np.zeros((size, self._reference.shape[1]))
        self._window_ready = np.zeros_like(self._window)
        self._position = self._filled = 0

    def _ready_points(self, points: _Float64) -> _Float64:
        if self.metric != "cosine":
            return points
        unit: _Float64 = points / np.maximum(np.linalg.norm(points, axis=-1, keepdims=True), _NORM_FLOOR)
        return unit

    def _costs_to(self, point: _Float64, points: _Float64) -> _Float64:
        if self.metric == "cosine":
            return np.clip(1.0 - points @ point, 0.0, 2.0)
        gap = points - point
        squared: _Float64 = np.einsum("ik,ik->i", gap, gap)
        return np.sqrt(squared) if self.metric == "euclidean" else squared

    def _push(self, vector: _Float64) -> None:
        """Replace the window's oldest vector.

        This updates a row of the cross costs, and a row and column of the window's costs.
        """
        assert self._window is not None
        place = self._position
        ready = self._ready_points(vector)
        self._window[place] = vector
        self._window_ready[place] = ready
        # rows of the cross problem are the window, so that a new vector is one contiguous row
        self._cross_costs[place] = self._costs_to(ready, self._reference_ready)
        own = self._costs_to(ready, self._window_ready)
        own[place] = 0.0
        self._own_costs[place] = own
        self._own_costs[:, place] = own
        self._position = (place + 1) % self.window_size
        self._filled = min(self._filled + 1, self.window_size)

    def _checked(self, vector: npt.ArrayLike, fingerprint: str | None) -> _Float64:
        array = as_numbers(vector, "the vector")
        if array.ndim != 1 or array.size == 0:
            raise InvalidInputError(f"the vector has shape {array.shape}; it must have one dimension and a coordinate")
        with np.errstate(over="ignore"):  # of longer floats: infinity is refused below
            array = array.astype(np.float64)
        if self._dimension is not None and len(array) != self._dimension:
            raise DimensionMismatchError("length of the vector", expected=self._dimension, actual=len(array))
        finite = np.isfinite(array)
        if not finite.all():
            index = int(np.argmin(finite))
            raise NonFinitePointError("the stream", self._samples_seen, index, float(array[index]))
        points_that_fit(array, "the vector", self.metric)
        if fingerprint is not None:
            check_kind("fingerprint", fingerprint, str)
        if fingerprint is not None and self._fingerprint is not None and fingerprint != self._fingerprint:
            raise MixedModelsError("the stream", [self._fingerprint, fingerprint])
        return array

    @_alone
    def observe(self, vector: npt.ArrayLike, *, fingerprint: str | None = None) -> DriftObservation:
        """Take in a vector and say what it shows.

        Args:
            vector: (dimension,), finite.
            fingerprint: what model made it: all vectors of the stream must agree. The reference may be another model's.

        Raises:
            InvalidInputError: and its kinds: the vector is refused, and the detector is as it was.
        """
        checked = self._checked(vector, fingerprint)
        if fingerprint is not None:
            self._fingerprint = fingerprint
        self._dimension = len(checked)
        self._samples_seen += 1
        if self._threshold is None:
            self._warm_up(checked)
            return DriftObservation("warming", self._samples_seen, threshold=self._threshold)
        self._push(checked)
        self._cooling = max(self._cooling - 1, 0)
        if self._filled < self.window_size:
            return DriftObservation("warming", self._samples_seen, threshold=self._threshold)
        self._since_check += 1
        if self._since_check < self.check_interval:
            return DriftObservation("skipped", self._samples_seen, threshold=self._threshold)
        self._since_check = 0
        if self._cooling > 0:
            return DriftObservation("cooling", self._samples_seen, threshold=self._threshold)
        return self.check()

    def _warm_up(self, vector: _Float64) -> None:
        size = self.window_size
        needed = size if self._reference is not None else 2 * size
        self._pending.append(vector)
        if len(self._pending) < needed:
            return
        vectors = np.stack(self._pending)
        self._pending = []
        reference = vectors[:size] if self._reference is None else self._reference
        if self._reference_fingerprint is None:
            self._reference_fingerprint = self._fingerprint
        last = vectors[-size:]
        self._calibrate(reference, last)
        for row in last:
            self._push(row)

    @_alone
    def check(self) -> DriftObservation:
        """Compare the window with the reference now, whether or not a check is due.

        Raises:
            TooFewSamplesError: the window is not full yet.
        """
        if self._threshold is None or self._filled < self.window_size:
            raise TooFewSamplesError(
                "the window", len(self._pending) if self._threshold is None else self._filled, self.window_size
            )
        assert self._epsilon is not None
        assert self._null is not None
        cross, own = self._cross_solver, self._self_solver
        cross.bind_matrix(self._cross_costs)
        cross.configure(self._epsilon)
        cross_converged = cross.run(_MOST_ITERATIONS, _SOLVE_THRESHOLD, adapt=True)
        own.bind_matrix(self._own_costs)
        own.configure(self._epsilon, symmetric=True)
        own_converged = own.run(_MOST_ITERATIONS, _SOLVE_THRESHOLD, adapt=False)
        divergence = self._epsilon * (cross.dual - 0.5 * own.dual) - 0.5 * self._reference_term
        effect = effect_size(divergence, self._null, self._spread)
        p_value = self._confirmation() if divergence > self._threshold else None
        drifted = p_value is not None and p_value <= self.false_alarm_rate
        evidence = (
            f"{'drift' if drifted else 'no drift'}: divergence {divergence:.4g}, suspect above {self._threshold:.4g}, "
            + ("" if p_value is None else f"p = {p_value:.3g} ")
            + f"for a false-alarm rate of {self.false_alarm_rate:g} with windows of {self.window_size}"
        )
        observation = DriftObservation(
            status="drift" if drifted else "stable",
            samples_seen=self._samples_seen,
            divergence=max(divergence, 0.0),
            threshold=self._threshold,
            p_value=p_value,
            effect_size=effect,
            verdict=judge(
                drifted=drifted,
                evidence=evidence,
                effect_size=effect,
                reindex_effect=self.reindex_effect,
                models=(self._reference_fingerprint, self._fingerprint),
                converged=cross_converged and own_converged,
            ),
        )
        if drifted:
            self._cooling = self.cooldown
        self._last = observation
        return observation

    def _confirmation(self) -> float:
        """Return the permutation p-value of reference and window.

        It ends once there can be no alarm.
        """
        size = self.window_size
        costs = np.empty((2 * size, 2 * size))
        costs[:size, :size] = self._within
        costs[size:, :size] = self._cross_costs
        costs[:size, size:] = self._cross_costs.T
        costs[size:, size:] = self._own_costs
        assert self._epsilon is not None
        divergence = PooledDivergence(costs, np.full(2 * size, 1.0 / (2 * size)), self._epsilon, size)
        order = np.arange(2 * size)
        observed = divergence.between(order[:size], order[size:])[0]
        random = np.random.default_rng((self.seed, self._samples_seen))
        allowed = self.false_alarm_rate * (self.permutations + 1)
        exceeding = 0
        for done in range(1, self.permutations + 1):
            drawn = random.permutation(order)
            exceeding += divergence.between(drawn[:size], drawn[size:])[0] >= observed
            if exceeding + 1 > allowed + 1e-9:
                return (exceeding + 1) / (done + 1)
        return (exceeding + 1) / (self.permutations + 1)

    @_alone
    def window(self) -> _Float64:
        """Return the vectors of the sliding window, oldest first."""
        if self._window is None or self._filled == 0:
            return np.empty((0, self._dimension or 0))
        if self._filled < self.window_size:
            return self._window[: self._filled].copy()
        return np.roll(self._window, -self._position, axis=0)

    @_alone
    def reset_reference(self) -> None:
        """Make the sliding window the reference.

        The next ``window_size`` vectors calibrate the threshold anew.

        Raises:
            TooFewSamplesError: the window is not full yet.
        """
        if self._threshold is None or self._filled < self.window_size:
            raise TooFewSamplesError("the window", self._filled, self.window_size)
        self._reference = self.window()
        self._reference_fingerprint = self._fingerprint
        self._threshold = None
        self._null = None
        self._epsilon = self._given_epsilon
        self._window = None
        self._filled = self._position = 0
        self._since_check = self._cooling = 0

    @_alone
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the detector to a file atomically.

        A restored detector continues with the same bits. What a killed writer to the same place left there is
        removed.

        Raises:
            OSError: it cannot be written.
        """
        state = {
            "window_size": self.window_size,
            "check_interval": self.check_interval,
            "false_alarm_rate": self.false_alarm_rate,
            "metric": self.metric,
            "epsilon": self._given_epsilon,
            "cooldown": self.cooldown,
            "reindex_effect": self.reindex_effect,
            "permutations": self.permutations,
            "seed": self.seed,
            "reference_fingerprint": self._reference_fingerprint,
            "fingerprint": self._fingerprint,
            "dimension": self._dimension,
            "samples_seen": self._samples_seen,
            "since_check": self._since_check,
            "cooling": self._cooling,
            "position": self._position,
            "chosen_epsilon": self._epsilon,
        }
        width = self._dimension or 0
        arrays: dict[str, Any] = {
            "pending": np.stack(self._pending) if self._pending else np.empty((0, width)),
            "reference": np.empty((0, width)) if self._reference is None else self._reference,
            "window": np.empty((0, width)) if self._window is None else self._window[: self._filled],
            "null": np.empty(0) if self._null is None else self._null,
        }
        calibrated = self._threshold is not None
        if calibrated:
            arrays["cross_u"] = self._cross_solver.u[: self.window_size]
            arrays["cross_v"] = self._cross_solver.v[: self.window_size]
            arrays["own_v"] = self._self_solver.v[: self.window_size]
        write_state(as_path(path), state, arrays)

    @classmethod
    def restore(cls, path: str | os.PathLike[str]) -> OnlineDriftDetector:
        """Read a detector that :meth:`save` wrote.

        Raises:
            OSError: the file cannot be read.
            InvalidInputError: it is not a detector's file, or its contents do not fit together.
        """
        name = as_path(path)
        state, arrays = read_state(name)
        try:
            return cls._from_state(state, arrays)
        except InvalidInputError as error:
            raise InvalidInputError(f"{name} is damaged: {error}") from None

    @classmethod
    def _from_state(cls, state: dict[str, Any], arrays: dict[str, _Float64]) -> OnlineDriftDetector:
        detector = cls(**check_state(state, arrays))
        size = detector.window_size
        for name in ("pending", "reference", "window"):
            if len(arrays[name]):
                points_that_fit(arrays[name], name, detector.metric)
        detector._fingerprint = state["fingerprint"]
        detector._dimension = state["dimension"]
        detector._samples_seen, detector._since_check = state["samples_seen"], state["since_check"]
        detector._cooling = state["cooling"]
        reference, window, null = arrays["reference"], arrays["window"], arrays["null"]
        detector._pending = list(arrays["pending"])
        if len(reference):
            detector._reference = reference
        if len(null) == 0:
            return detector
        detector._epsilon = check_positive("chosen_epsilon", state["chosen_epsilon"])
        detector._null = null
        detector._threshold = quantile_threshold(null, detector._suspicion_rate)
        detector._prepare(np.asarray(cost_matrix(reference, reference, detector.metric)))
        for row in window:
            detector._push(row)
        if len(window) == size:
            detector._position = state["position"] % size
        detector._cross_solver.u[:size] = arrays["cross_u"]
        detector._cross_solver.v[:size] = arrays["cross_v"]
        detector._self_solver.v[:size] = arrays["own_v"]
        return detector

    def __repr__(self) -> str:
        shown = "uncalibrated" if self._threshold is None else f"threshold {self._threshold:.4g}"
        return f"<OnlineDriftDetector window_size={self.window_size} samples_seen={self._samples_seen} {shown}>"
