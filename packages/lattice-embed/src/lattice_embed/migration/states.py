"""The states of a migration, and which lead to which."""

from __future__ import annotations

from enum import Enum

from lattice_embed.errors import InvalidTransitionError

__all__ = ["MigrationState", "next_state"]


class MigrationState(Enum):
    """Where a migration stands."""

    PLANNED = "planned"
    """Nothing has been embedded."""

    IN_PROGRESS = "in_progress"
    """Documents are being embedded with the new model, and writes go to both stores."""

    PAUSED = "paused"
    """Stopped for a while by somebody; writes go to the source and are noted for later."""

    FAILED = "failed"
    """Stopped by an error; like paused."""

    COMPLETED = "completed"
    """The target has everything, and answers queries."""

    CANCELLED = "cancelled"
    """Given up before it was complete: the source goes on as if nothing had been. Final."""

    ROLLED_BACK = "rolled_back"
    """Given up after it was complete, within the rollback window: the source answers again. Final."""


_TRANSITIONS: dict[str, tuple[frozenset[MigrationState], MigrationState]] = {
    "start": (frozenset({MigrationState.PLANNED}), MigrationState.IN_PROGRESS),
    "pause": (frozenset({MigrationState.IN_PROGRESS}), MigrationState.PAUSED),
    "resume": (frozenset({MigrationState.PAUSED, MigrationState.FAILED}), MigrationState.IN_PROGRESS),
    "fail": (frozenset({MigrationState.IN_PROGRESS}), MigrationState.FAILED),
    "complete": (frozenset({MigrationState.IN_PROGRESS}), MigrationState.COMPLETED),
    "cancel": (
        frozenset({MigrationState.PLANNED, MigrationState.IN_PROGRESS, MigrationState.PAUSED, MigrationState.FAILED}),
        MigrationState.CANCELLED,
    ),
    "roll back": (frozenset({MigrationState.COMPLETED}), MigrationState.ROLLED_BACK),
}

_REMEDIES = {
    ("start", MigrationState.PAUSED): "resume it",
    ("start", MigrationState.FAILED): "resume it",
    ("cancel", MigrationState.COMPLETED): "roll it back instead",
    ("roll back", MigrationState.IN_PROGRESS): "cancel it instead",
    ("roll back", MigrationState.PAUSED): "cancel it instead",
    ("roll back", MigrationState.FAILED): "cancel it instead",
}


def next_state(state: MigrationState, action: str) -> MigrationState:
    """Return the state that ``action`` leads to.

    Raises:
        InvalidTransitionError: it leads nowhere from ``state``.
    """
    allowed, reached = _TRANSITIONS[action]
    if state not in allowed:
        raise InvalidTransitionError(state=state.value, action=action, remedy=_REMEDIES.get((action, state), ""))
    return reached
