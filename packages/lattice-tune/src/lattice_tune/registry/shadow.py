"""Compares a candidate with the live version: agreement, latency, and a decision."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import Enum
from statistics import NormalDist

import numpy as np

from lattice_tune.arguments import flag, instance, listed, number, whole
from lattice_tune.errors import InvalidInputError, ModelNotFoundError, RegistryCorruptError, RegistryError, shown
from lattice_tune.registry.model_registry import ModelRegistry
from lattice_tune.registry.records import RegisteredModel
from lattice_tune.registry.schema import add_event, to_json
from lattice_tune.registry.statuses import ModelStatus
from lattice_tune.registry.stored_values import MOST_COUNT, check_text

__all__ = ["ShadowConfig", "ShadowProgress", "ShadowSession", "ShadowState", "wilson_interval"]

QUANTILES = (0.5, 0.95, 0.99)
SALT_BYTES = 16
SAMPLE_BYTES = 16
MOST_MS = 1e12


class ShadowState(Enum):
    """Where a session stands."""

    RUNNING = "running"
    PASSED = "passed"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class ShadowConfig:
    """When a shadow session passes.

    Attributes:
        sample_rate: which part of the requests is sampled, by a hash of the request.
        min_samples: so many are needed before anything is decided.
        min_agreement: the lower end of the interval of the agreement must reach this.
        max_latency_increase_ms: the candidate's 95th percentile may be so much above the live version's.
        confidence: of the interval.
        max_samples: a session that is undecided then has failed. ``None`` takes ten times ``min_samples``.

    Raises:
        InvalidInputError: a field is out of range.
    """

    sample_rate: float = 0.1
    min_samples: int = 1_000
    min_agreement: float = 0.95
    max_latency_increase_ms: float = 50.0
    confidence: float = 0.95
    max_samples: int | None = None

    def __post_init__(self) -> None:
        number(self.sample_rate, "sample_rate", least=0.0, most=1.0)
        if not self.sample_rate > 0:
            raise InvalidInputError("sample_rate is 0: no request would ever be sampled")
        whole(self.min_samples, "min_samples", least=1, most=MOST_COUNT)
        number(self.min_agreement, "min_agreement", least=0.0, most=1.0)
        number(self.max_latency_increase_ms, "max_latency_increase_ms", least=0.0)
        number(self.confidence, "confidence", least=0.5, most=0.999_999)
        most = 10 * self.min_samples if self.max_samples is None else self.max_samples
        object.__setattr__(self, "max_samples", whole(most, "max_samples", least=self.min_samples, most=MOST_COUNT))

    @classmethod
    def quick(cls) -> ShadowConfig:
        """Return limits for a first look: 1 of 5 requests, 100 samples, 0.9 agreement, 100 ms."""
        return cls(sample_rate=0.2, min_samples=100, min_agreement=0.9, max_latency_increase_ms=100.0)

    @classmethod
    def strict(cls) -> ShadowConfig:
        """Return limits for what must not go wrong: 10,000 samples, 0.99 agreement, 20 ms."""
        return cls(min_samples=10_000, min_agreement=0.99, max_latency_increase_ms=20.0)


@dataclass(frozen=True)
class ShadowProgress:
    """What a session has seen so far.

    Attributes:
        state: where it stands.
        reason: why it passed or failed.
        samples: how many.
        agreements: how many of them agreed.
        agreement: their part; NaN without samples.
        agreement_low: lower end of the Wilson interval.
        agreement_high: upper end.
        live_ms: the live version's time at the quantiles 0.5, 0.95 and 0.99; NaN without samples.
        candidate_ms: the candidate's.
    """

    state: ShadowState
    reason: str
    samples: int
    agreements: int
    agreement: float
    agreement_low: float
    agreement_high: float
    live_ms: dict[float, float]
    candidate_ms: dict[float, float]

    @property
    def latency_increase_ms(self) -> float:
        """The candidate's 95th percentile less the live version's."""
        return self.candidate_ms[0.95] - self.live_ms[0.95]


def wilson_interval(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return Wilson's score interval of a proportion; (0, 1) without trials.

    With p = successes / trials and z the quantile of the normal distribution, its ends are
    (p + z^2 / 2n -+ z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n).

    Raises:
        InvalidInputError: an argument is out of range.
    """
    trials = whole(trials, "trials", most=MOST_COUNT)
    successes = whole(successes, "successes", most=trials)
    confidence = number(confidence, "confidence", least=0.5, most=0.999_999)
    if trials == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    p, scale = successes / trials, 1 + z * z / trials
    middle = (p + z * z / (2 * trials)) / scale
    half = z * math.sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials)) / scale
    low = 0.0 if successes == 0 else max(0.0, middle - half)
    return low, 1.0 if successes == trials else min(1.0, middle + half)


