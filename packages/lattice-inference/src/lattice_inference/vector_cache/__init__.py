"""A database of vectors on disk, kept across processes.

Keys are digests of the model's input tokens.
"""

from lattice_inference.vector_cache.database import (
    DEFAULT_MAX_BYTES,
    VectorCache,
    VectorCacheStats,
    VectorCacheWarning,
)
from lattice_inference.vector_cache.default_folder import default_cache_folder
from lattice_inference.vector_cache.lqecache import LqeCacheFile, read_lqecache

__all__ = [
    "DEFAULT_MAX_BYTES",
    "LqeCacheFile",
    "VectorCache",
    "VectorCacheStats",
    "VectorCacheWarning",
    "default_cache_folder",
    "read_lqecache",
]
