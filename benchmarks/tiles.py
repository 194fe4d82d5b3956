"""Measures the bound of block-quantized products by AMX tiles, beside those of bfloat16.

Weights in blocks of 32 have a scale for each block. So every 32 deep the integer sums leave their tile, become
floats, and are added to the float sums of the results. A C program (benchmarks/native/tiles.c), compiled here, times
each part by itself, and a loop of all parts, from L1. A linear can gain at most its distance from that loop. Kinds
take turns; figures are medians over the rounds. One thread.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from harness.options import Record, add_record_options, finish, positive_int
from harness.record import describe_run
from harness.tables import markdown_table, provenance
from peak import compile_native

__all__ = ["KINDS", "main", "render"]

SCRIPT = "tiles"
MULTIPLY_ADDS = 16 * 16 * 32

EXAMPLES = """
examples:
  python benchmarks/tiles.py
  python benchmarks/tiles.py --rounds 50 --cc clang
"""

KINDS = {
    "bfloat16": "bfloat16, products only",
    "int8": "int8, products only",
    "tiles": "int8, with rows and lines loaded, sums stored",
    "links": "the links of the chains, no tiles",
    "links_beside": "the same beside an instruction on tiles",
    "added_beside": "the same, integers made floats by additions",
    "blocks": "blocks of 32, all together",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=positive_int, default=20, metavar="N", help="(default: 20)")
    parser.add_argument("--cc", default=os.environ.get("CC", "cc"), help="C compiler (default: $CC, else cc)")
    add_record_options(parser, SCRIPT)
    options = parser.parse_args(arguments)
    return finish(SCRIPT, options, measure=partial(measure, options), render=render, misses=lambda record: [])


def measure(options: argparse.Namespace) -> Record:
    """Compile and run the C program and return the record.

    Raises:
        RuntimeError: it cannot be compiled, or this CPU has no tiles.
    """
    record = describe_run(SCRIPT)
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "tiles"
        compile_native("tiles.c", program, "avx512", options.cc)
        done = subprocess.run([str(program), str(options.rounds)], capture_output=True, text=True, encoding="utf-8")
    if done.returncode != 0:
        raise RuntimeError(f"no tiles here: {done.stderr.strip() or f'the program ended with {done.returncode}'}")
    return record | {"rounds": json.loads(done.stdout)}


def share(record: Mapping[str, Any], kind: str) -> float:
    """Return the multiply-adds a second of a kind, as a share of those of bfloat16's products."""
    return median(float(each["bfloat16"]) / float(each[kind]) for each in record["rounds"])


def render(record: Mapping[str, Any]) -> str:
    """Return the table of a record in Markdown."""
    rows = []
    for kind, what in KINDS.items():
        nanoseconds = median(float(each[kind]) for each in record["rounds"])
        rows.append([what, f"{nanoseconds:.2f}", f"{MULTIPLY_ADDS / nanoseconds:.0f}", f"{share(record, kind):.2f}"])
    titles = ["16 x 16 x 32", "ns", "10^9 multiply-adds a second", "of bfloat16's products"]
    return "\n\n".join([provenance(record), "One thread, medians.", markdown_table(titles, rows)])


if __name__ == "__main__":
    sys.exit(main())
