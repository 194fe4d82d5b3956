"""Times the two caches of embeddings: a known text from memory and from SQLite, what a miss costs, and eight threads.

A known text is timed through the service, from text to vector. What a cache adds to a miss is timed with the model
taken out: the layer beneath gives a vector that is there already, so that the difference to calling it directly is all
the cache's (keys, look-ups, storing). It is set in relation to the time that all-MiniLM-L6-v2 takes for the same texts
in the same rounds. All cases take turns, a few calls each; a figure is the median over the rounds, with the fastest round
in brackets: far apart, they say that the machine did something else as well.

Threads look up known texts in one service, which is work under Python's lock: eight of them cannot do more than one,
and must not do much less. The ratio is looked-up texts a second with eight threads / with one.
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
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="lattice-caches-"))
        disk = stack.enter_context(VectorCache(Path(folder) / "known"))
        plain = stack.enter_context(NativeEmbeddingService(MODEL))
        on_disk = stack.enter_context(NativeEmbeddingService(MODEL, cache=disk))
        cached = CachedEmbeddingService(plain, capacity=4 * options.known)
        report("filling the caches")
        want = cached.encode(texts)
        if not np.array_equal(on_disk.encode(texts), want):
            raise RuntimeError("the vectors that were stored differ")
        cases: dict[str, Case] = {}
        for size in BATCHES:
            cases |= _hit_cases(size, texts, cached, on_disk)
            cases |= _miss_cases(size, plain, stack.enter_context(VectorCache(Path(folder) / f"new-{size}")))
        for turn in range(options.rounds + 1):
            if turn % 10 == 0:
                report(f"round {turn} of {options.rounds}")
            for name, case in cases.items():
                if isinstance(case, _Refilled):
                    case.refill()
                else:
                    case()  # untimed: the case before it has taken the processor's caches
                start = time.perf_counter()
                case()
                elapsed = time.perf_counter() - start
                if turn:  # the first brings code and pages into memory
                    record["seconds"].setdefault(name, []).append(elapsed / REPEATS[name.split()[0]])
        if not np.array_equal(cached.encode(texts), want) or not np.array_equal(on_disk.encode(texts), want):
            raise RuntimeError("a cache gave another vector than the model")
        for count in (1, THREADS, 1, THREADS, 1, THREADS):
            report(f"{count} threads")
            rate = _texts_a_second(cached, texts, count, options.seconds)
            record["threads"].setdefault(str(count), []).append(rate)
    report()
    return record


# Calls in one timed case, by the first word of its name: enough to be long beside the clock, and with the model few.
REPEATS = {"memory": 20, "sqlite": 20, "memory-miss": 10, "sqlite-miss": 10, "below": 10, "model": 1}


def _hit_cases(size: int, texts: Sequence[str], cached: Any, on_disk: Any) -> dict[str, Case]:
    """Look up known texts, another one each time."""
    batches = [list(texts[start : start + size]) for start in range(0, len(texts) - size + 1, size)]

    def look_up(service: Any) -> Iterator[None]:
        place = 0
        while True:
            for _ in range(REPEATS["memory"]):
                if size == 1:
                    service.embed_one(batches[place][0])
                else:
                    service.embed(batches[place])
                place = (place + 1) % len(batches)
            yield

    memory, sqlite = look_up(cached), look_up(on_disk)
    return {f"memory {size}": lambda: next(memory), f"sqlite {size}": lambda: next(sqlite)}


def _miss_cases(size: int, plain: Any, disk: Any) -> dict[str, Case]:
    """Store new texts in either cache over a layer that answers at once; the same layer alone; the model alone."""
    from lattice_embed import CachedEmbeddingService
    from lattice_inference.vector_cache.encoder_cache import EncoderCache

    tokenizer = plain.load()._load().encoder.tokenizer
    ready = _ready_service(plain, size)
    cached = CachedEmbeddingService(ready)
    encoder_cache = EncoderCache(disk, "print", name="m", dimension=384)
    vectors = plain.embed([f"text {number}" for number in range(size)]).vectors
    number = 0

    def fresh() -> list[str]:
        nonlocal number
        number += size
        return [f"the quick brown fox jumps over cat number {place}" for place in range(number, number + size)]

    def repeat(
        name: str, work: Callable[[Any], object], prepare: Callable[[list[str]], Any] = lambda texts: texts
    ) -> Case:
        # what is prepared is no part of the time: it stands in a queue that is filled between the rounds
        queue: list[Any] = []

        def fill() -> None:
            queue.extend(prepare(fresh()) for _ in range(REPEATS[name]))

        def run() -> None:
            while queue:
                work(queue.pop())

        fill()
        return _Refilled(run, fill)

    return {
        f"below {size}": repeat("below", ready.embed),
        f"memory-miss {size}": repeat("memory-miss", cached.embed),
        f"sqlite-miss {size}": repeat(
            "sqlite-miss",
            lambda packed: encoder_cache.run(packed, "normalized", lambda *_: vectors),
            tokenizer.encode_packed,
        ),
        f"model {size}": repeat("model", plain.embed),
    }


class _Refilled:
    """A case that runs what it has been given, and is given more after each round."""

    def __init__(self, run: Callable[[], None], fill: Callable[[], None]) -> None:
        self._run = run
        self._fill = fill
        self.filled = True

    def __call__(self) -> None:
        self._run()
        self.filled = False

    def refill(self) -> None:
        """Prepare the next round."""
        if not self.filled:
            self._fill()
            self.filled = True


def _ready_service(plain: Any, size: int) -> Any:
    """A service that answers at once, with the provenance of the real one."""
    from lattice_embed import EmbeddingService

    result = plain.embed([f"text {number}" for number in range(size)])

    class ReadyService(EmbeddingService):
        """Gives the same vectors to every call."""

        def embed(self, texts: Sequence[str], *arguments: Any, **options: Any) -> Any:
            """Return what is there."""
            return result

        def provenance(self, *arguments: Any, **options: Any) -> Any:
            """Return the real service's."""
            return plain.provenance(*arguments, **options)

        def model_config(self, model: Any = None) -> Any:
            """Return the real service's."""
            return plain.model_config()

        def supports_model(self, model: Any) -> bool:
            """Only one model is ever asked for."""
            return True

        @property
        def name(self) -> str:
            """For messages."""
            return "ready"

    return ReadyService()


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


