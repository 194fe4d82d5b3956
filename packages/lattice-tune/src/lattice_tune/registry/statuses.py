"""The statuses of a registered version, and which lead to which."""

from __future__ import annotations

from enum import Enum

from lattice_tune.errors import InvalidInputError, InvalidTransitionError, shown

__all__ = ["ModelStatus", "check_transition"]


class ModelStatus(Enum):
    """Where a version stands between registration and retirement."""

    PENDING = "pending"
    """Registered; nothing was checked yet."""

    VALIDATED = "validated"
    """Its files have been read back and are what was registered."""

    STAGED = "staged"
    """Ready for production: gates decide."""

    PRODUCTION = "production"
    """The one version of its name that is live."""

    ARCHIVED = "archived"
    """Retired in good standing: a rollback may bring it back."""

    DEPRECATED = "deprecated"
    """Retired for a fault. Final."""

    @property
    def is_deployable(self) -> bool:
        """Whether a service may run it: validated, staged or in production."""
        return self in (ModelStatus.VALIDATED, ModelStatus.STAGED, ModelStatus.PRODUCTION)

    @property
    def is_active(self) -> bool:
        """Whether it is neither archived nor deprecated."""
        return self not in (ModelStatus.ARCHIVED, ModelStatus.DEPRECATED)

    @classmethod
    def of(cls, value: object) -> ModelStatus:
        """Return a status, given as itself or by its name.

        Raises:
            InvalidInputError: it is none.
        """
        if isinstance(value, ModelStatus):
            return value
        if isinstance(value, str) and value in {status.value for status in cls}:
            return cls(value)
        names = ", ".join(status.value for status in cls)
        raise InvalidInputError(f"status is {shown(value)}; it must be one of {names}")


_RETIRED = frozenset({ModelStatus.ARCHIVED, ModelStatus.DEPRECATED})
_NEXT: dict[ModelStatus, frozenset[ModelStatus]] = {
    ModelStatus.PENDING: _RETIRED | {ModelStatus.VALIDATED},
    ModelStatus.VALIDATED: _RETIRED | {ModelStatus.STAGED},
    ModelStatus.STAGED: _RETIRED | {ModelStatus.PRODUCTION},
    ModelStatus.PRODUCTION: _RETIRED,
    ModelStatus.ARCHIVED: frozenset({ModelStatus.STAGED, ModelStatus.PRODUCTION, ModelStatus.DEPRECATED}),
    ModelStatus.DEPRECATED: frozenset(),
}


def check_transition(subject: str, status: ModelStatus, wanted: ModelStatus, *, rollback: bool = False) -> None:
    """Refuse a change that the graph of statuses does not have.

    Args:
        subject: the version, for the message.
        status: what it is.
        wanted: what it is to become.
        rollback: whether this is a rollback, which alone takes an archived version back into production.

    Raises:
        InvalidTransitionError: there is no such step; the message names those there are.
    """
    allowed = _NEXT[status]
    if status is ModelStatus.ARCHIVED:
        allowed -= {ModelStatus.STAGED if rollback else ModelStatus.PRODUCTION}
    elif rollback:
        allowed = frozenset()
    if wanted not in allowed:
        names = ", ".join(each.value for each in ModelStatus if each in allowed)
        remedy = f"from {status.value} it may become {names}" if names else f"nothing follows {status.value}"
        if rollback:
            remedy = "a rollback takes an archived version, one that was in production before"
        raise InvalidTransitionError(subject, status.value, wanted.value, remedy)
