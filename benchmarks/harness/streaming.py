"""Measures the memory of a long stream of texts, in a separate process.

``python -m harness.streaming PRECISION THREADS TEXTS [MODEL]`` loads the model, embeds one text, and notes the
resident memory. Then it sends so many texts of the mixed cell's lengths through ``embed_iter``, one at a time from a
generator. It notes the peak memory meanwhile, and the resident memory after ``trim()``. It prints one JSON object.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from harness.corpus import CELLS, SEED, make_text

__all__ = ["main", "mixed_texts", "stream"]

STATUS = Path("/proc/self/status")


def main(arguments: Sequence[str]) -> int:
    """Measure and print; returns the exit status."""
    precision, threads, count, *model = arguments
    print(json.dumps(stream(precision, int(threads), int(count), *model)))
    return 0


def stream(precision: Any, threads: int, count: int, model: str = "all-minilm-l6-v2") -> dict[str, int]:
    """Return resident bytes: after one text, the peak of ``count`` texts, after ``trim()``.

    Raises:
        RuntimeError: this system does not tell a process its memory.
    """
    if not STATUS.exists():
        raise RuntimeError("only Linux tells a process the most memory that it had since a moment")
    from lattice_embed import NativeEmbeddingService

    with NativeEmbeddingService(model, precision=precision, threads=threads) as service:
        service.embed_one("The first text of a process.")
        after_one_text = _bytes("VmRSS")
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the high-water mark starts again
        embedded = sum(1 for _ in service.embed_iter(mixed_texts(count)))
        assert embedded == count
        peak = _bytes("VmHWM")
        service.trim()
        return {"after_one_text_bytes": after_one_text, "peak_bytes": peak, "after_trim_bytes": _bytes("VmRSS")}


def mixed_texts(count: int) -> Iterator[str]:
    """Yield texts of the mixed cell's lengths, over and over, each drawn on demand."""
    draw = random.Random(SEED)
    return (make_text(length, draw) for length in islice(cycle(CELLS["mixed"].lengths), count))


def _bytes(field: str) -> int:
    for line in STATUS.read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"{STATUS} has no {field}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
