"""What all matrices of stored vectors have in common."""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from lattice_embed.argument_checks import check_integer, check_kind
from lattice_embed.arrays import float32_array, plain_array
from lattice_embed.errors import InvalidInputError, TierMismatchError
from lattice_embed.origin import VectorOrigin, check_one_space, origin_of
from lattice_embed.vectors import _vectors
from lattice_embed.vectors.metric import NAMES, code_of
from lattice_embed.vectors.tier import QuantizationTier

__all__ = ["StoredMatrix", "StoredVector", "as_rows", "rows_of_lengths", "stored_dims"]

Float32Array = npt.NDArray[np.float32]


class StoredMatrix:
    """Vectors stored in less than float32, one a row.

    Immutable; may be read from several threads at once. Not derived from ``ABC``, of which a check of an instance is
    many steps, all of them out of cache after a search.

    Attributes:
        dims: dimensions of a vector.
    """

    tier: ClassVar[QuantizationTier]
    metrics: ClassVar[tuple[str, ...]]
    """What can be measured, the default first."""

    _is_integer_query = True
    """Whether the kernels take these rows as queries as they are."""

    dims: int

    vector_origin: VectorOrigin | None = None
    """Where the vectors come from, if they were quantized from the result of a service: comparisons check it."""

    def __init__(self, dims: int) -> None:
        self.dims = dims
        self._made: dict[bool, _vectors.StoredRows] = {}

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def dequantize(self) -> Float32Array:
        """Return the vectors as stored, float32 (n, dims)."""

    @abstractmethod
    def take(self, rows: npt.ArrayLike | slice) -> Self:
        """Return the matrix of some rows: a slice, a mask or positions."""

    @abstractmethod
    def _make_rows(self, *, squares: bool) -> _vectors.StoredRows: ...

    @abstractmethod
    def _vector(self, index: int) -> Any: ...

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of everything that is kept for the rows, scales and norms included."""

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, dims)."""
        return (len(self), self.dims)

    @property
    def storage_bytes(self) -> int:
        """Bytes of the components of all rows."""
        return len(self) * self.tier.storage_bytes(self.dims)

    def __getitem__(self, index: int) -> Any:
        try:
            position = operator.index(index)
        except TypeError:
            raise InvalidInputError(f"an integer gives one vector, take() several; got {index!r}") from None
        return self._vector(range(len(self))[position])

    def __iter__(self) -> Iterator[Any]:
        return (self._vector(index) for index in range(len(self)))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self):,} vectors of {self.dims} dimensions, {self.nbytes:,} bytes>"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        mine, theirs = self.__getstate__(), other.__getstate__()
        return all(np.array_equal(mine[name], theirs[name]) for name in mine if name != "vector_origin")

    __hash__: ClassVar[None]  # type: ignore[assignment]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_made"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _made={})

    def _coming_from(self, source: object) -> Self:
        """Return these vectors with the origin of what they were made of."""
        origin = origin_of(source)
        if origin is not None:
            self.vector_origin = origin
        return self

    def code_of(self, metric: str) -> int:
        """Return the kernels' number of a metric.

        Raises:
            InvalidInputError: these vectors do not have it.
        """
        return code_of(metric, self.metrics, self.tier)

    def rows_for(self, metric: int) -> _vectors.StoredRows:
        """Return what the kernels read, made once."""
        distances = metric in (_vectors.EUCLIDEAN, _vectors.SQUARED_EUCLIDEAN)
        if distances not in self._made:
            self._made[distances] = self._make_rows(squares=distances)
        return self._made[distances]

    def queries_for(self, queries: Any, metric: int, operation: str) -> Any:
        """Return queries as the kernels take them: float32 (m, dims), or stored rows of this kind.

        Raises:
            TierMismatchError: the queries are stored at another tier.
        """
        if isinstance(queries, StoredVector):
            source = queries.matrix
        elif isinstance(queries, StoredMatrix):
            source = queries
        else:
            return queries
        if type(source) is not type(self):
            raise TierMismatchError(operation=operation, expected=source.tier.value, actual=self.tier.value)
        if not source._is_integer_query or not self._is_integer_query:
            return np.atleast_2d(queries.dequantize())
        stored = source.rows_for(metric)
        return stored.row(queries.index) if isinstance(queries, StoredVector) else stored


