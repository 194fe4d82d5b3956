"""Pages are shared, copied and given back so that no sequence ever sees what is not its own."""

from __future__ import annotations

import gc
import random
import threading
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice_inference.backends.cpu import CpuState
from lattice_inference.errors import CacheFullError, CheckpointError, InvalidInputError, ModelNotFoundError
from lattice_inference.graph.program import KvSpec
from lattice_inference.state import KvCache, PagePool, prefix_tree

PAGE = 4


class TokenPages:
    """A store whose pages hold the token ids themselves: what a sequence reads back tells whether pages were mixed up."""

    specs = (KvSpec(0, 1, 16, "float32"),)
    recurrent = None

    def __init__(self, pages, page_tokens=PAGE):
        self.pages = pages
        self.page_tokens = page_tokens
        self.page_bytes = 4 * page_tokens
        self.content = np.full((pages, page_tokens), -1, np.int32)
        self.copies = 0
        self.closed = False

    def copy_page(self, source, target):
        self.content[target] = self.content[source]
        self.copies += 1

    def export(self, page):
        return self.content[page].tobytes()

    def import_(self, page, content):
        self.content[page] = np.frombuffer(content, np.int32)

    def close(self):
        self.closed = True


def cache_of(pages, **options):
    return KvCache(TokenPages(pages), **options)


