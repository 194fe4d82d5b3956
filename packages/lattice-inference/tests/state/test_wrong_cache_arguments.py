"""A cache of keys and values refuses what is no length, no token id, no sequence and no path, and stays as it was."""

from __future__ import annotations

import numpy as np
import pytest

from lattice_inference.errors import InvalidInputError

from .test_kv_cache import cache_of, extend

NOT_COUNTS = [None, True, -1, 1.5, "x", 10**40, [], np.ones(2), 1j]


@pytest.mark.parametrize("wrong", NOT_COUNTS)
def test_wrong_lengths_leave_a_sequence_as_it_was(wrong):
    sequence = cache_of(8).sequence()
    extend(sequence, [1, 2, 3])
    with pytest.raises(InvalidInputError, match="cannot be rewound"):
        sequence.rewind(wrong)
    assert sequence.token_ids == (
        1,
        2,
        3,
    )


@pytest.mark.parametrize(
    "wrong",
    [None, 1, "x", b"x", [1, None], [1, -1], [True], [1, 10**40], [1, 2**31], [1, 1.5], np.ones((2, 2)), np.ones(2)],
)
def test_what_is_no_token_id_is_not_held(wrong):
    sequence = cache_of(8).sequence()
    with pytest.raises(InvalidInputError, match="token id"):
        sequence.extend(wrong)
    assert (sequence.length, sequence.pages) == (0, ())


def test_room_is_where_the_tokens_end():
    sequence = cache_of(8).sequence()
    first = sequence.extend(range(5))
    second = sequence.extend(np.arange(2, dtype=np.int32))
    assert (first.position, len(first.pages), second.position, len(second.pages)) == (0, 2, 5, 2)
    assert sequence.extend([]).position == sequence.length == 7
    assert sequence.token_ids == (0, 1, 2, 3, 4, 0, 1)
    sequence.close()
    with pytest.raises(InvalidInputError, match="closed"):
        sequence.extend([1])


def test_numpy_integers_are_lengths():
    sequence = cache_of(8).sequence()
    extend(sequence, [1, 2, 3])
    sequence.extend(np.array([4, 5]))
    sequence.rewind(np.int32(1))
    assert sequence.token_ids == (1,)


@pytest.mark.parametrize("wrong", [None, 1, "x", [], object, np.ones(2)])
def test_only_sequences_are_remembered_and_saved(tmp_path, wrong):
    cache = cache_of(8)
    with pytest.raises(InvalidInputError, match="CachedSequence"):
        cache.remember(wrong)
    with pytest.raises(InvalidInputError, match="CachedSequence"):
        cache.save(tmp_path / "x", wrong)


@pytest.mark.parametrize("wrong", [None, 1, b"x", [], object, np.ones(2)])
def test_files_are_named_by_paths(wrong):
    cache = cache_of(8)
    with pytest.raises(InvalidInputError, match="path"):
        cache.restore(wrong)
    for path in (wrong, ""):
        with pytest.raises(InvalidInputError, match="path"):
            cache.save(path, cache.sequence())
