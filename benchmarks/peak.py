"""Measures the CPU's peak, and the share of it that our float32 linear kernel reaches.

Both are measured in the same run. A C program (benchmarks/native/peak.c) measures the peak, compiled here for the
instruction set in use. It counts fused multiply-adds a second in registers, and bytes a second read from memory. The
kernel is timed through a program of the library: a list of linears minus the same program without them, so that what
Python costs a call drops out. Peak and kernel take turns; a share is the median over the rounds of kernel / peak of
the same round.

"warm" multiplies by one weight again and again, as a batch does that keeps it in cache. "streamed" takes a different
one each time, together larger than any cache, as one short text does. For streamed weights the share of the read
bandwidth counts. A warm weight that L2 does not hold is read from the next cache, once a product: with few rows that
takes longer than the arithmetic. The bound is the longer of the two, the reading measured over as many bytes beside
it.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from harness.options import Record, add_record_options, add_threads_option, finish, limits, positive_int
from harness.progress import report
from harness.record import describe_run, usable_cpus
from harness.tables import markdown_table, provenance

__all__ = ["PeakMeter", "compile_native", "main", "misses", "render"]

SCRIPT = "peak"
HERE = Path(__file__).resolve().parent
INCLUDE = HERE.parent / "tools" / "native" / "include"
SHAPES = ((384, 1536), (1536, 384))
ROWS = (*range(1, 17), 32, 64, 128, 512)
STREAMED_ROWS = (1, 2, 4, 8, 16)
FEW_ROWS = 16  # up to here the weights may take longer to read than to multiply
FLOAT_BYTES = 4
STREAMED_WEIGHTS = 64  # 151 MB of 384 x 1536: what a cache keeps of it from run to run counts little

FLAGS = {
    "baseline": ["-msse4.2", "-mpopcnt"],
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx2", "-mfma", "-mf16c"],
    "neon": [],
}

FEATURE_FLAGS = {"avx512_bf16": ["-mavx512bf16"], "amx_bf16": ["-mamx-tile", "-mamx-bf16"]}

Measured = Literal["fma", "bfloat16-dot", "bfloat16-tiles", "read"]

EXAMPLES = """
examples:
  python benchmarks/peak.py                             every row count, 1 to n threads; some minutes
  python benchmarks/peak.py --rows 32 128 --threads 1   two row counts, one thread
  python benchmarks/peak.py --isa avx2 --check          AVX2 forced; exit 1 if a limit is missed
