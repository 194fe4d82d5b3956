"""Measures each kernel: matrix products, attention, norms, activations, vector operations.

Products: three loops in C (benchmarks/native/naive.c), our blocked kernel on one thread and on all, and the int8 kernel,
which quantizes its rows too. Other kernels: the scalar baseline against each instruction set of this CPU on one thread, and
the best of them on all threads. Softmax is part of attention, as everywhere in the library. A kernel is timed through
a program of the library that applies it many times, minus the same program with one application. So Python's cost of
a call drops out. Everything takes turns; a figure is the median over the rounds, a ratio the median of the rounds'
ratios.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from harness.options import Record, add_record_options, finish, positive_int, thread_count
from harness.process import answer_of
from harness.progress import report
from harness.record import describe_run, usable_cpus
from harness.tables import markdown_table, provenance
from peak import HERE, _Tensors

__all__ = ["main", "misses", "render"]

SCRIPT = "kernels"
GROUPS = ("products", "ops", "vectors")
PRODUCTS = ((128, 128, 128), (512, 512, 512), (1024, 1024, 1024), (1, 4096, 11008))
ATTENTION = ((32, 20), (32, 128), (8, 512))  # sequences, tokens of each
HEADS, HEAD_DIM = 12, 32
ROWS, WIDTH, INNER = 4096, 384, 1536

EXAMPLES = """
examples:
  python benchmarks/kernels.py                               everything; some minutes
  python benchmarks/kernels.py --only products               products of matrices
  python benchmarks/kernels.py --only ops vectors --rounds 3
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--threads", type=thread_count, default=usable_cpus(), metavar="N", help="of the parallel columns"
    )
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS), metavar="GROUP", help=str(GROUPS))
    parser.add_argument("--rounds", type=positive_int, default=7, metavar="N", help="turns of everything (default: 7)")
    parser.add_argument(
        "--most", type=positive_int, metavar="N", help="leave out products of more than N multiply-adds (default: none)"
    )
    parser.add_argument("--cc", default=os.environ.get("CC", "cc"), help="C compiler (default: $CC, else cc)")
    add_record_options(parser, SCRIPT)
    options = parser.parse_args(arguments)
    return finish(SCRIPT, options, measure=partial(measure, options), render=render, misses=misses)


class KernelTimer:
    """Times one kernel on the CPU backend.

    Args:
        write: adds one application of the kernel to a builder; gets the builder and the view that it reads, and returns the
            view that it writes. What it returns is summed up, or handed to the next application where the widths agree.
        tensors: the weights, and ``x``, the rows that are read.
        lengths: tokens of each sequence.
        repeats: applications beyond the first.
        chained: hand each result to the next application.
        backend: what compiles the programs.
    """

    def __init__(
        self,
        write: Callable[[Any, Any], Any],
        tensors: Mapping[str, Any],
        lengths: Sequence[int],
        *,
        repeats: int,
        chained: bool,
        backend: Any,
    ) -> None:
        from lattice_inference.graph.batch import Batch

        self.repeats = repeats
        source = _Tensors(tensors)
        self._many, self._one = (
            backend.compile(_program(write, tensors["x"].shape, count, repeats + 2 - count, chained=chained), source)
            for count in (repeats + 1, 1)
        )
        total = sum(lengths)
        ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        self._batch = Batch(np.arange(total, dtype=np.int32), ends, positions=np.zeros(total, np.int32))

    def seconds(self) -> float:
        """Return the seconds of one application, from one run of each program.

        An untimed run first brings back its memory.
        """
        self._many.run(self._batch)
        self._one.run(self._batch)
        start = time.perf_counter()
        self._many.run(self._batch)
        middle = time.perf_counter()
        self._one.run(self._batch)
        return max((middle - start) - (time.perf_counter() - middle), 1e-9) / self.repeats


def _program(write: Callable[[Any, Any], Any], shape: tuple[int, int], count: int, reads: int, *, chained: bool) -> Any:
    """Return ``count`` applications, and the sum of the first rows of their results.

    Each row is taken ``reads`` times.
    """
    from lattice_inference.graph.builder import GraphBuilder

    g = GraphBuilder()
    x = g.embed_rows(g.weight("x", shape, use="rows"), ids="token_ids")
    total = None
    for _ in range(count):
        y = write(g, x)
        x = y if chained else x
        for _ in range(reads):
            row = g.pool(y, mode="cls")
            total = row if total is None else g.add(total, row)
    assert total is not None
    return g.build({"sum": total})


