"""Reads texts of the source for the target; a damaged text must not get a new digest there."""

from __future__ import annotations

from collections.abc import Sequence

from lattice_embed.errors import StoreCorruptError
from lattice_embed.migration.migration_journal import MigrationJournal
from lattice_embed.stores.document import StoredDocument
from lattice_embed.stores.vector_store import VectorStore

__all__ = ["check_texts"]


def check_texts(journal: MigrationJournal, source: VectorStore, documents: Sequence[StoredDocument]) -> None:
    """Make sure that the source's digests are those of the texts that were read from it.

    Raises:
        StoreCorruptError: one is not, and no process is writing it just now.
    """
    for document, version in zip(documents, source.versions([one.id for one in documents]), strict=True):
        if version is None or version.digest == document.version.digest:
            continue
        with journal.transaction():
            (again,), (now,) = source.get([document.id]), source.versions([document.id])
        if again is not None and now is not None and again.version.digest != now.digest:
            raise StoreCorruptError(
                f"the source's document {document.id!r} has a text that is not its digest's: write the document again, or "
                "restore the source from a copy"
            )
