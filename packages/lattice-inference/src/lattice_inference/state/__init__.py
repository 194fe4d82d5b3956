"""Which pages belong to whom: reference counts, block tables, remembered prefixes. Ids only; a backend owns the bytes."""

from lattice_inference.state.kv_cache import CachedSequence, KvCache, Room
from lattice_inference.state.page_pool import PagePool

__all__ = ["CachedSequence", "KvCache", "PagePool", "Room"]
