"""The database of vectors refuses folders, limits, keys and entries that are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lattice_inference import InvalidInputError, VectorCache

KEY = b"k" * 32


@pytest.mark.parametrize("wrong", [None, True, 0, -1, 1.5, "x", 2**63, 10**40, np.ones(2)])
def test_a_limit_is_an_integer_that_the_database_can_hold(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(InvalidInputError, match="max_bytes"):
        VectorCache(tmp_path, max_bytes=wrong)


@pytest.mark.parametrize("wrong", [1, True, b"x", object(), [], "a\0b", "~no-such-user-here/x", np.ones(2)])
def test_a_folder_is_a_path(wrong: Any) -> None:
    with pytest.raises(InvalidInputError, match="folder"):
        VectorCache(wrong)


def test_the_largest_limit_is_kept(tmp_path: Path) -> None:
    with VectorCache(tmp_path, max_bytes=np.int64(2**63 - 1)) as cache:
        cache.put_many([(KEY, b"1234")], space="s")
        assert cache.get_many((KEY,)) == [b"1234"]


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize(
    "wrong", [None, True, 0, object(), "x", b"x", [[1], [2]], {"a": 1}, np.array(1.0), np.ones((2, 2))]
)
def test_keys_are_bytes(tmp_path: Path, wrong: Any, stored: bool) -> None:
    with VectorCache(tmp_path) as cache:
        if stored:
            cache.put_many([(KEY, b"1234")], space="s")
        for call in (cache.get_many, cache.look_up):
            with pytest.raises(InvalidInputError, match="keys"):
                call(wrong)


@pytest.mark.parametrize(
    "wrong",
    [None, True, object(), "x", b"x", [None], [(KEY,)], [(KEY, None)], [("k", b"v")], {"a": 1}, np.ones((2, 2))],
)
def test_entries_are_pairs_of_bytes(tmp_path: Path, wrong: Any) -> None:
    with VectorCache(tmp_path) as cache:
        with pytest.raises(InvalidInputError, match="entries"):
            cache.put_many(wrong, space="s")
        assert cache.stats().entries == 0


@pytest.mark.parametrize("wrong", [None, True, 0, b"x", [], "\udc80", np.ones(2)])
def test_a_space_is_text(tmp_path: Path, wrong: Any) -> None:
    with VectorCache(tmp_path) as cache, pytest.raises(InvalidInputError, match="space"):
        cache.put_many([(KEY, b"1234")], space=wrong)
