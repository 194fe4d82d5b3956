"""The journal before the database: nothing lost at any moment, seen by everybody, and no system call in the usual case."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import select
import signal
import struct
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lattice_inference import VectorCache
from lattice_inference.tokenizer import PackedEncoding
from lattice_inference.vector_cache import VectorCacheWarning, database_keys, journal
from lattice_inference.vector_cache._journal import MappedJournal, TextDigests, checksum
from lattice_inference.vector_cache.database import FILE_NAME
from lattice_inference.vector_cache.journal import JOURNAL_PREFIX, WrittenRecords
from lattice_inference.vector_cache.keys import TokenKeys


def key(number: int) -> bytes:
    return hashlib.blake2b(str(number).encode(), digest_size=32).digest()


def vector(number: int, size: int = 24) -> bytes:
    return np.full(size, number, np.float32).tobytes()


def put(cache: VectorCache, *numbers: int, space: str = "model") -> None:
    cache.put_many([(key(number), vector(number)) for number in numbers], space=space)


def get(cache: VectorCache, *numbers: int) -> list[bytes | None]:
    return cache.get_many([key(number) for number in numbers])


def vectors(*numbers: int) -> list[bytes]:
    return [vector(number) for number in numbers]


def journals(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith(JOURNAL_PREFIX))


@pytest.fixture
def small_journals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for about thirty vectors, so that they are moved all the time."""
    monkeypatch.setattr(journal, "_MOST_BYTES", 4096)


