"""Names an embedding space in bytes, for indexes, caches and stores of vectors."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from enum import IntEnum

from lattice_embed.errors import InvalidInputError

__all__ = ["DistanceMetric", "EmbeddingKey", "VectorDType", "VectorNorm"]

_MAX_U32 = 2**32 - 1


class DistanceMetric(IntEnum):
    """How vectors of a space are compared. The numbers are those of the canonical bytes."""

    COSINE = 1
    DOT = 2
    L2 = 3


class VectorDType(IntEnum):
    """What a component is stored as. The numbers are those of the canonical bytes."""

    FLOAT32 = 1
    FLOAT16 = 2
    INT8 = 3

    @property
    def itemsize(self) -> int:
        """Bytes of a component."""
        return {VectorDType.FLOAT32: 4, VectorDType.FLOAT16: 2, VectorDType.INT8: 1}[self]


class VectorNorm(IntEnum):
    """Whether vectors are scaled. The numbers are those of the canonical bytes."""

    NONE = 0
    UNIT = 1


@dataclass(frozen=True)
class EmbeddingKey:
    """An embedding space: vectors with different keys do not belong in one index.

    Args:
        model: slug or id of the model.
        revision: version of its weights; may be empty.
        dims: length of a vector.
        metric: how vectors are compared.
        dtype: what a component is stored as.
        norm: whether vectors are scaled to length 1.

    Raises:
        InvalidInputError: a field has another type, or ``dims`` is outside 1 to 2**32 - 1.

    >>> from lattice_embed import EmbeddingModel, ModelConfig
    >>> key = ModelConfig(EmbeddingModel.ALL_MINILM_L6_V2).to_embedding_key()
    >>> key.model, key.dims, key.metric.name
    ('all-minilm-l6-v2', 384, 'COSINE')
    """

    model: str
    revision: str
    dims: int
    metric: DistanceMetric = DistanceMetric.COSINE
    dtype: VectorDType = VectorDType.FLOAT32
    norm: VectorNorm = VectorNorm.NONE

    def __post_init__(self) -> None:
        for name in ("model", "revision"):
            if not isinstance(getattr(self, name), str):
                raise InvalidInputError(f"{name} is {getattr(self, name)!r}; an embedding key needs a str")
        try:
            dims = -1 if isinstance(self.dims, bool) else operator.index(self.dims)
        except TypeError:
            dims = -1
        if not 1 <= dims <= _MAX_U32:
            raise InvalidInputError(f"dims is {self.dims!r}; an embedding key needs an int from 1 to {_MAX_U32:,}")
        object.__setattr__(self, "dims", dims)
        for name, kind in (("metric", DistanceMetric), ("dtype", VectorDType), ("norm", VectorNorm)):
            if not isinstance(getattr(self, name), kind):
                raise InvalidInputError(f"{name} is {getattr(self, name)!r}; pass a {kind.__name__}")

    @property
    def canonical_bytes(self) -> bytes:
        """The key as bytes; two keys have the same bytes only if they are equal.

        u32 length of the model | model in UTF-8 | u32 length of the revision | revision | u32 dims | metric | dtype |
        norm, integers big-endian, the last three one byte each.
        """
        parts = []
        for text in (self.model, self.revision):
            encoded = text.encode("utf-8", "surrogatepass")  # of a path, which may hold undecodable bytes
            parts += [len(encoded).to_bytes(4, "big"), encoded]
        parts += [self.dims.to_bytes(4, "big"), bytes((self.metric, self.dtype, self.norm))]
        return b"".join(parts)
