"""Times tiny networks in a process: ``python -m harness.fann_worker '{options}'``.

Prints one JSON object: samples in seconds a call for every engine, and the engines that are missing.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from typing import Any

import numpy as np

import lattice_fann
from harness.fann_peers import Call, epoch_calls, forward_calls
from harness.worker import SETTLE_SECONDS

__all__ = ["main"]


def cell_calls(cell: str, threads: int) -> tuple[dict[str, Call], dict[str, str], int]:
    """Return a cell's calls, the missing engines, and the number of calls per sample.

    The network is 784-128-64-10, and 64-128-64-10 for scikit-learn's digits.
    """
    match cell:
        case "forward, 1 sample":
            return *forward_calls(1, threads), 500
        case "forward, 64 samples":
            return *forward_calls(64, threads), 100
        case "epoch, 10,000 x 784":
            draw = np.random.RandomState(0)
            x = draw.uniform(0, 1, (10_000, 784)).astype(np.float32)
            labels = draw.randint(0, 10, 10_000)
            return *epoch_calls(x, labels, hidden=(128, 64), batch=64, threads=threads), 1
        case "epoch, digits":
            try:
                from sklearn.datasets import load_digits
            except ImportError as error:
                return {}, {"scikit-learn": str(error)}, 1
            digits = load_digits()
            x = (digits.data / 16).astype(np.float32)
            return *epoch_calls(x, digits.target, hidden=(128, 64), batch=32, threads=threads), 3
        case unknown:
            raise ValueError(f"there is no cell {unknown!r}")


def time_in_turns(calls: dict[str, Call], rounds: int, repeats: int) -> dict[str, list[float]]:
    """Return seconds a call.

    Engines take turns, and each runs untimed first until the one before it stops spinning.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            call = calls[name]
            settled = time.perf_counter() + SETTLE_SECONDS
            while True:
                call()
                if time.perf_counter() > settled:
                    break
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            seconds[name].append((time.perf_counter() - start) / repeats)
    return seconds


def main(arguments: list[str]) -> None:
    """Measure what the options say and print it."""
    options: dict[str, Any] = json.loads(arguments[0])
    threads: int = options["threads"]
    warnings.simplefilter("ignore")  # scikit-learn says that one epoch does not converge
    lattice_fann.set_num_threads(threads)
    samples = []
    absent: dict[str, str] = {}
    for cell in options["cells"]:
        calls, missing, repeats = cell_calls(cell, threads)
        absent |= missing
        if calls:
            seconds = time_in_turns(calls, options["rounds"], repeats)
            samples.append({"cell": cell, "threads": threads, "seconds": seconds})
    print(
        json.dumps(
            {"isa": lattice_fann.NetworkBuilder().input(1).output(1).build().isa, "absent": absent, "samples": samples}
        )
    )


if __name__ == "__main__":
    main(sys.argv[1:])
