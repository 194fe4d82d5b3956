"""The database of vectors by itself: order of leaving, several processes, forks, damage, folders that cannot be written."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from lattice_inference import InvalidInputError, VectorCache, VectorCacheError
from lattice_inference.vector_cache import VectorCacheWarning, default_cache_folder, wal_checkpoints
from lattice_inference.vector_cache.database import _LOOK_MILLISECONDS, FILE_NAME, LEAST_MAX_BYTES


def key(number: int, kind: str = "") -> bytes:
    return f"{kind}{number}".encode().rjust(32, b"\0")


def vector(number: int, size: int = 384) -> bytes:
    return np.full(size, number, np.float32).tobytes()


def put(cache: VectorCache, *numbers: int, size: int = 384, space: str = "model") -> None:
    cache.put_many([(key(number), vector(number, size)) for number in numbers], space=space)


def get(cache: VectorCache, *numbers: int) -> list[bytes | None]:
    return cache.get_many([key(number) for number in numbers])


def test_what_was_stored_is_found_by_the_next_process(tmp_path: Path) -> None:
    with VectorCache(tmp_path) as cache:
        put(cache, 1, 2)
        assert get(cache, 1, 3, 2) == [vector(1), None, vector(2)]
        assert (cache.hits, cache.misses) == (2, 1)
    code = (
        "import sys, lattice_inference as li; cache = li.VectorCache(sys.argv[1])\n"
        "print([len(v) if v else v for v in cache.get_many([b'1'.rjust(32, bytes(1)), b'7'.rjust(32, bytes(1))])])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[1536, None]\n", done.stderr


def test_any_number_of_keys_is_looked_up_in_order(tmp_path: Path) -> None:
    with VectorCache(tmp_path) as cache:
        put(cache, *range(0, 2_000, 2), size=2)
        found = get(cache, *range(2_000))
    assert found == [vector(number, 2) if number % 2 == 0 else None for number in range(2_000)]


def test_no_keys_and_no_vectors_are_no_work(tmp_path: Path) -> None:
    with VectorCache(tmp_path) as cache:
        cache.put_many([], space="model")
        assert cache.get_many([]) == []


def test_a_key_that_is_stored_again_is_there_once(tmp_path: Path) -> None:
    with VectorCache(tmp_path) as cache:
        put(cache, 1, 2, 1)
        put(cache, 1)
        assert cache.stats().entries == 2


def test_stats_count_by_model_and_clear_drops_one_of_them(tmp_path: Path) -> None:
    with VectorCache(tmp_path) as cache:
        put(cache, 1, 2, space="first")
        put(cache, 3, space="second")
        assert cache.stats().models == {"first": 2, "second": 1}
        assert cache.clear("first") == 2
        assert cache.clear("no such model") == 0
        assert get(cache, 1, 3) == [None, vector(3)]
        assert cache.clear() == 1
        put(cache, 4, space="second")
        stats = cache.stats()
    assert (stats.entries, stats.models, stats.mode, stats.path) == (
        1,
        {"second": 1},
        "read-write",
        tmp_path / FILE_NAME,
    )


# Room


def test_the_file_stays_within_its_limit(tmp_path: Path) -> None:
    with VectorCache(tmp_path, max_bytes=LEAST_MAX_BYTES) as cache:
        for start in range(0, 1_000, 10):
            put(cache, *range(start, start + 10))
        stats = cache.stats()
        assert stats.bytes <= LEAST_MAX_BYTES
        assert 100 <= stats.entries < 170
        kept = [number for number, found in enumerate(get(cache, *range(1_000))) if found]
        assert kept == list(range(1_000 - len(kept), 1_000))  # the newest ones
    assert (tmp_path / FILE_NAME).stat().st_size <= LEAST_MAX_BYTES + 65_536


def test_the_least_recently_used_leave_first(tmp_path: Path) -> None:
    with VectorCache(tmp_path, max_bytes=LEAST_MAX_BYTES) as cache:
        put(cache, *range(20))
        for start in range(100, 1_000, 10):
            assert get(cache, 3, 7) == [vector(3), vector(7)]
            put(cache, *range(start, start + 10))
        assert get(cache, 2, 3, 4, 7) == [None, vector(3), None, vector(7)]


def test_use_is_remembered_by_the_next_process(tmp_path: Path) -> None:
    with VectorCache(tmp_path, max_bytes=LEAST_MAX_BYTES) as cache:
        put(cache, *range(60))
    with VectorCache(tmp_path, max_bytes=LEAST_MAX_BYTES) as cache:
        get(cache, 0)
    with VectorCache(tmp_path, max_bytes=LEAST_MAX_BYTES) as cache:
        put(cache, *range(200, 290))
        assert get(cache, 0, 1) == [vector(0), None]


def test_a_vector_larger_than_the_limit_does_no_harm(tmp_path: Path) -> None:
    with VectorCache(tmp_path, max_bytes=LEAST_MAX_BYTES) as cache:
        put(cache, 1, size=2**17)
        put(cache, 2)
        assert cache.stats().bytes <= LEAST_MAX_BYTES
        put(cache, 3)
        assert get(cache, 3) == [vector(3)]


# Threads, processes, forks


def test_threads_share_one_cache(tmp_path: Path) -> None:
    def work(part: int) -> bool:
        for number in range(part * 100, part * 100 + 100):
            put(cache, number, size=8)
            assert get(cache, number) == [vector(number, 8)]
        return True

    with VectorCache(tmp_path) as cache, ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
        assert cache.stats().entries == 800


@pytest.mark.slow
def test_processes_that_begin_a_database_together_lose_nothing(tmp_path: Path) -> None:
    start, go = os.pipe()
    children = []
    for part in range(4):
        child = os.fork()
        if child == 0:
            os.close(go)
            os.read(start, 1)  # until the parent closes its end
            with VectorCache(tmp_path) as cache:
                for number in range(part * 60, part * 60 + 60, 4):
                    put(cache, *range(number, number + 4), size=8)
            os._exit(0)
        children.append(child)
    os.close(start)
    os.close(go)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 4
    with VectorCache(tmp_path) as cache:
        assert None not in get(cache, *range(240))
        assert cache.stats().entries == 240


def test_parent_and_forked_child_both_go_on(tmp_path: Path) -> None:
    with VectorCache(tmp_path) as cache:
        put(cache, 1)
        child = os.fork()
        if child == 0:
            seen = get(cache, 1) == [vector(1)]
            put(cache, 2)
            os._exit(0 if seen and get(cache, 2) == [vector(2)] else 1)
        put(cache, 3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert get(cache, 1, 2, 3) == [vector(1), vector(2), vector(3)]


@pytest.mark.slow
def test_a_fork_waits_for_the_thread_that_is_at_work(tmp_path: Path) -> None:
    """A child that was forked in the middle of another thread's transaction must not find the cache locked for ever."""
    stop = threading.Event()

    def work() -> None:
        number = 0
        while not stop.is_set():
            put(cache, number := number + 1, size=8)

    with VectorCache(tmp_path) as cache:
        thread = threading.Thread(target=work)
        thread.start()
        try:
            for _ in range(10):
                child = os.fork()
                if child == 0:
                    put(cache, -1, size=8)
                    os._exit(0 if get(cache, -1) == [vector(-1, 8)] else 1)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        finally:
            stop.set()
            thread.join()


