"""Times text to vector with all-MiniLM-L6-v2: Lattice beside ONNX Runtime, PyTorch, OpenVINO and CTranslate2.

All engines have the same weights and start from text: tokenizing is part of the time. Each engine is a process of its
own for each number of threads. The engines take turns (A B C A B C ...); a turn is a quarter of a second of untimed
calls on the cell's first texts, then timed calls. A figure is the median of all timed calls; a ratio is a peer's median
over ours, cell by cell: the best float32 graph of ONNX Runtime over our float32, and for each precision the fastest peer
of that precision over ours. Before a cell is timed, all engines of float32 must give the same vectors (cosine > 0.9999);
the others' cosines are recorded.

What has been measured is kept in results/embed.partial.json until the record is whole: a run that is killed leaves it.

A peer whose packages are missing is reported and left out. The peers:

  pip install onnx onnxruntime tokenizers safetensors       the graph by hand
  pip install torch transformers sentence-transformers      the exports, and PyTorch
  pip install openvino ctranslate2                          those two
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from harness.corpus import CELLS, SEED, Cell, make_texts
from harness.engines import ENGINES
from harness.options import Record, add_record_options, finish, limits, positive_int, save_so_far
from harness.process import EngineProcess, engine_environment
from harness.progress import report
from harness.record import describe_run
from harness.tables import markdown_table, provenance

__all__ = ["best_onnx_runtime", "fastest_peer", "main", "misses", "render"]

SCRIPT = "embed"
MODEL = "sentence-transformers/all-MiniLM-L6-v2"
AGREEMENT = 0.9999
ONNX_RUNTIME = ("ort-plain", "ort-fused", "ort-hand")
DEFAULT_CELLS = ("1x10", "32x20", "32x128", "mixed")

EXAMPLES = """
examples:
  python benchmarks/embed.py                            the whole comparison, 1 and 2 threads; about half an hour
  python benchmarks/embed.py --cells 1x10 --repeats 5   one short text only
  python benchmarks/embed.py --isa avx2 --cells 1x10 --threads 1 --check
  python benchmarks/embed.py --engines lattice ort      without PyTorch as a peer
  python benchmarks/embed.py --from benchmarks/results/embed.json --markdown docs/benchmarks.md
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--engines",
        nargs="+",
        default=list(ENGINES),
        choices=[*ENGINES, "ort"],
        metavar="ENGINE",
        help=f"any of {', '.join(ENGINES)}; 'ort' is ONNX Runtime's three of float32 (default: all)",
    )
    parser.add_argument(
        "--cells",
        nargs="+",
        default=list(DEFAULT_CELLS),
        choices=list(CELLS),
        metavar="CELL",
        help="; ".join(f"{cell.name}: {cell.title}" for cell in CELLS.values())
        + f" (default: {' '.join(DEFAULT_CELLS)})",
    )
    parser.add_argument("--threads", nargs="+", type=positive_int, default=[1, 2], metavar="N", help="(default: 1 2)")
    parser.add_argument(
        "--repeats",
        type=positive_int,
        default=9,
        metavar="N",
        help="turns of each engine in each cell; a third of them in cells that take seconds (default: 9)",
    )
    parser.add_argument(
        "--starts", type=positive_int, default=3, metavar="N", help="cold starts of each engine (default: 3)"
    )
    parser.add_argument("--isa", choices=["baseline", "avx2", "avx512", "neon"], help="force Lattice's instruction set")
    add_record_options(parser, SCRIPT)
    options = parser.parse_args(arguments)
    return finish(SCRIPT, options, measure=partial(measure, options), render=render, misses=misses)


def measure(options: argparse.Namespace) -> Record:
    """Run what the options ask for and return the record.

    Raises:
        RuntimeError: Lattice failed, or two engines disagree.
    """
    import lattice_inference

    engines = list(dict.fromkeys(name for chosen in options.engines for name in _expand(chosen)))
    cells = [CELLS[name] for name in dict.fromkeys(options.cells)]
    distributions = dict.fromkeys(name for engine in engines for name in ENGINES[engine].distributions)
    record = describe_run(SCRIPT, distributions=distributions)
    record |= {"isa": options.isa or lattice_inference.cpu_info()["isa"], "seed": SEED, "absent": {}}
    record |= {"cosine": {}, "starts": [], "samples": []}
    directory = lattice_inference.find_model(MODEL, offline=True).directory
    with tempfile.TemporaryDirectory(prefix="lattice-benchmark-") as folder:
        graphs = Path(folder)
        record["absent"] = _write_models(engines, directory, graphs)
        engines = [name for name in engines if name not in record["absent"]]
        for threads in options.threads:
            start = partial(EngineProcess, directory=directory, graphs=graphs, threads=threads, isa=options.isa)
            engines = _measure_starts(record, engines, options.starts, threads, start)
            save_so_far(options, record)
            with ExitStack() as stack:
                running = [stack.enter_context(start(name)) for name in engines]
                _check_agreement(record, running)
                for cell in cells:
                    _measure_cell(record, running, cell, threads, options.repeats)
                    save_so_far(options, record)
                for process in running:
                    _start_of(record, process.name, threads)["peak_bytes"] = process.ask(do="memory")["peak_bytes"]
    report()
    return record


