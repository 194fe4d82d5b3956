"""Which store answers queries and which take writes.

One table, so that the two always agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from lattice_embed.migration.migration_journal import MigrationRecord
from lattice_embed.migration.states import MigrationState

__all__ = ["MigrationPhase", "Route", "RoutingConfig", "Side", "in_rollback_window", "routing_of"]


class Side(Enum):
    """One of the two stores, with its model."""

    SOURCE = "source"
    TARGET = "target"


class MigrationPhase(Enum):
    """How many stores are kept up to date, and why."""

    STABLE = "stable"
    """One."""

    MIGRATING = "migrating"
    """The target is being filled."""

    ROLLBACK_WINDOW = "rollback_window"
    """The target answers, the source is kept up to date so that one can go back."""


class Route(Enum):
    """Where a single request goes."""

    LEGACY = "legacy"
    TARGET = "target"
    DUAL_WRITE = "dual_write"


@dataclass(frozen=True)
class RoutingConfig:
    """Where requests go at one moment.

    The store that answers queries is always among those that are written.

    Attributes:
        query: the store, and the model, that answers queries.
        writes: the stores that writes go to, in this order.
        phase: why.
    """

    query: Side
    writes: tuple[Side, ...]
    phase: MigrationPhase

    @property
    def route_query(self) -> Route:
        """Where a query goes."""
        return Route.LEGACY if self.query is Side.SOURCE else Route.TARGET

    @property
    def route_request(self) -> Route:
        """Where a write goes."""
        if len(self.writes) == 2:
            return Route.DUAL_WRITE
        return Route.LEGACY if self.writes == (Side.SOURCE,) else Route.TARGET


BOTH = (Side.SOURCE, Side.TARGET)


def routing_of(record: MigrationRecord, now: float) -> RoutingConfig:
    """Return where requests go for a migration in the state of ``record``.

    ``now`` is in seconds since 1970.
    """
    if record.state is MigrationState.IN_PROGRESS:
        query = Side.TARGET if record.queries_target else Side.SOURCE
        return RoutingConfig(query, BOTH if record.config.dual_write else (Side.SOURCE,), MigrationPhase.MIGRATING)
    if record.state is MigrationState.COMPLETED:
        if in_rollback_window(record, now):
            return RoutingConfig(Side.TARGET, BOTH, MigrationPhase.ROLLBACK_WINDOW)
        return RoutingConfig(Side.TARGET, (Side.TARGET,), MigrationPhase.STABLE)
    return RoutingConfig(Side.SOURCE, (Side.SOURCE,), MigrationPhase.STABLE)


def in_rollback_window(record: MigrationRecord, now: float) -> bool:
    """Return whether a completed migration may still be rolled back.

    Once a write has passed the source by, the window stays closed, even if the clock is set back.
    """
    return (
        record.state is MigrationState.COMPLETED
        and not record.window_closed
        and now < record.completed_at + record.config.rollback_window_secs
    )