def test_a_copy_by_pickle_opens_the_same_folder(tmp_path: Path) -> None:
    with VectorCache(tmp_path, max_bytes=LEAST_MAX_BYTES) as cache:
        put(cache, 1)
        with pickle.loads(pickle.dumps(cache)) as copy:
            assert get(copy, 1) == [vector(1)]
            assert copy.max_bytes == LEAST_MAX_BYTES


def test_a_folder_is_meant_from_where_it_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with VectorCache("relative/cache") as cache:
        monkeypatch.chdir("/")
        put(cache, 1)
    assert (tmp_path / "relative" / "cache" / FILE_NAME).exists()


# Damage


def _damage_header(path: Path) -> None:
    path.write_bytes(b"this is no database" * 500)


def _damage_middle(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096:20_480] = b"\xa5" * 16_384
    path.write_bytes(content)


def _cut(path: Path) -> None:
    os.truncate(path, 6_000)


@pytest.mark.parametrize("damage", [_damage_header, _damage_middle, _cut])
def test_a_damaged_database_is_set_aside_and_said_so(tmp_path: Path, damage: object) -> None:
    with VectorCache(tmp_path) as cache:
        put(cache, *range(50))
    damage(tmp_path / FILE_NAME)  # type: ignore[operator]
    with VectorCache(tmp_path) as cache:
        with pytest.warns(VectorCacheWarning, match="was damaged .* moved to vectors.sqlite3.damaged-"):
            assert None in get(cache, *range(50))
        put(cache, *range(50, 60))
        assert get(cache, 1, 55) == [None, vector(55)]
    assert len(list(tmp_path.glob(f"{FILE_NAME}.damaged-*"))) == 1


