"""Vectors kept in memory, least recently used out first, in shards so that threads do not wait for each other.

Unstable: the number of shards, the key's length and what an entry costs may change in any release.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from lattice_embed.errors import InvalidInputError
from lattice_embed.provenance import VectorProvenance
from lattice_embed.result import Float32Array
from lattice_embed.validation import check_limit

__all__ = [
    "DEFAULT_CACHE_CAPACITY",
    "KEY_BYTES",
    "CacheStats",
    "CachedEmbedding",
    "CachedOrigin",
    "EmbeddingCache",
    "ShardStats",
]

DEFAULT_CACHE_CAPACITY = 4_000
"""Vectors that a cache holds unless told otherwise: about 7 MB of 384 dimensions."""

MAX_SHARDS = 16
KEY_BYTES = 32
"""Length of a key: a BLAKE3 digest, whose first byte picks the shard."""

ENTRY_OVERHEAD_BYTES = 320
"""What an entry costs in memory besides its vector: key, object, and its place in the shard's table."""

# A shard of fewer entries, or bytes, would evict long before the cache is full: some shards get more keys than others.
_LEAST_SHARD_ENTRIES = 64
_LEAST_SHARD_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class CachedOrigin:
    """What the results of one space have in common: the name of the model, the prompt, and where vectors come from."""

    model: str
    prompt: str
    fingerprint: str
    provenance: VectorProvenance | None


class CachedEmbedding:
    """A vector and what is known about its text. Immutable.

    Attributes:
        data: the vector's float32 numbers as bytes.
        token_count: tokens that the model read; -1 where nobody knows.
        truncated: whether the text was cut at the model's token limit.
        origin: what the vectors of one space have in common.
        owner: who stored it; only the same service takes a truncated text's vector back.
    """

    __slots__ = ("data", "origin", "owner", "token_count", "truncated")

    def __init__(
        self, data: bytes, *, token_count: int, truncated: bool, origin: CachedOrigin, owner: bytes = b""
    ) -> None:
        self.data = data
        self.token_count = token_count
        self.truncated = truncated
        self.origin = origin
        self.owner = owner

    @property
    def vector(self) -> Float32Array:
        """The vector, read-only, without a copy."""
        return np.frombuffer(self.data, np.float32)

    def __repr__(self) -> str:
        return f"CachedEmbedding({len(self.data) // 4} float32, tokens={self.token_count}, truncated={self.truncated})"


@dataclass(frozen=True, kw_only=True)
class ShardStats:
    """Counts of one shard, or of a whole cache.

    On a Python without a global lock, look-ups by several threads at the same moment may count as fewer.

    Attributes:
        hits, misses: keys that were looked up and found, or not.
        entries: vectors held.
        bytes: what they cost, the vectors and about 320 bytes each.
        evictions: vectors that made room for others.
    """

    hits: int
    misses: int
    entries: int
    bytes: int
    evictions: int

    @property
    def hit_rate(self) -> float:
        """Share of lookups that found a vector, 0.0 to 1.0; 0.0 before the first."""
        return self.hits / (self.hits + self.misses) if self.hits + self.misses else 0.0


@dataclass(frozen=True, kw_only=True)
class CacheStats(ShardStats):
    """Counts of a cache since it was made.

    Attributes:
        capacity: most vectors, or None where ``max_bytes`` is the limit.
        max_bytes: most bytes, or None where ``capacity`` is the limit.
        shards: the counts of each shard.
    """

    capacity: int | None
    max_bytes: int | None
    shards: tuple[ShardStats, ...]


class _Shard:
    """One table with its lock: entries in the order of their last use."""

    __slots__ = ("bytes", "capacity", "entries", "evictions", "hits", "lock", "max_bytes", "misses")

    def __init__(self, capacity: int | None, max_bytes: int | None) -> None:
        self.capacity = capacity
        self.max_bytes = max_bytes
        self.entries: OrderedDict[bytes, CachedEmbedding] = OrderedDict()
        self.lock = threading.Lock()
        self.hits = self.misses = self.bytes = self.evictions = 0

    def get(self, key: bytes) -> CachedEmbedding | None:
        # Without the lock: each step is one of the table's own, which no other thread sees half done. A thread that loses
        # Python's lock inside of ours would have all others wait for it, a convoy at every switch.
        entry = self.entries.get(key)
        if entry is None:
            self.misses += 1
            return None
        self.hits += 1
        try:  # noqa: SIM105 - a context manager takes longer than all of the rest
            self.entries.move_to_end(key)
        except KeyError:  # it made room for another in the meantime
            pass
        return entry

    def put(self, key: bytes, entry: CachedEmbedding) -> None:
        size = len(entry.data) + ENTRY_OVERHEAD_BYTES
        entries, capacity, max_bytes = self.entries, self.capacity, self.max_bytes
        with self.lock:
            replaced = entries.pop(key, None)
            if replaced is not None:
                self.bytes -= len(replaced.data) + ENTRY_OVERHEAD_BYTES
            if max_bytes is not None and size > max_bytes:
                return
            entries[key] = entry
            self.bytes += size
            while (capacity is not None and len(entries) > capacity) or (
                max_bytes is not None and self.bytes > max_bytes
            ):
                _, oldest = entries.popitem(last=False)
                self.bytes -= len(oldest.data) + ENTRY_OVERHEAD_BYTES
                self.evictions += 1

    def stats(self) -> ShardStats:
        with self.lock:
            return ShardStats(
                hits=self.hits,
                misses=self.misses,
                entries=len(self.entries),
                bytes=self.bytes,
                evictions=self.evictions,
            )


