"""One call of :meth:`RemoteEmbeddingService.embed`: its requests, and its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lattice_embed.argument_checks import shown
from lattice_embed.catalogue import Role
from lattice_embed.errors import InvalidInputError, TextTooLongError
from lattice_embed.provenance import VectorProvenance
from lattice_embed.remote.batching import TokenCounter
from lattice_embed.remote.errors import RemoteResponseError
from lattice_embed.remote.protocol import MOST_TOKENS
from lattice_embed.result import EmbeddingResult, Float32Array
from lattice_embed.vectors import normalize as normalize_rows

__all__ = ["Call", "count_all"]


@dataclass(frozen=True)
class Call:
    """What one call is about.

    Attributes:
        texts: what is sent for each text of the caller: its prompt and the text.
        prompt: what was put before each.
        role: what the texts are for.
        normalize: whether vectors are scaled to length 1.
        counts: tokens of each text sent, where the caller gave a function that counts them.
        model: name of the model in the result.
        server: what errors call the server.
        provenance: works out where the vectors come from, once there are any.
    """

    texts: list[str]
    prompt: str
    role: Role
    normalize: bool
    counts: Mapping[str, int] | None
    model: str
    server: str
    provenance: Callable[[], VectorProvenance | None]

    def positions(self, texts: Sequence[str]) -> list[int]:
        """Return where each of ``texts`` stands first in the caller's list."""
        first = {text: index for index, text in reversed(list(enumerate(self.texts)))}
        return [first[text] for text in texts]

    def result(self, vectors: Mapping[str, Float32Array], tokens: Mapping[str, int]) -> EmbeddingResult:
        """Return the result.

        Args:
            vectors: of each text sent.
            tokens: of those texts whose number of tokens the server told.

        Raises:
            RemoteResponseError: a vector of zeros, which has no direction, is to be scaled to length 1.
        """
        rows = np.stack([vectors[text] for text in self.texts])
        if self.normalize:
            self._scale(rows)
        counts: npt.NDArray[np.int32] = np.array(
            [(self.counts or tokens).get(text, -1) for text in self.texts], np.int32
        )
        return EmbeddingResult(
            rows,
            token_counts=counts,
            provenance=self.provenance,
            model=self.model,
            role=self.role,
            prompt=self.prompt,
        )

    def _scale(self, rows: Float32Array) -> None:
        zero = ~rows.any(axis=1)
        if zero.any():
            raise RemoteResponseError(
                f"{self.server} answered with a vector of zeros for text {int(np.argmax(zero))}, which cannot be scaled "
                "to length 1: pass normalize=False to have it as it is"
            )
        normalize_rows(rows, out=rows)


def count_all(texts: Sequence[str], count: TokenCounter, limit: int) -> dict[str, int]:
    """Count the tokens of each text.

    Raises:
        TextTooLongError: a text has more than ``limit``.
        InvalidInputError: ``count`` returned no number of tokens.
    """
    counts: dict[str, int] = {}
    for index, text in enumerate(texts):
        if text in counts:
            continue
        tokens = count(text)
        if isinstance(tokens, bool) or not isinstance(tokens, int | np.integer) or not 0 <= tokens <= MOST_TOKENS:
            raise InvalidInputError(
                f"count_tokens returned {shown(tokens)} for text {index}: it must return a number from 0 to {MOST_TOKENS:,}"
            )
        if tokens > limit:
            raise TextTooLongError(index=index, length=int(tokens), limit=limit, unit="tokens")
        counts[text] = int(tokens)
    return counts
