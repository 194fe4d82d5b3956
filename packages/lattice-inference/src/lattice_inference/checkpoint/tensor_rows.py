"""Names of tensor rows: ``lm_head.weight[9693:9694]`` is that row of ``lm_head.weight``.

Elements lie in whole rows in every format, blocks included, so rows are a stretch of the tensor's bytes: they are read
without the rest. A stack of matrices has the rows of all its matrices, one matrix after the other: of a tensor (8, 24, 64)
``[24:48]`` is the second matrix. Where matrices are stored with their axes swapped, ``^T`` swaps them back before rows are
counted: of a tensor (8, 64, 24) ``^T[24:48]`` is that matrix, (24, 64).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["TensorRows", "beside", "parse_rows", "rows_name"]

_NAME = re.compile(r"(?s)(.+?)(\^T)?\[([0-9]{1,18}):([0-9]{1,18})\]")


@dataclass(frozen=True, slots=True)
class TensorRows:
    """Rows ``first`` to ``end``, without ``end``, of the tensor ``tensor``.

    ``swapped``: of its matrices transposed.
    """

    tensor: str
    first: int
    end: int
    swapped: bool = False


def rows_name(tensor: str, first: int, count: int, *, swapped: bool = False) -> str:
    """Return the name of ``count`` rows of a tensor from row ``first`` on.

    With ``swapped`` they are rows of its matrices transposed.
    """
    return f"{tensor}{'^T' if swapped else ''}[{first}:{first + count}]"


def parse_rows(name: str) -> TensorRows | None:
    """Return what :func:`rows_name` was given, or None for any other name."""
    found = _NAME.fullmatch(name)
    return None if found is None else TensorRows(found[1], int(found[3]), int(found[4]), found[2] is not None)


def beside(name: str, suffix: str, *, of_rows: bool) -> str:
    """Return the name of a tensor that belongs to another one, with ``suffix`` after its name.

    ``of_rows``: it has a row for each of the other's, so of rows of that it is the same rows; else it is one for all.
    """
    rows = parse_rows(name)
    if rows is None:
        return name + suffix
    whole = rows.tensor + suffix
    return rows_name(whole, rows.first, rows.end - rows.first) if of_rows else whole
