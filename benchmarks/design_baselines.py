"""Fills the baselines in lattice-embed's DESIGN.md: 100 texts, cosines of pairs, the import.

The texts are new, then known. The 100 texts are sentences of 5 to 60 tokens. Cold, they go through a loaded model
with one thread and into an empty cache; cached, the same service knows them. A cosine is one call from Python, the
median over turns of some thousand calls. The import is what `import lattice_embed` takes after NumPy, in its own
process. All are processor times: other work on the machine counts little.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

from harness.corpus import make_texts
from harness.options import Record, add_record_options, finish, limits, positive_int
from harness.process import answer_of
from harness.progress import report
from harness.record import describe_run
from harness.tables import markdown_table, provenance

__all__ = ["main", "misses", "render"]

SCRIPT = "design_baselines"
MODEL = "all-minilm-l6-v2"
TEXTS = 100
DIMENSIONS = (384, 768, 1024)
CALLS = 2_000
IMPORT = (
    "import json, time, numpy; start = time.process_time(); import lattice_embed; "
    "print(json.dumps(time.process_time() - start))"
)

EXAMPLES = """
examples:
  python benchmarks/design_baselines.py                                                  seconds
  python benchmarks/design_baselines.py --markdown packages/lattice-embed/DESIGN.md      fill the page
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=positive_int, default=7, metavar="N", help="turns of each case (default: 7)")
    add_record_options(parser, SCRIPT)
    options = parser.parse_args(arguments)
    return finish(SCRIPT, options, measure=partial(measure, options.rounds), render=render, misses=misses)


def measure(rounds: int) -> Record:
    """Measure everything and return the record, times in seconds."""
    import numpy as np

    from lattice_embed import CachedEmbeddingService, NativeEmbeddingService, vectors

    record: Record = {**describe_run(SCRIPT), "model": MODEL, "texts": {"cold": [], "cached": []}, "cosine": {}}
    texts = make_texts([5 + 55 * i // (TEXTS - 1) for i in range(TEXTS)], seed=1)
    with NativeEmbeddingService(MODEL, threads=1) as service:
        service.embed(texts[:10])  # brings code and weights into memory
        for turn in range(rounds):
            report(f"round {turn + 1} of {rounds}")
            cached = CachedEmbeddingService(service)
            for name in record["texts"]:
                record["texts"][name].append(_seconds(partial(cached.embed, texts)))
    for dimensions in DIMENSIONS:
        a, b = np.random.RandomState(dimensions).standard_normal((2, dimensions)).astype(np.float32)
        times: dict[str, list[float]] = {"Lattice": [], "NumPy": []}
        record["cosine"][str(dimensions)] = times
        for _ in range(rounds):
            times["Lattice"].append(_seconds(partial(vectors.cosine_similarity, a, b), CALLS))
            times["NumPy"].append(_seconds(partial(_by_numpy, a, b), CALLS))
    record["import"] = [answer_of(["-c", IMPORT], 1) for _ in range(rounds)]
    report()
    return record


def _by_numpy(a: Any, b: Any) -> Any:
    return a @ b / ((a @ a) * (b @ b)) ** 0.5


def _seconds(call: Callable[[], object], calls: int = 1) -> float:
    start = time.process_time()
    for _ in range(calls):
        call()
    return (time.process_time() - start) / calls


def misses(record: Mapping[str, Any]) -> list[str]:
    """Return a line for every figure beyond its limit."""
    bounds = limits(SCRIPT)
    lines = []
    found = median(record["import"]) * 1e3
    if not found <= bounds["import_ms"]:
        lines.append(f"import lattice_embed: {found:.0f} ms over NumPy, {bounds['import_ms']} is the limit")
    gain = median(record["texts"]["cold"]) / median(record["texts"]["cached"])
    if not gain >= bounds["cached_ratio"]:
        lines.append(
            f"{TEXTS} known texts: {gain:.0f} times as fast as new ones, {bounds['cached_ratio']} is the limit"
        )
    return lines


def render(record: Mapping[str, Any]) -> str:
    """Return the tables of a record in Markdown."""
    bounds = limits(SCRIPT)
    cold, cached = (median(record["texts"][name]) for name in ("cold", "cached"))
    rows = [
        [f"{TEXTS} texts, cold, 1 thread ({record['model']})", f"{cold * 1e3:.0f} ms", "-"],
        [f"{TEXTS} texts, cached", f"{cached * 1e6:.0f} us", f"cold / {bounds['cached_ratio']}"],
        ["`import lattice_embed`, over NumPy", f"{median(record['import']) * 1e3:.0f} ms", f"{bounds['import_ms']} ms"],
    ]
    pairs = []
    for dimensions, times in record["cosine"].items():
        ours, numpy = median(times["Lattice"]), median(times["NumPy"])
        pairs.append(
            [f"cosine, {dimensions} float32", f"{ours * 1e9:.0f} ns", f"{numpy * 1e9:.0f} ns", f"{numpy / ours:.1f}"]
        )
    return "\n\n".join(
        [
            f"{provenance(record)}\n\nMedians of processor time.",
            markdown_table(["metric", "value", "threshold"], rows),
            markdown_table(["one pair, call from Python", "Lattice", "NumPy", "ratio"], pairs),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
