"""Times the two caches of embeddings: hits in memory and SQLite, misses, and eight threads.

A known text is timed through the service, from text to vector. A cache's overhead on a miss is the difference between
a service with it and one without, over the same model in memory. All embed the same new texts in turn; the order
rotates. So a cache also pays for fetching its code and tables again, which the model evicted from the processor's
caches. This is most of its cost. The figure is the median over the pairs. The figure over all calls together, beside
it, includes the moves from the journal to the database, once in some hundred texts, and other load of the machine.

Threads look up known texts in one service, under Python's global lock. Eight of them cannot do more than one, and
must not do much less. The ratio is looked-up texts a second with eight threads / with one.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from harness.options import Record, add_record_options, finish, limits, positive_int
from harness.progress import report
from harness.record import describe_run
from harness.tables import markdown_table, provenance

__all__ = ["main", "misses", "render"]

SCRIPT = "caches"
MODEL = "all-minilm-l6-v2"
BATCHES = (1, 32)
LAYERS = {"memory": "memory", "sqlite": "SQLite"}
THREADS = 8
# Calls in one timed case of known texts: enough to be long beside the clock. New texts are timed call by call.
KNOWN_CALLS = 20
# How often a round embeds new texts, by the texts in a call.
NEW_CALLS = {1: 10, 32: 1}

EXAMPLES = """
examples:
  python benchmarks/caches.py                      all cases; about a minute
  python benchmarks/caches.py --rounds 50 --check  fewer rounds; exit 1 if a limit is missed
  python benchmarks/caches.py --from benchmarks/results/caches.json --markdown docs/benchmarks.md