def _figures(record: Mapping[str, Any], pick: Callable[[Sequence[float]], float] = median) -> dict[str, float]:
    """Figures by name: microseconds a text, and what a cache adds to a miss in per cent of the model's time."""
    seconds = {name: pick(times) for name, times in record["seconds"].items()}
    figures = {}
    for size in BATCHES:
        model = seconds[f"model {size}"]
        for layer in LAYERS:
            figures[f"{layer} {size}"] = seconds[f"{layer} {size}"] / size * 1e6
            below = seconds[f"below {size}"] if layer == "memory" else 0.0
            added = max(0.0, seconds[f"{layer}-miss {size}"] - below)
            figures[f"{layer}-miss {size}"] = added / size * 1e6
            figures[f"{layer}-share {size}"] = 100 * added / model
        figures[f"model {size}"] = model / size * 1e6
    return figures


def _rates(record: Mapping[str, Any]) -> tuple[float, float]:
    """Known texts a second with one thread and with eight: medians."""
    return median(record["threads"]["1"]), median(record["threads"][str(THREADS)])


def render(record: Mapping[str, Any]) -> str:
    """Return the tables of a record."""
    figures, fastest = _figures(record), _figures(record, min)
    rows = [
        [
            f"{LAYERS[layer]}, {'one text' if size == 1 else f'{size} texts'} a call",
            f"{figures[f'{layer} {size}']:.2f} ({fastest[f'{layer} {size}']:.2f})",
            f"{figures[f'{layer}-miss {size}']:.1f} ({fastest[f'{layer}-miss {size}']:.1f})",
            f"{figures[f'model {size}']:.0f} ({fastest[f'model {size}']:.0f})",
            f"{figures[f'{layer}-share {size}']:.2f} %",
        ]
        for layer in LAYERS
        for size in BATCHES
    ]
    header = ["cache", "known text, us", "added to a new text, us", "the model, us a text", "added / model"]
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