def test_of_several_processes_one_sets_a_damaged_database_aside(tmp_path: Path) -> None:
    first, second = VectorCache(tmp_path), VectorCache(tmp_path)
    with first, second:
        put(first, 1)
        assert get(second, 1) == [vector(1)]
        first.close()
        second.close()
        _damage_header(tmp_path / FILE_NAME)
        with pytest.warns(VectorCacheWarning, match="damaged"):
            put(first, 2)
        assert get(second, 2) == [vector(2)]  # no second warning, and what the first has stored since is kept
        assert get(first, 2) == [vector(2)]


def test_a_database_that_is_taken_away_while_open_is_begun_again(tmp_path: Path) -> None:
    with VectorCache(tmp_path) as cache, VectorCache(tmp_path) as other:
        put(cache, 1)
        for path in tmp_path.iterdir():
            path.rename(path.with_name(f"{path.name}.moved"))
        put(other, 2)
        time.sleep(2 * _LOOK_MILLISECONDS / 1000)  # nobody told the other: it looks now and then
        put(cache, 3)
        assert get(other, 3) == [vector(3)]


def test_a_flipped_bit_in_a_vector_is_a_miss_and_is_mended_by_the_next_store(tmp_path: Path) -> None:
    with VectorCache(tmp_path) as cache:
        put(cache, 1, 2)
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    flipped = bytearray(vector(1))
    flipped[700] ^= 4
    connection.execute("UPDATE vectors SET vector = ? WHERE key = ?", (bytes(flipped), key(1)))
    connection.commit()
    connection.close()
    with VectorCache(tmp_path) as cache:
        assert get(cache, 1, 2) == [None, vector(2)]
        put(cache, 1)
        assert get(cache, 1) == [vector(1)]


def test_somebody_elses_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE accounts (name TEXT)")
    connection.commit()
    connection.close()
    with VectorCache(tmp_path) as cache, pytest.raises(VectorCacheError, match="another program"):
        put(cache, 1)
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("accounts",)]
    connection.close()


def test_a_newer_format_is_refused_by_name(tmp_path: Path) -> None:
    with VectorCache(tmp_path) as cache:
        put(cache, 1)
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    connection.execute("PRAGMA user_version = 99")
    connection.commit()
    connection.close()
    with VectorCache(tmp_path) as cache, pytest.raises(VectorCacheError, match="version 99"):
        get(cache, 1)


# Places that cannot be written