class StoredVector(_vectors.StoredVector):
    """One vector of a :class:`StoredMatrix`, which it keeps alive.

    Attributes:
        matrix: where it lies.
        index: in which row.
    """

    matrix: StoredMatrix
    _tier: ClassVar[QuantizationTier | None] = None

    def __init__(self, matrix: StoredMatrix, index: int) -> None:
        check_kind("matrix", matrix, StoredMatrix)
        if self._tier is not None and matrix.tier is not self._tier:
            raise TierMismatchError(operation="a vector", expected=self._tier.value, actual=matrix.tier.value)
        super().__init__(check_integer("index", index, lowest=0, highest=len(matrix) - 1))
        self.matrix = matrix

    @property
    def tier(self) -> QuantizationTier:
        """The precision."""
        return self.matrix.tier

    @property
    def vector_origin(self) -> VectorOrigin | None:
        """Where the vector comes from, if that is known."""
        return self.matrix.vector_origin

    @property
    def dims(self) -> int:
        """Dimensions of the vector."""
        return self.matrix.dims

    def dequantize(self) -> Float32Array:
        """Return the vector as stored, float32 (dims,)."""
        row: Float32Array = self.matrix.take(slice(self.index, self.index + 1)).dequantize()[0]
        return row

    def rows_for(self, metric: int) -> _vectors.StoredRows:
        """What the kernels read for a metric by its number, refused if these vectors do not have it."""
        self.matrix.code_of(NAMES[metric])
        return self.matrix.rows_for(metric)

    def as_query(self, other: StoredVector, metric: int) -> Any:
        """This vector as a query for another one.

        Raises:
            SpaceMismatchError: they come from two embedding spaces.
        """
        check_one_space(self, other)
        return other.matrix.queries_for(self, metric, "a comparison")

    def __len__(self) -> int:
        return self.dims

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        mine = self.matrix.take(slice(self.index, self.index + 1))
        theirs = other.matrix.take(slice(other.index, other.index + 1))
        return mine == theirs

    __hash__: ClassVar[None]  # type: ignore[assignment]

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.matrix.take(slice(self.index, self.index + 1)), 0))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.dims} dimensions>"


def stored_dims(dims: int) -> int:
    """Return dimensions that vectors may be quantized at.

    Raises:
        InvalidInputError: no integer from 0 to ``MAX_DIMENSIONS``.
    """
    return check_integer("dims", dims, lowest=0, highest=_vectors.MAX_DIMENSIONS)


def as_rows(vectors: npt.ArrayLike) -> Float32Array:
    """Return float32 (n, dims) of a matrix, or of one vector.

    Raises:
        InvalidInputError: a wrong shape or kind.
    """
    rows: Float32Array = _vectors.as_float32(np.atleast_2d(plain_array(vectors, "the vectors")), 2, "the vectors")
    if rows.shape[1] > _vectors.MAX_DIMENSIONS:
        raise InvalidInputError(f"vectors of {rows.shape[1]:,} components: at most {_vectors.MAX_DIMENSIONS:,}")
    return rows


def rows_of_lengths(name: str, values: npt.ArrayLike, count: int, *, least: float = 0.0) -> Float32Array:
    """Return one finite float32 value a row, each above ``least`` or equal to it.

    Raises:
        InvalidInputError: another number of values, or a value that is out of range.
    """
    array = float32_array(values, name)
    if array.shape != (count,):
        raise InvalidInputError(f"{name} has shape {array.shape}; there must be one for each of {count} rows")
    if not bool(np.all(np.isfinite(array) & (array >= least))):
        raise InvalidInputError(f"{name} must hold finite values of at least {least:g}")
    return array