class NaiveProduct:
    """The compiled three loops, running. A context manager; leaving it ends the program.

    Raises:
        RuntimeError: there is no compiler, or it failed.
    """

    def __init__(self, compiler: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="lattice-naive-")
        program = Path(self._folder.name) / "naive"
        command = [*shlex.split(compiler), "-std=gnu11", "-O2", str(HERE / "native" / "naive.c"), "-o", str(program)]
        try:
            built = subprocess.run(command, capture_output=True, text=True)
            failed = built.returncode != 0
            why = f"{compiler} failed: {(built.stderr.strip() or 'it printed nothing').splitlines()[-1]}"
        except OSError as error:
            failed = True
            why = f"the C compiler {compiler!r} cannot be run ({error.strerror}): name one with --cc"
        if failed:
            self._folder.cleanup()
            raise RuntimeError(why)
        self._process = subprocess.Popen([str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def seconds(self, m: int, k: int, n: int) -> float:
        """Return the seconds of one product."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{m} {k} {n}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the naive program ended with status {self._process.wait()}")
        return float(line)

    def __enter__(self) -> NaiveProduct:
        return self

    def __exit__(self, *ended: object) -> None:
        self._process.communicate()
        self._folder.cleanup()


def measure(options: argparse.Namespace) -> Record:
    """Run what the options ask for and return the record."""
    import lattice_inference

    record: Record = {**describe_run(SCRIPT), "isa": lattice_inference.cpu_info()["isa"]}
    record |= {"threads": options.threads, "samples": [], "levels": []}
    threads_before = lattice_inference.get_num_threads()
    try:
        if "products" in options.only:
            with NaiveProduct(options.cc) as naive:
                for shape in PRODUCTS:
                    if options.most is None or np.prod(shape) <= options.most:
                        record["samples"].append(time_product(shape, naive, options.threads, options.rounds))
        if "ops" in options.only:
            for name, work, timer_of in ops():
                record["samples"].append(time_op(name, work, timer_of, options.threads, options.rounds))
    finally:
        lattice_inference.set_num_threads(threads_before)
    if "vectors" in options.only:
        record["levels"] = vector_levels(options.rounds)
    report()
    return record


def time_product(shape: tuple[int, int, int], naive: NaiveProduct, threads: int, rounds: int) -> dict[str, Any]:
    """Time one shape in every way, in turns."""
    import lattice_inference
    from lattice_inference.backends.cpu import CpuBackend

    m, k, n = shape
    report(f"{m} x {k} x {n}")
    draw = np.random.default_rng(0)
    tensors = {"x": draw.standard_normal((m, k), np.float32), "w": draw.standard_normal((n, k), np.float32)}
    repeats = max(2, min(24, int(1e9 / np.prod(shape))))

    def timer(precision: Any) -> KernelTimer:
        return KernelTimer(
            lambda g, x: g.linear(x, g.weight("w", (n, k))),
            tensors,
            [m],
            repeats=repeats,
            chained=False,
            backend=CpuBackend(fused=False, precision=precision),
        )

    timers = {"blocked": (timer("float32"), 1), "int8": (timer("int8"), 1)}
    timers |= {"parallel": (timers["blocked"][0], threads), "int8, parallel": (timers["int8"][0], threads)}
    seconds: dict[str, list[float]] = {name: [] for name in ("naive", "blocked", "parallel", "int8", "int8, parallel")}
    for turn in range(rounds + 1):
        for name, (found, count) in timers.items():
            lattice_inference.set_num_threads(count)
            value = found.seconds()
            if turn > 0:  # the first run finds everything cold
                seconds[name].append(value)
        if turn > 0:
            seconds["naive"].append(naive.seconds(m, k, n))
    return {"group": "products", "cell": f"{m} x {k} x {n}", "operations": 2 * m * k * n, "seconds": seconds}


TimerOf = Callable[[str], KernelTimer]
"""Makes the timer of one kernel for an instruction set."""


def ops() -> list[tuple[str, int, TimerOf]]:
    """Return each other kernel's name, number of written elements, and factory of timers.

    A factory takes an instruction set.
    """
    from lattice_inference.backends.cpu import CpuBackend

    draw = np.random.default_rng(1)

    def made(
        write: Callable[[Any, Any], Any], rows: int, width: int, lengths: Sequence[int], repeats: int, isa: str
    ) -> KernelTimer:
        tensors = {"x": draw.standard_normal((rows, width), np.float32)}
        tensors |= {"scale": np.ones(width, np.float32), "shift": np.zeros(width, np.float32)}
        backend = CpuBackend(isa=isa, fused=False)
        return KernelTimer(write, tensors, lengths, repeats=repeats, chained=True, backend=backend)

    def attention(g: Any, x: Any) -> Any:
        return g.attention(x, x, x, heads=HEADS, kv_heads=HEADS, head_dim=HEAD_DIM, scale=HEAD_DIM**-0.5)

    def layer_norm(g: Any, x: Any) -> Any:
        scale, shift = (g.weight(name, (x.width,), use="vector") for name in ("scale", "shift"))
        return g.layer_norm(x, scale, shift, epsilon=1e-12)

    def rms_norm(g: Any, x: Any) -> Any:
        return g.rms_norm(x, g.weight("scale", (x.width,), use="vector"), epsilon=1e-6)

    found: list[tuple[str, int, TimerOf]] = []
    for sequences, tokens in ATTENTION:
        rows = sequences * tokens
        timer = partial(made, attention, rows, HEADS * HEAD_DIM, [tokens] * sequences, 4)
        found.append((f"attention, {sequences} x {tokens} tokens", rows * HEADS * HEAD_DIM, timer))
    for name, write, width in (
        ("layer norm", layer_norm, WIDTH),
        ("RMS norm", rms_norm, WIDTH),
        ("GELU (erf)", lambda g, x: g.gelu(x), INNER),
        ("GELU (tanh)", lambda g, x: g.gelu(x, form="tanh"), INNER),
        ("SiLU", lambda g, x: g.silu(x), INNER),
    ):
        found.append((f"{name}, {ROWS} x {width}", ROWS * width, partial(made, write, ROWS, width, [ROWS], 4)))
    return found


def time_op(name: str, work: int, timer_of: TimerOf, threads: int, rounds: int) -> dict[str, Any]:
    """Time one kernel on each instruction set with one thread, and on the best with all."""
    import lattice_inference
    from lattice_inference.backends.cpu import _cpu

    report(name)
    timers = {isa: (timer_of(isa), 1) for isa in _cpu.available_isas()}
    best = list(timers)[-1]
    timers[f"{best}, parallel"] = (timers[best][0], threads)
    seconds: dict[str, list[float]] = {label: [] for label in timers}
    for turn in range(rounds + 1):
        for label, (timer, count) in timers.items():
            lattice_inference.set_num_threads(count)
            value = timer.seconds()
            if turn > 0:
                seconds[label].append(value)
    return {"group": "ops", "cell": name, "operations": work, "seconds": seconds}


def vector_levels(rounds: int) -> list[dict[str, Any]]:
    """Time pairs of vectors on each instruction set, in a separate process."""
    report("vector operations")
    request = (
        "import json, sys; from harness.vector_worker import time_levels as t; print(json.dumps(t(int(sys.argv[1]))))"
    )
    found: list[dict[str, Any]] = answer_of(["-c", request, str(rounds)], 1)
    return found


def misses(record: Mapping[str, Any]) -> list[str]:
    """Return nothing: the limits of the main paths are those of peak.py and embed.py."""
    return []


def ratio(above: Sequence[float], below: Sequence[float]) -> str:
    """Return the median over the rounds of above / below."""
    return f"{median(a / b for a, b in zip(above, below, strict=True)):.2f}"


def render(record: Mapping[str, Any]) -> str:
    """Return the tables of a record in Markdown."""
    parts = [provenance(record), f"Instruction set {record['isa']}; parallel on {record['threads']} threads."]
    rows = []
    for sample in record["samples"]:
        if sample["group"] != "products":
            continue
        seconds = sample["seconds"]
        cells = [f"{sample['operations'] / median(times) / 1e9:.1f}" for times in seconds.values()]
        ratios = [ratio(seconds["naive"], seconds["blocked"]), ratio(seconds["blocked"], seconds["parallel"])]
        ratios.append(ratio(seconds["parallel"], seconds["int8, parallel"]))
        rows.append([sample["cell"], *cells, *ratios])
    if rows:
        header = ["M x K x N, 10^9 operations a second", "naive", "blocked", "parallel", "int8", "int8, parallel"]
        header += ["naive / blocked", "blocked / parallel", "float32 / int8"]
        parts.append(markdown_table(header, rows))
    of_ops = [sample for sample in record["samples"] if sample["group"] == "ops"]
    if of_ops:
        labels = list(of_ops[0]["seconds"])
        rows = [
            [
                sample["cell"],
                *(f"{median(sample['seconds'][label]) * 1e6:.1f}" for label in labels),
                ratio(sample["seconds"][labels[0]], sample["seconds"][labels[-2]]),
            ]
            for sample in of_ops
        ]
        parts.append(markdown_table(["kernel, microseconds", *labels, f"{labels[0]} / {labels[-2]}"], rows))
    if record["levels"]:
        isas = list(record["levels"][0]["seconds"])
        rows = [
            [
                level["cell"],
                *(f"{median(level['seconds'][isa]) * 1e9:.0f}" for isa in isas),
                ratio(level["seconds"][isas[0]], level["seconds"][isas[-1]]),
            ]
            for level in record["levels"]
        ]
        parts.append(markdown_table(["one pair, ns, Python's call included", *isas, f"{isas[0]} / {isas[-1]}"], rows))
    return "\n\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
