"""What a full cache forgets, so that a sequence may use every page that no other one does."""

from __future__ import annotations

import pytest

from lattice_inference.errors import CacheFullError

from .test_kv_cache import cache_of, extend, held


@pytest.mark.parametrize(("remembered", "kept", "more"), [(6, 6, 10), (16, 6, 10), (8, 8, 8), (5, 3, 13)])
def test_a_sequence_alone_may_fill_the_cache_after_its_beginning_was_remembered(remembered, kept, more):
    """A copy of its last page would not fit, and only the prefix holds the page too."""
    cache = cache_of(4, prefix_bytes=1000)
    sequence = cache.sequence()
    extend(sequence, range(remembered))
    cache.remember(sequence)
    sequence.rewind(kept)
    extend(sequence, range(50, 50 + more))
    assert held(sequence) == [*range(kept), *range(50, 50 + more)]
    with pytest.raises(CacheFullError):
        extend(sequence, [1])
    sequence.close()
    cache.forget()
    assert cache.used_pages == 0


def test_more_of_a_page_that_a_rewound_fork_has_remembered():
    cache = cache_of(4, prefix_bytes=1000)
    first = cache.sequence()
    extend(first, [0, 1])
    second = first.fork()
    second.rewind(1)
    cache.remember(second)
    cache.remember(first)
    assert cache.remembered_pages == 1
    first.close()
    second.close()
    assert cache.forgettable_pages == 1
    with cache.start([0, 1, 2]) as again:
        assert held(again) == [0, 1]


def test_a_page_before_one_in_use_is_forgotten_too():
    """Two sequences have run the same beginning, each in a page; the second one's end follows the first one's page."""
    cache = cache_of(4, prefix_bytes=1000)
    first, second = cache.sequence(), cache.sequence()
    extend(first, range(4))
    extend(second, range(8))
    cache.remember(first)
    cache.remember(second)
    first.close()
    assert (cache.free_pages, cache.forgettable_pages) == (1, 1)
    extend(second, range(50, 58))
    assert held(second) == [*range(8), *range(50, 58)]
    assert cache.remembered_pages == 0
    second.close()
    assert cache.used_pages == 0
