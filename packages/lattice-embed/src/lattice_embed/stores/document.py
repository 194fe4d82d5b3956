"""A document as a store keeps it: its text, its vectors, and what state they are in."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import blake3
import numpy as np
import numpy.typing as npt

from lattice_embed.argument_checks import check_list, check_word
from lattice_embed.arrays import float32_array
from lattice_embed.errors import InvalidInputError, SpaceMismatchError
from lattice_embed.origin import origin_of
from lattice_embed.result import Float32Array
from lattice_embed.validation import is_expressible

__all__ = ["DocumentState", "DocumentVersion", "Match", "StoredDocument", "check_id", "decode_text", "digest_of_text"]

MOST_ID_BYTES = 1_024
"""The longest id of a document, in bytes of UTF-8."""

MOST_CHARACTERS = 2**63 - 1
"""The last place in a text that a span may name: what the stores' files can hold."""

Span = tuple[int, int]


class DocumentState(Enum):
    """Whether a store has a document's vectors."""

    PENDING = "pending"
    """Only the text: nothing has embedded it yet."""

    EMBEDDED = "embedded"
    """Text and vectors."""

    SKIPPED = "skipped"
    """Only the text: it cannot be embedded with the store's model, and ``reason`` says why."""


def encode_text(text: str) -> bytes:
    """Return the stored bytes of a text.

    UTF-8, lone surrogates included, so that any str comes back.
    """
    return text.encode("utf-8", "surrogatepass")


def decode_text(data: bytes) -> str:
    """Return the text of stored bytes.

    Bytes that are no UTF-8 become lone surrogates, which no service takes.
    """
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "surrogateescape")


def digest_of_text(text: str) -> str:
    """Return 128 bits of BLAKE3 over a text, in hex.

    It tells one version of a document from another.
    """
    return blake3.blake3(encode_text(text)).hexdigest(16)


def check_id(document_id: object) -> str:
    """Return ``document_id`` if it can name a document.

    Raises:
        InvalidInputError: not a str, empty, over 1,024 bytes of UTF-8, with a NUL or a lone surrogate in it.
    """
    if not isinstance(document_id, str) or not document_id or "\0" in document_id:
        raise InvalidInputError(f"a document's id is {document_id!r}; it must be a non-empty str without NUL")
    try:
        size = len(document_id.encode())
    except UnicodeEncodeError:
        raise InvalidInputError(f"the id {document_id!r} holds a lone surrogate, which is no character") from None
    if size > MOST_ID_BYTES:
        raise InvalidInputError(
            f"the id {document_id[:40]!r}... has {size:,} bytes; the limit is {MOST_ID_BYTES:,}: use a digest of it"
        )
    return document_id if type(document_id) is str else str.__str__(document_id)


@dataclass(frozen=True)
class DocumentVersion:
    """What a store knows of a document without reading it.

    Attributes:
        id: the document.
        digest: of its text (:func:`digest_of_text`).
        state: whether it has vectors.
        fingerprint: the embedding space of its vectors; empty without vectors.
        reason: why it is skipped; empty otherwise.
    """

    id: str
    digest: str
    state: DocumentState
    fingerprint: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Match:
    """A document found by a query.

    Attributes:
        id: the document.
        score: cosine similarity of the query and the document's best chunk.
        chunk: which of the document's vectors that is, from 0.
        start, end: the characters ``text[start:end]`` that the chunk stands for.
    """

    id: str
    score: float
    chunk: int
    start: int
    end: int


