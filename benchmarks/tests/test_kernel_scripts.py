"""The scripts that time kernels, vectors and tiny networks: what they conclude from a record, and small runs."""

import json
from pathlib import Path
from typing import Any

import pytest

import fann
import forward
import kernels
import lattice_inference
import peak
import tiles
import vectors
from harness.record import describe_run


def peak_record(rows: int, shares: list[float], *, streamed: bool = False) -> dict[str, Any]:
    cell = {"k": 384, "n": 1536, "rows": rows, "streamed": streamed, "threads": 1}
    samples = [{**cell, "peak": 1e11, "rate": share * 1e11} for share in shares]
    return {**describe_run("peak"), "isa": "avx2", "samples": samples}


@pytest.mark.parametrize(
    ("rows", "share", "is_miss"),
    [
        (3, 0.1, False),
        (4, 0.31, True),
        (8, 0.32, True),
        (10, 0.34, False),
        (16, 0.53, True),
        (32, 0.61, True),
        (512, 0.63, False),
    ],
)
def test_share_of_the_peak_has_a_limit_from_4_rows_on(rows: int, share: float, is_miss: bool) -> None:
    assert bool(peak.misses(peak_record(rows, [share, 0.0, 2.0]))) is is_miss
    assert peak.misses(peak_record(rows, [share], streamed=True)) == []
    assert f"{rows} x 384 x 1536" in peak.render(peak_record(rows, [share]))


def test_few_rows_are_held_beside_what_reading_the_weights_allows() -> None:
    record = peak_record(4, [0.3])  # of 100 GFLOP/s
    record["samples"][0]["read"] = 20e9  # bytes a second: five weights, each for two operations a row
    assert peak.share_of_bound(record["samples"]) == pytest.approx(30e9 / 40e9)
    assert "30.0% of the peak (75.0% of what arithmetic and reading allow)" in peak.misses(record)[0]
    assert "30.0 (30%; 75%)" in peak.render(record)
    record["samples"][0]["read"] = 60e9
    assert peak.share_of_bound(record["samples"]) == pytest.approx(0.3), "the arithmetic takes longer"
    assert peak.share_of_bound(peak_record(4, [0.3])["samples"]) is None


def test_useful_operations_are_those_of_the_products() -> None:
    # texts of one and two tokens: three rows through four 8 x 8 and two 8 x 32 matrices, 1 + 4 scores and values of 8
    assert forward.useful_operations([1, 2], hidden=8, intermediate=32, layers=3) == 3 * (
        2 * 3 * (4 * 64 + 2 * 256) + 2 * 2 * 5 * 8
    )


def forward_record(precision: str, peaks: dict[str, float], *, threads: int = 2) -> dict[str, Any]:
    taken = {"seconds": 0.5, "peaks": peaks}
    cell = {
        "precision": precision,
        "texts": 32,
        "tokens": 128,
        "threads": threads,
        "operations": 80,
        "rounds": [taken] * 3,
    }
    return {**describe_run("forward"), "isa": "avx512", "cells": [cell]}


def test_a_call_is_held_beside_each_peak_that_the_cpu_has() -> None:
    assert forward.misses(forward_record("float32", {"fma": 180.0})) == []
    (missed,) = forward.misses(forward_record("float32", {"fma": 200.0}))
    assert "32 x 128 tokens, 2 threads: 80.0% of the peak, 86%" in missed
    assert forward.misses(forward_record("float32", {"fma": 200.0}, threads=1)) == []
    half = forward_record("bfloat16", {"fma": 125.0, "bfloat16-dot": 80.0, "bfloat16-tiles": 0.0})
    (missed,) = forward.misses(half)
    assert "64.0% of the peak" in missed, "of twice the multiply-adds"
    row = next(line for line in forward.render(half).splitlines() if line.startswith("| bfloat16"))
    assert row == "| bfloat16, 32 x 128 tokens, 2 threads | 0.0 | 64% | 200% |  |"


