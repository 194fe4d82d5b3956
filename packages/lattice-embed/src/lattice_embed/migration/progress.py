"""How far a migration is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lattice_embed.migration.migration_journal import Counts, MigrationRecord
from lattice_embed.migration.routing import MigrationPhase, Side, in_rollback_window, routing_of
from lattice_embed.migration.states import MigrationState

__all__ = ["BackfillProgress", "progress_of"]


@dataclass(frozen=True)
class BackfillProgress:
    """A migration at one moment.

    Attributes:
        migration_id: the plan's.
        state: where it stands.
        phase: how many stores are kept up to date, and why.
        queries: the store that answers queries.
        source_model, target_model: names of the two models.
        total: documents to deal with; those written since the start included.
        processed: documents that the target has.
        skipped: documents that the target's model cannot embed, or that were deleted.
        pending: documents that are still to be looked at.
        truncated: processed documents of which the model cut off the end.
        errors, last_error: how many errors there were, and what the last one said.
        reason: why it is paused.
        throughput: documents a second over the latest batches; ``None`` before there is one.
        eta_seconds: time to completion at that speed; ``None`` where it is not known or nothing is going on.
        duration_secs: time since the start, pauses not counted.
        rollback_until: the end of the rollback window, in seconds since 1970; ``None`` outside of it.
    """

    migration_id: str
    state: MigrationState
    phase: MigrationPhase
    queries: Side
    source_model: str
    target_model: str
    total: int
    processed: int
    skipped: int
    pending: int
    truncated: int
    errors: int
    last_error: str
    reason: str
    throughput: float | None
    eta_seconds: float | None
    duration_secs: float
    rollback_until: float | None

    @property
    def effective_total(self) -> int:
        """Documents that can be embedded."""
        return self.total - self.skipped

    @property
    def effective_coverage(self) -> float:
        """Share of the embeddable documents that are embedded; 1 without any."""
        return self.processed / self.effective_total if self.effective_total else 1.0

    def to_fields(self) -> dict[str, Any]:
        """Return what JSON can hold of it: everything, with the coverage."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        for name in ("state", "phase", "queries"):
            fields[name] = fields[name].value
        return {**fields, "effective_coverage": self.effective_coverage}


def progress_of(record: MigrationRecord, counts: Counts, throughput: float | None, now: float) -> BackfillProgress:
    """Put together what the journal says."""
    routing = routing_of(record, now)
    total = counts.total if record.surveyed else max(counts.total, record.plan.total_embeddings)
    pending = total - counts.done - counts.skipped
    running = record.state is MigrationState.IN_PROGRESS
    end = record.completed_at or record.stopped_at or now
    window = in_rollback_window(record, now)
    return BackfillProgress(
        migration_id=record.plan.id,
        state=record.state,
        phase=routing.phase,
        queries=routing.query,
        source_model=record.plan.source_model,
        target_model=record.plan.target_model,
        total=total,
        processed=counts.done,
        skipped=counts.skipped,
        pending=pending,
        truncated=counts.truncated,
        errors=record.errors,
        last_error=record.last_error,
        reason=record.reason,
        throughput=throughput,
        eta_seconds=pending / throughput if running and throughput else None,
        duration_secs=max(end - record.started_at - record.stopped_seconds, 0.0) if record.started_at else 0.0,
        rollback_until=record.completed_at + record.config.rollback_window_secs if window else None,
    )
