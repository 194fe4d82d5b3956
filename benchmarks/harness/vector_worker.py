"""Times vector operations in a process: ``python -m harness.vector_worker '{options}'``.

Prints one JSON object: samples in seconds a call, and beside each turn what the machine gave (bytes or operations a second).
"""

from __future__ import annotations

import ctypes
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from harness.vector_peers import OURS, Cell, cells, installed
from lattice_embed import vectors as ops
from lattice_embed.vectors import _vectors
from peak import PeakMeter, compile_native

__all__ = ["main"]

LEVEL_REPEATS = 1_000
SETTLING_SECONDS = 0.12


class RowReader:
    """A plain read of rows where they lie, in a library compiled for the instruction set in use."""

    def __init__(self, isa: str, compiler: str) -> None:
        with tempfile.TemporaryDirectory(prefix="lattice-read-") as folder:
            library = Path(folder) / "read_rows.so"
            compile_native("read_rows.c", library, isa, compiler, options=["-shared", "-fPIC"])
            self._read = ctypes.CDLL(str(library)).read_rows
        self._read.restype = ctypes.c_double
        self._read.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int]

    def rate(self, rows: Any, threads: int, passes: int) -> float:
        """Return the bytes a second of an array, read after an untimed read."""
        start, size = rows.ctypes.data, rows.nbytes
        self._read(start, size, threads, 1)
        rate = float(self._read(start, size, threads, passes))
        if rate == 0:
            raise RuntimeError(f"cannot read {size} bytes (at least 256) with {threads} threads")
        return rate


def time_cell(cell: Cell, meter: PeakMeter, reader: RowReader, threads: int, rounds: int) -> dict[str, Any]:
    """Time every engine of a cell, and the read of the rows, in turns.

    Each timed call comes after a pause, in which the others' threads fall asleep, and an untimed call.
    """
    samples: dict[str, list[float]] = {name: [] for name in cell.calls}
    peaks = []
    for turn in range(rounds):
        names = list(cell.calls)
        for name in names if turn % 2 == 0 else reversed(names):
            call = cell.calls[name]
            settle(threads)
            call()
            start = time.perf_counter()
            for _ in range(cell.repeats):
                call()
            samples[name].append((time.perf_counter() - start) / cell.repeats)
        settle(threads)
        if cell.rows is not None:
            peaks.append(reader.rate(cell.rows, threads, cell.repeats))
        elif cell.operations:
            peaks.append(meter.rate("fma", threads, 0.05))
    return {
        "cell": cell.name,
        "threads": threads,
        "bytes": cell.bytes_read,
        "operations": cell.operations,
        "peaks": peaks,
        "seconds": samples,
    }


def settle(threads: int) -> None:
    """Wait until thread pools that spin after their work have gone to sleep."""
    if threads > 1:
        time.sleep(SETTLING_SECONDS)


def scalar_cells(dims: int) -> dict[str, Cell]:
    """Our pair operations on each instruction set, the binding's cost in all of them."""
    rows = np.random.default_rng(dims).standard_normal((2, dims)).astype(np.float32)
    a, b = rows
    x, y = ops.quantize(rows, "int8").data
    p, q = ops.quantize(rows, "binary").data
    return {
        f"dot, {dims} float32": Cell("", {OURS: lambda: ops.dot_product(a, b)}),
        f"cosine, {dims} float32": Cell("", {OURS: lambda: ops.cosine_similarity(a, b)}),
        f"dot, {dims} int8": Cell("", {OURS: lambda: ops.dot_product_i8_raw(x, y)}),
        f"Hamming, {dims} bits": Cell("", {OURS: lambda: ops.hamming_distance_binary(p, q)}),
    }


def time_levels(rounds: int) -> list[dict[str, Any]]:
    """Time pairs on each instruction set of this CPU, one after the other in each turn."""
    found = []
    for dims in (384, 768, 1024):
        for name, cell in scalar_cells(dims).items():
            samples: dict[str, list[float]] = {isa: [] for isa in _vectors.available_isas()}
            call = cell.calls[OURS]
            for _ in range(rounds):
                for isa in samples:
                    _vectors.select_isa(isa)
                    start = time.perf_counter()
                    for _ in range(LEVEL_REPEATS):
                        call()
                    samples[isa].append((time.perf_counter() - start) / LEVEL_REPEATS)
            found.append({"cell": name, "seconds": samples})
    _vectors.select_isa()
    return found


def main(arguments: list[str]) -> None:
    """Measure what the options say and print it."""
    options = json.loads(arguments[0])
    threads, rounds = options["threads"], options["rounds"]
    peers, absent = installed(threads)
    isa = _vectors.isa_name()
    samples: list[dict[str, Any]] = []
    levels: list[dict[str, Any]] = []
    reader = RowReader(isa, options["cc"])
    with PeakMeter(isa, options["cc"]) as meter:
        for group in options["groups"]:
            if group == "levels":
                levels = time_levels(rounds) if threads == 1 else []
                continue
            made = cells(group, peers, threads, rows=options["rows"], dims=options["dims"])
            samples += [time_cell(cell, meter, reader, threads, rounds) for cell in made]
    print(json.dumps({"isa": isa, "absent": absent, "samples": samples, "levels": levels}))


if __name__ == "__main__":
    main(sys.argv[1:])
