"""EmbeddingCache: limits that are kept exactly, the order of leaving, counts, threads."""

from __future__ import annotations

import hashlib
import os
import pickle
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import blake3
import numpy as np
import pytest

from lattice_embed import DEFAULT_CACHE_CAPACITY, EmbeddingCache, InvalidInputError
from lattice_embed._text_cache import ENTRY_OVERHEAD_BYTES, TextKeys
from lattice_embed.embedding_cache import CachedEmbedding, CachedOrigin

ORIGIN = CachedOrigin("m", "", "", None)


def key(number: int) -> bytes:
    return hashlib.blake2b(str(number).encode(), digest_size=32).digest()


def entry(number: int, size: int = 4) -> CachedEmbedding:
    return CachedEmbedding(np.full(size, number, np.float32).tobytes(), token_count=3, truncated=False, origin=ORIGIN)


def fill(cache: EmbeddingCache, numbers: range, size: int = 4) -> None:
    cache.put_many((key(number), entry(number, size)) for number in numbers)


def held(cache: EmbeddingCache, numbers: range) -> list[int]:
    return [number for number in numbers if cache.peek(key(number)) is not None]


def test_what_was_put_is_got_in_order() -> None:
    cache = EmbeddingCache()
    fill(cache, range(5))
    found = cache.get_many([key(3), key(9), key(0)])
    assert [None if one is None else one.vector.tolist() for one in found] == [[3.0] * 4, None, [0.0] * 4]
    stats = cache.stats()
    assert (stats.hits, stats.misses, stats.entries, stats.hit_rate) == (2, 1, 5, 2 / 3)
    assert stats.bytes == 5 * (16 + ENTRY_OVERHEAD_BYTES)


