"""Key-value cache bookkeeping: reference counts, block tables and remembered prefixes.

It works with the ids of pages; a backend owns the memory.
"""

from lattice_inference.state.kv_cache import CachedSequence, KvCache, Room
from lattice_inference.state.page_pool import PagePool

__all__ = ["CachedSequence", "KvCache", "PagePool", "Room"]