"""

Float32Array = npt.NDArray[np.float32]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_threads_option(parser, range(1, usable_cpus() + 1), "1 to n")
    parser.add_argument(
        "--rows", nargs="+", type=positive_int, default=list(ROWS), metavar="M", help="rows of the left matrix"
    )
    parser.add_argument("--rounds", type=positive_int, default=7, metavar="N", help="rounds of everything (default: 7)")
    parser.add_argument(
        "--seconds", type=float, default=0.1, metavar="S", help="length of one measurement of the peak (default: 0.1)"
    )
    parser.add_argument("--isa", choices=list(FLAGS), help="instruction set of both (default: the best one here)")
    parser.add_argument("--cc", default=os.environ.get("CC", "cc"), help="C compiler (default: $CC, else cc)")
    add_record_options(parser, SCRIPT)
    options = parser.parse_args(arguments)
    return finish(SCRIPT, options, measure=partial(measure, options), render=render, misses=misses)


class PeakMeter:
    """The compiled peak program, running. A context manager; leaving it ends the program.

    Args:
        isa: the instruction set that it is compiled for.
        compiler: the C compiler's command.
        features: of the CPU, as ``lattice_inference.cpu_info()`` names them: what it may use besides.

    Raises:
        RuntimeError: there is no compiler, or it failed.
    """

    def __init__(self, isa: str, compiler: str, *, features: Sequence[str] = ()) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="lattice-peak-")
        program = Path(self._folder.name) / "peak"
        compile_native("peak.c", program, isa, compiler, options=_feature_flags(isa, features))
        self._process = subprocess.Popen([str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def rate(self, what: Measured, threads: int, seconds: float, *, size: int | None = None) -> float:
        """Return operations a second, a multiply-add being two, or bytes a second (``read``).

        ``read`` is of memory that no cache holds, or of ``size`` bytes in all, again and again. The products of bfloat16 are
        0 without the feature that they take.
        """
        if size is not None:
            return self._ask(f"{what}@{size} {threads} {seconds}")
        return self._ask(f"{what} {threads} {seconds}")

    def _ask(self, request: str) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{request}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the peak program ended with status {self._process.wait()}")
        return float(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()
        self._folder.cleanup()


def compile_native(source: str, target: Path, isa: str, compiler: str, *, options: Sequence[str] = ()) -> None:
    """Compile a file of benchmarks/native for an instruction set.

    Raises:
        RuntimeError: there is no compiler, or it failed.
    """
    command = [*shlex.split(compiler), "-std=gnu11", "-O3", "-ffp-contract=off", "-Wno-psabi", *_flags(isa), *options]
    command += [f"-DLATTICE_ISA_{isa.upper()}=1", f"-I{INCLUDE}", str(HERE / "native" / source)]
    try:
        built = subprocess.run([*command, "-o", str(target), "-lpthread", "-lm"], capture_output=True, text=True)
    except OSError as error:
        raise RuntimeError(
            f"the C compiler {compiler!r} cannot be run ({error.strerror}): name one with --cc"
        ) from error
    if built.returncode != 0:
        raise RuntimeError(f"{compiler} failed: {(built.stderr.strip() or 'it printed nothing').splitlines()[-1]}")


def _flags(isa: str) -> list[str]:
    return [] if isa == "baseline" and os.uname().machine not in ("x86_64", "AMD64") else FLAGS[isa]


def _feature_flags(isa: str, features: Sequence[str]) -> list[str]:
    return [flag for feature in features if isa == "avx512" for flag in FEATURE_FLAGS.get(feature, [])]


@dataclass(frozen=True)
class _Tensors:
    """A source of weights that holds them in a dictionary."""

    tensors: Mapping[str, Float32Array]

    def float32(self, name: str) -> Float32Array:
        """Return a tensor by name."""
        return self.tensors[name]

    def drop_pages(self, name: str) -> None:
        """Nothing to let go of: the tensors lie in no file."""


class LinearTimer:
    """Times (rows, k) times (k, n) on the CPU backend.

    Two programs are timed in turns. The first looks up its input rows, multiplies them ``repeats + 1`` times and adds
    up the first rows of the products. The second multiplies once and adds up that first row as often. They differ by
    ``repeats`` linears and nothing else.

    Args:
        k, n: shape of the weight, as (n, k).
        rows: of the input.
        isa: instruction set.
        streamed: a different weight for each linear.
    """

    def __init__(self, k: int, n: int, rows: int, isa: str, *, streamed: bool) -> None:
        from lattice_inference.backends.cpu import CpuBackend
        from lattice_inference.graph.batch import Batch

        draw = np.random.default_rng(0)
        self.repeats = STREAMED_WEIGHTS - 1 if streamed else min(max(512 // rows, 4), 24)
        weights = [f"w{index}" for index in range(self.repeats + 1)] if streamed else ["w0"] * (self.repeats + 1)
        tensors = {name: draw.standard_normal((n, k), np.float32) for name in dict.fromkeys(weights)}
        source = _Tensors({**tensors, "x": draw.standard_normal((rows, k), np.float32)})
        backend = CpuBackend(isa=isa, fused=False)
        self._many = backend.compile(_program(k, n, rows, weights, 1), source)
        self._one = backend.compile(_program(k, n, rows, weights[:1], self.repeats + 1), source)
        self._batch = Batch(np.arange(rows, dtype=np.int32), np.array([0, rows], np.int32))
        self.operations = 2 * k * n * rows
        self.weight_bytes = 4 * k * n

    def seconds(self, pairs: int) -> float:
        """Return the median seconds of one linear, over ``pairs`` runs of each program."""
        differences = []
        for _ in range(pairs):
            start = time.perf_counter()
            self._many.run(self._batch)
            middle = time.perf_counter()
            self._one.run(self._batch)
            differences.append((middle - start) - (time.perf_counter() - middle))
        return max(median(differences), 1e-9) / self.repeats


def _program(k: int, n: int, rows: int, weights: Sequence[str], reads: int) -> Any:
    """Linears of one input, and the sum of their first rows, each taken ``reads`` times."""
    from lattice_inference.graph.builder import GraphBuilder

    g = GraphBuilder()
    x = g.embed_rows(g.weight("x", (rows, k), use="rows"), ids="token_ids")
    total = None
    for name in weights:
        y = g.linear(x, g.weight(name, (n, k)))
        for _ in range(reads):
            row = g.pool(y, mode="cls")
            total = row if total is None else g.add(total, row)
    assert total is not None
    return g.build({"sum": total})


def measure(options: argparse.Namespace) -> Record:
    """Run what the options ask for and return the record."""
    import lattice_inference

    isa = options.isa or lattice_inference.cpu_info()["isa"]
    record = describe_run(SCRIPT)
    record |= {"isa": isa, "samples": []}
    cells = [(k, n, rows, False) for k, n in SHAPES for rows in options.rows]
    cells += [(k, n, rows, True) for k, n in SHAPES for rows in options.rows if rows in STREAMED_ROWS]
    threads_before = lattice_inference.get_num_threads()
    try:
        with PeakMeter(isa, options.cc) as meter:
            for k, n, rows, streamed in cells:
                timer = LinearTimer(k, n, rows, isa, streamed=streamed)
                for threads in options.threads:
                    report(f"{rows} x {k} x {n}{', streamed' if streamed else ''}, {threads} threads")
                    lattice_inference.set_num_threads(threads)
                    timer.seconds(1)
                    for _ in range(options.rounds):
                        peak = meter.rate("read" if streamed else "fma", threads, options.seconds)
                        sample = {"k": k, "n": n, "rows": rows, "streamed": streamed, "threads": threads, "peak": peak}
                        if not streamed and rows <= FEW_ROWS:
                            sample["read"] = meter.rate("read", threads, options.seconds, size=timer.weight_bytes)
                        work = timer.weight_bytes if streamed else timer.operations
                        record["samples"].append({**sample, "rate": work / timer.seconds(_pairs(timer))})
    finally:
        lattice_inference.set_num_threads(threads_before)
        report()
    return record


def _pairs(timer: LinearTimer) -> int:
    """Return pairs of runs in a round.

    They are about 2 x 10^9 operations, so that a round is tens of milliseconds.
    """
    return max(3, int(2e9 / (timer.operations * (timer.repeats + 2))))


def _grouped(record: Mapping[str, Any]) -> dict[tuple[int, int, int, bool, int], list[Mapping[str, Any]]]:
    groups: dict[tuple[int, int, int, bool, int], list[Mapping[str, Any]]] = {}
    for sample in record["samples"]:
        key = (sample["k"], sample["n"], sample["rows"], sample["streamed"], sample["threads"])
        groups.setdefault(key, []).append(sample)
    return groups


def share(samples: Sequence[Mapping[str, Any]]) -> float:
    """Return the median over rounds of what was reached of the peak of the same round."""
    return median(float(sample["rate"]) / float(sample["peak"]) for sample in samples)


def share_of_bound(samples: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the share of the bound of warm weights, arithmetic or reading.

    None if the reading was not measured.
    """
    if not all("read" in sample for sample in samples):
        return None
    # a float of the weight is read once and multiplied by every row
    return median(
        float(s["rate"]) / min(float(s["peak"]), 2 * int(s["rows"]) * float(s["read"]) / FLOAT_BYTES) for s in samples
    )


