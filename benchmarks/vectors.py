"""Times vector operations of Lattice, NumPy, NumKong, SimSIMD, faiss and usearch.

Pairs, nearest rows, and all against all. Everything runs in one process for each number of threads, engines in turns.
A memory-bound operation is given as a share of the bandwidth that a plain read of the same rows reached in the same
turn. One bound by the FMA units is given as a share of their peak. Peers that are not installed are named. The last
table sets our scalar baseline against the CPU's instruction sets.
"""

from __future__ import annotations

import argparse
import json
import os
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

SCRIPT = "vectors"
OURS = "Lattice"
GROUPS = ("pair", "nearest", "rows", "all", "levels")
PEERS = ("numkong", "simsimd", "faiss-cpu", "usearch")

EXAMPLES = """
examples:
  pip install numkong simsimd faiss-cpu usearch         the peers; each is optional
  python benchmarks/vectors.py                          everything with 1 thread and with all; minutes
  python benchmarks/vectors.py --only pair levels       pairs, and scalar against SIMD
  python benchmarks/vectors.py --rows 1000 --dims 768   matrices that fit the second-level cache
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_threads_option(parser, sorted({1, usable_cpus()}), "1 and all")
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS), metavar="GROUP", help=str(GROUPS))
    parser.add_argument("--rows", type=positive_int, default=100_000, metavar="N", help="of the matrix searched")
    parser.add_argument("--dims", type=positive_int, default=384, metavar="N", help="dimensions (default: 384)")
    parser.add_argument("--rounds", type=positive_int, default=15, metavar="N", help="turns of each engine")
    parser.add_argument("--isa", help="our instruction set (default: the best one here)")
    parser.add_argument("--cc", default=os.environ.get("CC", "cc"), help="C compiler (default: $CC, else cc)")
    add_record_options(parser, SCRIPT)
    options = parser.parse_args(arguments)
    return finish(SCRIPT, options, measure=partial(measure, options), render=render, misses=misses)


def measure(options: argparse.Namespace) -> Record:
    """Run a worker for each number of threads and return the record."""
    record: Record = {**describe_run(SCRIPT, distributions=PEERS), "samples": [], "levels": [], "absent": {}}
    for threads in options.threads:
        report(f"{threads} threads")
        request = {
            "threads": threads,
            "rounds": options.rounds,
            "groups": options.only,
            "rows": options.rows,
            "dims": options.dims,
            "cc": options.cc,
        }
        found = answer_of(["-m", "harness.vector_worker", json.dumps(request)], threads, isa=options.isa)
        record["isa"] = found["isa"]
        record["absent"] |= found["absent"]
        record["samples"] += found["samples"]
        record["levels"] += found["levels"]
    report()
    return record


def misses(record: Mapping[str, Any]) -> list[str]:
    """Return a line for every operation below its limit.

    A ratio needs one of the peers at least.
    """
    least = limits(SCRIPT)
    lines = []
    for sample in record["samples"]:
        cell = f"{sample['cell']}, {sample['threads']} threads"
        company = "1_thread" if sample["threads"] == 1 else "several_threads"
        if sample["operations"]:
            bound, found = least["fma_share"][company], share_of(sample)
        elif sample["bytes"]:
            shares = least["bandwidth_share"][company]
            bound = next((share for kind, share in shares.items() if kind in sample["cell"]), None)
            found = share_of(sample)
        else:
            bound, found = least["pair_ratio"], ratio_of(sample)
        if bound is not None and found is not None and not found >= bound:
            lines.append(f"{cell}: {found:.2f}, {bound} is the limit")
    return lines


def share_of(sample: Mapping[str, Any]) -> float | None:
    """Return the median share of the bandwidth or peak of the same turn, if measured."""
    amount = sample["bytes"] or sample["operations"]
    if not amount:
        return None
    turns = zip(sample["seconds"][OURS], sample["peaks"], strict=True)
    return float(median(amount / seconds / peak for seconds, peak in turns))


def ratio_of(sample: Mapping[str, Any]) -> float | None:
    """Return the fastest peer's time / ours, if a peer was there."""
    peers = [median(seconds) for name, seconds in sample["seconds"].items() if not name.startswith(OURS)]
    return min(peers) / median(sample["seconds"][OURS]) if peers else None


def render(record: Mapping[str, Any]) -> str:
    """Return the tables of a record in Markdown."""
    parts = [provenance(record), f"Lattice on {record['isa']}. Medians; `*` the fastest peer."]
    rows = []
    for sample in record["samples"]:
        times = {name: median(seconds) for name, seconds in sample["seconds"].items()}
        peers = {name: time for name, time in times.items() if not name.startswith(OURS)}
        best = min(peers, key=peers.__getitem__) if peers else None
        found, reached = ratio_of(sample), share_of(sample)
        ratio = "-" if found is None else f"{found:.2f}"
        share = "-" if reached is None else f"{reached:.0%}"
        others = "; ".join(f"{name} {scaled(time)}{' *' if name == best else ''}" for name, time in times.items())
        rows.append([sample["cell"], str(sample["threads"]), scaled(times[OURS]), ratio, share, others])
    if rows:
        header = ["operation", "threads", OURS, "fastest peer / ours", "share of bandwidth or FMA peak", "all"]
        parts.append(markdown_table(header, rows))
    if record["levels"]:
        isas = list(record["levels"][0]["seconds"])
        rows = []
        for level in record["levels"]:
            times = {isa: median(level["seconds"][isa]) for isa in isas}
            rows.append(
                [level["cell"], *(scaled(times[isa]) for isa in isas), f"{times[isas[0]] / times[isas[-1]]:.1f}"]
            )
        parts.append(markdown_table(["one pair, Python's call included", *isas, "ratio"], rows))
    if record["absent"]:
        parts.append("Not here: " + "; ".join(f"{name} ({why})" for name, why in record["absent"].items()) + ".")
    return "\n\n".join(parts)


def scaled(seconds: float) -> str:
    """Return a time with the unit that suits it."""
    if seconds < 1e-6:
        return f"{seconds * 1e9:.0f} ns"
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


if __name__ == "__main__":
    sys.exit(main())
