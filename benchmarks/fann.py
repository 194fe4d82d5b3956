"""Times lattice-fann, NumPy, ONNX Runtime, PyTorch, scikit-learn and the C library FANN.

A forward of the network 784-128-64-10 for one sample and for 64, and an epoch of Adam over 10,000 x 784 random numbers
(batch 64) and over scikit-learn's digits (batch 32). All engines have the same weights and the same number of
threads, and take turns. Each turn begins with a quarter of a second of untimed calls, until idle threads of the
engine before have stopped spinning. Figures are medians. What is not installed is left out and named.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

from harness.options import Record, add_record_options, add_threads_option, finish, limits, positive_int
from harness.process import answer_of
from harness.progress import report
from harness.record import describe_run, usable_cpus
from harness.tables import markdown_table, provenance

__all__ = ["main", "misses", "render"]

SCRIPT = "fann"
OURS = "lattice-fann"
CELLS = ("forward, 1 sample", "forward, 64 samples", "epoch, 10,000 x 784", "epoch, digits")
PEERS = ("lattice-fann", "onnxruntime", "torch", "scikit-learn")

EXAMPLES = """
examples:
  pip install onnx onnxruntime torch scikit-learn        the peers; each is optional (and Debian's libfann2)
  python benchmarks/fann.py                              with 1 thread and with all; two minutes
  python benchmarks/fann.py --cells "forward, 64 samples" --threads 2
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_threads_option(parser, sorted({1, usable_cpus()}), "1 and all")
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=list(CELLS), metavar="CELL", help=str(CELLS))
    parser.add_argument("--rounds", type=positive_int, default=7, metavar="N", help="turns of each engine (default: 7)")
    parser.add_argument("--isa", help="our instruction set (default: the best one here)")
    add_record_options(parser, SCRIPT)
    options = parser.parse_args(arguments)
    return finish(SCRIPT, options, measure=partial(measure, options), render=render, misses=misses)


def measure(options: argparse.Namespace) -> Record:
    """Run a worker for each number of threads and return the record."""
    record: Record = {**describe_run(SCRIPT, distributions=PEERS), "samples": [], "absent": {}}
    for threads in options.threads:
        report(f"{threads} threads")
        request = json.dumps({"threads": threads, "rounds": options.rounds, "cells": options.cells})
        found = answer_of(["-m", "harness.fann_worker", request], threads, isa=options.isa)
        record["isa"] = found["isa"]
        record["absent"] |= found["absent"]
        record["samples"] += found["samples"]
    report()
    return record


def ratio_to(sample: Mapping[str, Any], peers: Sequence[str] | None = None) -> tuple[str, float] | None:
    """Return the fastest of ``peers`` (of all, by default) and how many times as fast we are."""
    times = {name: median(seconds) for name, seconds in sample["seconds"].items()}
    others = [name for name in times if name != OURS and (peers is None or name in peers)]
    if OURS not in times or not others:
        return None
    fastest = min(others, key=times.__getitem__)
    return fastest, times[fastest] / times[OURS]


def misses(record: Mapping[str, Any]) -> list[str]:
    """Return a line for every ratio below its limit."""
    found = []
    for cell, limit in limits(SCRIPT).items():
        for sample in record["samples"]:
            compared = ratio_to(sample, limit.get("peers")) if sample["cell"] == cell else None
            if compared is not None and compared[1] < limit["ratio"]:
                where = f"{cell}, {sample['threads']} threads"
                found.append(f"{where}: {compared[1]:.2f} times {compared[0]}, {limit['ratio']} is the limit")
    return found


def render(record: Mapping[str, Any]) -> str:
    """Return the table of a record in Markdown."""
    rows = []
    for sample in record["samples"]:
        times = {name: median(seconds) for name, seconds in sample["seconds"].items()}
        compared = ratio_to(sample)
        fastest = compared[0] if compared is not None else None
        others = "; ".join(
            f"{name} {scaled(time)}{' *' if name == fastest else ''}" for name, time in times.items() if name != OURS
        )
        ratio = f"{compared[1]:.2f}" if compared is not None else "-"
        rows.append([sample["cell"], str(sample["threads"]), scaled(times[OURS]), ratio, others])
    parts = [
        provenance(record),
        f"Lattice on {record['isa']}. Medians; `*` the fastest peer.",
        markdown_table(["784-128-64-10", "threads", OURS, "fastest peer / ours", "peers"], rows),
    ]
    if record["absent"]:
        parts.append("Not here: " + "; ".join(f"{name} ({why})" for name, why in record["absent"].items()) + ".")
    return "\n\n".join(parts)


def scaled(seconds: float) -> str:
    """Return a time with the unit that suits it."""
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


if __name__ == "__main__":
    sys.exit(main())