@pytest.mark.slow
def test_peaks_of_bfloat16_are_measured_where_the_cpu_has_them() -> None:
    cpu = lattice_inference.cpu_info()
    with peak.PeakMeter(cpu["isa"], "cc", features=cpu["features"]) as meter:
        rates = meter.rate("bfloat16-dot", 1, 0.001), meter.rate("bfloat16-tiles", 1, 0.001)
    features = cpu["features"] if cpu["isa"] == "avx512" else []
    assert [rate > 0 for rate in rates] == ["avx512_bf16" in features, "amx_bf16" in features]


def test_vector_tables_name_the_fastest_peer_and_the_share() -> None:
    sample = {"threads": 1, "bytes": 100, "operations": 0, "peaks": [200.0, 100.0, 100.0]}
    seconds = {"Lattice": [1.0, 2.0, 2.0], "faiss": [4.0, 4.0, 9.0], "Lattice, float query": [0.1, 0.1, 0.1]}
    level = {"cell": "dot, 384 float32", "seconds": {"baseline": [4e-7], "avx2": [1e-7]}}
    record = {**describe_run("vectors"), "isa": "avx2", "absent": {"NumKong": "no such module"}, "levels": [level]}
    text = vectors.render({**record, "samples": [{**sample, "cell": "nearest", "seconds": seconds}]})
    assert "| nearest | 1 | 2000.00 ms | 2.00 | 50% |" in text
    assert "faiss 4000.00 ms *" in text
    assert "| dot, 384 float32 | 400 ns | 100 ns | 4.0 |" in text
    assert "NumKong (no such module)" in text
    alone = vectors.render({**record, "samples": [{**sample, "cell": "x", "seconds": {"Lattice": [1.0, 1.0, 1.0]}}]})
    assert "| x | 1 | 1000.00 ms | - | 100% |" in alone


@pytest.mark.parametrize(
    ("cell", "bytes_read", "operations", "ours", "is_miss"),
    [
        ("pair, 384 int8, cosine", 0, 0, 2.0, True),
        ("pair, 384 int8, cosine", 0, 0, 1.0, False),
        ("10 of 8 x 384 bits", 90, 0, 1.0, True),
        ("10 of 8 x 384 bits", 96, 0, 1.0, False),
        ("10 of 8 x 384 int4", 10, 0, 1.0, False),
        ("2 x 2 x 384 float32, cosine", 0, 84, 1.0, True),
        ("2 x 2 x 384 float32, cosine", 0, 86, 1.0, False),
    ],
)
def test_vector_limits(cell: str, bytes_read: int, operations: int, ours: float, is_miss: bool) -> None:
    sample = {"cell": cell, "threads": 1, "bytes": bytes_read, "operations": operations, "peaks": [100.0]}
    missed = vectors.misses({"samples": [{**sample, "seconds": {"Lattice": [ours], "faiss": [3.0]}}]})
    assert bool(missed) is is_miss
    assert all(line.startswith(f"{cell}, 1 threads") for line in missed)
    alone = {**sample, "bytes": 0, "operations": 0, "seconds": {"Lattice": [ours]}}
    assert vectors.misses({"samples": [alone]}) == []


def test_kernel_tables_set_ways_and_levels_side_by_side() -> None:
    ways = {"naive": [4e-3, 8e-3], "blocked": [1e-3, 1e-3], "parallel": [5e-4, 5e-4]}
    ways |= {"int8": [5e-4, 5e-4], "int8, parallel": [2.5e-4, 2.5e-4]}
    product = {"group": "products", "cell": "8 x 8 x 8", "operations": 10**9, "seconds": ways}
    levels = {"baseline": [8e-6, 9e-6, 7e-6], "avx2": [2e-6, 2e-6, 2e-6], "avx2, parallel": [1e-6, 1e-6, 1e-6]}
    op = {"group": "ops", "cell": "layer norm", "operations": 64, "seconds": levels}
    pair = {"cell": "dot", "seconds": {"baseline": [4e-7], "avx2": [1e-7]}}
    record = {**describe_run("kernels"), "isa": "avx2", "threads": 2, "samples": [product, op], "levels": [pair]}
    lines = kernels.render(record).splitlines()
    assert "| 8 x 8 x 8 | 166.7 | 1000.0 | 2000.0 | 2000.0 | 4000.0 | 6.00 | 2.00 | 2.00 |" in lines
    assert "| layer norm | 8.0 | 2.0 | 1.0 | 4.00 |" in lines
    assert "| dot | 400 | 100 | 4.00 |" in lines
    assert kernels.misses(record) == []


