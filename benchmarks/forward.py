"""Measures the share of the CPU's peak that text to vector reaches, with all-MiniLM-L6-v2.

Only useful operations count: the products of the linears and of attention for the tokens that there are, a multiply-add
being two. The tokenizer, the norms, softmax and GELU are time without any. Peaks are those of peak.py's C program, which
takes turns with the calls; a share is the median over the rounds of the same round's.

The peak of bfloat16 is given in three ways. The first is twice that of float32's multiply-adds: a CPU reaches it with
as many dot products of pairs. The others are measured: AVX512-BF16's dot products, and AMX tiles.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

from harness.corpus import make_texts
from harness.options import Record, add_record_options, add_threads_option, finish, limits, positive_int
from harness.progress import report
from harness.record import describe_run, usable_cpus
from harness.tables import markdown_table, provenance
from peak import Measured, PeakMeter, of_threads

__all__ = ["main", "misses", "render", "useful_operations"]

SCRIPT = "forward"
MODEL = "all-minilm-l6-v2"
BATCHES = ((32, 128), (32, 20), (1, 10))
PRECISIONS = ("float32", "bfloat16")
PEAKS: dict[str, tuple[Measured, ...]] = {
    "float32": ("fma",),
    "bfloat16": ("fma", "bfloat16-dot", "bfloat16-tiles"),
}

EXAMPLES = """
examples:
  python benchmarks/forward.py                          both precisions, 1 to n threads
  python benchmarks/forward.py --threads 1 --check      exit 1 if a limit is missed
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_threads_option(parser, range(1, usable_cpus() + 1), "1 to n")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS), help="(default: all)")
    parser.add_argument(
        "--rounds", type=positive_int, default=21, metavar="N", help="rounds of everything (default: 21)"
    )
    parser.add_argument(
        "--seconds", type=float, default=0.03, metavar="S", help="length of one measurement (default: 0.03)"
    )
    parser.add_argument("--cc", default=os.environ.get("CC", "cc"), help="C compiler (default: $CC, else cc)")
    add_record_options(parser, SCRIPT)
    options = parser.parse_args(arguments)
    return finish(SCRIPT, options, measure=partial(measure, options), render=render, misses=misses)


def useful_operations(lengths: Sequence[int], *, hidden: int, intermediate: int, layers: int) -> int:
    """Return the floating-point operations of an encoder's products, for so many tokens."""
    linears = 2 * sum(lengths) * hidden * (4 * hidden + 2 * intermediate)
    attention = 4 * sum(length * length for length in lengths) * hidden
    return layers * (linears + attention)


def measure(options: argparse.Namespace) -> Record:
    """Run what the options ask for and return the record."""
    import lattice_inference

    cpu = lattice_inference.cpu_info()
    record = describe_run(SCRIPT)
    record |= {"isa": cpu["isa"], "model": MODEL, "cells": []}
    threads_before = lattice_inference.get_num_threads()
    encoders = {name: lattice_inference.load_encoder(MODEL, precision=name) for name in options.precisions}
    try:
        with PeakMeter(cpu["isa"], options.cc, features=cpu["features"]) as meter:
            for threads in options.threads:
                lattice_inference.set_num_threads(threads)
                for texts, tokens in BATCHES:
                    batch = make_texts([tokens] * texts, seed=1)
                    for precision, encoder in encoders.items():
                        report(f"{precision}, {texts} x {tokens}, {threads} threads")
                        config = json.loads((encoder.directory / "config.json").read_text(encoding="utf-8"))
                        operations = useful_operations(
                            encoder.encode(batch).token_counts.tolist(),
                            hidden=config["hidden_size"],
                            intermediate=config["intermediate_size"],
                            layers=config["num_hidden_layers"],
                        )
                        cell: dict[str, Any] = {"precision": precision, "texts": texts, "tokens": tokens}
                        cell |= {"threads": threads, "operations": operations, "rounds": []}
                        record["cells"].append(cell)
                        for _ in range(options.rounds):
                            peaks = {what: meter.rate(what, threads, options.seconds) for what in PEAKS[precision]}
                            seconds = _seconds(partial(encoder.encode, batch), options.seconds)
                            cell["rounds"].append({"seconds": seconds, "peaks": peaks})
    finally:
        lattice_inference.set_num_threads(threads_before)
        for encoder in encoders.values():
            encoder.close()
        report()
    return record


def _seconds(call: partial[Any], least: float) -> float:
    """Return the seconds of one call, the mean of as many as take ``least`` seconds."""
    calls = 0
    start = time.perf_counter()
    while (taken := time.perf_counter() - start) < least or not calls:
        call()
        calls += 1
    return taken / calls


def _shares(cell: Mapping[str, Any], what: str, times: float = 1.0) -> float | None:
    """Return the median share of a peak, or of a multiple of it.

    None if the CPU has no such instruction.
    """
    if not all(taken["peaks"].get(what) for taken in cell["rounds"]):
        return None
    return (
        float(median(cell["operations"] / taken["seconds"] / taken["peaks"][what] for taken in cell["rounds"])) / times
    )


def misses(record: Mapping[str, Any]) -> list[str]:
    """Return a line for every cell below its limit.

    The limits hold for the number of threads in limits.toml.
    """
    lines = []
    for cell in record["cells"]:
        if cell["threads"] != limits(SCRIPT)["threads"]:
            continue
        name = f"{cell['texts']} x {cell['tokens']}"
        least = limits(SCRIPT)[cell["precision"]].get(name)
        share = _shares(cell, "fma", 2.0 if cell["precision"] == "bfloat16" else 1.0)
        if least is not None and share is not None and not share >= least:
            lines.append(
                f"{cell['precision']}, {name} tokens, {of_threads(cell['threads'])}: {share:.1%} of the peak, "
                f"{least:.0%} is the limit"
            )
    return lines


def render(record: Mapping[str, Any]) -> str:
    """Return the table of a record in Markdown."""
    rows = []
    for cell in record["cells"]:
        rate = median(cell["operations"] / taken["seconds"] for taken in cell["rounds"])
        is_float32 = cell["precision"] == "float32"
        peaks = (("fma", 1.0 if is_float32 else 2.0), ("bfloat16-dot", 1.0), ("bfloat16-tiles", 1.0))
        shares = [_shares(cell, what, times) for what, times in peaks]
        named = f"{cell['precision']}, {cell['texts']} x {cell['tokens']} tokens, {of_threads(cell['threads'])}"
        rows.append([named, f"{rate / 1e9:.1f}", *("" if share is None else f"{share:.0%}" for share in shares)])
    header = ["from texts to vectors", "GFLOP/s", "of the peak", "of AVX512-BF16's dot products", "of AMX tiles"]
    return f"{provenance(record)}\n\nInstruction set {record['isa']}.\n\n{markdown_table(header, rows)}"


if __name__ == "__main__":
    sys.exit(main())