@dataclass(frozen=True, eq=False)
class StoredDocument:
    """A document with all that a store keeps of it.

    Made by :meth:`pending`, :meth:`embedded` or :meth:`skipped`.

    Attributes:
        id: what names it, unique in its store.
        text: its text, whole.
        state: whether it has vectors.
        vectors: float32 array of shape (chunks, dim); (0, 0) without vectors.
        spans: for each vector, the characters ``text[start:end]`` that it stands for.
        fingerprint: the embedding space of the vectors; empty without vectors.
        reason: why it was skipped.
        truncated: whether the model cut a part of the text off.
    """

    id: str
    text: str
    state: DocumentState
    vectors: Float32Array
    spans: tuple[Span, ...] = ()
    fingerprint: str = ""
    reason: str = ""
    truncated: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", check_id(self.id))
        if not isinstance(self.text, str):
            raise InvalidInputError(f"the text of document {self.id!r} is a {type(self.text).__name__}, not a str")
        for name in ("fingerprint", "reason"):
            value = getattr(self, name)
            if not isinstance(value, str) or not is_expressible(value):
                raise InvalidInputError(
                    f"the {name} of document {self.id!r} is {value!r:.80}; it must be text that UTF-8 has"
                )
        if not isinstance(self.state, DocumentState):
            raise InvalidInputError(f"the state of document {self.id!r} is {self.state!r:.80}; pass a DocumentState")
        object.__setattr__(
            self, "spans", tuple(_checked_span(self.id, span) for span in check_list("spans", self.spans))
        )
        vectors = float32_array(self.vectors, f"the array of vectors of document {self.id!r}")
        object.__setattr__(self, "vectors", vectors)
        if vectors.ndim != 2 or len(vectors) != len(self.spans):
            raise InvalidInputError(
                f"document {self.id!r} has vectors of shape {vectors.shape} for {len(self.spans)} spans"
            )
        if (self.state is DocumentState.EMBEDDED) != (len(vectors) > 0):
            raise InvalidInputError(f"document {self.id!r} is {self.state.value} and has {len(vectors)} vectors")
        if not np.isfinite(vectors).all():
            raise InvalidInputError(f"document {self.id!r} has a vector with NaN or infinity in it")

    @classmethod
    def pending(cls, document_id: str, text: str) -> StoredDocument:
        """Return a document that waits to be embedded."""
        return cls(document_id, text, DocumentState.PENDING, _no_vectors())

    @classmethod
    def skipped(cls, document_id: str, text: str, reason: str) -> StoredDocument:
        """Return a document that the store's model cannot embed."""
        return cls(document_id, text, DocumentState.SKIPPED, _no_vectors(), reason=reason)

    @classmethod
    def embedded(
        cls,
        document_id: str,
        text: str,
        vectors: npt.ArrayLike,
        *,
        fingerprint: str,
        spans: Sequence[Span] | None = None,
        truncated: bool = False,
    ) -> StoredDocument:
        """Return a document with its vectors: (dim,), or (chunks, dim) with a span for each.

        Raises:
            SpaceMismatchError: ``vectors`` is the result of a service and has another fingerprint.
        """
        origin = origin_of(vectors)
        if origin is not None and origin.fingerprint not in ("", fingerprint):
            raise SpaceMismatchError(expected=fingerprint, actual=origin.fingerprint)
        matrix = np.atleast_2d(float32_array(vectors, f"the array of vectors of document {document_id!r}"))
        where = ((0, len(check_word("text", text))),) if spans is None else tuple(check_list("spans", spans))
        return cls(
            document_id,
            text,
            DocumentState.EMBEDDED,
            matrix,
            spans=where,
            fingerprint=fingerprint,
            truncated=truncated,
        )

    @property
    def version(self) -> DocumentVersion:
        """The document without its text and vectors."""
        return DocumentVersion(self.id, digest_of_text(self.text), self.state, self.fingerprint, self.reason)


def _checked_span(document_id: str, span: Span) -> Span:
    try:
        start, end = map(operator.index, span)
    except (TypeError, ValueError):
        raise InvalidInputError(f"document {document_id!r} has the span {span!r:.80}; it must be two ints") from None
    if not 0 <= start <= end <= MOST_CHARACTERS:
        raise InvalidInputError(
            f"document {document_id!r} has the span {(start, end)!r:.80}; it must be 0 <= start <= end <= {MOST_CHARACTERS}"
        )
    return start, end


def _no_vectors() -> Float32Array:
    return np.empty((0, 0), np.float32)
