"""``lattice-embed cache``: what is kept on disk, where, and away with it."""

from __future__ import annotations

import argparse
import json

from lattice_embed.errors import InvalidInputError
from lattice_inference.vector_cache import VectorCache, read_lqecache

__all__ = ["run"]


def run(options: argparse.Namespace) -> int:
    """Do what the action says: ``path``, ``stats``, ``clear`` or ``inspect``."""
    if (options.file is not None) != (options.action == "inspect"):
        raise InvalidInputError("a FILE goes with the action inspect, and with it only")
    if options.space is not None and options.action != "clear":
        raise InvalidInputError("--of goes with the action clear only")
    if options.cache_folder is not None and options.action == "inspect":
        raise InvalidInputError("--cache-folder does not go with inspect, which reads the FILE alone")
    if options.action == "inspect":
        return _inspect(options)
    with VectorCache(options.cache_folder) as cache:
        if options.action == "path":
            report: dict[str, object] = {"path": str(cache.path), "exists": cache.path.exists()}
            text = str(cache.path)
        elif not cache.path.exists():
            report = {"path": str(cache.path), "exists": False}
            report |= {"removed": 0} if options.action == "clear" else {"entries": 0, "bytes": 0, "models": {}}
            text = f"{cache.path}: no cache yet"
        elif options.action == "clear":
            removed = cache.clear(options.space)
            report = {"path": str(cache.path), "exists": True, "removed": removed}
            text = f"{cache.path}: {removed:,} vectors removed"
        else:
            stats = cache.stats()
            report = {
                "path": str(stats.path),
                "exists": True,
                "mode": stats.mode,
                "entries": stats.entries,
                "bytes": stats.bytes,
                "models": stats.models,
            }
            lines = [f"{stats.path}: {stats.entries:,} vectors, {stats.bytes / 1e6:,.1f} MB, {stats.mode}"]
            lines += [f"  {count:>9,}  {name}" for name, count in stats.models.items()]
            text = "\n".join(lines)
    print(json.dumps(report) if options.json else text)
    return 0


def _inspect(options: argparse.Namespace) -> int:
    """Check a cache file of the reference implementation from end to end, and say what it holds."""
    cache = read_lqecache(options.file)
    if options.json:
        report = {"path": options.file, "entries": len(cache), "dim": cache.dimension}
        print(json.dumps(report | {"base_model_rev": cache.base_model_rev, "tokenizer_rev": cache.tokenizer_rev}))
    else:
        print(f"{options.file}: {len(cache):,} vectors of {cache.dimension} dimensions, undamaged")
        print(f"  model {cache.base_model_rev}, tokenizer {cache.tokenizer_rev}")
    return 0
