"""The child process of ``run.py``: reads damaged inputs of one target within its limits.

It reports to its parent in two files. ``progress`` holds the number of the current input, so that a crash leaves it
there. ``failures`` has a line of JSON for each failure, and a last line with counts.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import os
import random
import resource
import shutil
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

from target import ROOT, Target

from registry import load_target

PROCESSOR_SECONDS = 5
"""What one input may take of the processor's time."""

MEMORY_BYTES = 1 << 30
"""What a process may take of address space above what it has after a sound input of every kind."""


def limit_memory() -> None:
    """Let this process have so much more than it has now."""
    with open("/proc/self/statm", encoding="ascii") as file:
        size = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY_BYTES, resource.RLIM_INFINITY))


def limit_processor_time() -> None:
    """Give the next input its time; the kernel ends the process a second after that."""
    soft = int(time.process_time()) + PROCESSOR_SECONDS + 1
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))


def place_of(error: BaseException) -> str:
    """Return where in our packages an error came from: what tells one fault from another."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "lattice_" in frame.filename and "/tests/" not in frame.filename] or frames
    return (
        f"{type(error).__name__} at {Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else type(error).__name__
    )


class Worker:
    """Tries inputs of one target, each drawn from the seed and its number."""

    def __init__(self, target: Target, folder: Path, seed: int) -> None:
        self.target = target
        self.folder = folder
        self.seed = seed
        self.failures = 0
        self.counts = {"inputs": 0, "refused": 0}
        self._progress = os.open(folder / "progress", os.O_WRONLY | os.O_CREAT, 0o600)
        self._log = open(folder / "failures", "a", encoding="utf-8")  # noqa: SIM115 - as long as the process

    def warm_up(self) -> None:
        """Make the sound inputs and use each, so that what is imported and kept is no input's fault."""
        sound = self.folder / "sound"
        shutil.rmtree(sound, ignore_errors=True)
        sound.mkdir()
        self.target.make(sound)
        self.sound = sorted(path for path in sound.iterdir() if path.is_dir())
        refused: list[Exception] = []
        for path in self.sound:
            shutil.rmtree(self.folder / "input", ignore_errors=True)
            shutil.copytree(path, self.folder / "input")
            try:
                self.target.use(self._to_use())
            except self.target.errors as error:  # such as a file of tensors alone, of which no model is made
                refused.append(error)
        if len(refused) == len(self.sound):
            raise refused[0]

    def prepare(self, number: int) -> None:
        """Write the damaged input of a number, in whatever time that takes."""
        resource.setrlimit(resource.RLIMIT_CPU, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        draw = random.Random(f"{self.seed}:{self.target.name}:{number}")
        path = self.folder / "input"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(self.sound[number % len(self.sound)], path)
        self.target.damage(path, draw)

    def try_input(self, number: int) -> None:
        """Use the input at hand; what is not as promised is a failure."""
        os.pwrite(self._progress, number.to_bytes(8, "little"), 0)
        limit_processor_time()
        start = time.process_time()
        failure = None
        try:
            self.target.use(self._to_use())
        except self.target.errors as error:
            self.counts["refused"] += 1
            if len(str(error)) > 10_000:
                failure = ("a message without end", place_of(error), traceback.format_exc()[:3_000])
        except MemoryError as error:
            failure = ("over 1 GB", place_of(error), traceback.format_exc())
        except BaseException as error:
            failure = ("untyped error", place_of(error), traceback.format_exc())
        seconds = time.process_time() - start
        if seconds > PROCESSOR_SECONDS:
            signal.raise_signal(
                signal.SIGXCPU
            )  # the parent tries it again, since a halted machine counts that time too
        if failure is not None:
            self.failures += 1
            self.tell({"number": number, "what": failure[0], "where": failure[1], "details": failure[2]})
            kept = self.folder / "kept" / str(number)
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(self.folder / "input", kept)
        self.counts["inputs"] += 1

    def _to_use(self) -> Path:
        path = self.folder / "input"
        if self.target.is_changed:
            used = self.folder / "used"
            shutil.rmtree(used, ignore_errors=True)
            shutil.copytree(path, used)
            return used
        return path

    def tell(self, record: dict[str, Any]) -> None:
        """Write a line for the parent."""
        self._log.write(json.dumps(record) + "\n")
        self._log.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--first", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--input", type=Path, help="use this folder in place of what would be drawn")
    options = parser.parse_args()
    os.environ["LATTICE_OFFLINE"] = "1"
    sys.path[:] = [os.path.abspath(path) for path in sys.path]  # the folder of the process changes
    os.chdir(options.folder)
    faulthandler.enable()
    faulthandler.register(signal.SIGXCPU, chain=True)
    warnings.simplefilter("ignore")
    worker = Worker(load_target(options.target), options.folder, options.seed)
    worker.warm_up()
    gc.collect()
    limit_memory()
    deadline = time.monotonic() + options.seconds
    number = options.first
    while time.monotonic() < deadline and number < options.first + options.rounds and worker.failures < 20:
        if options.input is None:
            worker.prepare(number)
        else:
            shutil.rmtree(options.folder / "input", ignore_errors=True)
            shutil.copytree(options.input, options.folder / "input")
        worker.try_input(number)
        number += 1
        if number % 64 == 0:
            gc.collect()
    worker.tell({"counts": worker.counts})


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tools" / "fuzz"))
    main()
