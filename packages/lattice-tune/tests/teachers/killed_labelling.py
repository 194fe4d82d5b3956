"""A process that starts labellings, kills each with -9 at a random moment, and runs the last one to its end.

``python killed_labelling.py URL STORE TEXTS KILLS SEED``; prints the final labels as JSON. The children are forked from this
process, which has imported everything and runs no thread.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time

from lattice_tune import LabelingTask, LabelStore, RequestLimits, ServedTeacher, TeacherConfig, label_texts
from lattice_tune.teachers.served_teacher import Connection

CONCURRENCY = 8


def main() -> None:
    url, path, count, kills, seed = sys.argv[1:]
    texts = [f"text {number}" for number in range(int(count))]
    drawn = random.Random(int(seed))
    task = LabelingTask(("alpha", "beta", "gamma"))
    config = TeacherConfig("openai", "model-1", url, timeout=20.0)
    Connection(config)  # imports, and reads the certificates

    def label() -> dict[str, str | None]:
        with LabelStore(path) as store:
            report = label_texts(
                texts, ServedTeacher(config), task, store=store, limits=RequestLimits(concurrency=CONCURRENCY)
            )
        assert report.is_complete
        return {result.text: result.label for result in report.results}

    for _ in range(int(kills)):
        child = os.fork()
        if child == 0:
            try:
                label()
            finally:
                os._exit(0)
        time.sleep(drawn.uniform(0.02, 0.3))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    print(json.dumps(label()))


if __name__ == "__main__":
    main()