"""

Case = Callable[[], object]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds", type=positive_int, default=201, metavar="N", help="rounds of all cases (default: 201)"
    )
    parser.add_argument(
        "--known", type=positive_int, default=2_000, metavar="N", help="texts in the caches (default: 2000)"
    )
    parser.add_argument(
        "--seconds", type=float, default=1.0, metavar="S", help="length of a measurement with threads (default: 1)"
    )
    add_record_options(parser, SCRIPT)
    options = parser.parse_args(arguments)
    return finish(SCRIPT, options, measure=partial(measure, options), render=render, misses=misses)


def measure(options: argparse.Namespace) -> Record:
    """Run what the options ask for and return the record.

    Raises:
        RuntimeError: a cache gave another vector than the model.
    """
    from lattice_embed import CachedEmbeddingService, NativeEmbeddingService
    from lattice_inference import VectorCache

    record = describe_run(SCRIPT, distributions=["blake3"])
    record |= {"model": MODEL, "known": options.known, "seconds": {}, "threads": {}}
    texts = [f"the quick brown fox jumps over dog number {number}" for number in range(options.known)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lattice-caches-")))
        disk = stack.enter_context(VectorCache(folder / "known"))
        plain = stack.enter_context(NativeEmbeddingService(MODEL))
        on_disk = stack.enter_context(NativeEmbeddingService(MODEL, cache=disk))
        cached = CachedEmbeddingService(plain, capacity=4 * options.known)
        report("filling the caches")
        want = cached.encode(texts)
        if not np.array_equal(on_disk.encode(texts), want):
            raise RuntimeError("the vectors that were stored differ")
        disk.close()  # moves what is in the journal: known texts are read from the database
        known = {name: case for size in BATCHES for name, case in _known_cases(size, texts, cached, on_disk).items()}
        new = _NewTexts(plain, stack.enter_context(VectorCache(folder / "new")))
        for turn in range(options.rounds + 1):
            if turn % 10 == 0:
                report(f"round {turn} of {options.rounds}")
            for name, case in known.items():
                case()  # untimed: the case before it has taken the processor's caches
                start = time.perf_counter()
                case()
                if turn:  # the first brings code and pages into memory
                    elapsed = time.perf_counter() - start
                    record["seconds"].setdefault(name, []).append(elapsed / KNOWN_CALLS)
            for size in BATCHES:
                for _ in range(NEW_CALLS[size]):
                    for name, elapsed in new.embed(size).items():
                        if turn:
                            record["seconds"].setdefault(f"{name} {size}", []).append(elapsed)
        if not np.array_equal(cached.encode(texts), want) or not np.array_equal(on_disk.encode(texts), want):
            raise RuntimeError("a cache gave another vector than the model")
        for count in (1, THREADS, 1, THREADS, 1, THREADS):
            report(f"{count} threads")
            rate = _texts_a_second(cached, texts, count, options.seconds)
            record["threads"].setdefault(str(count), []).append(rate)
    report()
    return record


def _known_cases(size: int, texts: Sequence[str], cached: Any, on_disk: Any) -> dict[str, Case]:
    """Look up known texts, another one each time."""
    batches = [list(texts[start : start + size]) for start in range(0, len(texts) - size + 1, size)]

    def look_up(service: Any) -> Iterator[None]:
        place = 0
        while True:
            for _ in range(KNOWN_CALLS):
                if size == 1:
                    service.embed_one(batches[place][0])
                else:
                    service.embed(batches[place])
                place = (place + 1) % len(batches)
            yield

    memory, sqlite = look_up(cached), look_up(on_disk)
    return {f"memory {size}": lambda: next(memory), f"sqlite {size}": lambda: next(sqlite)}


class _NewTexts:
    """Embeds unknown texts: by the model alone, and through each cache in front of that model."""

    def __init__(self, plain: Any, disk: Any) -> None:
        from lattice_embed import CachedEmbeddingService
        from lattice_inference.vector_cache.encoder_cache import EncoderCache

        self._plain = plain
        self._cached = CachedEmbeddingService(plain)
        # A second service would load the weights again, and differ in time.
        self._encoder = plain.load()._load().encoder
        self._on_disk = EncoderCache(disk, self._encoder.fingerprint, name=MODEL, dimension=self._encoder.dimension)
        self._number = 0
        self._turn = 0

    def embed(self, size: int) -> dict[str, float]:
        """Embed the same new texts in each way, and return the seconds by the name of the way."""
        texts = [f"the quick brown fox jumps over cat number {self._number + place}" for place in range(size)]
        self._number += size
        ways = ("model", "memory-miss", "sqlite-miss")
        first = self._turn % len(ways)
        self._turn += 1
        seconds, vectors = {}, []
        for way in ways[first:] + ways[:first]:
            service = self._cached if way == "memory-miss" else self._plain
            self._encoder._cache = self._on_disk if way == "sqlite-miss" else None
            start = time.perf_counter()
            result = service.embed(texts)
            seconds[way] = time.perf_counter() - start
            vectors.append(result.vectors.tobytes())
        self._encoder._cache = None
        if len(set(vectors)) != 1:
            raise RuntimeError("a cache gave another vector than the model")
        return seconds


def _texts_a_second(cached: Any, texts: Sequence[str], count: int, seconds: float) -> float:
    """Known texts that ``count`` threads look up in a second, together."""
    done = [0] * count
    barrier = threading.Barrier(count + 1)
    stop = threading.Event()

    def work(thread: int) -> None:
        place = thread * 37 % len(texts)
        barrier.wait()
        while not stop.is_set():
            for _ in range(50):
                cached.embed_one(texts[place])
                place = (place + 1) % len(texts)
            done[thread] += 50

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(count)]
    for thread in threads:
        thread.start()
    barrier.wait()
    start = time.perf_counter()
    time.sleep(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    return sum(done) / (time.perf_counter() - start)


def _figures(record: Mapping[str, Any]) -> dict[str, float]:
    """Return figures by name: microseconds a text, and a cache's overhead on a miss.

    The overhead is in per cent of the model's time.
    """
    seconds = record["seconds"]
    figures = {}
    for size in BATCHES:
        model = seconds[f"model {size}"]
        figures[f"model {size}"] = median(model) / size * 1e6
        for layer in LAYERS:
            known, with_cache = seconds[f"{layer} {size}"], seconds[f"{layer}-miss {size}"]
            pairs = list(zip(with_cache, model, strict=True))
            figures[f"{layer} {size}"] = median(known) / size * 1e6
            figures[f"{layer}-fastest {size}"] = min(known) / size * 1e6
            figures[f"{layer}-miss {size}"] = median(longer - alone for longer, alone in pairs) / size * 1e6
            figures[f"{layer}-share {size}"] = 100 * median(longer / alone - 1 for longer, alone in pairs)
            figures[f"{layer}-total {size}"] = 100 * (sum(with_cache) / sum(model) - 1)
    return figures


def _rates(record: Mapping[str, Any]) -> tuple[float, float]:
    """Known texts a second with one thread and with eight: medians."""
    return median(record["threads"]["1"]), median(record["threads"][str(THREADS)])


def render(record: Mapping[str, Any]) -> str:
    """Return the tables of a record."""
    figures = _figures(record)
    rows = [
        [
            f"{LAYERS[layer]}, {'one text' if size == 1 else f'{size} texts'} a call",
            f"{figures[f'{layer} {size}']:.2f} ({figures[f'{layer}-fastest {size}']:.2f})",
            f"{figures[f'{layer}-miss {size}']:.1f}",
            f"{figures[f'model {size}']:.0f}",
            f"{figures[f'{layer}-share {size}']:.2f} %",
            f"{figures[f'{layer}-total {size}']:.2f} %",
        ]
        for layer in LAYERS
        for size in BATCHES
    ]
    header = [
        "cache",
        "known text, us",
        "added to a new text, us",
        "the model, us a text",
        "added / model",
        "all calls",
    ]
    one, many = _rates(record)
    threads = f"Known texts a second: {one:,.0f} with 1 thread, {many:,.0f} with {THREADS} ({many / one:.2f} times)."
    return f"{markdown_table(header, rows)}\n\n{threads}\n\n{provenance(record)}"


def misses(record: Mapping[str, Any]) -> list[str]:
    """Say which limits the record misses."""
    figures, limit = _figures(record), limits(SCRIPT)
    missed = []
    for layer in LAYERS:
        for size in BATCHES:
            cost, share = figures[f"{layer} {size}"], figures[f"{layer}-share {size}"]
            most, most_share = limit[f"{layer}_us"], limit["miss_percent"]
            if not cost <= most:
                missed.append(f"{layer}, {size} a call: a known text takes {cost:.2f} us, {most} is the limit")
            if not share <= most_share:
                missed.append(f"{layer}, {size} a call: a miss costs {share:.2f} % more, {most_share} is the limit")
    one, many = _rates(record)
    if not many / one >= limit["thread_ratio"]:
        missed.append(
            f"{THREADS} threads do {many / one:.2f} times the work of 1, {limit['thread_ratio']} is the limit"
        )
    return missed


if __name__ == "__main__":
    raise SystemExit(main())
