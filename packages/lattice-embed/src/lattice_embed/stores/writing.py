"""Checks on what a store is asked to keep, shared by the adapters."""

from __future__ import annotations

from collections.abc import Sequence

from lattice_embed.argument_checks import check_list
from lattice_embed.errors import DimensionMismatchError, InvalidInputError
from lattice_embed.stores.document import DocumentState, StoredDocument, check_id
from lattice_embed.stores.space import VectorSpace
from lattice_embed.validation import is_expressible

__all__ = ["check_after", "check_documents", "check_ids"]


def check_documents(space: VectorSpace, documents: Sequence[StoredDocument]) -> list[StoredDocument]:
    """Return the documents of one call of ``put`` if a store of ``space`` may keep them.

    Raises:
        SpaceMismatchError, DimensionMismatchError: a document has vectors of another space.
        InvalidInputError: two documents have one id, or something is no document.
    """
    seen: set[str] = set()
    listed = check_list("documents", documents)
    for document in listed:
        if not isinstance(document, StoredDocument):
            raise InvalidInputError(f"a {type(document).__name__} is no StoredDocument")
        if document.id in seen:
            raise InvalidInputError(f"two documents of one call have the id {document.id!r}")
        seen.add(document.id)
        if document.state is DocumentState.EMBEDDED:
            space.check_fingerprint(document.fingerprint)
            if document.vectors.shape[1] != space.dimensions:
                raise DimensionMismatchError(expected=space.dimensions, actual=document.vectors.shape[1])
    return listed


def check_after(after: str) -> str:
    """Return ``after`` if ids can come after it.

    Raises:
        InvalidInputError: it is no text that UTF-8 has.
    """
    if not isinstance(after, str) or not is_expressible(after):
        raise InvalidInputError(f"after is {after!r:.80}; pass the id of the last document of the page before, or ''")
    return after


def check_ids(ids: Sequence[str]) -> list[str]:
    """Return ``ids`` as a list.

    Raises:
        InvalidInputError: a single str, no list, or something that cannot be an id.
    """
    if isinstance(ids, str):
        raise InvalidInputError("ids is a str, which would be read letter by letter: pass a list, [id]")
    return [check_id(document_id) for document_id in check_list("ids", ids)]