def _as_nobody(work: str, folder: Path) -> list[object]:
    """Run some lines as a user who owns nothing, and return what they print as JSON."""
    code = (
        "import json, os, sys, warnings; from lattice_inference import VectorCache\n"
        "folder = sys.argv[1]; os.setgid(65534); os.setuid(65534)\n"
        "key = b'1'.rjust(32, bytes(1)); other = b'2'.rjust(32, bytes(1))\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        + "".join(f"    {line}\n" for line in work.splitlines())
        + "notes = [str(note.message) for note in caught]\nprint(json.dumps([*result, notes]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert isinstance(result, list)
    return result


@pytest.fixture
def public_folder() -> object:
    """A folder that any user can reach, which pytest's own cannot be."""
    folder = Path(tempfile.mkdtemp(prefix="lattice-cache-"))
    if not all(parent.stat().st_mode & 1 for parent in folder.resolve().parents):
        folder.rmdir()
        pytest.skip(f"other users cannot enter {tempfile.gettempdir()}")
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")

_READ_AND_WRITE = """cache = VectorCache(folder)
found = [v and len(v) for v in cache.get_many([key, other])]
cache.put_many([(other, bytes(8))], space='m')
result = [found, [v and len(v) for v in cache.get_many([key, other])], cache.stats().mode, cache.stats().entries]
cache.close()"""


@needs_root
def test_a_read_only_folder_serves_what_it_holds(public_folder: Path) -> None:
    with VectorCache(public_folder) as cache:
        put(cache, 1)
    found, again, mode, entries, notes = _as_nobody(_READ_AND_WRITE, public_folder)
    assert (found, again, mode, entries) == ([1536, None], [1536, None], "read-only", 1)
    assert len(notes) == 1  # type: ignore[arg-type]
    assert "can only be read" in notes[0]  # type: ignore[index]


@needs_root
def test_a_read_only_folder_is_read_while_its_owner_writes(public_folder: Path) -> None:
    with VectorCache(public_folder) as cache:
        put(cache, 1)
        for path in public_folder.iterdir():
            path.chmod(0o644)
        found, _, mode, _, _ = _as_nobody(_READ_AND_WRITE, public_folder)
    assert (found, mode) == ([1536, None], "read-only")


@needs_root
def test_a_folder_where_nothing_can_be_made_turns_the_cache_off(public_folder: Path) -> None:
    found, again, mode, entries, notes = _as_nobody(_READ_AND_WRITE, public_folder / "new")
    assert (found, again, mode, entries) == ([None, None], [None, None], "off", 0)
    assert ["cannot be used" in note for note in notes] == [True]  # type: ignore[attr-defined]


def test_a_folder_that_is_a_file_turns_the_cache_off(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with VectorCache(tmp_path / "file") as cache:
        with pytest.warns(VectorCacheWarning, match="cannot be used"):
            put(cache, 1)
        assert get(cache, 1) == [None]
        assert cache.stats().mode == "off"
        with pytest.raises(VectorCacheError, match="cannot be written"):
            cache.clear()


def test_a_full_disk_is_a_warning_and_no_error(tmp_path: Path) -> None:
    with VectorCache(tmp_path) as cache:
        put(cache, 1)
        assert cache._connection is not None
        cache._connection.execute("PRAGMA max_page_count = 8")  # what SQLite reports is what a full disk gives
        many = range(2, 1_000)  # more than a journal holds
        with pytest.warns(VectorCacheWarning, match="full"):
            put(cache, *many)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            put(cache, *many)  # said once
        assert get(cache, 1, 50) == [vector(1), None]


# The log


@pytest.mark.slow
def test_the_log_is_copied_into_the_database_while_vectors_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal_checkpoints, "_WRITTEN_BYTES", 100_000)
    before = set(threading.enumerate())
    with VectorCache(tmp_path) as cache:
        for start in range(0, 12_000, 600):
            put(cache, *range(start, start + 600))
            cache._checkpoints.wait()
        log = tmp_path / "vectors.sqlite3-wal"
        assert 0 < log.stat().st_size < 6e6, "19 MB were stored"
        assert get(cache, 0, 11_999, 12_000) == [vector(0), vector(11_999), None]
        put(cache, *range(12_000, 12_600))
    assert "lattice-checkpoint" not in [thread.name for thread in set(threading.enumerate()) - before]


def test_without_threads_the_log_is_left_to_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(wal_checkpoints, "_WRITTEN_BYTES", 1)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with VectorCache(tmp_path) as cache:
        put(cache, *range(2_000))
        assert get(cache, 0, 1_999) == [vector(0), vector(1_999)]


# Options


@pytest.mark.parametrize("size", [0, LEAST_MAX_BYTES - 1, 1.5e9, True, None])
def test_a_limit_that_makes_no_sense_is_refused(size: object, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="max_bytes"):
        VectorCache(tmp_path, max_bytes=size)  # type: ignore[arg-type]


def test_the_default_folder_is_the_environments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LATTICE_VECTOR_CACHE", str(tmp_path))
    assert VectorCache().folder == tmp_path
    monkeypatch.setenv("LATTICE_VECTOR_CACHE", "  ")
    assert default_cache_folder() == Path("~/.lattice/cache").expanduser()
    monkeypatch.setenv("LATTICE_VECTOR_CACHE", "~no-such-user/here")
    with pytest.raises(InvalidInputError, match=r"~no-such-user/here.*LATTICE_VECTOR_CACHE"):
        default_cache_folder()


def test_a_cache_that_is_made_and_not_used_leaves_no_trace(tmp_path: Path) -> None:
    VectorCache(tmp_path / "new").close()
    assert not (tmp_path / "new").exists()


def test_a_cache_that_is_never_closed_ends_with_python_and_says_nothing(tmp_path: Path) -> None:
    code = """
import sys
from lattice_inference.vector_cache import VectorCache
cache = VectorCache(sys.argv[1])
cache.put_many([(bytes(32), b"four")], space="model")
cache.self = cache  # goes with Python itself, and no sooner
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert VectorCache(tmp_path).get_many([bytes(32)]) == [b"four"]
