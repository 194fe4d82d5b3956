"""Loads ``lattice serve`` with many clients, ends it under load, and starts it again.

``python ci/serve_load.py --seconds 600 --clients 64``. One request in ten is left by its client. Every answer is compared
with the library's. At the end no request may be lost and no text wrong. Memory, files and pages of the server have to be as
at the beginning. The folder ``packages/lattice-inference/tests/models`` has to be on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
import numpy as np

from lattice_inference import GenerateConfig, Session, load_encoder, load_model
from tiny_decoders import write_drawn_model

ROOT = Path(__file__).resolve().parent.parent
ENCODER = ROOT / "packages" / "lattice-inference" / "tests" / "data" / "tiny_bert"
LEAVE_SHARE = 0.1
MOST_GROWTH = 1.05
GROWTH_SECONDS = 60
"""The shortest load whose growth of memory says something."""
WORDS = ("the", "cat", "sat", "a", "zebra", "dogs", "and", "animals", "abc", "xyz")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the load and print what was seen; 0 if all is well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of the load before the server is ended")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        model = write_drawn_model(Path(folder) / "drawn", context=512)
        asked = _drawn_requests(model, random.Random(options.seed))
        report = asyncio.run(_load(model, asked, options))
    print(json.dumps(report, indent=1))
    return 1 if report["faults"] else 0


def _drawn_requests(model: Path, rng: random.Random) -> list[tuple[str, dict[str, Any], Any]]:
    """Return routes, bodies and what the library answers."""
    asked: list[tuple[str, dict[str, Any], Any]] = []
    with load_model(model) as loaded, load_encoder(ENCODER) as encoder:
        for seed in range(60):
            text = " ".join(rng.choices(WORDS, k=rng.randint(1, 12)))
            if seed % 4 == 0:
                asked.append(("/v1/embeddings", {"model": "vectors", "input": text}, _vector(encoder, text)))
                continue
            config = GenerateConfig(
                max_new_tokens=rng.randint(1, 60), temperature=1.0, seed=seed, ignore_stop_tokens=True
            )
            with Session(loaded) as session:
                expected = session.generate(text, config).text
            body = {"model": "drawn", "prompt": text, "temperature": 1.0, "seed": seed, "ignore_eos": True}
            body |= {"max_tokens": config.max_new_tokens, "stream": seed % 2 == 1}
            asked.append(("/v1/completions", body, expected))
    return asked


def _vector(encoder: Any, text: str) -> list[float]:
    vector: list[float] = encoder.encode([text]).vectors[0].tolist()
    return vector


async def _load(
    model: Path, asked: Sequence[tuple[str, dict[str, Any], Any]], options: argparse.Namespace
) -> dict[str, Any]:
    port = _free_port()
    server = _Server(model, port)
    counts: Counter[str] = Counter()
    faults: list[str] = []
    is_over = asyncio.Event()
    await server.start()
    await _warm(server, asked)
    files = server.open_files()
    clients = [
        asyncio.create_task(_client(server, asked, random.Random((options.seed, number).__hash__()), counts, is_over))
        for number in range(options.clients)
    ]
    early, late = await _memory(server, options.seconds)
    before = counts["right"]
    status = await server.end()
    if status != 0:
        faults.append(f"the server ended with status {status}")
    await server.start()
    while counts["right"] < before + 5 * options.clients and not any(client.done() for client in clients):
        await asyncio.sleep(0.05)
    is_over.set()
    for ended in await asyncio.gather(*clients, return_exceptions=True):
        if isinstance(ended, BaseException):
            faults.append(f"a client failed: {ended!r}")
    await _warm(server, asked)
    stats, left = await _settled(server, files)
    if left > files:
        faults.append(f"{left} files are open; {files} were at the beginning")
    if stats["running"] or stats["waiting"] or stats["used_pages"] != stats["remembered_pages"]:
        faults.append(f"the engine holds what it should not: {stats}")
    if await server.end() != 0:
        faults.append("the idle server did not end with status 0")
    for kind in ("wrong", "lost"):
        if counts[kind]:
            faults.append(f"{counts[kind]} answers are {kind}")
    growth = late / early
    if options.seconds >= GROWTH_SECONDS and not growth <= MOST_GROWTH:
        faults.append(f"the memory grew by {growth:.3f}")
    if "Traceback" in server.log():
        faults.append("the server's log has a traceback")
    return {
        "answers": dict(counts),
        "growth": round(growth, 4),
        "files": [files, left],
        "pages": stats,
        "faults": faults,
    }


async def _memory(server: _Server, seconds: float) -> tuple[int, int]:
    """Wait; return the bytes of memory early and at the end."""
    first = seconds / 3 if seconds <= GROWTH_SECONDS else seconds / 5
    await asyncio.sleep(first)
    early = server.memory()
    await asyncio.sleep(seconds - first)
    return early, server.memory()


async def _warm(server: _Server, asked: Sequence[tuple[str, dict[str, Any], Any]]) -> None:
    async with httpx2.AsyncClient(base_url=server.url, timeout=60) as client:
        for path, body, _ in asked[:8]:
            await client.post(path, json=body)


async def _settled(server: _Server, files: int) -> tuple[dict[str, int], int]:
    """Return the engine's counts and the open files, once connections were closed."""
    until = time.monotonic() + 60
    while True:
        async with httpx2.AsyncClient(base_url=server.url, timeout=60) as client:
            text = (await client.get("/metrics")).text
        stats = {}
        for name in ("running", "waiting", "used_pages", "remembered_pages"):
            line = next(line for line in text.splitlines() if line.startswith(f"lattice_engine_{name}{{"))
            stats[name] = int(float(line.rpartition(" ")[2]))
        await asyncio.sleep(0.2)
        left = server.open_files()
        if (left <= files and not stats["running"]) or time.monotonic() > until:
            return stats, left