# A fork while another thread is in a shard would leave the child a lock that nobody releases.
_live_caches: weakref.WeakSet[EmbeddingCache] = weakref.WeakSet()


class EmbeddingCache:
    """Vectors by key, least recently used out first. Any number of threads may use one.

    Keys are 32 bytes, digests of text and space, as :class:`CachedEmbeddingService` makes them. Which entry is the least
    recently used is decided within a shard. A forked child has what its parent had, and goes its own way from there.

    Attributes:
        enabled: whether anything can be stored: False where the limit is 0.

    Args:
        capacity: most vectors; 4,000 if neither limit is given, 0 for none.
        max_bytes: most bytes instead, 0 for none.

    Raises:
        InvalidInputError: both limits are given, or one is no int of at least 0.
    """

    def __init__(self, capacity: int | None = None, *, max_bytes: int | None = None) -> None:
        if capacity is not None and max_bytes is not None:
            raise InvalidInputError("a cache has one limit: pass capacity or max_bytes, not both")
        if max_bytes is None:
            capacity = DEFAULT_CACHE_CAPACITY if capacity is None else check_limit("capacity", capacity, lowest=0)
            self._limits: tuple[int | None, int | None] = (capacity, None)
            count = _shard_count(capacity, _LEAST_SHARD_ENTRIES)
            self._shards = [_Shard(part, None) for part in _parts(capacity, count)]
        else:
            check_limit("max_bytes", max_bytes, lowest=0)
            self._limits = (None, max_bytes)
            count = _shard_count(max_bytes, _LEAST_SHARD_BYTES)
            self._shards = [_Shard(None, part) for part in _parts(max_bytes, count)]
        self._mask = len(self._shards) - 1
        self.enabled = any(self._limits)
        _live_caches.add(self)

    def get(self, key: bytes) -> CachedEmbedding | None:
        """Return the entry of a key, which becomes the most recently used of its shard, or None; counts it."""
        return self._shards[key[0] & self._mask].get(key)

    def peek(self, key: bytes) -> CachedEmbedding | None:
        """Return the entry of a key or None, without counting it or changing the order."""
        return self._shards[key[0] & self._mask].entries.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[CachedEmbedding | None]:
        """Return the entry of each key or None, as :meth:`get` does."""
        shards, mask = self._shards, self._mask
        return [shards[key[0] & mask].get(key) for key in keys]

    def put(self, key: bytes, entry: CachedEmbedding) -> None:
        """Store an entry. One that is larger than a shard's part of ``max_bytes`` is not kept."""
        if len(key) != KEY_BYTES:
            raise InvalidInputError(f"a key of {len(key)} bytes; keys are digests of {KEY_BYTES}")
        if self.enabled:
            self._shards[key[0] & self._mask].put(key, entry)

    def put_many(self, entries: Iterable[tuple[bytes, CachedEmbedding]]) -> None:
        """Store entries by their keys."""
        for key, entry in entries:
            self.put(key, entry)

    def clear(self) -> None:
        """Forget every entry; the counts stay."""
        for shard in self._shards:
            with shard.lock:
                shard.entries.clear()
                shard.bytes = 0

    def stats(self) -> CacheStats:
        """Return what was counted since the cache was made, in all and by shard."""
        shards = tuple(shard.stats() for shard in self._shards)
        names = ("hits", "misses", "entries", "bytes", "evictions")
        totals = {name: sum(getattr(shard, name) for shard in shards) for name in names}
        return CacheStats(**totals, capacity=self._limits[0], max_bytes=self._limits[1], shards=shards)

    def __len__(self) -> int:
        return sum(len(shard.entries) for shard in self._shards)

    def __reduce__(self) -> tuple[object, ...]:
        return _remake, self._limits  # the limits, not the entries: a copy in another process fills its own

    def __repr__(self) -> str:
        capacity, max_bytes = self._limits
        limit = f"capacity={capacity}" if max_bytes is None else f"max_bytes={max_bytes}"
        return f"EmbeddingCache({len(self)} entries, {limit})"


def _shard_count(limit: int, least: int) -> int:
    count = MAX_SHARDS
    while count > 1 and limit < count * least:
        count //= 2
    return count


def _parts(limit: int, count: int) -> list[int]:
    """Cut a limit into parts that add up to it exactly."""
    return [limit // count + (place < limit % count) for place in range(count)]


def _remake(capacity: int | None, max_bytes: int | None) -> EmbeddingCache:
    return EmbeddingCache(capacity, max_bytes=max_bytes)


def _release_locks_after_fork() -> None:
    for cache in _live_caches:
        for shard in cache._shards:
            if shard.lock.locked():  # the parent's thread was between two of its steps
                shard.bytes = sum(len(entry.data) + ENTRY_OVERHEAD_BYTES for entry in shard.entries.values())
                shard.lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_locks_after_fork)