class ShadowSession:
    """A comparison of a candidate with the production version, kept across restarts.

    The registry stores it. Any number of processes may record into one session. A sample counts once, however often
    it is recorded.

    Args:
        registry: where the models are.
        session: number of a session that was started.

    Raises:
        ModelNotFoundError: there is no such session.
    """

    def __init__(self, registry: ModelRegistry, session: int) -> None:
        self._registry = instance(registry, "registry", ModelRegistry)
        self._database = registry.store.database
        self.session: int = whole(session, "session", most=2**62)
        """The session's number, to open it again with."""
        rows = self._database.rows(
            "SELECT m.uuid, s.salt, s.config FROM shadow_sessions s JOIN models m ON m.id = s.candidate WHERE s.id = ?",
            (self.session,),
            of=(str, bytes, str),
        )
        if not rows:
            raise ModelNotFoundError(f"any model with a shadow session {self.session}")
        self._candidate, self._salt, fields = rows[0]
        try:
            if len(self._salt) != SALT_BYTES:
                raise ValueError("its salt is not what was written")
            self.config: ShadowConfig = ShadowConfig(**json.loads(fields))
        except (InvalidInputError, ValueError, TypeError, RecursionError) as error:
            raise RegistryCorruptError(
                f"{self._database.path} is damaged: shadow session {session}: {error}"
            ) from error

    @classmethod
    def start(
        cls, registry: ModelRegistry, candidate: RegisteredModel, config: ShadowConfig | None = None, *, actor: str = ""
    ) -> ShadowSession:
        """Begin to compare a candidate with the version that is in production.

        Raises:
            InvalidInputError: the candidate is in production itself, or archived or deprecated.
            ModelNotFoundError: nothing is in production, or the candidate was deleted.
            RegistryError: the candidate has a session that is running.
        """
        instance(registry, "registry", ModelRegistry)
        config = ShadowConfig() if config is None else instance(config, "config", ShadowConfig)
        actor = check_text("actor", actor)
        instance(candidate, "candidate", RegisteredModel)
        database = registry.store.database
        with database.transaction():
            current = registry.get_by_id(candidate.id)
            if not current.status.is_active or current.status is ModelStatus.PRODUCTION:
                raise InvalidInputError(
                    f"{current.reference} is {current.status.value}: it is no candidate for production"
                )
            live = registry.store.live_row(current.name)
            if live is None:
                raise ModelNotFoundError(current.name, "in production")
            if (running := cls._last(registry, current)) and running[1] == ShadowState.RUNNING.value:
                raise RegistryError(
                    f"{current.reference} has shadow session {running[0]}, which runs: resume or cancel it"
                )
            number = database.execute(
                "INSERT INTO shadow_sessions SELECT NULL, id, ?, ?, ?, ?, '' FROM models WHERE uuid = ?",
                (live[1], os.urandom(SALT_BYTES), to_json(asdict(config)), ShadowState.RUNNING.value, current.id),
            ).lastrowid
            detail = {"session": number, "baseline": live[2]}
            add_event(database, "shadow_started", current.name, str(current.version), actor, detail)
        return cls(registry, number or 0)

    @classmethod
    def resume(cls, registry: ModelRegistry, candidate: RegisteredModel) -> ShadowSession:
        """Open the last session of a candidate again.

        Raises:
            ModelNotFoundError: it has none.
        """
        instance(registry, "registry", ModelRegistry)
        instance(candidate, "candidate", RegisteredModel)
        last = cls._last(registry, candidate)
        if last is None:
            raise ModelNotFoundError(candidate.name, str(candidate.version), " with a shadow session")
        return cls(registry, last[0])

    @staticmethod
    def _last(registry: ModelRegistry, candidate: RegisteredModel) -> tuple[int, str] | None:
        rows = registry.store.database.rows(
            "SELECT s.id, s.state FROM shadow_sessions s JOIN models m ON m.id = s.candidate WHERE m.uuid = ? "
            "ORDER BY s.id DESC LIMIT 1",
            (check_text("id", candidate.id),),
            of=(int, str),
        )
        return rows[0] if rows else None

    def wants(self, sample: str | bytes) -> bool:
        """Whether a request is sampled: the same answer in every process and after restarts."""
        part = int.from_bytes(self._hash(sample)[:8], "big") / 2**64
        return part < self.config.sample_rate

    def record(self, sample: str | bytes, *, agreed: bool, live_ms: float, candidate_ms: float) -> bool:
        """Note what both versions did with a request.

        Args:
            sample: the request; only a hash of it is kept.
            agreed: whether both gave the same answer.
            live_ms: milliseconds that the live version took.
            candidate_ms: milliseconds that the candidate took.

        Returns:
            Whether it counts: False if the request is not sampled, or was recorded before, or the session has ended.

        Raises:
            InvalidInputError: a time is negative or no finite number.
            StorageError: the registry cannot be written.
        """
        return self.record_many([(sample, agreed, live_ms, candidate_ms)]) == 1

    def record_many(self, samples: Iterable[tuple[str | bytes, bool, float, float]]) -> int:
        """Note several requests at once, as :meth:`record` does one, and return how many count."""
        rows = []
        for entry in listed(samples, "samples", "(sample, agreed, live_ms, candidate_ms)"):
            if not isinstance(entry, (tuple, list)) or len(entry) != 4:
                raise InvalidInputError(f"{shown(entry)} is not a sample, whether it agreed, and two times")
            sample, agreed, live_ms, candidate_ms = entry
            times = [
                number(value, name, least=0.0, most=MOST_MS)
                for name, value in (("live_ms", live_ms), ("candidate_ms", candidate_ms))
            ]
            agreed = flag(agreed, "agreed")
            if self.wants(sample):
                rows.append((self.session, self._hash(sample)[:SAMPLE_BYTES], int(agreed), *times))
        if not rows:
            return 0
        with self._database.transaction():
            if self._state()[0] is not ShadowState.RUNNING:
                return 0
            before = self._changes()
            self._database.execute_many("INSERT OR IGNORE INTO shadow_samples VALUES (?, ?, ?, ?, ?)", rows)
            return self._changes() - before

    def progress(self) -> ShadowProgress:
        """Return what was seen so far, and where the session stands.

        Raises:
            ModelNotFoundError: the candidate was deleted, and the session with it.
        """
        with self._database.snapshot():
            state, reason = self._state()
            rows = self._database.rows(
                "SELECT agreed, live_ms, candidate_ms FROM shadow_samples WHERE session = ?",
                (self.session,),
                of=(int, float, float),
            )
        agreements = sum(agreed for agreed, *_ in rows)
        low, high = wilson_interval(agreements, len(rows), self.config.confidence)
        times = np.array([row[1:] for row in rows], float).reshape(-1, 2)
        live_ms, candidate_ms = (
            dict(zip(QUANTILES, np.quantile(column, QUANTILES).tolist(), strict=True))
            if len(rows)
            else dict.fromkeys(QUANTILES, math.nan)
            for column in times.T
        )
        agreement = agreements / len(rows) if rows else math.nan
        return ShadowProgress(state, reason, len(rows), agreements, agreement, low, high, live_ms, candidate_ms)

    def evaluate(self, *, actor: str = "") -> ShadowProgress:
        """Decide whether the candidate passed, if there are enough samples.

        The decision is kept. It passes if the lower end of the interval of the agreement reaches ``min_agreement``
        and the 95th percentile of its time is not too much above the live version's. It fails if the upper end does
        not reach ``min_agreement``, if it is too slow, or if it is undecided after ``max_samples``. Else the session
        goes on.
        """
        actor = check_text("actor", actor)
        with self._database.transaction():
            progress = self.progress()
            if progress.state is not ShadowState.RUNNING or progress.samples < self.config.min_samples:
                return progress
            state, reason = self._verdict(progress)
            if state is not ShadowState.RUNNING:
                self._end(state, reason, actor)
            return self.progress()

    def cancel(self, *, actor: str = "", reason: str = "") -> None:
        """End the session without a verdict.

        Raises:
            RegistryError: it has ended already.
        """
        actor, reason = check_text("actor", actor), check_text("reason", reason)
        with self._database.transaction():
            state, _ = self._state()
            if state is not ShadowState.RUNNING:
                raise RegistryError(f"shadow session {self.session} is {state.value} already")
            self._end(ShadowState.CANCELLED, reason, actor)

    def _verdict(self, progress: ShadowProgress) -> tuple[ShadowState, str]:
        config = self.config
        interval = (
            f"agreement {progress.agreement:.4f} in [{progress.agreement_low:.4f}, {progress.agreement_high:.4f}]"
        )
        slower = progress.latency_increase_ms
        if not slower <= config.max_latency_increase_ms:
            return ShadowState.FAILED, f"{slower:.2f} ms slower, and {config.max_latency_increase_ms:g} ms are allowed"
        if not progress.agreement_high >= config.min_agreement:
            return ShadowState.FAILED, f"{interval}, and {config.min_agreement:g} is needed"
        if progress.agreement_low >= config.min_agreement:
            return ShadowState.PASSED, f"{interval}, {slower:.2f} ms slower"
        if progress.samples >= (config.max_samples or 0):
            return ShadowState.FAILED, f"{interval} after {progress.samples:,} samples: undecided"
        return ShadowState.RUNNING, ""

    def _end(self, state: ShadowState, reason: str, actor: str) -> None:
        self._database.execute(
            "UPDATE shadow_sessions SET state = ?, reason = ? WHERE id = ?", (state.value, reason, self.session)
        )
        candidate = self._registry.get_by_id(self._candidate)
        detail = {"session": self.session, "state": state.value, "reason": reason}
        add_event(self._database, "shadow_ended", candidate.name, str(candidate.version), actor, detail)

    def _state(self) -> tuple[ShadowState, str]:
        statement = "SELECT state, reason FROM shadow_sessions WHERE id = ?"
        rows = self._database.rows(statement, (self.session,), of=(str, str))
        if not rows:
            raise ModelNotFoundError(f"any model with a shadow session {self.session}")
        state, reason = rows[0]
        if state not in {each.value for each in ShadowState}:
            raise RegistryCorruptError(
                f"{self._database.path} is damaged: shadow session {self.session} is {state!r:.40}"
            )
        return ShadowState(state), reason

    def _changes(self) -> int:
        return self._database.number("SELECT total_changes()")

    def _hash(self, sample: object) -> bytes:
        if isinstance(sample, str):
            content = sample.encode("utf-8", "surrogatepass")
        elif isinstance(sample, (bytes, bytearray, memoryview)):
            content = bytes(sample)
        else:
            raise InvalidInputError(f"sample is {shown(sample)}; it must be a text or bytes")
        return hashlib.blake2b(content, digest_size=24, key=self._salt).digest()
