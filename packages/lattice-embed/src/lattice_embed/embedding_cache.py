"""Vectors in memory in shards; the least recently used one is removed first.

Look-ups in small tables are faster.

Unstable: the number of shards, the key's length and what an entry costs may change in any release.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from lattice_embed._text_cache import KEY_BYTES, CachedEmbedding, Shard
from lattice_embed.errors import InvalidInputError
from lattice_embed.provenance import VectorProvenance
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

Item = TypeVar("Item")

DEFAULT_CACHE_CAPACITY = 4_000
"""Vectors that a cache holds unless told otherwise: about 7 MB of 384 dimensions."""

MAX_SHARDS = 16  # the first byte of a key, a BLAKE3 digest, picks one

# A shard of fewer entries, or bytes, would evict long before the cache is full: some shards get more keys than others.
_LEAST_SHARD_ENTRIES = 64
_LEAST_SHARD_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class CachedOrigin:
    """What the results of one space share: model name, prompt, and origin of the vectors."""

    model: str
    prompt: str
    fingerprint: str
    provenance: VectorProvenance | None


@dataclass(frozen=True, kw_only=True)
class ShardStats:
    """Counts of one shard, or of a whole cache.

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
            self._shards = [Shard(part, None) for part in _parts(capacity, count)]
        else:
            check_limit("max_bytes", max_bytes, lowest=0)
            self._limits = (None, max_bytes)
            count = _shard_count(max_bytes, _LEAST_SHARD_BYTES)
            self._shards = [Shard(None, part) for part in _parts(max_bytes, count)]
        self._mask = len(self._shards) - 1
        self.enabled: bool = any(self._limits)

    def get(self, key: bytes) -> CachedEmbedding | None:
        """Return the entry of a key, or None, and count the look-up.

        The entry becomes the most recently used of its shard.
        """
        return self._shards[_first_byte(key) & self._mask].get(key)

    def peek(self, key: bytes) -> CachedEmbedding | None:
        """Return the entry of a key or None, without counting it or changing the order."""
        return self._shards[_first_byte(key) & self._mask].peek(key)

    def get_many(self, keys: Sequence[bytes]) -> list[CachedEmbedding | None]:
        """Return the entry of each key or None, as :meth:`get` does."""
        shards, mask = self._shards, self._mask
        return [shards[_first_byte(key) & mask].get(key) for key in _each("keys", keys)]

    def put(self, key: bytes, entry: CachedEmbedding) -> None:
        """Store an entry. One that is larger than a shard's part of ``max_bytes`` is not kept."""
        _first_byte(key)
        if not isinstance(entry, CachedEmbedding):
            raise InvalidInputError(f"an entry of type {type(entry).__name__}; expected a CachedEmbedding")
        if len(key) != KEY_BYTES:
            raise InvalidInputError(f"a key of {len(key)} bytes; keys are digests of {KEY_BYTES}")
        if self.enabled:
            self._shards[key[0] & self._mask].put(key, entry)

    def put_many(self, entries: Iterable[tuple[bytes, CachedEmbedding]]) -> None:
        """Store entries by their keys."""
        for pair in _each("entries", entries):
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise InvalidInputError(f"an item of type {type(pair).__name__}; pass pairs of a key and an entry")
            self.put(*pair)

    def clear(self) -> None:
        """Forget every entry; the counts stay."""
        for shard in self._shards:
            shard.clear()

    def stats(self) -> CacheStats:
        """Return what was counted since the cache was made, in all and by shard."""
        names = ("hits", "misses", "entries", "bytes", "evictions")
        shards = tuple(
            ShardStats(
                hits=shard.hits,
                misses=shard.misses,
                entries=len(shard.entries),
                bytes=shard.bytes_held,
                evictions=shard.evictions,
            )
            for shard in self._shards
        )
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


def _first_byte(key: bytes) -> int:
    """Return the byte that chooses a key's shard."""
    if type(key) is not bytes or not key:
        raise InvalidInputError(f"a key of type {type(key).__name__}; keys are digests of {KEY_BYTES} bytes")
    return key[0]


def _each(name: str, values: Iterable[Item]) -> Iterator[Item]:
    """Return an iterator over ``values``."""
    try:
        return iter(values)
    except TypeError:
        raise InvalidInputError(f"{name} is of type {type(values).__name__}; pass a list") from None
