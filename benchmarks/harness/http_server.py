"""A server in another process, and a client on plain sockets, which takes little time."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["HttpServer", "lattice_server", "resident_bytes"]

START_SECONDS = 180.0


def resident_bytes(pid: int) -> int:
    """Return the bytes of a process's resident memory."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith("VmRSS")).split()[1]) * 1024


def lattice_server(words: Sequence[str]) -> HttpServer:
    """Start ``lattice serve`` with these words."""
    command = [sys.executable, "-m", "lattice_inference", "serve", "--port", "{port}", *words]
    return HttpServer(command, ready="/health/ready")


class HttpServer:
    """A process that serves.

    Args:
        command: its words; ``{port}`` stands for the port.
        ready: the path that answers 200 when the server can be asked.

    Raises:
        RuntimeError: it ended, or was not ready in time.
    """

    def __init__(self, command: Sequence[str], *, ready: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = int(free.getsockname()[1])
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - close() closes it
        self._name = command[0]
        words = [word.replace("{port}", str(self._port)) for word in command]
        try:
            self._process = subprocess.Popen(words, stdout=self._log, stderr=subprocess.STDOUT)
        except OSError:
            self._log.close()
            raise
        try:
            self._wait(ready)
        except BaseException:
            self.close()
            raise

    def _wait(self, ready: str) -> None:
        end = time.monotonic() + START_SECONDS
        while self._process.poll() is None and time.monotonic() < end:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
                connection.request("GET", ready)
                if connection.getresponse().status == 200:
                    return
            except (OSError, http.client.HTTPException):
                pass
            finally:
                connection.close()
            time.sleep(0.1)
        self._log.seek(0)
        raise RuntimeError(f"{self._name} did not start: {self._log.read()[-500:]}")

    def __enter__(self) -> HttpServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def memory(self) -> int:
        """Return the bytes of its resident memory."""
        return resident_bytes(self._process.pid)

    def processor(self) -> float:
        """Return the seconds of the processor that it has used."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    async def ask(self, path: str, bodies: Sequence[Mapping[str, Any]], clients: int) -> list[bytes]:
        """Send requests by so many connections, and return the bodies of the answers.

        Raises:
            RuntimeError: an answer's status is not 200.
        """
        return [body for body, _ in await self.timed(path, bodies, clients)]

    async def timed(self, path: str, bodies: Sequence[Mapping[str, Any]], clients: int) -> list[tuple[bytes, float]]:
        """Return what :meth:`ask` does, each answer with the seconds that it took."""
        left = list(enumerate(bodies))[::-1]
        answers = [(b"", 0.0)] * len(bodies)

        async def client() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            while left:
                number, body = left.pop()
                start = time.perf_counter()
                writer.write(_request(path, body))
                answer = b"".join([part async for part in _parts(reader)])
                answers[number] = (answer, time.perf_counter() - start)
            writer.close()
            await writer.wait_closed()

        await asyncio.gather(*(client() for _ in range(clients)))
        return answers

    async def events(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[tuple[float, bytes]]:
        """Give the events of a stream, each with the time of its arrival.

        Raises:
            RuntimeError: the answer's status is not 200.
        """
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(_request(path, body))
            kept = b""
            async for part in _parts(reader):
                now = time.perf_counter()
                *whole, kept = (kept + part).split(b"\n\n")
                for event in whole:
                    yield now, event.removeprefix(b"data: ")
        finally:
            writer.close()


def _request(path: str, body: Mapping[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


async def _parts(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Give the parts of an answer's body as they arrive.

    Raises:
        RuntimeError: its status is not 200.
    """
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = re.search(rb"content-length: (\d+)", head)
    if not head.startswith(b"http/1.1 200"):
        body = await reader.readexactly(int(length[1])) if length is not None else b""
        raise RuntimeError(f"the server answers {head[:20]!r}: {body[:500]!r}")
    if length is not None:
        yield await reader.readexactly(int(length[1]))
        return
    while size := int(await reader.readuntil(b"\r\n"), 16):
        yield (await reader.readexactly(size + 2))[:-2]
    await reader.readexactly(2)