def _expand(engine: str) -> list[str]:
    return list(ONNX_RUNTIME) if engine == "ort" else [engine]


def _model_of(engine: str) -> str | None:
    """Return which of :mod:`harness.peer_models` an engine runs."""
    kind, _, variant = engine.partition("-")
    graph = "plain-int8" if variant == "int8" else "plain"  # bfloat16 is an option of OpenVINO's, not another graph
    return {"ort": variant, "openvino": graph, "ctranslate2": "ctranslate2"}.get(kind)


def _write_models(engines: Sequence[str], directory: Path, folder: Path) -> dict[str, str]:
    """Write the models that peers run; returns why, for engines whose model cannot be written."""
    absent: dict[str, str] = {}
    for model in dict.fromkeys(filter(None, map(_model_of, engines))):
        report(f"writing {model} for the peers")
        run = subprocess.run(
            [sys.executable, "-m", "harness.peer_models", model, str(directory), str(folder)],
            env=engine_environment(os.cpu_count() or 1, None),
            capture_output=True,
            text=True,
            check=False,
        )
        if run.returncode != 0:
            reason = (run.stderr.strip().splitlines() or ["no reason given"])[-1]
            absent |= {engine: reason for engine in engines if _model_of(engine) == model}
    return absent


def _measure_starts(record: Record, engines: Sequence[str], repeats: int, threads: int, start: Any) -> list[str]:
    """Start every engine afresh, in turns; returns those that could be started."""
    able = list(engines)
    for turn in range(repeats):
        for name in list(able):
            report(f"{threads} threads: cold start {turn + 1} of {name}")
            try:
                with start(name) as process:
                    entry = _start_of(record, name, threads)
                    entry["seconds"].append(process.first_vector_seconds)
                    entry["peak_bytes_one_text"].append(process.ask(do="memory")["peak_bytes"])
            except RuntimeError as error:
                if name == "lattice":
                    raise
                able.remove(name)
                record["absent"][name] = str(error)
    return able


def _start_of(record: Record, engine: str, threads: int) -> dict[str, Any]:
    for entry in record["starts"]:
        if (entry["engine"], entry["threads"]) == (engine, threads):
            found: dict[str, Any] = entry
            return found
    record["starts"].append({"engine": engine, "threads": threads, "seconds": [], "peak_bytes_one_text": []})
    created: dict[str, Any] = record["starts"][-1]
    return created


def _check_agreement(record: Record, running: Sequence[EngineProcess]) -> None:
    """Let all engines embed the same texts and compare with the first engine."""
    texts = make_texts([2, 3, 10, 25, 60, 128, 200, 256], seed=SEED + 1)
    vectors = [np.array(process.ask(do="vectors", texts=texts)["vectors"]) for process in running]
    for process, own in zip(running, vectors, strict=True):
        lowest = float((own * vectors[0]).sum(axis=1).min())
        if ENGINES[process.name].precision == "float32" and not lowest > AGREEMENT:
            raise RuntimeError(
                f"{process.name} and {running[0].name} disagree: cosine {lowest:.6f}, more than {AGREEMENT} is needed"
            )
        record["cosine"][process.name] = min(lowest, record["cosine"].get(process.name, 1.0))


def _measure_cell(record: Record, running: Sequence[EngineProcess], cell: Cell, threads: int, repeats: int) -> None:
    samples: dict[str, list[float]] = {process.name: [] for process in running}
    turns = cell.turns(repeats)
    for turn in range(turns):
        for process in running:
            report(f"{threads} threads: {cell.name}, turn {turn + 1} of {turns}, {process.name}")
            samples[process.name] += process.ask(do="run", cell=cell.name, calls=cell.calls)["seconds"]
    for name, seconds in samples.items():
        record["samples"].append({"threads": threads, "cell": cell.name, "engine": name, "seconds": seconds})


