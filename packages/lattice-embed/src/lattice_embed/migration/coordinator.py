"""The backfill: embeds the source's documents into the target and routes requests meanwhile."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from lattice_embed.errors import InvalidInputError, InvalidTransitionError, SpaceMismatchError
from lattice_embed.migration.backfill_worker import WORKING_STATES, BackfillWorker
from lattice_embed.migration.claims import Claimant, remove_dead_claimants
from lattice_embed.migration.controller import MigrationController
from lattice_embed.migration.document_writer import DocumentWriter
from lattice_embed.migration.drift_verdict import read_verdict
from lattice_embed.migration.endpoints import Endpoints
from lattice_embed.migration.migration_journal import MigrationJournal
from lattice_embed.migration.plan import BackfillConfig, MigrationPlan
from lattice_embed.migration.progress import BackfillProgress
from lattice_embed.migration.routing import RoutingConfig, Side, in_rollback_window
from lattice_embed.migration.source_texts import check_texts
from lattice_embed.migration.states import MigrationState
from lattice_embed.migration.store_diff import check_target, mark_differences
from lattice_embed.service import EmbeddingService
from lattice_embed.stores.document import Match, StoredDocument, check_id
from lattice_embed.stores.skip_reason import SkipKind, SkipReason
from lattice_embed.stores.vector_store import VectorStore

__all__ = ["BackfillCoordinator", "QueryAnswer"]

WAIT_SECONDS = 0.02
"""How long a worker waits for documents that another one is at."""


@dataclass(frozen=True)
class QueryAnswer:
    """What a query found, all of it in one store.

    Attributes:
        matches: the nearest documents, best first.
        side: the store that answered.
        model: the model that embedded the query and every vector it was compared with.
        fingerprint: that model's embedding space.
    """

    matches: list[Match]
    side: Side
    model: str
    fingerprint: str


class BackfillCoordinator(MigrationController):
    """Carries out a migration between two stores, and routes queries and writes meanwhile.

    All writes to the two stores are to go through a coordinator, in any number of processes. Made by :meth:`create`, and
    opened again by the constructor. May be used from several threads at once. A context manager; the stores and services
    stay the caller's.

    Args:
        journal: the file that holds the migration's state.
        source, target: the stores that the migration was created with.
        target_service: embeds with the new model.
        source_service: embeds with the old one; not needed by a backfill alone, nor for a source of texts only.
        clock: seconds since 1970.

    Raises:
        StoreError: there is no such journal.
        SpaceMismatchError: a store is not of the space that the migration was planned for.
    """

    def __init__(
        self,
        journal: str | os.PathLike[str],
        *,
        source: VectorStore,
        target: VectorStore,
        target_service: EmbeddingService | None = None,
        source_service: EmbeddingService | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(journal, clock=clock)
        self._claimant: Claimant | None = None
        self._claimant_lock = threading.Lock()
        self._endpoints = Endpoints(
            {Side.SOURCE: source, Side.TARGET: target}, {Side.SOURCE: source_service, Side.TARGET: target_service}
        )
        try:
            plan = self.plan
            for planned, store in ((plan.source, source), (plan.target, target)):
                if planned != store.space:
                    raise SpaceMismatchError(expected=planned.fingerprint, actual=store.space.fingerprint)
        except BaseException:
            self.close()
            raise

    @classmethod
    def create(
        cls,
        journal: str | os.PathLike[str],
        *,
        source: VectorStore,
        target: VectorStore,
        target_service: EmbeddingService | None = None,
        source_service: EmbeddingService | None = None,
        config: BackfillConfig | None = None,
        clock: Callable[[], float] = time.time,
    ) -> Self:
        """Plan a migration and write it down.

        What the target has already of the source's very texts, from a migration that was given up, is not embedded again.

        Raises:
            StoreError: ``journal`` exists, or the target has documents that the source has not.
            InvalidInputError: source and target are one store, or the target holds texts only.
        """
        plan = MigrationPlan.between(source, target, at=clock())
        check_target(Endpoints({Side.SOURCE: source, Side.TARGET: target}, {}))
        MigrationJournal.create(journal, plan, config or BackfillConfig()).close()
        return cls(
            journal,
            source=source,
            target=target,
            target_service=target_service,
            source_service=source_service,
            clock=clock,
        )

    @classmethod
    def create_if_drifted(
        cls,
        report: object,
        journal: str | os.PathLike[str],
        *,
        source: VectorStore,
        target: VectorStore,
        target_service: EmbeddingService | None = None,
        source_service: EmbeddingService | None = None,
        config: BackfillConfig | None = None,
        clock: Callable[[], float] = time.time,
    ) -> Self | None:
        """Plan a migration if a drift report's verdict is ``reindex``; else return None.

        A migration that was begun before, by an earlier call, is opened, so that the same call goes on after a crash.

        Args:
            report: what ``lattice_transport.detect_drift`` returns, its ``to_dict()``, or a file of that as JSON.
            journal, source, target, target_service, source_service, config, clock: as for :meth:`create`.

        Raises:
            InvalidInputError: it is no drift report, or it compared other vectors than the source's.
            StoreError: as for :meth:`create`.
        """
        verdict = read_verdict(report)
        verdict.check_source(source.space)
        if not verdict.wants_backfill:
            return None
        stores = {"source": source, "target": target}
        services = {"target_service": target_service, "source_service": source_service}
        if os.path.exists(journal):
            return cls(journal, **stores, **services, clock=clock)  # type: ignore[arg-type]
        return cls.create(journal, **stores, **services, config=config, clock=clock)  # type: ignore[arg-type]

    # The backfill

    def run(
        self,
        *,
        max_batches: int | None = None,
        on_progress: Callable[[BackfillProgress], None] | None = None,
    ) -> BackfillProgress:
        """Embed until nothing is pending, the migration stops, or ``max_batches`` are done.

        Several processes may run at once; each document is embedded by one of them. Before completion the two stores are
        compared once more, so that the target has what the source has, even where something wrote to the source directly.
        After completion, within the rollback window, it takes over what the source has and the target lacks, and returns.

        Args:
            max_batches: stop after so many batches of ``batch_size`` documents.
            on_progress: called after each batch.

        Returns:
            The progress at the end. Not an error: the migration was paused or cancelled meanwhile.

        Raises:
            InvalidTransitionError: the migration is paused, failed, or over when this is called.
            LatticeError, OSError: the model or a store failed. The migration is then in the state failed, nothing is
                lost, and :meth:`resume` lets it go on.
        """
        if max_batches is not None and max_batches < 0:
            raise InvalidInputError(f"max_batches is {max_batches}; it must be 0 or more")
        with self._journal.transaction():  # of two processes one starts
            record = self._journal.record()
            if record.state is MigrationState.PLANNED:
                self.start()
        if record.state is not MigrationState.PLANNED and record.state not in WORKING_STATES:
            remedy = "resume it" if record.state in (MigrationState.PAUSED, MigrationState.FAILED) else ""
            raise InvalidTransitionError(state=record.state.value, action="run the backfill", remedy=remedy)
        try:
            self._run(max_batches, on_progress)
        except Exception as error:
            with suppress(InvalidTransitionError):  # another process was faster, or somebody paused meanwhile
                self.fail(str(error) or repr(error))
            raise
        return self.progress()

    def _run(self, max_batches: int | None, on_progress: Callable[[BackfillProgress], None] | None) -> None:
        record = self._journal.record()
        remove_dead_claimants(self._journal.path)
        with self._journal.transaction():
            self._journal.start_clock(self._clock())
        if self._may_compare() and not record.surveyed:
            mark_differences(self._journal, self._endpoints)
            with self._journal.transaction():
                self._journal.update(surveyed=1)
        budget = _Budget(max_batches)
        threads = record.config.max_concurrent
        if threads == 1:
            self._work(record.config.batch_size, budget, on_progress)
            return
        with ThreadPoolExecutor(threads, "lattice-backfill") as pool:
            workers = [pool.submit(self._work, record.config.batch_size, budget, on_progress) for _ in range(threads)]
            try:
                for worker in workers:
                    worker.result()
            except BaseException:
                budget.stop()
                raise

    def _work(self, batch_size: int, budget: _Budget, on_progress: Callable[[BackfillProgress], None] | None) -> None:
        claimant = Claimant(self._journal.path)
        try:
            worker = BackfillWorker(self._journal, self._endpoints, claimant, self._clock)
            while budget.take():
                if worker.work(batch_size):
                    if on_progress is not None:
                        on_progress(self.progress())
                    continue
                budget.give_back()
                if self._finish():
                    return
        finally:
            claimant.close()

    def _finish(self) -> bool:
        """Return whether there is no more to do; complete the migration if all is done."""
        record = self._journal.record()
        counts = self._journal.counts()
        if record.state not in WORKING_STATES:
            return True
        if counts.pending:
            self._journal.check_pending()
            time.sleep(WAIT_SECONDS)  # somebody is at them, or was killed and will be found out
            return False
        if self._may_compare() and mark_differences(self._journal, self._endpoints):
            return False
        with self._journal.transaction():
            record = self._journal.record()
            if record.state is not MigrationState.IN_PROGRESS:
                return True
            if self._journal.counts().pending:
                return False
            self._move("complete", completed_at=self._clock(), queries_target=0)
            return True

    def _may_compare(self) -> bool:
        """Return whether the source is what the target is to become.

        After the rollback window it no longer is.
        """
        record = self._journal.record()
        return record.state is MigrationState.IN_PROGRESS or in_rollback_window(record, self._clock())

    # Queries and writes

    def query(self, text: str, k: int = 10) -> QueryAnswer:
        """Search with the model and in the store that answer queries now.

        Raises:
            InvalidInputError: that model's service was not given.
            SpaceMismatchError: the service does not embed into the store's space.
        """
        side = self.routing_config().query
        store = self._endpoints.store(side)
        vector = self._endpoints.embedder(side).embed_query(text)
        matches = store.query(vector, k, fingerprint=store.space.fingerprint)
        return QueryAnswer(matches, side, store.space.model, store.space.fingerprint)

    def write(self, documents: Iterable[tuple[str, str]]) -> RoutingConfig:
        """Store (id, text) pairs with their vectors where writes go now, and return where that was.

        When this returns, the store that answers queries has all of them. While a migration is in progress a model that
        fails for the target does not fail the write: the documents wait for the backfill.

        Raises:
            InvalidInputError: the answering store's model cannot embed a document. Nothing is written.
        """
        pairs = [(check_id(document_id), text) for document_id, text in documents]
        return self._writer().write(pairs)

    def delete(self, ids: Sequence[str]) -> int:
        """Remove documents where writes go now, and return how many there were."""
        if isinstance(ids, str):
            raise InvalidInputError("ids is a str, which would be read letter by letter: pass a list, [id]")
        return self._writer().delete(list(dict.fromkeys(map(check_id, ids))))

    def skip(self, ids: Sequence[str], kind: SkipKind = SkipKind.MANUAL_SKIP, detail: str = "") -> None:
        """Exclude documents from embedding by the backfill.

        The target gets their texts only, with the reason. A later write of a document is embedded again.

        Raises:
            InvalidInputError: the source has no such document.
            InvalidTransitionError: the migration is completed or over.
            StoreCorruptError: the source's text of one is not what was stored.
        """
        source, target = self._endpoints.store(Side.SOURCE), self._endpoints.store(Side.TARGET)
        reason = str(SkipReason(kind, detail))
        with self._journal.transaction():
            record = self._journal.record()
            if record.completed_at or record.state is MigrationState.CANCELLED:
                raise InvalidTransitionError(state=record.state.value, action="skip documents")
            found = []
            for document_id, document in zip(ids, source.get(ids), strict=True):
                if document is None:
                    raise InvalidInputError(f"the source has no document {document_id!r}")
                found.append(document)
            check_texts(self._journal, source, found)
            documents = [StoredDocument.skipped(document.id, document.text, reason) for document in found]
            target.put(documents)
            self._journal.settle([(document.id, "skipped", reason) for document in documents])

    def close(self) -> None:
        """Close the journal. Calling it twice is allowed."""
        with self._claimant_lock:
            if self._claimant is not None:
                self._claimant.close()
                self._claimant = None
        super().close()

    def _writer(self) -> DocumentWriter:
        with self._claimant_lock:
            if self._claimant is None or not self._claimant.is_open:
                self._claimant = Claimant(self._journal.path)
            return DocumentWriter(self._journal, self._endpoints, self._claimant, self._clock)


class _Budget:
    """Batches that may still be done, shared by threads."""

    def __init__(self, batches: int | None) -> None:
        self._left = batches
        self._lock = threading.Lock()
        self._stopped = False

    def take(self) -> bool:
        """Take one, if there is one."""
        with self._lock:
            if self._stopped or self._left == 0:
                return False
            if self._left is not None:
                self._left -= 1
            return True

    def give_back(self) -> None:
        """Give one back that was not used."""
        with self._lock:
            if self._left is not None:
                self._left += 1

    def stop(self) -> None:
        """Let there be no more."""
        with self._lock:
            self._stopped = True