@pytest.mark.parametrize("prefix", [0, 1, 55, 56, 63, 64, 65, 128, 500, 1_015, 1_016, 1_024, 3_000])
def test_keys_are_those_of_blake3(prefix: int) -> None:
    before = bytes(place % 251 for place in range(prefix))
    make = TextKeys(before)
    for length in (0, 1, 47, 48, 55, 56, 57, 64, 127, 500, 900, 1_015, 1_016, 1_017, 1_100, 5_000):
        for text in ("a" * length, "\u00e9" * (length // 2), "a" * length + "\U0001f600"):
            encoded = text.encode()
            want = blake3.blake3(before + len(encoded).to_bytes(8, "little") + encoded).digest()
            assert make.key(text) == want
            assert make.keys([text, ""])[0] == want


def test_a_vector_that_is_handed_out_cannot_be_written_to() -> None:
    with pytest.raises(ValueError, match="read-only"):
        entry(1).vector[0] = 5


@pytest.mark.parametrize("capacity", [1, 2, 15, 16, 17, 100, 1_000, 1_025, DEFAULT_CACHE_CAPACITY])
def test_capacity_is_never_exceeded_and_can_be_reached(capacity: int) -> None:
    cache = EmbeddingCache(capacity)
    fill(cache, range(4 * capacity))
    stats = cache.stats()
    assert stats.entries == len(cache) == capacity == sum(shard.entries for shard in stats.shards)
    assert stats.evictions == 3 * capacity
    assert len(stats.shards) == (16 if capacity >= 1_024 else 8 if capacity == 1_000 else 1)


def test_the_default_holds_four_thousand_in_sixteen_shards() -> None:
    stats = EmbeddingCache().stats()
    assert (stats.capacity, stats.max_bytes, len(stats.shards)) == (4_000, None, 16)


@pytest.mark.parametrize("size", [0, 500, 10_000, 2**20, 2**24, 2**24 + 5])
def test_bytes_are_never_exceeded(size: int) -> None:
    cache = EmbeddingCache(max_bytes=size)
    fill(cache, range(3_000), size=2_000)
    stats = cache.stats()
    assert stats.bytes <= size
    assert stats.entries * (8_000 + ENTRY_OVERHEAD_BYTES) == stats.bytes
    assert stats.entries == 0 or stats.bytes > size * 0.9 or size < 100_000


def test_entries_that_fill_the_bytes_exactly_stay() -> None:
    size = 2 * (16 + ENTRY_OVERHEAD_BYTES)
    cache = EmbeddingCache(max_bytes=size)
    fill(cache, range(2))
    assert held(cache, range(2)) == [0, 1]
    assert cache.stats().bytes == size
    smaller = EmbeddingCache(max_bytes=size - 1)
    fill(smaller, range(2))
    assert held(smaller, range(2)) == [1]


def test_the_least_recently_used_leaves_first() -> None:
    cache = EmbeddingCache(4)
    fill(cache, range(4))
    cache.get(key(0))
    cache.get_many([key(1)])
    cache.peek(key(2))
    cache.put(key(3), entry(3))
    fill(cache, range(10, 11))
    assert held(cache, range(20)) == [0, 1, 3, 10]
    fill(cache, range(11, 13))
    assert held(cache, range(20)) == [3, 10, 11, 12]


def test_order_agrees_with_a_model_of_it() -> None:
    generator = random.Random(1)
    cache, model = EmbeddingCache(20), dict[int, None]()
    for _ in range(3_000):
        number = generator.randrange(40)
        if generator.random() < 0.5:
            assert (cache.get(key(number)) is not None) == (number in model)
            if number in model:
                model[number] = model.pop(number)
        else:
            cache.put(key(number), entry(number))
            model.pop(number, None)
            model[number] = None
            if len(model) > 20:
                del model[next(iter(model))]
    assert held(cache, range(40)) == sorted(model)


def test_zero_keeps_nothing() -> None:
    for cache in (EmbeddingCache(0), EmbeddingCache(max_bytes=0)):
        fill(cache, range(5))
        assert (cache.enabled, len(cache)) == (False, 0)


def test_clear_keeps_the_counts() -> None:
    cache = EmbeddingCache()
    fill(cache, range(5))
    cache.get(key(0))
    cache.clear()
    stats = cache.stats()
    assert (stats.entries, stats.bytes, stats.hits) == (0, 0, 1)


def test_a_key_that_is_no_digest_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="5 bytes"):
        EmbeddingCache().put(b"short", entry(1))


@pytest.mark.parametrize(
    "limits", [{"capacity": -1}, {"capacity": 1.5}, {"max_bytes": -1}, {"capacity": 1, "max_bytes": 1}]
)
def test_limits_that_make_no_sense_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(InvalidInputError):
        EmbeddingCache(**limits)


def test_counts_stay_exact_among_threads() -> None:
    cache = EmbeddingCache(500)

    def work(seed: int) -> int:
        generator = random.Random(seed)
        for _ in range(2_000):
            number = generator.randrange(1_000)
            if cache.get(key(number)) is None:
                cache.put(key(number), entry(number))
        return 2_000

    with ThreadPoolExecutor(8) as pool:
        lookups = sum(pool.map(work, range(8)))
    stats = cache.stats()
    assert stats.hits + stats.misses == lookups
    assert stats.entries == 500
    assert stats.bytes == 500 * (16 + ENTRY_OVERHEAD_BYTES)
    assert all(cache.peek(key(number)).vector[0] == number for number in held(cache, range(1_000)))  # type: ignore[union-attr]


def test_a_copy_by_pickle_has_the_limits_and_nothing_in_it() -> None:
    cache = EmbeddingCache(max_bytes=2**20)
    fill(cache, range(5))
    copy = pickle.loads(pickle.dumps(cache))
    assert (len(copy), copy.stats().max_bytes) == (0, 2**20)


@pytest.mark.slow
def test_a_fork_in_the_middle_of_another_threads_work_leaves_a_usable_copy() -> None:
    cache = EmbeddingCache(100)
    stop = threading.Event()

    def work() -> None:
        number = 0
        while not stop.is_set():
            cache.put(key(number := number + 1), entry(number))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                fill(cache, range(10_000_000, 10_000_200))
                stats = cache.stats()
                os._exit(0 if (stats.entries, stats.bytes) == (100, 100 * (16 + ENTRY_OVERHEAD_BYTES)) else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        stop.set()
        thread.join()