def medians(record: Mapping[str, Any]) -> dict[tuple[int, str], dict[str, float]]:
    """Return the median seconds of every engine, by (threads, cell)."""
    table: dict[tuple[int, str], dict[str, float]] = {}
    for sample in record["samples"]:
        table.setdefault((sample["threads"], sample["cell"]), {})[sample["engine"]] = median(sample["seconds"])
    return table


def best_onnx_runtime(by_engine: Mapping[str, float]) -> str | None:
    """Return the fastest float32 graph of ONNX Runtime in a cell, or None if there is none."""
    candidates = [name for name in by_engine if name in ONNX_RUNTIME]
    return min(candidates, key=lambda name: by_engine[name], default=None)


def ours(precision: str) -> str:
    """Return the name of our engine of a precision."""
    return "lattice" if precision == "float32" else f"lattice-{precision}"


def fastest_peer(by_engine: Mapping[str, float], precision: str) -> str | None:
    """Return the fastest engine of a precision in a cell that is not ours, or None if there is none."""
    peers = [name for name in by_engine if name != ours(precision) and ENGINES[name].precision == precision]
    return min(peers, key=lambda name: by_engine[name], default=None)


def ratio(by_engine: Mapping[str, float], peer: str | None, own: str = "lattice") -> float | None:
    """Return how many times faster our engine is than ``peer``."""
    return None if peer is None or own not in by_engine else by_engine[peer] / by_engine[own]


def misses(record: Mapping[str, Any]) -> list[str]:
    """Return a line for every ratio that is below its limit."""
    lines = []
    bounds = limits(SCRIPT)["ratio"]
    for (threads, cell), by_engine in medians(record).items():
        least = bounds.get(f"{threads}_thread{'s' if threads > 1 else ''}", {}).get(cell)
        reached = ratio(by_engine, best_onnx_runtime(by_engine))
        if least is not None and reached is not None and not reached >= least:
            lines.append(
                f"{CELLS[cell].title}, {threads} threads: {reached:.2f} times ONNX Runtime, {least} is the limit"
            )
    return lines


def render(record: Mapping[str, Any]) -> str:
    """Return the tables of a record in Markdown."""
    table = medians(record)
    engines = [name for name in ENGINES if any(name in by_engine for by_engine in table.values())]
    parts = [provenance(record), f"Lattice on {record['isa']}. Milliseconds a call, medians."]
    precisions = [
        facts.precision for name, facts in ENGINES.items() if name in engines and name == ours(facts.precision)
    ]
    for threads in dict.fromkeys(threads for threads, _ in table):
        rows = []
        for (of_threads, cell), by_engine in table.items():
            if of_threads != threads:
                continue
            peers = {precision: fastest_peer(by_engine, precision) for precision in precisions}
            cells = [f"{by_engine[name] * 1e3:.4g}{' *' if name in peers.values() else ''}" for name in engines]
            cells.append(_text(ratio(by_engine, best_onnx_runtime(by_engine))))
            cells += [_text(ratio(by_engine, peer, ours(precision))) for precision, peer in peers.items()]
            rows.append([CELLS[cell].title, *cells])
        header = [f"{threads} thread{'s' if threads > 1 else ''}", *(ENGINES[name].title for name in engines)]
        header += ["best ONNX Runtime / Lattice", *(f"fastest {name} peer / Lattice" for name in precisions)]
        parts.append(markdown_table(header, rows))
    parts.append("`*` the fastest peer of its precision.")
    cosines = [f"{ENGINES[name].title} {cosine:.5f}" for name, cosine in record.get("cosine", {}).items()]
    if len(cosines) > 1:
        parts.append(f"Least cosine to {cosines[0].rpartition(' ')[0]}: {', '.join(cosines[1:])}.")
    rows = [
        [
            f"{ENGINES[entry['engine']].title}, {entry['threads']}",
            f"{median(entry['seconds']):.2f}",
            f"{median(entry['peak_bytes_one_text']) / 1e6:.0f}",
            f"{entry['peak_bytes'] / 1e6:.0f}",
        ]
        for entry in record["starts"]
        if "peak_bytes" in entry
    ]
    header = ["engine, threads", "process start to first vector, s", "peak memory then, MB", "after all cells, MB"]
    parts.append(markdown_table(header, rows))
    parts += [f"Left out: {ENGINES[name].title}: {reason}" for name, reason in record["absent"].items()]
    return "\n\n".join(parts)


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    sys.exit(main())
