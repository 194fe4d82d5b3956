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


@pytest.mark.parametrize("wrong", [None, True, 1.5, "x", [], np.ones(2), 1j])
def test_room_is_a_count(wrong):
    with pytest.raises(InvalidInputError, match="tokens"):
        cache_of(8).sequence().reserve(wrong)


@pytest.mark.parametrize("wrong", [None, 1, "x", [1, None], [1, 10**40], [1, 2**31], [1, 1.5], np.ones((2, 2))])
def test_what_is_no_token_id_is_not_committed(wrong):
    sequence = cache_of(8).sequence()
    sequence.reserve(4)
    with pytest.raises(InvalidInputError, match="token ids"):
        sequence.commit(wrong)
    assert sequence.length == 0


def test_only_reserved_room_is_committed():
    sequence = cache_of(8).sequence()
    sequence.reserve(2)
    with pytest.raises(InvalidInputError, match="call reserve"):
        sequence.commit(range(5))
    assert sequence.length == 0
    sequence.commit(range(4))
    assert sequence.token_ids == (
        0,
        1,
        2,
        3,
    )


def test_numpy_integers_are_lengths():
    sequence = cache_of(8).sequence()
    extend(sequence, [1, 2, 3])
    sequence.reserve(np.int64(2))
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
