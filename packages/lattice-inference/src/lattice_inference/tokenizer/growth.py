"""Bounds how many characters a normalizer makes of one.

So a small file and text cannot exhaust memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

from lattice_inference.errors import TokenizerError
from lattice_inference.tokenizer import _tokenizer as native
from lattice_inference.tokenizer.replacements import Step

__all__ = ["MAX_GROWTH", "check_growth"]

MAX_GROWTH = 1024
"""Most characters that all steps together may make of one; published files make at most 18."""

_FORMS = {native.NORMALIZE_NFC: 3, native.NORMALIZE_NFD: 4, native.NORMALIZE_NFKC: 18, native.NORMALIZE_NFKD: 18}
_OTHERS = {native.NORMALIZE_SPACE_CJK: 3, native.NORMALIZE_LOWERCASE: 2}


def check_growth(steps: Sequence[Step]) -> None:
    """Raise :class:`TokenizerError` for a normalizer whose steps can make too much of a text."""
    growth = 1
    plain: set[int] = set()  # steps of fixed tables since the last one that puts in new text
    for step in (*steps, None):
        if isinstance(step, int):
            plain.add(step)
            continue
        # One normal form leaves the next little to take apart, and no other step has more to do a second time.
        growth *= max((_FORMS[kind] for kind in plain if kind in _FORMS), default=1)
        growth *= math.prod(_OTHERS.get(kind, 1) for kind in plain)
        plain.clear()
        if step is not None:
            growth *= _replacement_growth(step)
    if growth > MAX_GROWTH:
        raise TokenizerError(
            f"normalizer could make {growth:,} characters of one; the limit is {MAX_GROWTH:,} for all its steps together"
        )


def _replacement_growth(step: tuple[object, ...]) -> int:
    if step[0] == native.NORMALIZE_PRECOMPILED:
        replacements = cast(bytes, step[2]).decode()
        return max(1, *map(len, replacements.split("\0")))
    if step[0] == native.NORMALIZE_REPLACE:
        literal, minimum, content = cast(str, step[1]), cast(int, step[3]), cast(str, step[7])
        return max(1, -(-len(content) // (len(literal) or minimum)))
    return 1
