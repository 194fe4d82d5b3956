"""Loads a language model in a separate process and prints its cost as one line of JSON.

``python -m harness.loading_worker MODEL THREADS CONTEXT PRECISION`` prints

    {"load_seconds", "first_token_seconds", "resident_before", "resident_after_load", "resident", "peak_resident",
     "weights_bytes", "cache_bytes", "context", "token_seconds", "layers", "report"}

Seconds count from before the model is opened, once this library is imported. ``resident_after_load`` is taken after the
first token; then a prompt of CONTEXT tokens and some more are run, and the rest is taken.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import cast

import numpy as np

__all__ = ["DECODED", "main"]

DECODED = 8
"""Tokens that are decoded after the prompt."""

PROMPT = (1, 2, 3, 4)


def main(arguments: Sequence[str]) -> None:
    """Load, run and print."""
    path, threads, context, precision = arguments
    import lattice_inference.generate.decoder_program  # noqa: F401 - what load_model would import
    from lattice_inference import Extension, load_model, memory_report
    from lattice_inference.memory.resident import peak_resident_bytes, resident_bytes
    from lattice_inference.precision import Precision

    before = resident_bytes()
    start = time.perf_counter()
    with load_model(path, precision=cast(Precision, precision), threads=int(threads)) as model:
        loaded = time.perf_counter()
        with model.open_cache(tokens=int(context) + DECODED + len(PROMPT)) as cache:
            first = cache.sequence()
            model.forward([Extension(first, PROMPT)])
            answered = time.perf_counter()
            after = resident_bytes()
            first.close()
            ids = np.random.default_rng(0).integers(3, model.vocab_size, int(context)).tolist()
            sequence = cache.sequence()
            token = int(model.forward([Extension(sequence, ids)])[0].argmax())
            began = time.perf_counter()
            for _ in range(DECODED):
                token = int(model.forward([Extension(sequence, [token])])[0].argmax())
            decoded = time.perf_counter()
            report = memory_report(
                model,
                cache_bytes=cache.used_bytes,
                cache_token_bytes=cache.storage.page_bytes // cache.page_tokens,
            )
            print(
                json.dumps(
                    {
                        "load_seconds": loaded - start,
                        "first_token_seconds": answered - start,
                        "resident_before": before,
                        "resident_after_load": after,
                        "resident": resident_bytes(),
                        "peak_resident": peak_resident_bytes(),
                        "weights_bytes": report.packed_bytes + report.mapped_bytes,
                        "cache_bytes": report.cache_bytes,
                        "context": sequence.length,
                        "token_seconds": (decoded - began) / DECODED,
                        "layers": report.as_json()["layers"],
                        "report": report.as_text(layers=True),
                    }
                )
            )


if __name__ == "__main__":
    main(sys.argv[1:])
