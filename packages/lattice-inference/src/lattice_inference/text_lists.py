"""Checks arguments that hold several texts: lists, arrays and columns.

A single text or a table is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

from lattice_inference.errors import InvalidInputError

__all__ = ["check_text_list"]


def check_text_list(texts: Any, name: str = "texts", element: str = "texts") -> Iterable[Any]:
    """Return the elements of ``texts``, which are not looked at.

    Lists, generators, arrays of one dimension, and columns of pandas, polars and Arrow are taken as they are.

    Args:
        texts: what the caller gave.
        name: the argument, for an error.
        element: what its elements are.

    Raises:
        InvalidInputError: it is one ``str``, bytes, a table, has no order, or cannot be iterated over.
    """
    if type(texts) in (list, tuple):
        return texts  # type: ignore[no-any-return]  # what nearly every caller has
    if isinstance(texts, str):
        raise InvalidInputError(
            f"{name} is one str, which would be read letter by letter: pass [{name.removesuffix('s')}], a list of {element}"
        )
    if isinstance(texts, (bytes, bytearray, memoryview)):
        raise InvalidInputError(f"{name} is bytes; decode them, and pass a list of {element}")
    columns = _columns_of(texts)
    if columns is not None:
        raise InvalidInputError(_about_table(texts, columns, name, element))
    if isinstance(texts, (Set, Mapping)):
        raise InvalidInputError(
            f"{name} is a {type(texts).__name__}, whose order is not defined; pass a list of {element}"
        )
    if hasattr(type(texts), "to_pylist"):  # an Arrow column, whose elements are scalars of Arrow
        return texts.to_pylist()  # type: ignore[no-any-return]
    if hasattr(type(texts), "dims") and hasattr(type(texts), "values"):  # xarray, whose elements are arrays again
        raise InvalidInputError(f"{name} is a {type(texts).__name__} with dimensions; pass its .values")
    try:
        iter(texts)
    except TypeError:  # an array without dimensions has a method for it, and refuses
        raise InvalidInputError(f"{name} is a {type(texts).__name__}; pass a list of {element}") from None
    return texts  # type: ignore[no-any-return]


def _columns_of(texts: Any) -> list[str] | None:
    """Return the names of a table's columns, or None for what is no table."""
    kind = type(texts)
    if isinstance(texts, Mapping):
        columns = [str(key) for key, values in texts.items() if _is_column(values)]
        return columns if columns and len(columns) == len(texts) else None
    if _is_lazy_frame(kind):
        return [str(column) for column in texts.collect_schema()]
    if hasattr(kind, "column_names"):  # Arrow's tables
        return [str(column) for column in texts.column_names]
    if hasattr(kind, "columns") and (hasattr(kind, "iloc") or hasattr(kind, "get_column")):  # pandas' and polars'
        return [str(column) for column in texts.columns]
    return None


def _is_column(values: Any) -> bool:
    return hasattr(type(values), "__len__") and not isinstance(values, str | bytes | bytearray)


def _is_lazy_frame(kind: type) -> bool:
    """Whether it is polars' LazyFrame."""
    return hasattr(kind, "collect_schema") and not hasattr(kind, "__len__")


def _about_table(texts: Any, columns: list[str], name: str, element: str) -> str:
    """Return the error for a table: its columns, and how one of them is passed."""
    kind = type(texts)
    about = f"{name} is a {kind.__name__}"
    if not columns:
        return f"{about} without columns; pass a list of {element}"
    about += f" with the columns {', '.join(map(repr, columns[:8]))}{', ...' if len(columns) > 8 else ''}"
    if columns.count(columns[0]) > 1:
        return f"{about}, of which some share a name; pass the one that holds the {element}: {name}.iloc[:, 0]"
    frame = f"{name}.collect()" if _is_lazy_frame(kind) else name
    end = ".values" if hasattr(kind, "dims") else ""
    return f"{about}; pass the one that holds the {element}, such as {frame}[{columns[0]!r}]{end}"