def misses(record: Mapping[str, Any]) -> list[str]:
    """Return a line for every warm cell below its limit."""
    bounds = {int(rows): float(least) for rows, least in limits(SCRIPT)["share"].items()}
    lines = []
    for (k, n, rows, streamed, threads), samples in _grouped(record).items():
        # a limit holds from its number of rows to the next one; below the first the kernel is bound by memory
        least = (
            None if streamed else next((bounds[first] for first in sorted(bounds, reverse=True) if first <= rows), None)
        )
        if least is not None and not share(samples) >= least:
            bound = share_of_bound(samples)
            reading = "" if bound is None else f" ({bound:.1%} of what arithmetic and reading allow)"
            lines.append(
                f"{rows} x {k} x {n}, {threads} threads: {share(samples):.1%} of the peak{reading}, {least:.0%} is the limit"
            )
    return lines


def render(record: Mapping[str, Any]) -> str:
    """Return the tables of a record in Markdown."""
    groups = _grouped(record)
    threads = list(dict.fromkeys(key[4] for key in groups))
    parts = [provenance(record), f"Instruction set {record['isa']}; M rows x K x N, float32."]
    peaks = []
    for what, streamed in (("fused multiply-add, GFLOP/s", False), ("memory read, GB/s", True)):
        values = [
            [s["peak"] for s in record["samples"] if (s["streamed"], s["threads"]) == (streamed, t)] for t in threads
        ]
        if all(values):
            peaks.append([what, *(f"{median(value) / 1e9:.1f}" for value in values)])
    parts.append(markdown_table(["peak", *map(of_threads, threads)], peaks))
    for streamed, title in ((False, "warm weights, GFLOP/s"), (True, "streamed weights, GB/s")):
        rows = []
        for k, n, m in dict.fromkeys(key[:3] for key in groups if key[3] is streamed):
            samples = [groups[k, n, m, streamed, t] for t in threads]
            rows.append([f"{m} x {k} x {n}", *map(_cell, samples)])
        if rows:
            shares = "share of the peak" + ("" if streamed else "; of the bound")
            parts.append(markdown_table([f"{title} ({shares})", *map(of_threads, threads)], rows))
    return "\n\n".join(parts)


def _cell(samples: Sequence[Mapping[str, Any]]) -> str:
    bound = share_of_bound(samples)
    shares = f"{share(samples):.0%}" + ("" if bound is None else f"; {bound:.0%}")
    return f"{median(s['rate'] for s in samples) / 1e9:.1f} ({shares})"


def of_threads(count: int) -> str:
    """Return a number of threads in words."""
    return f"{count} thread{'s' if count > 1 else ''}"


if __name__ == "__main__":
    sys.exit(main())
