"""What a call to an embedding service returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_embed.arrays import float32_array, plain_array
from lattice_embed.catalogue import Role
from lattice_embed.errors import InvalidInputError
from lattice_embed.origin import VectorOrigin
from lattice_embed.provenance import VectorProvenance
from lattice_embed.validation import check_role

__all__ = ["EmbeddingResult", "Float32Array"]

Float32Array = npt.NDArray[np.float32]

MOST_TOKENS = int(np.iinfo(np.int32).max)


class EmbeddingResult:
    """Vectors in the order of the texts, and what happened to each text.

    It behaves like the array of its vectors: ``np.asarray(result)``, ``len(result)``, ``result[i]`` and iteration give
    float32 vectors.

    Attributes:
        vectors: float32 array of shape (n, dim), C-contiguous.
        token_counts: int32 array of shape (n,): tokens that the model really read of each text, the prompt and the
            special tokens included; -1 where the service cannot know.
        truncated: bool array of shape (n,): whether the text was cut at the model's token limit.
        model: slug, hub id or path of the model.
        role: what the texts were embedded as.
        prompt: what was put before every text; empty for nothing.

    Raises:
        InvalidInputError: the arrays do not belong together.

    >>> result = EmbeddingResult([[3.0, 4.0], [0.0, 1.0]], model="example")
    >>> len(result), result[0].tolist(), result.truncated.tolist()
    (2, [3.0, 4.0], [False, False])
    """

    __slots__ = ("_fingerprint", "_provenance", "model", "prompt", "role", "token_counts", "truncated", "vectors")

    def __init__(
        self,
        vectors: npt.ArrayLike,
        *,
        token_counts: npt.ArrayLike | None = None,
        truncated: npt.ArrayLike | None = None,
        fingerprint: str | Callable[[], str] = "",
        provenance: VectorProvenance | Callable[[], VectorProvenance | None] | None = None,
        model: str = "",
        role: Role = Role.GENERIC,
        prompt: str = "",
    ) -> None:
        self.vectors: Float32Array = float32_array(vectors, "vectors")
        if self.vectors.ndim != 2:
            raise InvalidInputError(f"vectors have {self.vectors.ndim} dimensions; they must be (texts, dim)")
        shape = self.vectors.shape[:1]
        self.token_counts: npt.NDArray[np.int32] = (
            np.full(shape, -1, np.int32) if token_counts is None else _counts(token_counts)
        )
        self.truncated: npt.NDArray[np.bool_] = np.zeros(shape, np.bool_) if truncated is None else _flags(truncated)
        if self.token_counts.shape != shape or self.truncated.shape != shape:
            name = "truncated" if self.token_counts.shape == shape else "token_counts"
            wrong = getattr(self, name).shape
            raise InvalidInputError(f"{name} has shape {wrong}; with {shape[0]} vectors it must be {shape}")
        if (
            isinstance(provenance, VectorProvenance)
            and isinstance(fingerprint, str)
            and fingerprint not in ("", provenance.fingerprint)
        ):
            raise InvalidInputError(
                f"fingerprint is {fingerprint}, and that of the provenance is {provenance.fingerprint}: pass one of them"
            )
        if not isinstance(fingerprint, str) and not callable(fingerprint):
            raise InvalidInputError(f"fingerprint is a {type(fingerprint).__name__}; pass a str, or a function of none")
        if not (provenance is None or isinstance(provenance, VectorProvenance) or callable(provenance)):
            raise InvalidInputError(f"provenance is a {type(provenance).__name__}; pass a VectorProvenance or None")
        if not isinstance(model, str) or not isinstance(prompt, str):
            raise InvalidInputError(f"model is {model!r:.80} and prompt {prompt!r:.80}; both must be str")
        self._fingerprint = fingerprint
        self._provenance = provenance
        self.model: str = model
        self.role: Role = role if isinstance(role, Role) else check_role(role)
        self.prompt: str = prompt

    @property
    def fingerprint(self) -> str:
        """Identifies all that a vector's bits depend on besides the text: weights, prompt and so on.

        That of the :attr:`provenance` where there is one. Empty where the service gives none. It may be worked out on
        first use, by reading the model's files once.
        """
        if (provenance := self.provenance) is not None:
            return provenance.fingerprint
        if not isinstance(self._fingerprint, str):
            self._fingerprint = self._fingerprint()
        return self._fingerprint

    @property
    def provenance(self) -> VectorProvenance | None:
        """All that a vector's bits depend on besides the text, field by field.

        None if the service gives none. To be stored beside vectors, and checked before they are compared with others.
        It may be worked out on first use, by reading the model's files once.
        """
        if callable(self._provenance):
            self._provenance = self._provenance()
        return self._provenance

    @property
    def vector_origin(self) -> VectorOrigin:
        """What comparisons check: vectors of two spaces are refused."""
        return VectorOrigin(self._fingerprint, self._provenance, self.model, self.prompt)

    @property
    def dimensions(self) -> int:
        """Length of each vector."""
        return int(self.vectors.shape[1])

    @property
    def total_tokens(self) -> int | None:
        """Tokens that the model read in all, or ``None`` where the service cannot know."""
        return None if bool((self.token_counts < 0).any()) else int(self.token_counts.sum())

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy:
            return np.array(self.vectors, dtype=dtype, copy=True)
        array = self.vectors if dtype is None else self.vectors.astype(dtype, copy=False)
        if copy is False and array is not self.vectors:
            raise ValueError(f"a view of float32 vectors as {np.dtype(dtype)} needs a copy")
        return array

    def __reduce__(self) -> tuple[Any, ...]:
        names = ("model", "prompt", "role", "token_counts", "truncated", "fingerprint", "provenance")
        fields = {name: getattr(self, name) for name in names}
        return (_unpickle, (self.vectors, fields))

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, key: Any) -> Any:
        return self.vectors[key]

    def __iter__(self) -> Iterator[Float32Array]:
        return iter(self.vectors)

    def __repr__(self) -> str:
        cut = int(self.truncated.sum())
        return (
            f"EmbeddingResult({len(self)} x {self.dimensions} float32, model={self.model!r}, role={self.role.value!r}, "
            f"tokens={self.total_tokens}, truncated={cut})"
        )


def _counts(token_counts: npt.ArrayLike) -> npt.NDArray[np.int32]:
    if type(token_counts) is np.ndarray and token_counts.dtype == np.int32:
        return np.ascontiguousarray(token_counts)  # as services give them
    counts = plain_array(token_counts, "token_counts", kinds="iu")
    if counts.size and not (int(counts.min()) >= -1 and int(counts.max()) <= MOST_TOKENS):
        raise InvalidInputError(
            f"token_counts holds {counts.min()} to {counts.max()}; counts are -1 to {MOST_TOKENS:,}"
        )
    return np.ascontiguousarray(counts, np.int32)


def _flags(truncated: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    if type(truncated) is np.ndarray and truncated.dtype == np.bool_:
        return np.ascontiguousarray(truncated)
    return np.ascontiguousarray(plain_array(truncated, "truncated", kinds="biu"), np.bool_)


def _unpickle(vectors: Float32Array, fields: dict[str, Any]) -> EmbeddingResult:
    return EmbeddingResult(vectors, **fields)