async def _client(
    server: _Server,
    asked: Sequence[tuple[str, dict[str, Any], Any]],
    rng: random.Random,
    counts: Counter[str],
    is_over: asyncio.Event,
) -> None:
    """Ask until it is over; leave one in ten requests."""
    async with httpx2.AsyncClient(base_url=server.url, timeout=120) as client:
        while not is_over.is_set():
            path, body, expected = rng.choice(asked)
            leaves = rng.random() < LEAVE_SHARE
            while not await _ask(client, path, body, expected, counts, rng.random() * 0.05 if leaves else None):
                await asyncio.sleep(0.05)


async def _ask(
    client: httpx2.AsyncClient,
    path: str,
    body: dict[str, Any],
    expected: Any,
    counts: Counter[str],
    leaves: float | None,
) -> bool:
    """Send a request; return False if it was refused and may be sent again."""
    has_begun = False
    try:
        async with asyncio.timeout(leaves), client.stream("POST", path, json=body) as answer:
            if answer.status_code in (429, 503):
                await answer.aread()
                counts["refused"] += 1
                return False
            has_begun = True
            content = await answer.aread()
    except TimeoutError:
        counts["left"] += 1
        return True
    except httpx2.TransportError:
        # a server that ends closes idle connections: what was sent at that moment was not taken
        counts["lost" if has_begun else "not taken"] += 1
        return False
    told = _told(content.decode(), path, bool(body.get("stream"))) if answer.status_code == 200 else None
    counts["right" if told == expected else "wrong"] += 1
    return True


def _told(text: str, path: str, streams: bool) -> Any:
    if path == "/v1/embeddings":
        return [float(np.float32(value)) for value in json.loads(text)["data"][0]["embedding"]]
    if not streams:
        return json.loads(text)["choices"][0]["text"]
    events = [block.removeprefix("data: ") for block in text.split("\n\n") if block]
    if events.pop() != "[DONE]":
        return None
    return "".join(choice["text"] for event in events for choice in json.loads(event)["choices"])


class _Server:
    """A process that serves, at one port."""

    def __init__(self, model: Path, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._command = [sys.executable, "-m", "lattice_inference", "serve", "--port", str(port)]
        self._command += ["--model", f"drawn={model}", "--embedding", f"vectors={ENCODER}", "--drain-seconds", "60"]
        self._command += ["--cache-tokens", "2048"]
        self._file = model.parent / "log"
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Start it, and wait until it is ready."""
        with self._file.open("ab") as log:
            self._process = subprocess.Popen(self._command, stderr=log)
        async with httpx2.AsyncClient(base_url=self.url) as client:
            while True:
                with contextlib.suppress(httpx2.TransportError):
                    if (await client.get("/health/ready")).status_code == 200:
                        return
                if self._process.poll() is not None:
                    raise RuntimeError(f"the server did not start: {self.log()[-2000:]}")
                await asyncio.sleep(0.05)

    async def end(self) -> int:
        """Tell it to end, and return its exit status."""
        process = self._running()
        process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(process.wait, 90)

    def memory(self) -> int:
        """Return the bytes of its resident memory."""
        text = Path(f"/proc/{self._running().pid}/status").read_text()
        return int(next(line for line in text.splitlines() if line.startswith("VmRSS")).split()[1]) * 1024

    def open_files(self) -> int:
        """Return how many files it has open."""
        return len(os.listdir(f"/proc/{self._running().pid}/fd"))

    def log(self) -> str:
        """Return what it has told."""
        return self._file.read_text()

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(main())
