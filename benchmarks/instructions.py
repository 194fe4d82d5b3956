"""Counts instructions of the main paths under callgrind; compares with committed counts.

A count, unlike a time, is the same on a busy machine, so CI can hold a change to it. It is taken for one thread and AVX2,
which is what valgrind runs. Compilers emit different code, so only counts of the same compiler, NumPy and Python are
compared. With others the script prints its counts and compares nothing.

Needs valgrind with its headers (Debian: valgrind) and a C compiler.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from harness.main_paths import PATHS
from harness.options import Record, add_record_options, finish, limits
from harness.progress import report
from harness.record import describe_run, read_record
from harness.tables import markdown_table, provenance

__all__ = ["main", "misses", "render"]

SCRIPT = "instructions"
HERE = Path(__file__).resolve().parent
BASELINE = HERE / "results" / "instructions.json"
NAME = re.compile(r"^desc: Trigger: Client Request: (.*)$", re.MULTILINE)
TOTAL = re.compile(r"^totals: (\d+)", re.MULTILINE)

EXAMPLES = """
examples:
  python benchmarks/instructions.py --check      exit 1 where a path takes more instructions than its limit allows
  python benchmarks/instructions.py --update     make the counts of this tree the committed ones
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Count; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--update", action="store_true", help=f"write the counts to {BASELINE.name}, for a commit")
    parser.add_argument("--paths", nargs="+", choices=list(PATHS), default=list(PATHS), metavar="PATH")
    parser.add_argument("--cc", default=os.environ.get("CC", "cc"), help="C compiler (default: $CC, else cc)")
    parser.add_argument("--run", metavar="LIBRARY", help=argparse.SUPPRESS)
    add_record_options(parser, SCRIPT)
    parser.set_defaults(json=HERE.parent / "build" / "instructions.json")
    options = parser.parse_args(arguments)
    if options.run:
        run(options.paths, options.run)
        return 0
    if options.update:
        options.json = BASELINE
    baseline = read_record(BASELINE, SCRIPT) if BASELINE.is_file() and not options.update else None
    return finish(
        SCRIPT,
        options,
        measure=partial(measure, options),
        render=partial(render, baseline=baseline),
        misses=partial(misses, baseline=baseline),
    )


def run(names: Sequence[str], library: str) -> None:
    """Call each path three times uncounted, then once counted.

    The first calls fill caches and finish lazy imports.
    """
    collect = ctypes.CDLL(library)
    if not collect.collect_possible():
        raise RuntimeError("--run is what this script starts under callgrind; leave it out")
    for name in names:
        path = PATHS[name]()
        for _ in range(3):
            path()
        collect.collect_start()
        path()
        collect.collect_stop(name.encode())


def measure(options: argparse.Namespace) -> Record:
    """Count what the options ask for and return the record."""
    if shutil.which("valgrind") is None:
        raise RuntimeError("valgrind is missing: install it (Debian: valgrind)")
    record = describe_run(SCRIPT)
    with tempfile.TemporaryDirectory(prefix="lattice-instructions-") as folder:
        library = Path(folder) / "collect.so"
        command = [*shlex.split(options.cc), "-shared", "-fPIC", "-O1", str(HERE / "native" / "collect.c")]
        built = subprocess.run([*command, "-o", str(library)], capture_output=True, text=True)
        if built.returncode:
            raise RuntimeError(f"{options.cc} failed: {built.stderr.strip().splitlines()[-1]}")
        report(f"{len(options.paths)} paths under callgrind")
        counts = count(options.paths, library)
        report()
    return record | {"toolchain": toolchain(options.cc), "counts": counts}


def count(names: Sequence[str], library: Path) -> dict[str, int]:
    """Return the instructions of one call of each path."""
    environment = {
        **os.environ,
        "LATTICE_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "LATTICE_ISA": "avx2",
        "LATTICE_OFFLINE": "1",
        "PYTHONHASHSEED": "0",
    }
    output = library.with_name("counts")
    command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={output}"]
    command += [sys.executable, str(HERE / "instructions.py"), "--run", str(library), "--paths", *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"callgrind ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    counts = {}
    for dump in output.parent.glob(f"{output.name}.*"):
        text = dump.read_text()
        name, total = NAME.search(text), TOTAL.search(text)
        if name and total:
            counts[name[1]] = int(total[1])
    return {name: counts[name] for name in names}


def toolchain(compiler: str) -> dict[str, str]:
    """Return what decides how many instructions the same source takes."""
    import numpy

    version = subprocess.run([*shlex.split(compiler), "--version"], capture_output=True, text=True, check=True)
    return {
        "compiler": version.stdout.splitlines()[0],
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "libc": " ".join(platform.libc_ver()),
    }


def comparable(record: Mapping[str, Any], baseline: Mapping[str, Any] | None) -> bool:
    """Whether the two were made with the same tools."""
    return baseline is not None and record["toolchain"] == baseline["toolchain"]


def misses(record: Mapping[str, Any], baseline: Mapping[str, Any] | None) -> list[str]:
    """Return a line for every path that exceeds its committed count too far."""
    if baseline is None or not comparable(record, baseline):
        return []
    most = float(limits(SCRIPT)["ratio"])
    lines = []
    for name, instructions in record["counts"].items():
        before = baseline["counts"].get(name)
        if before is not None and not instructions <= most * before:
            lines.append(
                f"{name}: {instructions:,} instructions, {instructions / before:.3f} times the {before:,} on record; "
                f"{most} is the limit (where that is meant: --update, and say why in the commit)"
            )
    return lines


def render(record: Mapping[str, Any], baseline: Mapping[str, Any] | None) -> str:
    """Return the table of a record in Markdown."""
    known = baseline["counts"] if baseline is not None and comparable(record, baseline) else {}
    header = ["path", "instructions", *(["of the record"] if baseline is not None else [])]
    rows = []
    for name, count in record["counts"].items():
        of_record = f"{count / known[name]:.3f}" if name in known else "-"
        rows.append([name, f"{count:,}", *([of_record] if baseline is not None else [])])
    notes = [provenance(record), json.dumps(record["toolchain"])]
    if baseline is not None and not known:
        notes.append(f"The committed counts were made with other tools: {json.dumps(baseline['toolchain'])}")
    return "\n\n".join([*notes, markdown_table(header, rows)])


if __name__ == "__main__":
    sys.exit(main())
