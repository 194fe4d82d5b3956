"""One engine that decodes, in a process of its own. The other end of :class:`harness.process.EngineProcess`.

``python -m harness.decoder_worker ENGINE MODEL.gguf FOLDER THREADS`` loads the model and then answers a line of JSON
with a line:

    (at the start)                                  {"ready": true, "vocabulary": n}
    {"do": "decode", "early": 32, "late": 256}      {"seconds": s, "ids": [...], "own_seconds_a_token": s or null}
    {"do": "prefill", "tokens": 512}                {"seconds": s}
    {"do": "memory"}                                {"peak_bytes": n}

Decoding is greedy after a prompt of one token, and its time the slope between the ``early``th and the ``late``th
token, so that what a call costs once drops out. FOLDER is not used.
"""

from __future__ import annotations

import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from harness.worker import peak_resident_bytes

__all__ = ["DECODERS", "main"]

FIRST_TOKEN = 1


class Decoder(ABC):
    """Something that turns token ids into the most likely next one."""

    vocabulary: int

    @abstractmethod
    def restart(self) -> None:
        """Forget all tokens."""

    @abstractmethod
    def extend(self, ids: Sequence[int]) -> int:
        """Append tokens and return the most likely next one."""

    def own_seconds(self) -> float | None:
        """Return what the engine's own counter says a token took since the restart, if it has one."""
        return None


class LatticeDecoder(Decoder):
    """Ours, weights as they are stored, keys and values in float16."""

    def __init__(self, path: str, threads: int) -> None:
        from lattice_inference import Extension, load_model

        self._model = load_model(path, threads=threads)
        self._cache = self._model.open_cache(tokens=16_384)
        self._extension = Extension
        self._sequence = self._cache.sequence()
        self.vocabulary = self._model.vocab_size

    def restart(self) -> None:
        """Forget all tokens."""
        self._sequence.close()
        self._sequence = self._cache.sequence()

    def extend(self, ids: Sequence[int]) -> int:
        """Append tokens and return the most likely next one."""
        return int(self._model.forward([self._extension(self._sequence, ids)])[0].argmax())


class LlamaCppDecoder(Decoder):
    """llama.cpp through llama-cpp-python, keys and values in float16."""

    def __init__(self, path: str, threads: int) -> None:
        import llama_cpp

        self._library = llama_cpp
        self._llama = llama_cpp.Llama(
            path, n_ctx=16_384, n_batch=512, n_threads=threads, n_threads_batch=threads, verbose=False, no_perf=False
        )
        self.vocabulary = self._llama.n_vocab()

    def restart(self) -> None:
        """Forget all tokens."""
        self._llama.reset()
        self._llama._ctx.kv_cache_clear()
        self._library.llama_perf_context_reset(self._llama.ctx)

    def extend(self, ids: Sequence[int]) -> int:
        """Append tokens and return the most likely next one."""
        self._llama.eval(list(ids))
        logits = self._library.llama_get_logits_ith(self._llama.ctx, -1)
        return int(np.ctypeslib.as_array(logits, (self.vocabulary,)).argmax())

    def own_seconds(self) -> float | None:
        """Return what llama.cpp counted for each evaluation of one token."""
        counted = self._library.llama_perf_context(self._llama.ctx)
        return counted.t_eval_ms / 1e3 / counted.n_eval if counted.n_eval else None


DECODERS = {"lattice": LatticeDecoder, "llama.cpp": LlamaCppDecoder}
"""What can be measured, ours first."""


def main(arguments: Sequence[str]) -> None:
    """Serve requests until standard input ends."""
    name, path, _, threads = arguments
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not come between the answers
    decoder: Decoder = DECODERS[name](path, int(threads))
    decoder.extend([FIRST_TOKEN])
    _answer(answers, {"ready": True, "vocabulary": decoder.vocabulary})
    for line in sys.stdin:
        request = json.loads(line)
        match request["do"]:
            case "decode":
                _answer(answers, _decode(decoder, request["early"], request["late"]))
            case "prefill":
                ids = np.random.default_rng(0).integers(3, decoder.vocabulary, request["tokens"]).tolist()
                decoder.restart()
                start = time.perf_counter()
                decoder.extend(ids)
                _answer(answers, {"seconds": time.perf_counter() - start})
            case "memory":
                _answer(answers, {"peak_bytes": peak_resident_bytes()})
            case unknown:
                raise ValueError(f"there is no request {unknown!r}")


def _decode(decoder: Decoder, early: int, late: int) -> dict[str, Any]:
    decoder.restart()
    ids = [decoder.extend([FIRST_TOKEN])]
    began = 0.0
    while len(ids) < late:
        if len(ids) == early:
            began = time.perf_counter()
        ids.append(decoder.extend([ids[-1]]))
    seconds = (time.perf_counter() - began) / (late - early)
    return {"seconds": seconds, "ids": ids[:early], "own_seconds_a_token": decoder.own_seconds()}


def _answer(answers: Any, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
