"""One decoding engine in a separate process; see :class:`harness.process.EngineProcess`.

``python -m harness.decoder_worker ENGINE MODEL.gguf FOLDER THREADS`` loads the model and then answers a line of JSON
with a line:

    (at the start)                                               {"ready": true, "vocabulary": n}
    {"do": "decode", "early": 32, "late": 256, "context": 0,     {"seconds": s, "ids": [...],
     "kept": null or FILE}                                        "own_seconds_a_token": s or null}
    {"do": "prefill", "tokens": 512}                             {"seconds": s}
    {"do": "processor_time"}                                     {"about": text or null}
    {"do": "memory"}                                             {"peak_bytes": n}

Decoding is greedy after ``context`` tokens, or one. Its time is the slope between the ``early``th and the ``late``th
token, without the fixed cost of a call. An engine whose decoding cannot be compared answers null. After
``processor_time`` times are of the processor. FOLDER is not used.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.decoder_peers import MlxDecoder, OllamaDecoder, TorchDecoder, TorchWithoutTiles, require_tiles
from harness.decoders import Decoder
from harness.worker import peak_resident_bytes

if TYPE_CHECKING:
    from lattice_inference.device_name import DeviceName

__all__ = ["DECODERS", "main"]


class LatticeDecoder(Decoder):
    """Ours, weights as they are stored, keys and values in float16."""

    device: DeviceName = "cpu"

    def __init__(self, path: str, threads: int) -> None:
        from lattice_inference import Extension, load_model

        self._model = load_model(path, threads=threads, device=self.device)
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

    def keep(self, path: Path) -> None:
        """Write keys and values to a file."""
        self._cache.save(path, self._sequence)

    def fetch(self, path: Path, tokens: int) -> None:
        """Go on from a file of keys and values."""
        self._sequence.close()
        self._sequence = self._cache.restore(path)


class LatticeWithoutTiles(LatticeDecoder):
    """Ours as on a CPU that has no matrix tiles (AMX): its prompts, since decoding uses none.

    Raises:
        RuntimeError: this CPU has none.
    """

    decodes = False

    def __init__(self, path: str, threads: int) -> None:
        require_tiles()
        from lattice_inference.backends import cpu

        cpu.CpuBackend = partial(cpu.CpuBackend, tiles=False)  # type: ignore[misc,assignment]
        super().__init__(path, threads)


class LlamaCppDecoder(Decoder):
    """llama.cpp through llama-cpp-python, keys and values in float16."""

    layers_on_gpu = 0

    def __init__(self, path: str, threads: int) -> None:
        import llama_cpp

        self._library = llama_cpp
        self._llama = llama_cpp.Llama(
            path,
            n_ctx=16_384,
            n_batch=512,
            n_threads=threads,
            n_threads_batch=threads,
            n_gpu_layers=self.layers_on_gpu,
            verbose=False,
            no_perf=False,
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

    def keep(self, path: Path) -> None:
        """Write keys and values to a file."""
        ids = (self._library.llama_token * self._llama.n_tokens)(
            *self._llama.input_ids[: self._llama.n_tokens].tolist()
        )
        if not self._library.llama_state_save_file(self._llama.ctx, os.fsencode(path), ids, len(ids)):
            raise RuntimeError(f"llama.cpp wrote no {path.name}")
        self._library.llama_perf_context_reset(self._llama.ctx)

    def fetch(self, path: Path, tokens: int) -> None:
        """Go on from a file of keys and values."""
        ids, count = (self._library.llama_token * tokens)(), ctypes.c_size_t()
        if not self._library.llama_state_load_file(
            self._llama.ctx, os.fsencode(path), ids, tokens, ctypes.byref(count)
        ):
            raise RuntimeError(f"llama.cpp read no {path.name}")
        self._llama.input_ids[:tokens] = ids[:]
        self._llama.n_tokens = tokens
        self._library.llama_perf_context_reset(self._llama.ctx)

    def about(self) -> str:
        """Return what llama.cpp was compiled for."""
        names = self._library.llama_print_system_info().decode().replace(" = 1", "").split("|")
        return ", ".join(name.strip().removeprefix("CPU : ") for name in names if name.strip())

    def own_seconds(self) -> float | None:
        """Return what llama.cpp counted for each evaluation of one token."""
        counted = self._library.llama_perf_context(self._llama.ctx)
        return counted.t_eval_ms / 1e3 / counted.n_eval if counted.n_eval else None


DECODERS: dict[str, Callable[[str, int], Decoder]] = {
    "lattice": LatticeDecoder,
    "llama.cpp": LlamaCppDecoder,
    "PyTorch bfloat16": TorchDecoder,
    "lattice, no tiles": LatticeWithoutTiles,
    "PyTorch bfloat16, no tiles": TorchWithoutTiles,
    "Ollama": OllamaDecoder,
    "MLX": MlxDecoder,
}
"""What can be measured, ours first."""


def main(arguments: Sequence[str]) -> None:
    """Serve requests until standard input ends."""
    name, path, _, threads = arguments
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not come between the answers
    decoder: Decoder = DECODERS[name](path, int(threads))
    decoder.prefill(8)
    _answer(answers, {"ready": True, "vocabulary": decoder.vocabulary})
    for line in sys.stdin:
        request = json.loads(line)
        match request["do"]:
            case "decode" if not decoder.decodes:
                _answer(answers, {"seconds": None, "ids": None, "own_seconds_a_token": None})
            case "decode":
                kept = None if request["kept"] is None else Path(request["kept"])
                decoding = decoder.decode(request["early"], request["late"], request["context"], kept)
                _answer(answers, asdict(decoding))
            case "prefill":
                _answer(answers, {"seconds": decoder.prefill(request["tokens"])})
            case "processor_time":
                decoder.clock = time.process_time
                _answer(answers, {"about": decoder.about()})
            case "memory":
                _answer(answers, {"peak_bytes": peak_resident_bytes()})
            case unknown:
                raise ValueError(f"there is no request {unknown!r}")


def _answer(answers: Any, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
