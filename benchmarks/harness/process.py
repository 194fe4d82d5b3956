"""Starts engines in separate processes, so that no thread pool disturbs another.

The other end is :mod:`harness.worker`, or for engines that decode :mod:`harness.decoder_worker`.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

__all__ = ["EngineProcess", "answer_of", "engine_environment"]

BENCHMARKS = Path(__file__).resolve().parents[1]

THREAD_VARIABLES = (
    "LATTICE_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "RAYON_NUM_THREADS",  # Hugging Face tokenizers
)


def engine_environment(threads: int, isa: str | None) -> dict[str, str]:
    """Return an engine's environment: threads for every pool, no network, our instruction set."""
    environment = dict(os.environ)
    environment |= dict.fromkeys(THREAD_VARIABLES, str(threads))
    environment |= {"LATTICE_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "true"}
    environment["PYTHONPATH"] = os.pathsep.join([str(BENCHMARKS), *filter(None, [os.environ.get("PYTHONPATH")])])
    if isa is not None:
        environment["LATTICE_ISA"] = isa
    return environment


def answer_of(arguments: Sequence[str], threads: int, *, isa: str | None = None) -> Any:
    """Return the JSON that ``python ARGUMENTS`` prints, run with a number of threads.

    Raises:
        RuntimeError: it failed; the message ends with the last line that it printed.
    """
    done = subprocess.run(
        [sys.executable, *arguments],
        env=engine_environment(threads, isa),
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    if done.returncode != 0:
        printed = done.stderr.strip().splitlines()
        last = printed[-1] if printed else "it printed nothing"
        raise RuntimeError(f"{' '.join(arguments[:2])} ended with status {done.returncode}: {last}")
    return json.loads(done.stdout)


class EngineProcess:
    """One engine, loaded. A context manager; leaving it ends the process.

    Attributes:
        name: the engine.
        ready: what it said once it was loaded.
        first_vector_seconds: from the start of the process to its first vector.

    Raises:
        RuntimeError: the engine could not be loaded; the message ends with what the process printed.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        graphs: Path,
        threads: int,
        *,
        isa: str | None = None,
        worker: str = "harness.worker",
    ) -> None:
        self.name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        command = [sys.executable, "-m", worker, name, str(directory), str(graphs), str(threads)]
        start = time.perf_counter()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=engine_environment(threads, isa),
            text=True,
            encoding="utf-8",
        )
        try:
            self.ready = self._read()
        except BaseException:
            self.close()
            raise
        self.first_vector_seconds = time.perf_counter() - start

    def ask(self, **request: Any) -> Mapping[str, Any]:
        """Send a request of :mod:`harness.worker` and return the answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._failure() from error
        return self._read()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> Mapping[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._failure()
        answer: Mapping[str, Any] = json.loads(line)
        return answer

    def _failure(self) -> RuntimeError:
        status = self._process.wait()
        self._errors.seek(0)
        printed = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return RuntimeError(
            f"{self.name} ended with status {status}: {printed[-1] if printed else 'it printed nothing'}"
        )
