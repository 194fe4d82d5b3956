"""Writes of users during a migration.

They go to the stores that its state names, so that no kill loses one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from lattice_embed.errors import InvalidInputError
from lattice_embed.migration.backfill_worker import ABANDONED_STATES, row_of
from lattice_embed.migration.claims import Claimant
from lattice_embed.migration.endpoints import Endpoints
from lattice_embed.migration.migration_journal import MigrationJournal, RowState
from lattice_embed.migration.routing import RoutingConfig, Side, routing_of
from lattice_embed.migration.states import MigrationState
from lattice_embed.stores.document import DocumentState, StoredDocument
from lattice_embed.stores.skip_reason import SkipKind
from lattice_inference.errors import LatticeError

__all__ = ["DocumentWriter"]


class DocumentWriter:
    """Puts and deletes documents in the stores that the migration keeps up to date.

    The order is what makes a kill harmless: the journal notes the intent, then the source is written, then the target,
    then the journal settles. After a kill in between, the document is pending, and the backfill brings the target to what
    the source has.
    """

    def __init__(
        self, journal: MigrationJournal, endpoints: Endpoints, claimant: Claimant, clock: Callable[[], float]
    ) -> None:
        self._journal = journal
        self._endpoints = endpoints
        self._claimant = claimant
        self._clock = clock

    def write(self, documents: Sequence[tuple[str, str]]) -> RoutingConfig:
        """Store (id, text) pairs with their vectors; return where they went.

        Raises:
            InvalidInputError: the store that answers queries cannot take a document; nothing is written.
        """
        ids = [document_id for document_id, _ in documents]
        if len(set(ids)) != len(ids):
            raise InvalidInputError("two documents of one call have the same id")
        while True:
            routing = self._routing()
            prepared = {side: self._embed(side, documents, routing) for side in routing.writes}
            with self._intent(ids, routing) as claim:
                if claim is None:
                    continue
                put: list[StoredDocument] | None = None
                for side in routing.writes:
                    put = self._put(side, prepared[side], routing)
                reached = put is not None and Side.TARGET in routing.writes
                self._settle(claim, ids, [row_of(document) for document in put or ()] if reached else None)
                return routing

    def delete(self, ids: Sequence[str]) -> int:
        """Remove documents, and return how many the answering store had."""
        while True:
            routing = self._routing()
            with self._intent(ids, routing) as claim:
                if claim is None:
                    continue
                counts = {side: self._endpoints.store(side).delete(ids) for side in routing.writes}
                rows: list[tuple[str, RowState, str]] | None = None
                if Side.TARGET in routing.writes:
                    rows = [(document_id, "skipped", SkipKind.CONTENT_DELETED.value) for document_id in ids]
                self._settle(claim, ids, rows)
                return counts[routing.query]

    def _routing(self) -> RoutingConfig:
        return routing_of(self._journal.record(), self._clock())

    def _embed(
        self, side: Side, documents: Sequence[tuple[str, str]], routing: RoutingConfig
    ) -> list[StoredDocument] | None:
        """Return the documents for one store.

        ``None`` if the new model fails and is not needed yet.
        """
        store = self._endpoints.store(side)
        if not store.space.holds_vectors:
            return [StoredDocument.pending(document_id, text) for document_id, text in documents]
        try:
            embedded = self._endpoints.embedder(side).embed(documents)
        except Exception as error:
            if side is routing.query:
                raise
            if side is Side.SOURCE:
                error.add_note("the source's model is needed until the rollback window is closed")
                raise
            # whatever is wrong with the new model, it must not keep the old one from serving: the backfill tries again
            with self._journal.transaction():
                self._journal.record_error(f"writing to the target: {error}")
            return None
        if side is routing.query:
            for document in embedded:
                if document.state is DocumentState.SKIPPED:
                    raise InvalidInputError(f"document {document.id!r} cannot be embedded: {document.reason}")
        return embedded

    def _put(
        self, side: Side, documents: list[StoredDocument] | None, routing: RoutingConfig
    ) -> list[StoredDocument] | None:
        """Put documents into one store.

        ``None`` if there are none, or the new store fails and is not needed yet.
        """
        if documents is None:
            return None
        try:
            self._endpoints.store(side).put(documents)
        except (LatticeError, OSError) as error:
            if side is Side.SOURCE or side is routing.query:
                raise
            self._journal.record_error(f"writing to the target: {error}")
            return None
        return documents

    @contextmanager
    def _intent(self, ids: Sequence[str], routing: RoutingConfig) -> Iterator[str | None]:
        """Note that ``ids`` are being written, then hold the journal's lock.

        ``None`` if the routing has changed.
        """
        claim = self._claimant.new_claim()
        with self._journal.transaction():
            record = self._journal.record()
            if routing_of(record, self._clock()) != routing:
                yield None
                return
            if record.state is MigrationState.COMPLETED and Side.SOURCE not in routing.writes:
                # from now on the source misses writes. What a killed writer left pending is older than this write
                self._journal.update(window_closed=1)
                self._journal.settle([(document_id, "done", "") for document_id in ids])
            elif record.state not in ABANDONED_STATES:
                self._journal.mark_pending(ids, claim)
        try:
            with self._journal.transaction():
                yield claim if self._routing() == routing else None
        finally:
            with self._journal.transaction():
                self._journal.release(claim)

    def _settle(self, claim: str, ids: Sequence[str], rows: Sequence[tuple[str, RowState, str]] | None) -> None:
        """Note what the target has now; ``None``: nothing.

        A document that another writer holds stays that writer's.
        """
        record = self._journal.record()
        if record.state in ABANDONED_STATES or rows is None:
            return
        if record.state is MigrationState.COMPLETED and record.window_closed:
            self._journal.settle(rows)
            return
        held = self._journal.still_claimed(claim, ids)
        self._journal.settle([row for row in rows if row[0] in held])
