"""One engine in a separate process: reads requests, answers with times.

See :mod:`harness.process`.

``python -m harness.worker ENGINE MODEL_DIRECTORY GRAPH_FOLDER THREADS`` loads the engine, embeds one short text, and
then answers a line of JSON with a line of JSON:

    (at the start)                           {"ready": true}
    {"do": "vectors", "texts": [...]}        {"vectors": [[...], ...]}
    {"do": "run", "cell": "1x10", "calls": 3}   {"seconds": [...]}
    {"do": "memory"}                         {"peak_bytes": n}
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.corpus import CELLS, WARM_UP_TEXTS
from harness.engines import Engine, open_engine

__all__ = ["main"]

FIRST_TEXT = "The first text of a process."
SETTLE_SECONDS = 0.25
"""How long an engine runs untimed in each turn: idle threads of the engine before it may spin for a tenth of a second
and take a processor from the next engine."""


def main(arguments: Sequence[str]) -> None:
    """Serve requests until standard input ends."""
    name, directory, graphs, threads = arguments
    # what libraries print must not come between the answers
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    engine = open_engine(name, Path(directory), graphs=Path(graphs), threads=int(threads))
    engine.embed([FIRST_TEXT])
    _answer(answers, {"ready": True})
    texts: dict[str, list[str]] = {}
    for line in sys.stdin:
        request = json.loads(line)
        match request["do"]:
            case "vectors":
                _answer(answers, {"vectors": engine.embed(request["texts"]).tolist()})
            case "run":
                cell = request["cell"]
                if cell not in texts:
                    texts[cell] = CELLS[cell].texts()
                _answer(answers, {"seconds": _run(engine, texts[cell], request["calls"])})
            case "memory":
                _answer(answers, {"peak_bytes": peak_resident_bytes()})
            case unknown:
                raise ValueError(f"there is no request {unknown!r}")


def _answer(answers: Any, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def _run(engine: Engine, texts: list[str], calls: int) -> list[float]:
    """Return each call's seconds.

    Untimed calls first bring back this engine's weights and threads.
    """
    settled = time.perf_counter() + SETTLE_SECONDS
    while True:
        engine.embed(texts[:WARM_UP_TEXTS])
        if time.perf_counter() > settled:
            break
    seconds = []
    for _ in range(calls):
        start = time.perf_counter()
        engine.embed(texts)
        seconds.append(time.perf_counter() - start)
    return seconds


def peak_resident_bytes() -> int:
    """The most memory that this process has held resident so far."""
    status = Path("/proc/self/status")
    if status.exists():  # Linux hands ru_maxrss of the parent down to the child; VmHWM is this process's own
        for line in status.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    main(sys.argv[1:])
