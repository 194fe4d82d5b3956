"""Times models with recurrent layers: Lattice and llama.cpp in one run.

Both read the same drawn weights, in the shape of Qwen3.5-0.8B. Engines take turns, each in a process with one thread. Times
are of the processor, so that other work on the machine disturbs both alike. Decoding is greedy, a token's time the slope
between two tokens. For a long text, with the last type of weights, all but the last tokens come from a file that the first
turn writes. Steps of several rows, and what ``speculate="self"`` takes for a draft, are ours alone. Memory is that of a
process that has run a prompt of 4,096 tokens.

llama.cpp runs if llama-cpp-python is there. If it was compiled for fewer instructions than ours uses, ``--isa`` gives ours
the same.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from decode import DRAWN, ROOT, load_random_llama, weight_bytes
from harness.options import Record, add_record_options, finish, limits, positive_int
from harness.process import EngineProcess
from harness.progress import report
from harness.record import describe_run
from harness.tables import markdown_table, provenance
from speculation import CONTEXT, step_seconds

__all__ = ["main", "misses", "ratios", "render"]

SCRIPT = "hybrid"
SHAPE = "qwen3.5-0.8b"
OURS, PEER = "lattice", "llama.cpp"
LONG = 8_000
MEMORY_TOKENS = 4_096
LONG_TEXTS = (0, 65_536, 262_144)

EXAMPLES = """
examples:
  python benchmarks/hybrid.py                          drawn weights, Q8_0 and Q4_0
  python benchmarks/hybrid.py --isa avx2 --rounds 3    beside a llama.cpp that was compiled for AVX2
  python benchmarks/hybrid.py --no-long --check        without the long text
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--types", nargs="+", default=["Q8_0", "Q4_0"], metavar="TYPE", help="(default: Q8_0 Q4_0)")
    parser.add_argument("--rounds", type=positive_int, default=5, metavar="N", help="turns of each (default: 5)")
    parser.add_argument("--early", type=positive_int, default=8, metavar="N", help="(default: 8)")
    parser.add_argument("--late", type=positive_int, default=40, metavar="N", help="(default: 40)")
    parser.add_argument("--prompt", type=positive_int, default=512, metavar="N", help="tokens of it (default: 512)")
    parser.add_argument("--isa", metavar="NAME", help="the instruction set of ours (default: the CPU's)")
    parser.add_argument("--no-long", action="store_true", help=f"leave out decoding after {LONG:,} tokens")
    add_record_options(parser, SCRIPT)
    options = parser.parse_args(arguments)
    if not options.early < options.late:
        parser.error("--early must be below --late")
    return finish(SCRIPT, options, measure=partial(measure, options), render=render, misses=misses)


def measure(options: argparse.Namespace) -> Record:
    """Run what the options ask for and return the record."""
    if options.isa is not None:
        os.environ["LATTICE_ISA"] = options.isa
    import lattice_inference

    record = describe_run(SCRIPT, distributions=["llama-cpp-python", "xllamacpp"])
    record |= {"isa": lattice_inference.cpu_info()["isa"], "absent": {}, "samples": [], "models": {}}
    record |= {"early": options.early, "late": options.late, "prompt": options.prompt}
    for path in [drawn_model(kind) for kind in options.types]:
        record["samples"] += _turns(path, options, record)
        record["models"][path.name] = _ours(path, options)
    report()
    return record


def drawn_model(kind: str) -> Path:
    """Return a file of drawn weights in the shape, written unless it is there."""
    path = DRAWN / f"{SHAPE}-{kind}.gguf"
    if not path.exists():
        report(f"writing {path.name}")
        DRAWN.mkdir(parents=True, exist_ok=True)
        tool = load_random_llama()
        tool.write_random_llama(path, tool.SHAPES[SHAPE], kind)
    return path


def _turns(path: Path, options: argparse.Namespace, record: Record) -> Iterator[dict[str, Any]]:
    """Yield the samples of one file: of each engine in turn."""
    with ExitStack() as stack:
        running = []
        for name in (OURS, PEER):
            report(f"{path.name}: loading {name}")
            try:
                process = EngineProcess(name, path, ROOT, 1, worker="harness.decoder_worker")
            except RuntimeError as error:
                if name == OURS:
                    raise
                record["absent"][name] = str(error)
                continue
            running.append(stack.enter_context(process))
            if about := process.ask(do="processor_time").get("about"):
                record["peer"] = about
        for turn in range(options.rounds):
            for process in running if turn % 2 else reversed(running):
                report(f"{path.name}: turn {turn + 1} of {options.rounds}, {process.name}")
                span = {"early": options.early, "late": options.late}
                sample = {"model": path.name, "engine": process.name}
                sample["seconds"] = process.ask(do="decode", **span, context=0, kept=None)["seconds"]
                sample["prompt_seconds"] = process.ask(do="prefill", tokens=options.prompt)["seconds"]
                if not options.no_long and path.stem.endswith(options.types[-1]):
                    kept = DRAWN / f"{path.stem}-{process.name}-{LONG}.state"
                    sample["long_seconds"] = process.ask(do="decode", **span, context=LONG, kept=str(kept))["seconds"]
                yield sample


