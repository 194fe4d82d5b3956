"""Compares the two stores to find the backfill's work, however the source was written."""

from __future__ import annotations

from lattice_embed.errors import StoreError
from lattice_embed.migration.endpoints import Endpoints
from lattice_embed.migration.migration_journal import MigrationJournal, RowState
from lattice_embed.migration.routing import Side
from lattice_embed.stores.document import DocumentVersion

__all__ = ["check_target", "settlement_of", "mark_differences"]

PAGE = 1_000


def mark_differences(journal: MigrationJournal, endpoints: Endpoints) -> int:
    """Mark every document that differs between the stores as pending, and return the count.

    It compares digests of texts, page by page, each page under the journal's lock. What the target has already is
    settled without being embedded again.
    """
    source, target = endpoints.store(Side.SOURCE), endpoints.store(Side.TARGET)
    found = 0
    after = ""
    while page := source.scan(after=after, limit=PAGE):
        with journal.transaction():
            found += _mark_page(journal, endpoints, [version.id for version in page])
        after = page[-1].id
    after = ""
    while page := target.scan(after=after, limit=PAGE):
        ids = [version.id for version in page]
        with journal.transaction():
            states = journal.states(ids)
            gone = [
                document_id
                for document_id, version in zip(ids, source.versions(ids), strict=True)
                if version is None and states.get(document_id) != "pending"
            ]
            journal.mark_pending(gone)
        found += len(gone)
        after = page[-1].id
    return found


def check_target(endpoints: Endpoints) -> None:
    """Make sure that a new migration would remove nothing from the target.

    Raises:
        StoreError: the target has a document that the source has not.
    """
    source, target = endpoints.store(Side.SOURCE), endpoints.store(Side.TARGET)
    after = ""
    while page := target.scan(after=after, limit=PAGE):
        for version, there in zip(page, source.versions([version.id for version in page]), strict=True):
            if there is None:
                raise StoreError(
                    f"the target holds document {version.id!r}, which the source does not, and a migration makes it a copy "
                    "of the source: use an empty store, or delete what is not in the source"
                )
        after = page[-1].id


def settlement_of(version: DocumentVersion) -> tuple[str, RowState, str]:
    """Return the journal's row for a document that the target holds."""
    return (version.id, "skipped" if version.reason else "done", version.reason)


def _mark_page(journal: MigrationJournal, endpoints: Endpoints, ids: list[str]) -> int:
    source = endpoints.store(Side.SOURCE).versions(ids)
    target = endpoints.store(Side.TARGET).versions(ids)
    states = journal.states(ids)
    stale, settled = [], []
    for here, there in zip(source, target, strict=True):
        if here is None or states.get(here.id) == "pending":
            continue
        if not endpoints.target_follows(here, there):
            stale.append(here.id)
        elif there is not None and states.get(here.id) is None:
            settled.append(settlement_of(there))
    journal.mark_pending(stale)
    journal.settle(settled)
    return len(stale)
