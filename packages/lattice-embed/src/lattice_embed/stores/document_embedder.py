"""Turns documents into stored documents: chunked and embedded, or skipped with a reason."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lattice_embed.argument_checks import check_kind
from lattice_embed.catalogue import Role
from lattice_embed.errors import InvalidInputError, InvalidTextError, NonFiniteVectorError, SpaceMismatchError
from lattice_embed.result import EmbeddingResult, Float32Array
from lattice_embed.service import EmbeddingService
from lattice_embed.stores.chunking import spans_of_chunks
from lattice_embed.stores.document import StoredDocument
from lattice_embed.stores.skip_reason import SkipReason
from lattice_embed.stores.space import VectorSpace
from lattice_embed.validation import check_iterable

__all__ = ["DocumentEmbedder"]

Spans = list[tuple[int, int]]


class DocumentEmbedder:
    """Embeds documents into one space.

    Args:
        service: embeds.
        space: what the vectors are to be: role, chunking, and the fingerprint that is checked at every call.

    Raises:
        SpaceMismatchError: the service embeds into another space.
    """

    def __init__(self, service: EmbeddingService, space: VectorSpace) -> None:
        check_kind("space", space, VectorSpace)
        space.check_fingerprint(VectorSpace.of(service, role=space.role).fingerprint)
        self.service = service
        self.space = space

    def embed(self, documents: Sequence[tuple[str, str]]) -> list[StoredDocument]:
        """Return (id, text) pairs as stored documents, in order.

        One that cannot be embedded is skipped with a reason. What is wrong with the service, not with a document, is
        raised: a model that cannot be loaded, a connection.

        Raises:
            SpaceMismatchError: the service's model has changed since this object was made.
        """
        documents = [_checked_pair(index, pair) for index, pair in enumerate(check_iterable(documents))]
        done: dict[int, StoredDocument] = {}
        spans: dict[int, Spans] = {}
        for index, (document_id, text) in enumerate(documents):
            try:
                spans[index] = self._spans(text)
            except InvalidTextError as error:
                done[index] = StoredDocument.skipped(document_id, text, str(SkipReason.of(error)))
        while spans:
            owners = [(index, start, end) for index, found in spans.items() for start, end in found]
            try:
                vectors, truncated = self._vectors([documents[index][1][start:end] for index, start, end in owners])
            except (InvalidTextError, NonFiniteVectorError) as error:
                index = owners[error.index][0]
                done[index] = StoredDocument.skipped(*documents[index], str(SkipReason.of(error)))
                del spans[index]
                continue
            row = 0
            for index, found in spans.items():
                rows = slice(row, row := row + len(found))
                document_id, text = documents[index]
                done[index] = StoredDocument.embedded(
                    document_id,
                    text,
                    vectors[rows],
                    fingerprint=self.space.fingerprint,
                    spans=found,
                    truncated=bool(truncated[rows].any()),
                )
            break
        return [done[index] for index in range(len(documents))]

    def embed_query(self, text: str) -> Float32Array:
        """Return a query's vector, for :meth:`VectorStore.query`."""
        role = Role.QUERY if self.space.role is Role.PASSAGE else self.space.role
        return self.service.embed_one(text, role=role)

    def _spans(self, text: str) -> Spans:
        if self.space.chunking is None:
            return [(0, len(text))]
        return spans_of_chunks(self.service, text, self.space.chunking)

    def _vectors(self, texts: list[str]) -> tuple[Float32Array, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
        results: list[EmbeddingResult] = []
        for result in self.service.embed_batches(texts, role=self.space.role, batch_size=self.service.max_batch_size):
            if result.fingerprint and result.fingerprint != self.space.fingerprint:
                raise SpaceMismatchError(expected=self.space.fingerprint, actual=result.fingerprint)
            results.append(result)
        return (
            np.concatenate([result.vectors for result in results]),
            np.concatenate([result.truncated for result in results]),
        )


def _checked_pair(index: int, pair: object) -> tuple[str, str]:
    """Return an id and a text, whatever they say."""
    if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
        raise InvalidInputError(f"document {index} is {pair!r:.80}; pass pairs of an id and a text, both str")
    return pair[0], pair[1]
