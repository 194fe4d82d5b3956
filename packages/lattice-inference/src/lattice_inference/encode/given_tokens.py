"""Packs texts that are given as token ids."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lattice_inference.errors import InvalidInputError
from lattice_inference.token_ids import checked_token_ids
from lattice_inference.tokenizer import PackedEncoding
from lattice_inference.value_text import value_text

__all__ = ["packed_ids"]


def packed_ids(token_ids: Sequence[Sequence[int]], limit: int) -> PackedEncoding:
    """Return lists of token ids laid end to end.

    Those of more than ``limit`` ids are marked as truncated, and not cut.

    Raises:
        InvalidInputError: it is no list of lists of ids, or a list is empty.
    """
    if isinstance(token_ids, (str, bytes, bytearray, memoryview)) or not isinstance(token_ids, Sequence):
        raise InvalidInputError(f"token_ids is {value_text(token_ids)}; expected a list of lists of token ids")
    lists = [checked_token_ids(ids, f"token_ids[{index}]") for index, ids in enumerate(token_ids)]
    counts = np.array([len(ids) for ids in lists], np.int32)
    if not counts.all():
        raise InvalidInputError(f"token_ids[{int(np.argmin(counts))}] is empty; a text has at least one token")
    bounds = np.zeros(len(lists) + 1, np.int32)
    np.cumsum(counts, out=bounds[1:])
    ids = np.array([one for ids in lists for one in ids], np.int32)
    return PackedEncoding(ids, bounds, np.zeros(len(ids), np.int32), counts, counts > limit)