@pytest.mark.slow
def test_vectors_are_measured_with_the_peers_that_are_here(tmp_path: Path) -> None:
    record = tmp_path / "vectors.json"
    arguments = ["--threads", "1", "--rounds", "1", "--rows", "64", "--dims", "32", "--json", str(record)]
    assert vectors.main([*arguments, "--only", "pair", "nearest", "rows", "all", "levels"]) == 0
    found = json.loads(record.read_text(encoding="utf-8"))
    assert len(found["samples"]) == 10
    assert all("Lattice" in sample["seconds"] for sample in found["samples"])
    assert all(share > 0 for sample in found["samples"] for share in sample["peaks"])


def fann_record(cell: str, threads: int, **milliseconds: float) -> dict[str, Any]:
    seconds = {name.replace("_", "-"): [value / 1e3, value / 1e3, 9.0] for name, value in milliseconds.items()}
    sample = {"cell": cell, "threads": threads, "seconds": seconds}
    return {**describe_run("fann"), "isa": "avx2", "absent": {"libfann": "not installed"}, "samples": [sample]}


def test_tiny_networks_have_a_limit_by_cell() -> None:
    record = fann_record("forward, 64 samples", 2, lattice_fann=0.1, onnxruntime=0.099, numpy=0.08)
    assert fann.misses(record) == ["forward, 64 samples, 2 threads: 0.99 times onnxruntime, 1.0 is the limit"]
    row = "| forward, 64 samples | 2 | 100.0 us | 0.80 | onnxruntime 99.0 us; numpy 80.0 us * |"
    assert row in fann.render(record).splitlines()
    assert "Not here: libfann (not installed)." in fann.render(record)
    assert fann.misses(fann_record("forward, 64 samples", 1, lattice_fann=0.1, onnxruntime=0.13, numpy=0.08)) == []
    assert len(fann.misses(fann_record("epoch, digits", 3, lattice_fann=1.0, torch=1.9))) == 1
    assert fann.misses(fann_record("epoch, digits", 3, lattice_fann=1.0)) == []


@pytest.mark.slow
def test_tiny_networks_are_measured(tmp_path: Path) -> None:
    record = tmp_path / "fann.json"
    arguments = ["--cells", "forward, 64 samples", "--threads", "1", "--rounds", "1", "--json", str(record)]
    assert fann.main(arguments) == 0
    (sample,) = json.loads(record.read_text(encoding="utf-8"))["samples"]
    assert {"lattice-fann", "numpy"} <= sample["seconds"].keys()
    assert all(value > 0 for seconds in sample["seconds"].values() for value in seconds)


def test_tiles_are_set_beside_products_of_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    times = dict.fromkeys(tiles.KINDS, 8.192) | {"blocks": 16.384}
    record = {**describe_run("tiles"), "rounds": [times, dict.fromkeys(tiles.KINDS, 1.0), times]}
    lines = tiles.render(record).splitlines()
    assert "| bfloat16, products only | 8.19 | 1000 | 1.00 |" in lines
    assert "| blocks of 32, all together | 16.38 | 500 | 0.50 |" in lines


@pytest.mark.slow
def test_tiles_are_measured_where_there_are_some(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "tiles.json"
    if tiles.main(["--rounds", "1", "--json", str(record)]) == 0:
        (only,) = json.loads(record.read_text(encoding="utf-8"))["rounds"]
        assert set(only) == set(tiles.KINDS)
        assert min(only.values()) > 0
    else:
        assert "no tiles here" in capsys.readouterr().err
        assert not record.exists()
