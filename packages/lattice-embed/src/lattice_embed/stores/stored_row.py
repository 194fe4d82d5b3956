"""One document as a row of the SQLite store, with a digest that detects damage."""

from __future__ import annotations

from typing import Any

import numpy as np
from blake3 import blake3

from lattice_embed.errors import InvalidInputError
from lattice_embed.result import Float32Array
from lattice_embed.stores.document import (
    DocumentState,
    DocumentVersion,
    StoredDocument,
    check_id,
    digest_of_text,
    encode_text,
)

__all__ = [
    "DELETED",
    "Row",
    "SEALED_COLUMNS",
    "check_row",
    "deleted_row",
    "document_of",
    "row_of",
    "seal_of",
    "spans_of",
    "vectors_of",
    "version_of",
]

DELETED = "deleted"

SEALED_COLUMNS = "id, sequence, state, digest, reason, fingerprint, truncated, spans, vectors"
"""What the digest of a row covers. The text is covered by its own digest, which is one of them."""

_TYPES = (str, int, str, str, str, str, int, bytes, bytes)
_SEAL_BYTES = 16
_SPAN_BYTES = 16

Row = tuple[Any, ...]


def seal_of(fields: Row) -> bytes:
    """Return 128 bits of BLAKE3 over the values of :data:`SEALED_COLUMNS`, each with its length.

    Raises:
        ValueError: a value is of a kind that no row of ours has there.
    """
    if tuple(map(type, fields)) != _TYPES:
        raise ValueError("a value is of another kind than was stored")
    document_id, sequence, state, digest, reason, fingerprint, truncated, spans, vectors = fields
    if truncated not in (0, 1):
        raise ValueError(f"truncated is {truncated}")
    text = (
        f"lattice-embed row 1 {sequence} {truncated} {len(document_id)} {len(state)} {len(digest)} {len(reason)} "
        f"{len(fingerprint)} {len(spans)} {len(vectors)} {document_id}{state}{digest}{reason}{fingerprint}"
    )
    return blake3(text.encode("utf-8", "surrogatepass") + spans + vectors).digest(_SEAL_BYTES)


def check_row(fields: Row, seal: object) -> None:
    """Compare a row with its digest.

    Raises:
        ValueError: it is not what was written.
    """
    if seal_of(fields) != seal:
        raise ValueError("its row is not what was written: restore it from a copy, or store the document again")


def row_of(document: StoredDocument, sequence: int) -> Row:
    """Return a document's text, the values of :data:`SEALED_COLUMNS`, and their digest."""
    fields = (
        document.id,
        sequence,
        document.state.value,
        digest_of_text(document.text),
        document.reason,
        document.fingerprint,
        int(document.truncated),
        np.array(document.spans, "<i8").reshape(-1, 2).tobytes(),
        document.vectors.astype("<f4", copy=False).tobytes(),
    )
    return (encode_text(document.text), *fields, seal_of(fields))


def deleted_row(document_id: str, sequence: int) -> Row:
    """Return the values of :data:`SEALED_COLUMNS` for a deleted document, and their digest."""
    fields = (document_id, sequence, DELETED, "", "", "", 0, b"", b"")
    return (*fields, seal_of(fields))


def document_of(fields: Row, text: str, dimensions: int) -> StoredDocument:
    """Return the document of a row whose digest has been compared.

    Raises:
        ValueError, TypeError: there is no such document.
    """
    document_id, _, state, _, reason, fingerprint, truncated, spans, vectors = fields
    return StoredDocument(
        document_id,
        text,
        DocumentState(state),
        vectors_of(vectors, spans, dimensions),
        spans=tuple((start, end) for start, end in spans_of(spans).tolist()),
        fingerprint=fingerprint,
        reason=reason,
        truncated=bool(truncated),
    )


def version_of(row: Row) -> DocumentVersion:
    """Return what the columns id, digest, state, fingerprint and reason say.

    Raises:
        ValueError: no row of ours has such values.
    """
    if tuple(map(type, row)) != (str,) * 5:
        raise ValueError("a value is of another kind than was stored")
    document_id, digest, state, fingerprint, reason = row
    return DocumentVersion(check_id(document_id), digest, DocumentState(state), fingerprint, reason)


def spans_of(spans: bytes) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Return the characters that each vector of a row stands for."""
    return np.frombuffer(spans, "<i8").astype(np.int64, copy=False).reshape(-1, 2)


def vectors_of(vectors: bytes, spans: bytes, dimensions: int) -> Float32Array:
    """Return the vectors of a row.

    Raises:
        InvalidInputError, ValueError: they are not one of ``dimensions`` finite numbers for each span.
    """
    count = len(spans) // _SPAN_BYTES
    matrix = np.frombuffer(vectors, "<f4").astype(np.float32).reshape(count, dimensions if count else 0)
    if not np.isfinite(matrix).all():
        raise InvalidInputError("a vector holds NaN or infinity")
    return matrix