def extend(sequence, token_ids):
    """What a forward pass does: take the room, and write."""
    room = sequence.extend(token_ids)
    store = sequence.cache.storage
    for position, token in enumerate(token_ids, room.position):
        store.content[room.pages[position // store.page_tokens], position % store.page_tokens] = token


def held(sequence):
    """What the pages hold of the sequence."""
    return sequence.cache.storage.content[list(sequence.pages)].reshape(-1)[: sequence.length].tolist()


def test_a_sequence_takes_pages_as_it_grows_and_gives_them_back():
    cache = cache_of(10)
    sequence = cache.sequence()
    assert (sequence.length, cache.used_bytes, cache.capacity) == (0, 0, 40)
    extend(sequence, range(9))
    assert (len(sequence.pages), cache.used_bytes) == (3, 3 * 4 * PAGE)
    sequence.rewind(4)
    assert (sequence.length, len(sequence.pages), held(sequence)) == (4, 1, [0, 1, 2, 3])
    extend(sequence, [7])
    assert held(sequence) == [0, 1, 2, 3, 7]
    sequence.close()
    sequence.close()
    assert cache.used_bytes == 0
    with pytest.raises(InvalidInputError, match="sequence is closed"):
        sequence.fork()


@pytest.mark.parametrize("length", [-1, 10])
def test_rewinding_to_where_it_never_was_is_refused(length):
    sequence = cache_of(10).sequence()
    extend(sequence, range(9))
    with pytest.raises(InvalidInputError, match="9 tokens cannot be rewound"):
        sequence.rewind(length)


def test_a_fork_shares_pages_until_one_of_the_two_is_extended():
    cache = cache_of(10)
    first = cache.sequence()
    extend(first, range(6))
    second = first.fork()
    assert first.pages == second.pages
    assert cache.used_bytes == 2 * cache.storage.page_bytes
    extend(second, [100])
    assert cache.storage.copies == 1  # only the last page, which both would write
    assert first.pages[0] == second.pages[0]
    assert first.pages[1] != second.pages[1]
    extend(first, [200, 201, 202])
    assert cache.storage.copies == 1
    assert held(first) == [*range(6), 200, 201, 202]
    assert held(second) == [*range(6), 100]


def test_a_fork_at_the_end_of_a_page_copies_nothing():
    cache = cache_of(10)
    first = cache.sequence()
    extend(first, range(8))
    second = first.fork()
    extend(second, [9])
    extend(first, [10])
    assert cache.storage.copies == 0
    assert (held(first), held(second)) == ([*range(8), 10], [*range(8), 9])


def test_a_fork_that_was_rewound_into_a_shared_page_copies_it_before_writing():
    cache = cache_of(10)
    first = cache.sequence()
    extend(first, range(8))
    second = first.fork()
    second.rewind(5)
    extend(second, [50])
    assert held(first) == list(range(8))
    assert held(second) == [0, 1, 2, 3, 4, 50]


def test_a_full_cache_refuses_and_nothing_changes():
    cache = cache_of(3)
    first, second = cache.sequence(), cache.sequence()
    extend(first, range(9))
    with pytest.raises(CacheFullError, match="0 free pages of 4 tokens and 1 are needed"):
        second.extend([1])
    with pytest.raises(MemoryError):
        first.extend([1, 2, 3, 4])
    assert (first.length, second.length, len(first.pages)) == (9, 0, 3)
    fork = first.fork()
    with pytest.raises(CacheFullError):  # the shared last page would have to be copied
        fork.extend([1])
    assert (fork.token_ids, first.token_ids) == (tuple(range(9)), tuple(range(9)))
    first.close()
    fork.extend([1])
    assert fork.length == 10


def test_a_remembered_beginning_is_found_to_the_token():
    cache = cache_of(20, prefix_bytes=1000)
    first = cache.sequence()
    extend(first, range(10))
    cache.remember(first)
    first.close()
    for wanted, length in [
        ([*range(10), 77], 10),
        (range(10), 9),  # the last token is left to be run
        ([*range(7), 55, 56], 7),
        ([0, 1, 66, 67], 2),
        ([5, 6, 7, 8, 9], 0),
        ([0], 0),
        ([], 0),
    ]:
        sequence = cache.start(list(wanted))
        assert sequence.length == length, wanted
        assert held(sequence) == list(wanted)[:length]
        extend(sequence, [900, 901, 902])  # writes into pages of its own
        assert held(sequence) == [*list(wanted)[:length], 900, 901, 902]
        sequence.close()
    assert cache.start([*range(10), 5]).length == 10


def test_the_longest_of_several_beginnings_is_found():
    cache = cache_of(50, prefix_bytes=10_000)
    texts = [[1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6, 8, 9, 10, 11], [1, 2, 3, 4, 9], [1, 2]]
    for text in texts:
        sequence = cache.start(text)
        extend(sequence, text[sequence.length :])
        cache.remember(sequence)
        sequence.close()
    for text in texts:
        sequence = cache.start([*text, 99])
        assert sequence.length == len(text)
        assert held(sequence) == text
        sequence.close()


def test_remembering_more_of_the_same_text_keeps_one_copy():
    cache = cache_of(50, prefix_bytes=10_000)
    sequence = cache.sequence()
    for _ in range(12):
        extend(sequence, [sequence.length])
        cache.remember(sequence)
    assert cache.remembered_bytes == 3 * cache.storage.page_bytes
    cache.remember(sequence)
    sequence.close()
    assert cache.used_bytes == 3 * cache.storage.page_bytes
    cache.forget()
    assert cache.used_bytes == cache.remembered_bytes == 0


def test_remembered_pages_stay_within_their_budget_and_the_oldest_ends_go_first():
    store = TokenPages(100)
    cache = KvCache(store, prefix_bytes=4 * store.page_bytes)
    texts = [[10 * number + i for i in range(8)] for number in range(3)]  # two pages each
    for text in texts:
        sequence = cache.start(text)
        extend(sequence, text[sequence.length :])
        cache.remember(sequence)
        sequence.close()
        assert cache.remembered_bytes <= 4 * store.page_bytes
    lengths = []
    for text in texts:
        with cache.start([*text, 1]) as sequence:
            lengths.append(sequence.length)
    assert lengths == [0, 8, 8]
    # the first page of a text is never dropped before its second
    with cache.start([*texts[1], 1]):
        pass
    sequence = cache.sequence()
    extend(sequence, [500])
    cache.remember(sequence)
    assert cache.start([*texts[2], 1]).length == 4
    assert cache.start([*texts[1], 1]).length == 8


def test_a_budget_of_a_page_and_a_half_keeps_one_page():
    store = TokenPages(100)
    cache = KvCache(store, prefix_bytes=store.page_bytes * 3 // 2)
    sequence = cache.sequence()
    extend(sequence, range(8))
    cache.remember(sequence)
    assert cache.remembered_bytes == store.page_bytes
    sequence.close()
    with cache.start(range(9)) as again:
        assert held(again) == [0, 1, 2, 3]


def test_room_that_is_refused_leaves_remembered_pages_that_are_in_use():
    """To forget them would free nothing."""
    cache = cache_of(4, prefix_bytes=1000)
    sequence = cache.sequence()
    extend(sequence, range(8))
    cache.remember(sequence)
    before = cache.remembered_bytes
    with pytest.raises(CacheFullError):
        sequence.extend(list(range(100)))
    assert cache.remembered_bytes == before == 2 * cache.storage.page_bytes
    with cache.start(range(9)) as again:
        assert again.length == 8


def test_a_full_cache_forgets_what_nobody_uses_before_it_refuses():
    cache = cache_of(4, prefix_bytes=1000)
    first = cache.sequence()
    extend(first, range(8))
    cache.remember(first)
    using = cache.start([*range(8), 1])
    first.close()
    second = cache.sequence()
    extend(second, range(50, 58))
    cache.remember(second)
    second.close()
    third = cache.sequence()
    extend(third, range(70, 78))
    assert held(using) == list(range(8))
    with pytest.raises(CacheFullError):
        extend(third, [1])


def test_a_copy_that_fails_keeps_no_page(monkeypatch):
    cache = cache_of(8)
    sequence = cache.sequence()
    extend(sequence, range(6))
    with sequence.fork() as fork:
        monkeypatch.setattr(cache.storage, "copy_page", Mock(side_effect=[KeyboardInterrupt, None]))
        with pytest.raises(KeyboardInterrupt):
            extend(fork, range(6, 12))
        assert (held(fork), cache.used_pages) == (list(range(6)), 2)
    sequence.close()
    assert cache.used_pages == 0


def test_an_interrupt_lets_no_page_be_released_twice(monkeypatch):
    cache = cache_of(8)
    sequence, release = cache.sequence(), cache._pool.release
    extend(sequence, range(12))
    monkeypatch.setattr(cache._pool, "release", Mock(side_effect=[KeyboardInterrupt, None], wraps=release))
    with pytest.raises(KeyboardInterrupt):
        sequence.rewind(4)
    sequence.close()
    assert [call.args[0] for call in cache._pool.release.call_args_list] == [[1, 2], [0]]


def test_without_a_budget_nothing_is_remembered():
    cache = cache_of(4)
    sequence = cache.sequence()
    extend(sequence, range(8))
    cache.remember(sequence)
    sequence.close()
    assert cache.used_bytes == 0


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(6, 40), st.integers(0, 20))
def test_whatever_is_done_every_sequence_holds_its_own_tokens(seed, pages, remembered):
    rng = random.Random(seed)
    store = TokenPages(pages)
    cache = KvCache(store, prefix_bytes=remembered * store.page_bytes)
    live: list = []
    texts: dict[int, list[int]] = {}
    for _ in range(120):
        action = rng.choice(
            ["new", "start", "extend", "extend", "extend", "fork", "rewind", "remember", "close", "forget"]
        )
        if action in ("new", "start") or not live:
            # few different tokens, so that beginnings agree often
            wanted = [rng.randrange(2) for _ in range(rng.randrange(20))]
            sequence = cache.start(wanted) if action == "start" else cache.sequence()
            live.append(sequence)
            texts[id(sequence)] = wanted[: sequence.length]
            continue
        sequence = rng.choice(live)
        text = texts[id(sequence)]
        if action == "extend":
            more = [rng.randrange(2) for _ in range(rng.randrange(1, 9))]
            try:
                extend(sequence, more)
                text += more
            except CacheFullError:
                assert cache.forgettable_pages == 0
        elif action == "fork":
            live.append(sequence.fork())
            texts[id(live[-1])] = list(text)
        elif action == "rewind":
            length = rng.randrange(len(text) + 1)
            sequence.rewind(length)
            del text[length:]
        elif action == "remember":
            cache.remember(sequence)
        elif action == "close":
            sequence.close()
            live.remove(sequence)
        else:
            cache.forget()
        for other in live:
            assert held(other) == texts[id(other)] == list(other.token_ids)
        assert cache.remembered_bytes <= remembered * store.page_bytes
    for sequence in live:
        sequence.close()
    cache.forget()
    assert cache.used_bytes == 0


def test_the_pool_counts_holders():
    pool = PagePool(2)
    first = pool.take()
    assert pool.share(first) == first
    pool.release([first])
    assert (pool.holders(first), pool.free) == (1, 1)
    pool.take()
    with pytest.raises(CacheFullError):
        pool.take()
    pool.release([first])
    assert pool.take() == first


def test_a_page_is_idle_while_only_its_watcher_holds_it():
    pool = PagePool(2)
    page = pool.take()
    pool.watch(pool.share(page))
    assert pool.idle == 0
    pool.release([page])
    assert pool.idle == 1
    pool.share(page)
    assert pool.idle == 0
    pool.release([page])
    pool.unwatch(page)
    pool.release([page])
    assert (pool.idle, pool.free) == (0, 2)


def test_one_of_thousands_of_prefixes_is_found_and_dropped_in_few_looks(monkeypatch):
    cache = cache_of(4000, prefix_bytes=1 << 30)
    rng = random.Random(0)
    texts = {tuple(rng.choices(range(9), k=4)) for _ in range(3000)}
    running = []
    for number, text in enumerate(sorted(texts)):
        sequence = cache.start(text)
        sequence.rewind(0)
        extend(sequence, text)
        cache.remember(sequence)
        if number % 3 == 0:
            running.append(sequence)
        else:
            sequence.close()
    assert cache.remembered_pages == len(texts)
    assert cache.forgettable_pages == len(texts) - len(running)
    looks = []
    common = prefix_tree._common
    monkeypatch.setattr(prefix_tree, "_common", lambda a, b: looks.append(a) or common(a, b))
    for _ in range(50):
        wanted = rng.choices(range(9), k=4)
        with cache.start([*wanted, 0]) as found:
            best = max(texts, key=lambda text: common(text, tuple(wanted)))
            assert found.length == common(best, tuple(wanted))
            assert found.token_ids == tuple(wanted[: found.length])
    assert len(looks) <= 2 * 50
    touched = []
    touch = cache._prefixes._touch
    monkeypatch.setattr(cache._prefixes, "_touch", lambda node: touched.append(node) or touch(node))
    before = cache.free_pages
    for index in range(cache.forgettable_pages):
        cache.forget(1)
        assert cache.free_pages == before + index + 1
    assert len(touched) <= len(running)
    cache.forget(1)  # nothing is left that only the tree holds
    assert len(touched) <= len(running)
    assert cache.remembered_pages == len(running)
    for sequence in running:
        sequence.close()
    cache.forget()
    assert cache.used_pages == 0


def test_threads_of_one_cache_never_get_the_same_page():
    cache = cache_of(4000, prefix_bytes=200 * 16)
    problems = []

    def work(number):
        rng = random.Random(number)
        for _ in range(150):
            text = [number] * rng.randrange(1, 30)
            with cache.start(text) as sequence:
                extend(sequence, text[sequence.length :])
                if held(sequence) != text:
                    problems.append(text)
                cache.remember(sequence)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not problems
    cache.forget()
    assert cache.used_bytes == 0


def test_a_closed_cache_closes_its_storage_and_its_sequences():
    with cache_of(4) as cache:
        sequence = cache.sequence()
        extend(sequence, [1])
    assert cache.storage.closed
    for call in (cache.sequence, lambda: cache.start([1]), sequence.fork, lambda: cache.remember(sequence)):
        with pytest.raises(InvalidInputError, match="cache is closed"):
            call()
    sequence.close()


# Saving and restoring.


def saved(tmp_path, text=range(10), *, identity="model", pages=8):
    cache = cache_of(pages, identity=lambda: identity)
    sequence = cache.sequence()
    extend(sequence, list(text))
    path = tmp_path / "prefix.kv"
    cache.save(path, sequence)
    return path


def test_a_saved_prefix_is_restored_into_another_cache(tmp_path):
    path = saved(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["prefix.kv"]
    other = cache_of(5, identity=lambda: "model")
    extend(other.sequence(), [9])
    sequence = other.restore(path)
    assert sequence.token_ids == tuple(range(10))
    assert held(sequence) == list(range(10))
    extend(sequence, [10])
    assert held(sequence) == list(range(11))


def test_an_empty_sequence_can_be_saved_too(tmp_path):
    assert cache_of(1, identity=lambda: "model").restore(saved(tmp_path, [])).length == 0


def test_a_prefix_of_another_model_or_form_is_refused(tmp_path):
    path = saved(tmp_path)
    with pytest.raises(CheckpointError, match="saved with identity 'model', and here it is 'other'"):
        cache_of(8, identity=lambda: "other").restore(path)
    with pytest.raises(CheckpointError, match="page_tokens 4, and here it is 8"):
        KvCache(TokenPages(8, 8), identity=lambda: "model").restore(path)
    with pytest.raises(CheckpointError, match="10 tokens, and the cache holds 8"):
        cache_of(2, identity=lambda: "model").restore(path)
    with pytest.raises(ModelNotFoundError):
        cache_of(8).restore(tmp_path / "absent")


def test_a_prefix_that_does_not_fit_beside_others_is_refused_and_takes_nothing(tmp_path):
    path = saved(tmp_path)
    cache = cache_of(4, identity=lambda: "model")
    extend(cache.sequence(), range(8))
    used = cache.used_bytes
    with pytest.raises(CacheFullError):
        cache.restore(path)
    assert cache.used_bytes == used


def test_a_damaged_prefix_is_refused_wherever_the_damage_is(tmp_path):
    path = saved(tmp_path)
    whole = path.read_bytes()
    cache = cache_of(8, identity=lambda: "model")
    for position in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[position] ^= 0x20
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError):
            cache.restore(path)
    for length in (0, 1, 15, 16, 100, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            cache.restore(path)
    path.write_bytes(whole + b"x")
    with pytest.raises(CheckpointError):
        cache.restore(path)
    assert cache.used_bytes == 0
    path.write_bytes(whole)
    assert cache.restore(path).length == 10


def test_a_failed_save_leaves_the_file_that_was_there(tmp_path, monkeypatch):
    path = saved(tmp_path)
    before = path.read_bytes()
    cache = cache_of(4, identity=lambda: "model")
    sequence = cache.sequence()
    extend(sequence, range(8))

    def fail(page):
        raise OSError("no space left on device")

    monkeypatch.setattr(cache.storage, "export", fail)
    with pytest.raises(OSError, match="no space"):
        cache.save(path, sequence)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["prefix.kv"]


# The CPU's pages.


@pytest.mark.slow
def test_memory_is_taken_as_pages_are_written_and_given_back_on_close():
    from pathlib import Path

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    if not Path("/proc/self/statm").exists():
        pytest.skip("resident memory is read from /proc")
    specs = [KvSpec(layer, 8, 64, "float16") for layer in range(8)]
    gc.collect()
    before = resident()
    state = CpuState(specs, page_tokens=64, pages=8192)  # 8.6 GB of address space
    assert state.page_bytes == 8 * 2 * 8 * 64 * 64 * 2
    assert resident() - before < 8 << 20
    content = b"\x01" * state.page_bytes
    for page in range(64):
        state.import_(page, content)
    assert 60 << 20 < resident() - before < 90 << 20
    state.copy_page(63, 64)
    assert state.export(64) == content
    state.close()
    assert resident() - before < 24 << 20
    with pytest.raises(InvalidInputError, match="closed"):
        state.export(0)


def test_pages_that_do_not_exist_or_have_another_size_are_refused():
    state = CpuState([KvSpec(0, 1, 16, "int8")], page_tokens=16, pages=2)
    assert state.page_bytes == 2 * 16 * 16 + 2 * 16 * 4
    with pytest.raises(InvalidInputError, match="a page has"):
        state.import_(0, b"x")
    for page in (-1, 2):
        with pytest.raises(ValueError, match="no page"):
            state.export(page)
        with pytest.raises(ValueError, match="no page"):
            state.copy_page(0, page)
