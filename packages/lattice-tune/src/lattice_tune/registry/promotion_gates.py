"""Gates between staging and production: whether a version may go live, and why not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from lattice_tune.arguments import flag, number
from lattice_tune.errors import InvalidInputError, WeightIntegrityError
from lattice_tune.registry.records import RegisteredModel
from lattice_tune.registry.stored_values import check_text

if TYPE_CHECKING:
    from lattice_tune.registry.model_registry import ModelRegistry

__all__ = ["HashVerified", "MetricThreshold", "NotWorseThanLive", "PromotionGate", "ShadowPassed"]


@runtime_checkable
class PromotionGate(Protocol):
    """Anything that may hold a promotion back."""

    @property
    def gate_name(self) -> str:
        """What messages and events call it."""

    def refusal(self, registry: ModelRegistry, candidate: RegisteredModel, live: RegisteredModel | None) -> str | None:
        """Say why ``candidate`` may not replace ``live``, or return ``None`` if it may."""


@dataclass(frozen=True)
class HashVerified:
    """Every file of the version is what was registered. Each promotion has this gate."""

    @property
    def gate_name(self) -> str:
        """``"hash verified"``."""
        return "hash verified"

    def refusal(self, registry: ModelRegistry, candidate: RegisteredModel, live: RegisteredModel | None) -> str | None:
        """Read the candidate's files and compare them with their SHA-256."""
        try:
            registry.check_files(candidate)
        except WeightIntegrityError as error:
            return str(error)
        return None


@dataclass(frozen=True)
class MetricThreshold:
    """A measure of the candidate is within limits; one that is missing is not.

    Attributes:
        metric: a name in ``metadata.metrics``, or ``"validation_accuracy"`` or ``"test_accuracy"``.
        at_least: the lower limit.
        at_most: the upper limit.

    Raises:
        InvalidInputError: there is no limit, or one is no finite number.
    """

    metric: str
    at_least: float | None = None
    at_most: float | None = None

    def __post_init__(self) -> None:
        check_text("metric", self.metric, empty=False)
        if self.at_least is None and self.at_most is None:
            raise InvalidInputError("a metric threshold needs at_least or at_most")
        for name in ("at_least", "at_most"):
            if getattr(self, name) is not None:
                number(getattr(self, name), name)

    @property
    def gate_name(self) -> str:
        """``"metric"`` and its name."""
        return f"metric {self.metric}"

    def refusal(self, registry: ModelRegistry, candidate: RegisteredModel, live: RegisteredModel | None) -> str | None:
        """Compare the candidate's measure with the limits."""
        value = candidate.metadata.metric(self.metric)
        if value is None:
            return "it was not measured"
        if self.at_least is not None and not value >= self.at_least:
            return f"{value:g}, and at least {self.at_least:g} is needed"
        if self.at_most is not None and not value <= self.at_most:
            return f"{value:g}, and at most {self.at_most:g} is allowed"
        return None


@dataclass(frozen=True)
class NotWorseThanLive:
    """A candidate's measure is no worse than that of the version in production, if any.

    Attributes:
        metric: as for :class:`MetricThreshold`.
        tolerance: how much worse is still taken.
        higher_is_better: False for a loss or a latency.

    Raises:
        InvalidInputError: the tolerance is negative or no finite number.
    """

    metric: str
    tolerance: float = 0.0
    higher_is_better: bool = True

    def __post_init__(self) -> None:
        check_text("metric", self.metric, empty=False)
        number(self.tolerance, "tolerance", least=0.0)
        flag(self.higher_is_better, "higher_is_better")

    @property
    def gate_name(self) -> str:
        """The measure's name, and that it is compared with the live version's."""
        return f"{self.metric} not worse than live"

    def refusal(self, registry: ModelRegistry, candidate: RegisteredModel, live: RegisteredModel | None) -> str | None:
        """Compare the measures of both."""
        if live is None:
            return None
        value, other = candidate.metadata.metric(self.metric), live.metadata.metric(self.metric)
        if value is None or other is None:
            return f"it was not measured for {candidate.reference if value is None else live.reference}"
        loss = other - value if self.higher_is_better else value - other
        if not loss <= self.tolerance:
            return f"{value:g}, and {live.reference} has {other:g}"
        return None


@dataclass(frozen=True)
class ShadowPassed:
    """The candidate's last shadow session passed, against the present production version."""

    @property
    def gate_name(self) -> str:
        """``"shadow passed"``."""
        return "shadow passed"

    def refusal(self, registry: ModelRegistry, candidate: RegisteredModel, live: RegisteredModel | None) -> str | None:
        """Look for the candidate's last shadow session."""
        if live is None:
            return "there is no version in production to compare it with"
        rows = registry.store.database.rows(
            "SELECT s.id, s.baseline, s.state, s.reason FROM shadow_sessions s JOIN models m ON m.id = s.candidate "
            "WHERE m.uuid = ? ORDER BY s.id DESC LIMIT 1",
            (candidate.id,),
            of=(int, str, str, str),
        )
        if not rows:
            return "it has no shadow session"
        number, baseline, state, reason = rows[0]
        if state != "passed":
            return f"shadow session {number} is {state}{f': {reason}' if reason else ''}"
        if baseline != live.id:
            return f"shadow session {number} compared it with another version than {live.reference}, which is live now"
        return None
