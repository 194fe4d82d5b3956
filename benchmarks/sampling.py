"""Times sampling a token from logits: the kernels and the readable NumPy form, in turn.

Logits are a few likely tokens among many unlikely ones, as a model's are. Each time is the processor's, for a row in one
thread. Before they are timed, both forms sample the same rows, and the tokens must be equal.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from harness.options import Record, add_record_options, finish, limits, positive_int
from harness.progress import report
from harness.record import describe_run
from harness.tables import markdown_table, provenance

__all__ = ["main", "misses", "render"]

SCRIPT = "sampling"
SIZES = (49_152, 151_936)
ROWS = 8
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature 1": {"temperature": 1.0},
    "temperature 1, top_p 0.9": {"temperature": 1.0, "top_p": 0.9},
    "the defaults": {"temperature": 0.7, "top_k": 50, "top_p": 0.9, "repetition_penalty": 1.1},
}

EXAMPLES = """
examples:
  python benchmarks/sampling.py             half a minute
  python benchmarks/sampling.py --check
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=positive_int, default=7, metavar="N", help="of each (default: 7)")
    add_record_options(parser, SCRIPT)
    options = parser.parse_args(arguments)
    return finish(SCRIPT, options, measure=partial(measure, options), render=render, misses=misses)


def measure(options: argparse.Namespace) -> Record:
    """Run what the options ask for and return the record."""
    record = describe_run(SCRIPT)
    record["rows"] = [_compare(size, name, options.rounds) for size in SIZES for name in SETTINGS]
    report()
    return record


def _compare(size: int, name: str, rounds: int) -> dict[str, Any]:
    """Return the seconds of each round of a row, by the kernels and by NumPy."""
    from lattice_inference.generate.row_sampler import Draw, RowSampler, sample_rows
    from lattice_inference.generate.sampler import Sampler, SamplingConfig

    rng = np.random.default_rng(size)
    logits = rng.standard_normal((ROWS, size)).astype(np.float32) * 2
    logits[:, rng.integers(0, size, 30)] += 12
    prompt = rng.integers(0, size, 500).tolist()
    config = SamplingConfig(**SETTINGS[name])
    draws = [Draw(RowSampler(config, 1, prompt, size), row) for row in range(ROWS)]
    readable = Sampler(config, 1, prompt, size)
    expected = [readable.sample(logits[row], row) for row in range(ROWS)]
    if [choice[0] for choice in sample_rows(logits, draws) if isinstance(choice, tuple)] != expected:
        raise SystemExit(f"the two forms differ: {size} logits, {name}")
    seconds: dict[str, list[float]] = {"kernels": [], "numpy": []}
    for turn in range(rounds):
        report(f"{size} logits, {name}: turn {turn + 1} of {rounds}")
        for form in seconds if turn % 2 else reversed(seconds):
            start = time.process_time()
            if form == "numpy":
                for row in range(ROWS):
                    readable.sample(logits[row], row)
            else:
                sample_rows(logits, draws, threads=1)
            seconds[form].append((time.process_time() - start) / ROWS)
    return {"vocabulary": size, "settings": name, **seconds}


def figures(row: Mapping[str, Any]) -> tuple[float, float]:
    """Return a row's medians, by the kernels and by NumPy, in milliseconds."""
    return 1e3 * median(row["kernels"]), 1e3 * median(row["numpy"])


def render(record: Mapping[str, Any]) -> str:
    """Return the table of a record."""
    rows = []
    for row in record["rows"]:
        ours, numpy = figures(row)
        ratio = f"{ours / numpy:.3f}"
        rows.append([f"{row['vocabulary']:,}: {row['settings']}", f"{ours:.3f} ms", f"{numpy:.2f} ms", ratio])
    return f"{markdown_table(['logits', 'kernels', 'NumPy', 'ratio'], rows)}\n\n{provenance(record)}"


def misses(record: Mapping[str, Any]) -> list[str]:
    """Say which limits the record misses."""
    missed = []
    for row in record["rows"]:
        ours, numpy = figures(row)
        limit = limits(SCRIPT)["greedy_ratio" if row["settings"] == "greedy" else "ratio"]
        if not ours / numpy <= limit:
            missed.append(
                f"{row['vocabulary']:,} logits, {row['settings']}: {ours / numpy:.2f}, {limit:g} is the limit"
            )
    return missed


if __name__ == "__main__":
    raise SystemExit(main())
