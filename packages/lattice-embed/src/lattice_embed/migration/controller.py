"""A migration's state machine, kept in its journal."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from lattice_embed.errors import InvalidInputError, InvalidTransitionError, StoreCorruptError
from lattice_embed.migration.migration_journal import MigrationJournal, MigrationRecord
from lattice_embed.migration.plan import BackfillConfig, MigrationPlan
from lattice_embed.migration.progress import BackfillProgress, progress_of
from lattice_embed.migration.routing import RoutingConfig, in_rollback_window, routing_of
from lattice_embed.migration.states import MigrationState, next_state
from lattice_embed.stores.skip_reason import SkipReason

__all__ = ["MigrationController"]

SKIPS_READ = 1_000


class MigrationController:
    """Sees and changes the state of a migration; it needs neither the stores nor the models.

    Every call reads and writes the journal, so other processes see a change at once. A pause stops a backfill in
    another process after its current batch. A context manager.

    Args:
        journal: the file that :meth:`BackfillCoordinator.create` made.
        clock: seconds since 1970; the rollback window is measured by it.

    Raises:
        StoreError: there is no such file.
        StoreCorruptError: it is damaged, or no journal.
    """

    def __init__(self, journal: str | os.PathLike[str], *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._journal = MigrationJournal(journal)

    @property
    def plan(self) -> MigrationPlan:
        """What is migrated where."""
        return self._journal.record().plan

    @property
    def config(self) -> BackfillConfig:
        """How the backfill works, as it was planned."""
        return self._journal.record().config

    @property
    def state(self) -> MigrationState:
        """Where the migration stands."""
        return self._journal.record().state

    def routing_config(self) -> RoutingConfig:
        """Return where queries and writes go now."""
        return routing_of(self._journal.record(), self._clock())

    def progress(self) -> BackfillProgress:
        """Return how far the migration is."""
        with self._journal.snapshot():
            now = self._clock()
            return progress_of(self._journal.record(), self._journal.counts(), self._journal.throughput(now), now)

    def skipped(self) -> Iterator[tuple[str, SkipReason]]:
        """Yield the documents that were skipped, each with its reason, in the order of ids."""
        after = ""
        while page := self._journal.skipped(after=after, limit=SKIPS_READ):
            for document_id, reason in page:
                try:
                    parsed = SkipReason.parse(reason)
                except InvalidInputError as error:
                    raise StoreCorruptError(f"{self._journal.path} is damaged: {error}") from error
                yield document_id, parsed
            after = page[-1][0]

    def start(self) -> None:
        """Begin: planned to in progress. :meth:`BackfillCoordinator.run` does it by itself.

        Raises:
            InvalidTransitionError: the migration is not planned.
        """
        self._move("start", started_at=self._clock())

    def pause(self, reason: str = "") -> None:
        """Pause: in progress to paused.

        Writes go to the source, and are embedded after :meth:`resume`.

        Raises:
            InvalidTransitionError: the migration is not in progress.
        """
        self._move("pause", reason=reason, stopped_at=self._clock(), queries_target=0)

    def resume(self) -> None:
        """Resume: paused or failed to in progress.

        :meth:`BackfillCoordinator.run` then does the work.

        Raises:
            InvalidTransitionError: the migration is neither paused nor failed.
        """
        with self._journal.transaction():
            record = self._journal.record()
            stopped = max(self._clock() - record.stopped_at, 0.0)
            self._move("resume", reason="", stopped_at=None, stopped_seconds=record.stopped_seconds + stopped)
            self._journal.start_clock(self._clock())

    def fail(self, error: str) -> None:
        """Stop because of an error: in progress to failed. Like a pause, with the error kept.

        Raises:
            InvalidTransitionError: the migration is not in progress.
        """
        with self._journal.transaction():
            self._move("fail", stopped_at=self._clock(), queries_target=0)
            self._journal.record_error(error)

    def record_error(self, error: str) -> None:
        """Count an error that stops nothing."""
        with self._journal.transaction():
            self._journal.record_error(error)

    def cancel(self) -> None:
        """Give up before completion: only the source is used.

        The target stays as it is, for a later migration.

        Raises:
            InvalidTransitionError: the migration is completed or over.
        """
        self._move("cancel", stopped_at=self._clock(), queries_target=0)

    def rollback(self) -> None:
        """Go back to the source after completion, within the rollback window.

        The source has every write since.

        Raises:
            InvalidTransitionError: the migration is not completed, or the window is over.
        """
        with self._journal.transaction():
            record = self._journal.record()
            if record.state is MigrationState.COMPLETED and not in_rollback_window(record, self._clock()):
                raise InvalidTransitionError(
                    state="completed and its rollback window is over",
                    action="roll back",
                    remedy="migrate back with a new migration",
                )
            self._move("roll back")

    def close_rollback_window(self) -> None:
        """Give up the way back before its time, so that writes go to the target only.

        Raises:
            InvalidTransitionError: the migration is not completed.
        """
        with self._journal.transaction():
            record = self._journal.record()
            if record.state is not MigrationState.COMPLETED:
                raise InvalidTransitionError(state=record.state.value, action="close the rollback window")
            self._journal.update(window_closed=1)

    def close(self) -> None:
        """Close the journal. Calling it twice is allowed."""
        self._journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _move(self, action: str, **values: object) -> MigrationRecord:
        with self._journal.transaction():
            record = self._journal.record()
            self._journal.update(state=next_state(record.state, action).value, **values)
            return record