def _ours(path: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return what is measured of ours alone."""
    import lattice_inference

    with EngineProcess(OURS, path, ROOT, 1, worker="harness.decoder_worker") as process:
        report(f"{path.name}: memory")
        process.ask(do="decode", early=1, late=2, context=MEMORY_TOKENS, kept=None)
        peak = process.ask(do="memory")["peak_bytes"]
    lattice_inference.set_num_threads(1)
    with lattice_inference.load_model(path) as model:
        with model.open_cache(tokens=64) as cache:
            assert cache.storage.recurrent is not None
            kv_bytes = cache.storage.page_bytes // cache.page_tokens
            slot = cache.storage.recurrent.slot_bytes
        state = sum(4 * math.prod(spec.shape) for spec in model._program.recurrent_specs)
        shares = {str(length): model._program.guess_share(length * kv_bytes) for length in LONG_TEXTS}
        return {
            "bytes": weight_bytes(path),
            "peak_bytes": peak,
            "slot_over_state": slot / state,
            "steps": step_seconds(model, 2 * options.rounds),
            "drafts": _draft_seconds(model, 4 * options.rounds),
            "draft_shares": shares,
        }


def _draft_seconds(model: Any, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of steps, and of drafts by the recurrent layers."""
    import numpy as np

    from lattice_inference import Extension

    seconds: dict[str, list[float]] = {"step": [], "draft": []}
    with model.open_cache(tokens=2 * CONTEXT) as cache:
        sequence = cache.sequence()
        model.forward([Extension(sequence, list(range(CONTEXT)), "none")])
        for _ in range(rounds):
            start = time.process_time()
            with sequence.slots.trial():
                model._program.guess(sequence.slots, cache.storage, np.array([7], np.int32))
            seconds["draft"].append(time.process_time() - start)
            start = time.process_time()
            model.forward([Extension(sequence, [7])])
            seconds["step"].append(time.process_time() - start)
            sequence.rewind(CONTEXT)
    return seconds


def _of(record: Mapping[str, Any], model: str, engine: str, field: str) -> float | None:
    found = [s[field] for s in record["samples"] if (s["model"], s["engine"]) == (model, engine) and field in s]
    return median(found) if found else None


def ratios(record: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return by model the peer's time over ours: decoding, a prompt, after a long text."""
    found: dict[str, dict[str, float]] = {}
    for model in record["models"]:
        for name, field in (("decode", "seconds"), ("prompt", "prompt_seconds"), ("long", "long_seconds")):
            ours, theirs = (_of(record, model, engine, field) for engine in (OURS, PEER))
            if ours is not None and theirs is not None:
                found.setdefault(model, {})[name] = theirs / ours
    return found


def _cost(times: Mapping[str, Sequence[float]], one: str, other: str) -> float:
    """Return the median time of one thing, another of the same turn being 1."""
    return median(a / b for a, b in zip(times[one], times[other], strict=True))


def render(record: Mapping[str, Any]) -> str:
    """Return the tables of a record."""
    rows = []
    for model in record["models"]:
        for engine in (OURS, PEER):
            times = [_of(record, model, engine, field) for field in ("seconds", "prompt_seconds", "long_seconds")]
            if times[0] is None or times[1] is None:
                continue
            rates = [f"{1 / times[0]:.1f}", f"{record['prompt'] / times[1]:.0f}"]
            rates.append("-" if times[2] is None else f"{1 / times[2]:.1f}")
            beside = ratios(record).get(model, {}) if engine == PEER else {}
            over = [f"{beside[name]:.2f}" if name in beside else "-" for name in ("decode", "prompt", "long")]
            rows.append([model, engine, *(cell for pair in zip(rates, over, strict=True) for cell in pair)])
    header = ["model", "engine", "decoding, tokens/s", "ratio", "prompt, tokens/s", "ratio"]
    header += [f"after {LONG:,} tokens", "ratio"]
    own = []
    for model, found in record["models"].items():
        shares = [f"{share:.2f}" for share in found["draft_shares"].values()]
        measured = f"{_cost(found['drafts'], 'draft', 'step'):.2f}"
        four = f"{_cost(found['steps'], '4', '1'):.2f}"
        own.append(
            [model, four, f"{found['peak_bytes'] / 1e6:.0f}", f"{found['slot_over_state']:.2f}", measured, *shares]
        )
    titles = ["model", "4 rows / 1", f"peak MB, {MEMORY_TOKENS:,} tokens", "slot / state"]
    titles += [f"draft / step, {CONTEXT} tokens", *(f"by bytes, {length:,}" for length in LONG_TEXTS)]
    notes = [
        provenance(record),
        f"Lattice: {record['isa']}. One thread, processor time, medians; slope between tokens {record['early']} and "
        f"{record['late']}; prompts of {record['prompt']} tokens.",
        f"llama.cpp: {record['peer']}." if "peer" in record else "",
        markdown_table(header, rows),
        markdown_table(titles, own),
        *(f"Left out: {name}: {reason}" for name, reason in record["absent"].items()),
    ]
    return "\n\n".join(filter(None, notes))


def misses(record: Mapping[str, Any]) -> list[str]:
    """Return a line for every limit that is missed."""
    bounds, missed = limits(SCRIPT), []
    for model, found in ratios(record).items():
        for name, reached in found.items():
            if not reached >= bounds["over_llama_cpp"][name]:
                missed.append(
                    f"{model}, {name}: {reached:.2f} of llama.cpp, {bounds['over_llama_cpp'][name]:g} is the limit"
                )
    for model, found in record["models"].items():
        four, ratio = _cost(found["steps"], "4", "1"), found["slot_over_state"]
        if not four <= bounds["four_rows"]:
            missed.append(
                f"{model}: a step of 4 rows takes {four:.2f} of one row's, {bounds['four_rows']:g} is the limit"
            )
        above = (found["peak_bytes"] - found["bytes"]) / 1e6
        if not above <= bounds["above_file_mb"]:
            missed.append(f"{model}: {above:.0f} MB above the file's, {bounds['above_file_mb']:g} is the limit")
        if not ratio <= bounds["slot_over_state"]:
            missed.append(f"{model}: a slot is {ratio:.2f} of its state, {bounds['slot_over_state']:g} is the limit")
    return missed


if __name__ == "__main__":
    raise SystemExit(main())
