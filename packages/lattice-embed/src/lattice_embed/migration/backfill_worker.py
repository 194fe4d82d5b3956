"""The work of a backfill: claim a batch, embed it, commit it unless a write overtook it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lattice_embed.migration.claims import Claimant
from lattice_embed.migration.endpoints import Endpoints
from lattice_embed.migration.migration_journal import TRUNCATED, MigrationJournal, RowState
from lattice_embed.migration.routing import Side
from lattice_embed.migration.source_texts import check_texts
from lattice_embed.migration.states import MigrationState
from lattice_embed.stores.document import DocumentState, StoredDocument
from lattice_embed.stores.skip_reason import SkipKind

__all__ = ["BackfillWorker", "row_of"]

WORKING_STATES = frozenset({MigrationState.IN_PROGRESS, MigrationState.COMPLETED})
"""States in which documents are embedded; when completed, only those that a killed writer left behind."""

ABANDONED_STATES = frozenset({MigrationState.CANCELLED, MigrationState.ROLLED_BACK})
"""States in which a finished batch is thrown away: the target is to stay as it was."""


@dataclass(frozen=True)
class _Batch:
    """Claimed documents, split into pending ones, ones the target has, and deleted ones."""

    embedded: list[StoredDocument]
    followed: list[str]
    gone: list[str]

    @property
    def ids(self) -> list[str]:
        return [*(document.id for document in self.embedded), *self.followed, *self.gone]


class BackfillWorker:
    """Embeds pending documents into the target in batches.

    Each thread has one.
    """

    def __init__(
        self, journal: MigrationJournal, endpoints: Endpoints, claimant: Claimant, clock: Callable[[], float]
    ) -> None:
        self._journal = journal
        self._endpoints = endpoints
        self._claimant = claimant
        self._clock = clock

    def work(self, batch_size: int) -> int:
        """Do one batch and return the number of claimed documents.

        0 if none could be claimed, or the migration is stopped. An error leaves the documents pending and unclaimed.
        """
        claim = self._claimant.new_claim()
        self._journal.release_dead()
        with self._journal.transaction():
            if self._journal.record().state not in WORKING_STATES:
                return 0
            ids = self._journal.claim(claim, batch_size)
        if not ids:
            return 0
        try:
            self._commit(claim, self._prepare(ids))
        finally:
            with self._journal.transaction():
                self._journal.release(claim)
        return len(ids)

    def _prepare(self, ids: list[str]) -> _Batch:
        """Read and embed the claimed documents. Nothing is locked meanwhile."""
        source, target = self._endpoints.store(Side.SOURCE), self._endpoints.store(Side.TARGET)
        followed, gone, changed = [], [], []
        versions = zip(ids, source.versions(ids), target.versions(ids), strict=True)
        for document_id, here, there in versions:
            if here is None:
                gone.append(document_id)
            elif self._endpoints.target_follows(here, there):
                followed.append(document_id)
            else:
                changed.append(document_id)
        documents = [document for document in source.get(changed) if document is not None]
        check_texts(self._journal, source, documents)
        pairs = [(document.id, document.text) for document in documents]
        embedded = self._endpoints.embedder(Side.TARGET).embed(pairs) if pairs else []
        return _Batch(embedded, followed, gone)

    def _commit(self, claim: str, batch: _Batch) -> None:
        """Put the batch into the target and settle it in the journal.

        Documents that were written meanwhile are left out. Writes to the source hold the journal's lock too. So its
        texts do not change while they are compared with the embedded ones. A kill between the two commits costs
        nothing: the target is asked before a document is embedded again.
        """
        source, target = self._endpoints.store(Side.SOURCE), self._endpoints.store(Side.TARGET)
        with self._journal.transaction():
            record = self._journal.record()
            if record.state in ABANDONED_STATES:
                return
            held = self._journal.still_claimed(claim, batch.ids)
            texts = dict(zip(batch.ids, source.versions(batch.ids), strict=True))
            rows: list[tuple[str, RowState, str]] = []
            kept = []
            for document in batch.embedded:
                here = texts[document.id]
                if document.id in held and here is not None and here.digest == document.version.digest:
                    kept.append(document)
                    rows.append(row_of(document))
            there = dict(zip(batch.followed, target.versions(batch.followed), strict=True))
            for document_id, version in there.items():
                here = texts[document_id]
                if (
                    document_id in held
                    and version is not None
                    and here is not None
                    and self._endpoints.target_follows(here, version)
                ):
                    rows.append((document_id, "skipped" if version.reason else "done", version.reason))
            gone = [document_id for document_id in batch.gone if document_id in held and texts[document_id] is None]
            rows += [(document_id, "skipped", SkipKind.CONTENT_DELETED.value) for document_id in gone]
            if kept:
                target.put(kept)
            if gone:
                target.delete(gone)
            self._journal.settle(rows)
            self._journal.log_batch(self._clock(), len(rows))
            self._let_target_answer()

    def _let_target_answer(self) -> None:
        """Move queries to the target once the configured share is embedded.

        They stay there.
        """
        record = self._journal.record()
        threshold = record.config.target_query_threshold
        if record.state is not MigrationState.IN_PROGRESS or record.queries_target or not threshold < 1.0:
            return
        counts = self._journal.counts()
        if record.surveyed and counts.done >= threshold * (counts.total - counts.skipped):
            self._journal.update(queries_target=1)


def row_of(document: StoredDocument) -> tuple[str, RowState, str]:
    """Return the journal's row for a document that was just put into the target."""
    if document.state is DocumentState.SKIPPED:
        return (document.id, "skipped", document.reason)
    return (document.id, "done", TRUNCATED if document.truncated else "")
