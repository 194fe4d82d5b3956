"""The calls that vectors.py times: our vector operations and the peers'.

Each is a call without arguments. A peer that is not installed is left out and named. All get the same unit vectors.
Results differ: faiss and we give the ten nearest, SimSIMD and NumKong all scores. This makes the comparison easier
for those that give less.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lattice_embed import vectors as ops

__all__ = ["OURS", "Cell", "cells", "installed"]

OURS = "Lattice"
PEERS = {"NumKong": "numkong", "SimSIMD": "simsimd", "faiss": "faiss", "usearch": "usearch"}
TURN_BYTES = 250_000_000
Call = Callable[[], Any]


@dataclass
class Cell:
    """One row of a table.

    Attributes:
        name: its title.
        calls: by engine.
        repeats: calls in one turn.
        bytes_read: where the memory bounds: of the rows and what is kept for each, such as its scale.
        rows: the array of the rows, which a plain read is timed on.
        operations: floating-point ones, where the FMA units bound.
    """

    name: str
    calls: dict[str, Call]
    repeats: int = 1
    bytes_read: int = 0
    operations: int = 0
    rows: Any = None


def installed(threads: int) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the peers' modules, and for the others why they are not here."""
    modules, absent = {}, {}
    for title, name in PEERS.items():
        try:
            modules[title] = __import__(name)
        except ImportError as error:
            absent[title] = str(error)
    if "faiss" in modules:
        modules["faiss"].omp_set_num_threads(threads)
    return modules, absent


def unit_rows(count: int, dims: int) -> Any:
    rows = np.random.default_rng(count + dims).standard_normal((count, dims), dtype=np.float32)
    return ops.normalize(rows, in_place=True)


def cells(group: str, peers: dict[str, Any], threads: int, *, rows: int, dims: int) -> list[Cell]:
    """Return the cells of a group: ``pair``, ``nearest``, ``rows`` or ``all``."""
    made = {"pair": pair_cells, "nearest": nearest_cells, "rows": row_cells, "all": all_cells}[group]
    return made(peers, threads, rows, dims)


def pair_cells(peers: dict[str, Any], _threads: int, _rows: int, dims: int) -> list[Cell]:
    a, b = unit_rows(2, dims)
    x, y = ops.quantize(np.stack([a, b]), "int8").data
    p, q = ops.quantize(np.stack([a, b]), "binary").data
    floats: dict[str, Call] = {OURS: lambda: ops.cosine_similarity(a, b), "NumPy (dot only)": lambda: np.dot(a, b)}
    integers: dict[str, Call] = {OURS: lambda: ops.cosine_similarity_i8(x, y)}
    bits: dict[str, Call] = {
        OURS: lambda: ops.hamming_distance_binary(p, q),
        "NumPy": lambda: np.bitwise_count(p ^ q).sum(),
    }
    if numkong := peers.get("NumKong"):
        floats["NumKong"] = lambda: numkong.angular(a, b)
        integers["NumKong"] = lambda: numkong.angular(x, y)
        bits["NumKong"] = lambda: numkong.hamming(p, q, "uint1")
    if simsimd := peers.get("SimSIMD"):
        floats["SimSIMD"] = lambda: simsimd.cosine(a, b)
        integers["SimSIMD"] = lambda: simsimd.cosine(x, y)
        bits["SimSIMD"] = lambda: simsimd.hamming(p, q, "bin8")
    return [
        Cell(f"pair, {dims} float32, cosine", usable(floats), repeats=2000),
        Cell(f"pair, {dims} int8, cosine", usable(integers), repeats=2000),
        Cell(f"pair, {dims} bits, Hamming", usable(bits), repeats=2000),
    ]


