"""Reads hostile inputs with every reader; reports all but answers and typed errors.

Each target runs in a process that may take 1 GB above its start and, for each input, 5 s of processor time. A failure is a
crash by a signal, an error outside the package's typed tree, or an input over these limits. It is printed with the seed
and the number of the input, which is also saved:

    python tools/fuzz/run.py --target gguf --seed 7 --first 1234 --rounds 1
    python tools/fuzz/run.py --target gguf --input build/fuzz/gguf-7-1234
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from target import ROOT

from registry import CHECK, MODULES

KEPT = ROOT / "build" / "fuzz"
TOTAL_SECONDS = 60.0
HANGS_SECONDS = 180.0
"""Without processor time, and without an end: an input waits for what never comes."""

MOST_FAILURES = 20


@dataclass
class Outcome:
    """What came of one target."""

    inputs: int = 0
    refused: int = 0
    failures: list[dict[str, Any]] = field(default_factory=list)


def run_worker(
    target: str, folder: Path, options: argparse.Namespace, first: int, seconds: float, rounds: int | None = None
) -> int | None:
    """Run the child from an input on; return its exit status, or None where it had to be ended."""
    command = [sys.executable, str(Path(__file__).with_name("worker.py")), "--target", target, "--folder", str(folder)]
    command += ["--seed", str(options.seed), "--first", str(first), "--seconds", str(seconds)]
    command += ["--rounds", str(rounds or options.first + options.rounds - first)]
    if options.input is not None:
        command += ["--input", str(options.input.resolve())]
    environment = {
        **os.environ,
        "MALLOC_ARENA_MAX": "2",  # each thread's arena would take address space that no input asked for
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    with open(folder / "stderr", "wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        at, since = b"", time.monotonic()
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(1)
            with contextlib.suppress(FileNotFoundError):
                now = (folder / "progress").read_bytes()
                if now != at:
                    at, since = now, time.monotonic()
            if time.monotonic() - since > HANGS_SECONDS:
                process.send_signal(signal.SIGABRT)  # with the place it hangs at
                process.wait()
                return None


def run_target(target: str, options: argparse.Namespace, seconds: float) -> Outcome:
    """Run a target for its seconds, again after each crash."""
    outcome = Outcome()
    shared = Path("/dev/shm")
    place = str(shared) if os.access(shared, os.W_OK) else None  # what is forced to the disk there costs nothing
    with tempfile.TemporaryDirectory(prefix="lattice-fuzz-", dir=place) as name:
        folder, first, deadline = Path(name), options.first, time.monotonic() + seconds
        while len(outcome.failures) < MOST_FAILURES:
            for leftover in ("progress", "failures"):
                (folder / leftover).unlink(missing_ok=True)
            status = run_worker(target, folder, options, first, max(1.0, deadline - time.monotonic()))
            read_failures(target, folder, options, outcome)
            if status == 0:
                break
            progress = (folder / "progress").read_bytes() if (folder / "progress").exists() else b""
            said = (folder / "stderr").read_text(encoding="utf-8", errors="replace")
            if not progress:
                outcome.failures.append({"what": "a sound input cannot be read", "details": said[-3_000:]})
                break
            number = int.from_bytes(progress, "little")
            outcome.inputs += number - first + 1
            what = "waits for ever" if status is None else crash_of(status)
            first = number + 1
            # A machine that was halted counts the time that it stood still: an input that is slow is slow again.
            if status != -signal.SIGXCPU or not is_read(target, folder, options, number):
                record = {"what": what, "where": "", "details": said[-3_000:]}
                keep(target, folder / "input", number, options, outcome, record)
            if time.monotonic() > deadline or first >= options.first + options.rounds:
                break
    return outcome


def is_read(target: str, folder: Path, options: argparse.Namespace, number: int) -> bool:
    """Whether a separate child reads an input within the limits."""
    (folder / "failures").unlink(missing_ok=True)
    if run_worker(target, folder, options, number, HANGS_SECONDS, rounds=1) != 0:
        return False
    return (folder / "failures").read_text(encoding="utf-8").count("\n") == 1  # its counts, and no failure


def crash_of(status: int) -> str:
    """Return the words for how a child ended."""
    if status == -signal.SIGXCPU:
        return "over 5 s of processor time"
    return f"crash by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def read_failures(target: str, folder: Path, options: argparse.Namespace, outcome: Outcome) -> None:
    """Take what the child told."""
    if not (folder / "failures").exists():
        return
    for line in (folder / "failures").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if "counts" in record:
            outcome.inputs += record["counts"]["inputs"]
            outcome.refused += record["counts"]["refused"]
        else:
            number = record.pop("number")
            keep(target, folder / "kept" / str(number), number, options, outcome, record)


def keep(
    target: str, source: Path, number: int, options: argparse.Namespace, outcome: Outcome, record: dict[str, Any]
) -> None:
    """Save the input of a failure and add it; of those at one place only the first."""
    if record["where"] and any(record["where"] == other.get("where") for other in outcome.failures):
        return
    place = KEPT / f"{target}-{options.seed}-{number}"
    if options.input is None:
        shutil.rmtree(place, ignore_errors=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, place)
    outcome.failures.append({**record, "number": number, "input": str(place)})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", action="append", choices=[*MODULES, CHECK], help="run this one; may be repeated")
    parser.add_argument("--seed", type=int, default=0, help="another seed draws other inputs (default: 0)")
    parser.add_argument("--seconds", type=float, help="time for each target (default: 60 s shared by all of them)")
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--rounds", type=int, default=2**62, help="most inputs of a target")
    parser.add_argument("--input", type=Path, help="use this saved input; needs one --target")
    parser.add_argument("--list", action="store_true", help="print the targets")
    options = parser.parse_args()
    if options.list:
        print("\n".join(MODULES))
        return 0
    targets = options.target or list(MODULES)
    if options.input is not None:
        if len(targets) != 1 or not options.input.is_dir():
            parser.error("--input is a folder that a run saved, and needs one --target")
        options.rounds = 1
    seconds = options.seconds or TOTAL_SECONDS / len(targets)
    print(f"seed {options.seed}, {seconds:.1f} s for each of {len(targets)} targets", flush=True)
    failed = 0
    for target in targets:
        outcome = run_target(target, options, seconds)
        print(f"{target}: {outcome.inputs:,} inputs, {outcome.refused:,} refused, ", end="")
        print(f"{len(outcome.failures)} failures", flush=True)
        failed += len(outcome.failures)
        for failure in outcome.failures:
            print(f"--- {target}: {failure['what']} {failure.get('where', '')}")
            if "number" in failure:
                again = f"--target {target} --seed {options.seed} --first {failure['number']} --rounds 1"
                print(f"again: python tools/fuzz/run.py {again}\ninput: {failure['input']}")
            print(failure["details"], flush=True)
    print(f"{failed} failures with seed {options.seed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