def in_child(work: Callable[[], object]) -> int:
    """Run some work in a forked child and return how it ended, as subprocess does."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def statements(cache: VectorCache) -> list[str]:
    """Return a list that fills with what the database is asked."""
    seen: list[str] = []
    assert cache._connection is not None
    cache._connection.set_trace_callback(seen.append)
    return seen


# What is killed


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_killed_at_any_moment_of_storing_and_moving_loses_nothing_and_repeats_nothing(
    seed: int, tmp_path: Path, small_journals: None
) -> None:
    """SIGKILL, 50 times in all, at a random moment of a process that does nothing but store and move."""
    generator = random.Random(seed)
    acknowledged = 0
    for _ in range(25):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                cache, number = VectorCache(tmp_path), acknowledged
                if get(cache, *range(number)) != vectors(*range(number)):
                    os._exit(3)
                while True:
                    count = generator.choice((1, 1, 2, 7, 50))  # the last goes to the database at once
                    put(cache, *range(number, number + count))
                    number += count
                    os.write(writer, struct.pack("<I", number))
            finally:
                os._exit(4)
        os.close(writer)
        # So many calls later, not so much time later: a slow machine does no less before it is killed.
        told, least = b"", 4 * generator.randrange(1, 30)
        while len(told) < least and select.select([reader], [], [], 60)[0] and (more := os.read(reader, 4096)):
            told += more
        time.sleep(generator.random() * 0.002)
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        with os.fdopen(reader, "rb") as pipe:
            told += pipe.read()
        for (number,) in struct.iter_unpack("<I", told[: len(told) // 4 * 4]):
            acknowledged = number
    with VectorCache(tmp_path) as cache:
        assert acknowledged > 1_000
        assert get(cache, *range(acknowledged)) == vectors(*range(acknowledged))
        # whole calls, each once: what was being stored when the process was killed may be there too, at most 50 vectors
        assert acknowledged <= cache.stats().entries <= acknowledged + 50
    assert journals(tmp_path) == []


def _before_saying_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WrittenRecords, "say_moved", lambda self: die())


def _after_saying_so(monkeypatch: pytest.MonkeyPatch) -> None:
    say_moved = WrittenRecords.say_moved
    monkeypatch.setattr(WrittenRecords, "say_moved", lambda self: (say_moved(self), die()))


def _before_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        VectorCache, "_set_newest", lambda self, newest: die() if self._connection.in_transaction else 0
    )


def _before_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WrittenRecords, "read", lambda self, start: die())


def _before_removing_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "unlink", lambda self: die())


@pytest.mark.parametrize(
    "moment",
    [_before_reading, _before_the_commit, _before_saying_so, _after_saying_so, _before_removing_the_file],
)
def test_killed_in_the_middle_of_a_move_has_each_vector_once(
    moment: Callable[[pytest.MonkeyPatch], None], tmp_path: Path
) -> None:
    def work() -> None:
        with pytest.MonkeyPatch.context() as patch:
            cache = VectorCache(tmp_path)
            put(cache, 1, 2)
            put(cache, 3, space="another")
            moment(patch)
            cache.close()

    assert in_child(work) == -signal.SIGKILL
    with VectorCache(tmp_path) as cache:
        assert get(cache, 1, 2, 3, 4) == [*vectors(1, 2, 3), None]
        assert cache.stats().models == {"model": 2, "another": 1}
    assert journals(tmp_path) == []


def test_killed_while_taking_over_a_journal_leaves_it_to_the_next(tmp_path: Path) -> None:
    def store() -> None:
        put(VectorCache(tmp_path), 1, 2, 3)
        die()

    def take_over() -> None:
        with pytest.MonkeyPatch.context() as patch:
            _before_saying_so(patch)
            get(VectorCache(tmp_path), 1)

    assert in_child(store) == -signal.SIGKILL
    assert len(journals(tmp_path)) == 1
    assert in_child(take_over) == -signal.SIGKILL
    with VectorCache(tmp_path) as cache:
        assert get(cache, 1, 2, 3) == vectors(1, 2, 3)
        assert cache.stats().entries == 3


# Several at once


def test_each_sees_at_once_what_the_other_has_stored(tmp_path: Path) -> None:
    with VectorCache(tmp_path) as first, VectorCache(tmp_path) as second:
        for number in range(0, 100, 2):
            assert get(second, number) == [None]  # no memory of that in the way
            put(first, number)
            assert get(second, number) == [vector(number)]
            put(second, number + 1)
            assert get(first, number, number + 1) == vectors(number, number + 1)
        assert len(journals(tmp_path)) == 2
        assert first.stats().entries == 100


def test_what_lies_in_the_journal_of_a_process_is_there_after_its_death_for_all(tmp_path: Path) -> None:
    with VectorCache(tmp_path) as cache:
        put(cache, 1)

        def work() -> None:
            other = VectorCache(tmp_path)
            put(other, 2)
            if get(other, 1) == [vector(1)]:
                die()

        assert in_child(work) == -signal.SIGKILL
        assert get(cache, 1, 2) == vectors(1, 2)
        with VectorCache(tmp_path) as third:
            assert get(third, 1, 2) == vectors(1, 2)
        assert get(cache, 1, 2) == vectors(1, 2)


@pytest.mark.slow
def test_two_processes_that_move_all_the_time_lose_nothing_and_find_everything(
    tmp_path: Path, small_journals: None
) -> None:
    def work(part: int) -> None:
        with VectorCache(tmp_path) as cache:
            for number in range(part, 600, 3):
                put(cache, number)
                for known in (number, random.randrange(part, number + 1, 3)):
                    assert get(cache, known) == [vector(known)]

    children = []
    for part in range(3):
        child = os.fork()
        if child == 0:
            try:
                work(part)
            except BaseException:
                os._exit(1)
            os._exit(0)
        children.append(child)
    with VectorCache(tmp_path) as cache:
        while os.waitid(os.P_PID, children[-1], os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            found = get(cache, *range(600))
            assert all(one in (None, vector(number)) for number, one in enumerate(found))
        assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 3
        assert get(cache, *range(600)) == vectors(*range(600))
        assert cache.stats().entries == 600


def test_what_is_cleared_is_cleared_from_every_journal_for_good(tmp_path: Path) -> None:
    with VectorCache(tmp_path) as first, VectorCache(tmp_path) as second:
        put(first, 1)
        put(first, 2, space="other")
        put(second, 3)
        assert second.clear("other") == 1
        assert get(first, 1, 2, 3) == [vector(1), None, vector(3)]
        assert second.clear() == 2
        assert get(first, 1, 2, 3) == [None] * 3
        put(first, 4)
        assert get(second, 1, 2, 3, 4) == [None, None, None, vector(4)]
    with VectorCache(tmp_path) as cache:
        assert get(cache, 1, 2, 3, 4) == [None, None, None, vector(4)]


def test_a_large_call_of_another_process_is_seen_though_it_went_past_the_journal(
    tmp_path: Path, small_journals: None
) -> None:
    with VectorCache(tmp_path) as first, VectorCache(tmp_path) as second:
        put(first, 1)
        assert get(first, *range(100, 300)) == [None] * 200
        assert first.mapped is not None
        assert first.mapped.filter_room > 0
        put(second, *range(100, 300))
        assert get(first, *range(100, 300)) == vectors(*range(100, 300))


def test_rows_of_another_process_before_our_own_are_found_though_a_filter_was_made(
    tmp_path: Path, small_journals: None
) -> None:
    """Our own rows are taken into the filter at once; those before them that others stored must not be passed over."""
    with VectorCache(tmp_path) as first, VectorCache(tmp_path) as second:
        put(first, 1)
        assert get(first, *range(100, 300)) == [None] * 200
        assert first.mapped is not None
        assert first.mapped.filter_room > 0
        put(first, *range(1000, 1200))  # past the journal, as the two below
        put(second, *range(100, 300))
        put(first, *range(2000, 2200))
        assert get(first, *range(100, 300)) == vectors(*range(100, 300))


def test_a_journal_that_tells_does_not_pass_over_what_others_have_told() -> None:
    board = bytearray(4096)
    first, second = (MappedJournal(board, bytearray(4096)) for _ in range(2))
    first.see()
    first.tell()
    assert first.is_current()  # its own change is none to look for
    second.see()
    second.tell()
    first.tell()
    assert not first.is_current()
    first.see()
    assert first.is_current()
    first.tell(True)
    assert not first.is_current()  # what was taken away may lie in its own memory


# What it costs


def test_new_texts_ask_the_database_nothing(tmp_path: Path) -> None:
    with VectorCache(tmp_path) as cache:
        put(cache, *range(10))
        cache.close()
        get(cache, 100)
        seen = statements(cache)
        for number in range(100, 300):
            assert cache.mapped is not None
            cache.mapped.look_in(60_000)
            assert get(cache, number) == [None]
            put(cache, number)
            assert get(cache, number) == [vector(number)]
        assert seen == []
        assert get(cache, 3) == [vector(3)]
        assert len(seen) == 1


def test_a_filter_that_is_full_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_journals: None
) -> None:
    monkeypatch.setattr(database_keys, "_LEAST_KEYS", 16)
    with VectorCache(tmp_path) as cache:
        for number in range(400):
            assert get(cache, number) == [None]
            put(cache, number)
        assert get(cache, *range(400)) == vectors(*range(400))


def test_the_filter_of_a_large_database_waits_until_it_pays(tmp_path: Path) -> None:
    with VectorCache(tmp_path) as cache:
        put(cache, *range(1_000))
        cache.close()
        get(cache, 5_000)
        assert cache.mapped is not None
        assert cache.mapped.filter_room == 0
        for number in range(5_001, 5_012):
            get(cache, number)
        assert cache.mapped.filter_room == database_keys._LEAST_KEYS - 1_000
        assert get(cache, *range(1_000)) == vectors(*range(1_000))


# Damage, and disks without room


@pytest.mark.parametrize("place", [70, 80, 130])
def test_a_damaged_record_is_a_miss_and_the_others_are_kept(place: int, tmp_path: Path) -> None:
    """Bytes of a length, of a key and of a vector."""

    def work() -> None:
        put(VectorCache(tmp_path), 1, 2)
        die()

    assert in_child(work) == -signal.SIGKILL
    (name,) = journals(tmp_path)
    content = bytearray((tmp_path / name).read_bytes())
    content[place] ^= 0x55
    (tmp_path / name).write_bytes(content)
    with VectorCache(tmp_path) as cache:
        found = get(cache, 1, 2)
        assert found[0] is None
        assert found[1] in (None, vector(2))  # what follows a damaged length cannot be found
        assert (found[1] is None) == (place == 70)
        put(cache, 1)
        assert get(cache, 1) == [vector(1)]


def test_a_record_that_is_damaged_under_its_owner_is_a_miss(tmp_path: Path) -> None:
    with VectorCache(tmp_path) as cache:
        put(cache, 1, 2)
        with (tmp_path / journals(tmp_path)[0]).open("r+b") as file:
            file.seek(130)
            file.write(b"?")
        assert get(cache, 1, 2) == [None, vector(2)]


@pytest.mark.parametrize("content", [b"", b"LVJRNL1\0", os.urandom(300), b"LVJRNL1\0" + b"\xff" * 300])
def test_a_file_that_is_no_journal_is_used_as_one(content: bytes, tmp_path: Path) -> None:
    (tmp_path / f"{JOURNAL_PREFIX}0").write_bytes(content)
    with VectorCache(tmp_path) as cache:
        put(cache, 1)
        assert get(cache, 1) == [vector(1)]
    with VectorCache(tmp_path) as cache:
        assert get(cache, 1) == [vector(1)]


def test_without_room_for_a_journal_vectors_go_to_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite

    def full(descriptor: int, data: Any, offset: int) -> int:
        if len(data) > 4096:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    with VectorCache(tmp_path) as cache, VectorCache(tmp_path) as other:
        for number in range(20):
            assert get(other, number) == [None]
            put(cache, number)
            assert get(other, number) == [vector(number)]


def _put_one_by_one(cache: VectorCache, numbers: range) -> None:
    for number in numbers:
        put(cache, number)


def test_a_journal_that_cannot_be_moved_keeps_what_it_has(tmp_path: Path, small_journals: None) -> None:
    with VectorCache(tmp_path) as cache:
        put(cache, 1)
        assert cache._connection is not None
        cache._connection.execute("PRAGMA max_page_count = 5")  # what SQLite reports is what a full disk gives
        with pytest.warns(VectorCacheWarning, match="full"):
            _put_one_by_one(cache, range(2, 200))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            put(cache, 300)  # said once
        assert get(cache, 1, 2) == vectors(1, 2)
        kept = [found is not None for found in get(cache, *range(1, 200))]
        assert cache.clear() >= 0
    assert 0 < sum(kept) < 199
    assert (tmp_path / FILE_NAME).exists()


# Keys


@pytest.mark.parametrize("prefix", [0, 1, 119, 120, 127, 128, 129, 256, 1_000])
def test_digests_are_those_of_hashlib(prefix: int) -> None:
    before = bytes(place % 251 for place in range(prefix))
    for count in (0, 1, 2, 29, 30, 31, 32, 33, 512):
        ids = np.arange(count, dtype=np.int32) * 77_777
        for types in (np.zeros(count, np.int32), np.arange(count, dtype=np.int32) % 2):
            message = (
                before + (4 * count).to_bytes(8, "little") + ids.tobytes() + (types.tobytes() if types.any() else b"")
            )
            (digest,) = TextDigests(before).of(ids, types, np.array([0, count], np.int32))
            assert digest == hashlib.blake2b(message, digest_size=32).digest()


def test_digests_take_any_integers_and_refuse_bounds_that_lie() -> None:
    make = TextDigests(b"prefix")
    ids, types = np.arange(8), np.zeros(8, np.int64)
    want = make.of(ids.astype(np.int32), types.astype(np.int32), np.array([0, 3, 8], np.int32))
    assert make.of(ids, types, np.array([0, 3, 8])) == want
    assert make.of(np.repeat(ids, 2)[::2], types, np.array([0, 3, 8])) == want
    for bounds in ([0, 9], [0, -1], [5, 3], [-1, 3]):
        with pytest.raises(ValueError, match="outside"):
            make.of(ids, types, np.array(bounds))
    with pytest.raises(ValueError, match="type"):
        make.of(ids, types[:3], np.array([0, 3]))


def test_keys_of_older_files_are_still_made() -> None:
    """Frozen: a database that was written before the journal was built answers for the same texts."""
    ids = np.array([101, 1996, 4937, 102], np.int32)
    packed = PackedEncoding(ids, np.array([0, 4], np.int32), np.zeros(4, np.int32), np.array([4]), np.zeros(1, bool))
    parts = [b"lattice-inference token cache 1", b"print", b"normalized", b"384"]
    message = b"".join(len(part).to_bytes(8, "little") + part for part in [*parts, ids.astype("<i4").tobytes()])
    assert TokenKeys("print", "normalized", 384)(packed) == [hashlib.blake2b(message, digest_size=32).digest()]


def test_a_checksum_tells_every_byte_and_length_apart() -> None:
    generator = random.Random(1)
    content = generator.randbytes(100)
    seen = {checksum(key(0), content)}
    for place in range(100):
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        seen |= {checksum(key(0), bytes(flipped)), checksum(key(0), content[:place]), checksum(key(0), bytes(place))}
    assert len(seen) >= 300