def nearest_cells(peers: dict[str, Any], threads: int, rows: int, dims: int) -> list[Cell]:
    matrix = unit_rows(rows, dims)
    query = matrix[rows // 2].copy()
    queries = query[None]
    eight, four, bits = (ops.quantize(matrix, tier) for tier in ("int8", "int4", "binary"))
    half = ops.quantize(matrix, "bfloat16")
    eight_query, bit_query = eight[rows // 2], bits[rows // 2]
    floats: dict[str, Call] = {
        OURS: lambda: ops.top_k(query, matrix, 10),
        "NumPy (scores only)": lambda: matrix @ query,
    }
    integers: dict[str, Call] = {
        OURS: lambda: ops.top_k(eight_query, eight, 10),
        f"{OURS}, float query": lambda: ops.top_k(query, eight, 10),
    }
    binaries: dict[str, Call] = {OURS: lambda: ops.top_k(bit_query, bits, 10, metric="hamming")}
    if simsimd := peers.get("SimSIMD"):
        floats["SimSIMD (scores only)"] = lambda: simsimd.cdist(queries, matrix, "cosine", threads=threads)
        row = eight_query.data[None]
        integers["SimSIMD (scores only)"] = lambda: simsimd.cdist(row, eight.data, "cosine", threads=threads)
    if faiss := peers.get("faiss"):
        flat, hamming = faiss.IndexFlatIP(dims), faiss.IndexBinaryFlat(dims)
        flat.add(matrix)
        hamming.add(bits.data)
        bit_row = bit_query.data[None]
        floats["faiss"] = lambda: flat.search(queries, 10)
        binaries["faiss"] = lambda: hamming.search(bit_row, 10)
        assert flat.search(queries, 10)[1][0].tolist() == ops.top_k(query, matrix, 10, metric="dot").indices.tolist()
    if usearch := peers.get("usearch"):
        search = __import__("usearch.index").index.search
        floats["usearch"] = lambda: search(matrix, query, 10, usearch.index.MetricKind.Cos, exact=True, threads=threads)
    names = f"10 of {rows:,} x {dims}"
    return [
        search_cell(f"{names} float32", usable(floats), matrix, matrix.nbytes),
        search_cell(f"{names} bfloat16", {OURS: lambda: ops.top_k(query, half, 10)}, half.data, half.nbytes),
        search_cell(f"{names} int8", usable(integers), eight.data, eight.nbytes),
        search_cell(f"{names} int4", {OURS: lambda: ops.top_k(query, four, 10)}, four.data, four.nbytes + 4 * rows),
        search_cell(f"{names} bits", usable(binaries), bits.data, bits.nbytes),
    ]


def search_cell(name: str, calls: dict[str, Call], rows: Any, bytes_read: int) -> Cell:
    """A cell of calls that read ``rows``, repeated until a turn takes some ten milliseconds.

    A good part of a single one is under the clock that idling before it has lowered: that slows arithmetic and not reading.
    """
    return Cell(name, calls, repeats=min(max(1, TURN_BYTES // rows.nbytes), 1000), bytes_read=bytes_read, rows=rows)


def row_cells(peers: dict[str, Any], _threads: int, rows: int, dims: int) -> list[Cell]:
    count = min(rows, 10_000)
    both = np.concatenate([unit_rows(count, dims), unit_rows(count, dims)[::-1]])
    a, b = both[:count], both[count:]
    calls: dict[str, Call] = {OURS: lambda: ops.batch_cosine_similarity(a, b)}
    if hasattr(np, "vecdot"):
        calls["NumPy (dot only)"] = lambda: np.vecdot(a, b)
    if simsimd := peers.get("SimSIMD"):
        calls["SimSIMD"] = lambda: simsimd.cosine(a, b)
    return [search_cell(f"{count:,} row pairs x {dims} float32, cosine", usable(calls), both, both.nbytes)]


def all_cells(peers: dict[str, Any], threads: int, rows: int, dims: int) -> list[Cell]:
    count = min(rows, 2_000)
    a, b = unit_rows(count, dims), unit_rows(count + 1, dims)[:count].copy()

    def by_numpy() -> Any:
        return (a @ b.T) / np.linalg.norm(a, axis=1)[:, None] / np.linalg.norm(b, axis=1)

    calls: dict[str, Call] = {OURS: lambda: ops.many_vs_many(a, b), "NumPy": by_numpy}
    if simsimd := peers.get("SimSIMD"):
        calls["SimSIMD"] = lambda: simsimd.cdist(a, b, "cosine", threads=threads)
    return [Cell(f"{count:,} x {count:,} x {dims} float32, cosine", usable(calls), operations=2 * count * count * dims)]


def usable(calls: dict[str, Call]) -> dict[str, Call]:
    """Leave out calls that this version of a peer does not know; ours must work."""
    kept = {}
    for name, call in calls.items():
        try:
            call()
        except Exception:
            if name.startswith(OURS):
                raise
            continue
        kept[name] = call
    return kept
