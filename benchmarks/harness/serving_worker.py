"""One engine of many texts, in a separate process: :class:`harness.process.EngineProcess`.

``python -m harness.serving_worker ENGINE MODEL.gguf FOLDER THREADS`` loads the model and then answers a line of JSON
with a line:

    (at the start)                                               {"ready": true, "instructions": text}
    {"do": "streams", "streams": 16, "prompt": 128,              {"seconds": s, "processor_seconds": s,
     "tokens": 128, "temperature": 1.0}                           "kernel_seconds": s or null}
    {"do": "gaps", "streams": 4, "prompt": 4000,                 {"gaps": [s, ...], "prompt_seconds": s}
     "step_ms": 100}
    {"do": "prefix", "tokens": 2000, "new": 20}                  {"cold": s, "remembered": s}

``kernel_seconds`` is the processor time while a step's program or the choice of its tokens runs. Times of ``prefix`` are
the processor's. FOLDER is not used. llama.cpp answers ``streams`` only.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

__all__ = ["SERVERS", "main"]

CHUNK = 512
"""Tokens of prompts in a step: both engines' own default."""


SAMPLING = "lattice_inference.generate._sampling"
"""The kernels that choose tokens."""


def drawn_prompts(streams: int, tokens: int, seed: int = 0) -> list[list[int]]:
    """Return prompts of random tokens, no two of which begin alike."""
    rng = np.random.default_rng([seed, streams, tokens])
    return [
        [1000 + stream, *row] for stream, row in enumerate(rng.integers(1000, 40_000, (streams, tokens - 1)).tolist())
    ]


class KernelClock:
    """Adds up the process's time while a model's program or the choice of tokens runs."""

    def __init__(self, model: Any) -> None:
        self.seconds = 0.0
        program, sampling = model._program._program, importlib.import_module(SAMPLING)
        submit, sample = program.submit, sampling.sample
        clock = self

        class Timed:
            """Steps that have been submitted."""

            def __init__(self, pending: Any) -> None:
                self._pending = pending

            def __getattr__(self, name: str) -> Any:
                return getattr(self._pending, name)

            def wait(self) -> Any:
                """Return the outputs."""
                return clock.timed(self._pending.wait)

        program.submit = lambda *given, **options: Timed(self.timed(submit, *given, **options))
        vars(sampling)["sample"] = lambda *given, **options: self.timed(sample, *given, **options)

    def timed(self, call: Callable[..., Any], *given: Any, **options: Any) -> Any:
        """Call and add the time."""
        start = time.process_time()
        try:
            return call(*given, **options)
        finally:
            self.seconds += time.process_time() - start


class LatticeServer:
    """Ours: an :class:`Engine`."""

    def __init__(self, path: str, threads: int) -> None:
        from lattice_inference import cpu_info, load_model

        self._model = load_model(path, threads=threads)
        self.instructions = str(cpu_info()["isa"])

    def _engine(self, tokens: int, **settings: Any) -> Any:
        from lattice_inference import Engine, EngineConfig

        config = EngineConfig(cache_tokens=tokens, step_tokens=CHUNK, outbox_pieces=2**20, **settings)
        return Engine(self._model, config)

    def streams(self, streams: int, prompt: int, tokens: int, temperature: float) -> dict[str, Any]:
        """Time texts that all come at once."""
        config = _settings(tokens, temperature)
        clock = self._clock()
        with self._engine(streams * (prompt + tokens + 64), prefix_bytes=0) as engine:
            seconds, processor, kernels = time.perf_counter(), time.process_time(), clock.seconds
            read = [engine.submit(ids, config) for ids in drawn_prompts(streams, prompt)]
            engine.drain()  # no reader runs beside the steps
            seconds, processor = time.perf_counter() - seconds, time.process_time() - processor
            assert sum(len(stream.finish().token_ids) for stream in read) == streams * tokens
        return {
            "seconds": seconds,
            "processor_seconds": processor,
            "kernel_seconds": clock.seconds - kernels,
        }

    def _clock(self) -> KernelClock:
        if not hasattr(self, "_kept_clock"):
            with self._engine(256) as engine:  # the program exists after a first text
                engine.submit([1, 2, 3], _settings(2, 0.0)).finish()
            self._kept_clock = KernelClock(self._model)
        return self._kept_clock

    def gaps(self, streams: int, prompt: int, step_ms: float) -> dict[str, Any]:
        """Time the pieces of texts while a long prompt comes; a huge ``step_ms`` is no limit."""
        arrivals: list[list[float]] = [[] for _ in range(streams)]
        with self._engine(prompt + streams * 2048 + 64, prefix_bytes=0, step_ms=step_ms) as engine:
            opened = [engine.submit(ids, _settings(1900, 1.0)) for ids in drawn_prompts(streams, 16)]

            def read(place: int) -> None:
                for _ in opened[place]:
                    arrivals[place].append(time.perf_counter())

            readers = [threading.Thread(target=read, args=(place,)) for place in range(streams)]
            for reader in readers:
                reader.start()
            while min(map(len, arrivals)) < 8:
                time.sleep(0.01)
            start = time.perf_counter()
            (long,) = drawn_prompts(1, prompt)
            engine.submit(long, _settings(1, 0.0)).finish()
            end = time.perf_counter()
            for stream in opened:
                stream.cancel()
            for reader in readers:
                reader.join()
        found = [np.diff([at for at in times if at >= start]) for times in arrivals]
        assert {stream.result.finish_reason for stream in opened} == {"cancelled"}, "a text ended before the prompt"
        return {"gaps": np.concatenate(found).tolist(), "prompt_seconds": end - start}

    def prefix(self, tokens: int, new: int) -> dict[str, Any]:
        """Time the first token of a prompt, and of one that begins with the same tokens."""
        (beginning,) = drawn_prompts(1, tokens, time.time_ns() % 2**31)
        found = {}
        with self._engine(2 * (tokens + new) + 256) as engine:
            for place, name in enumerate(("cold", "remembered")):
                ids = [*beginning, *drawn_prompts(2, new)[place]]
                start = time.process_time()
                result = engine.submit(ids, _settings(1, 0.0)).finish()
                found[name] = time.process_time() - start
            assert result.reused_tokens > tokens - 64
        return found


def _settings(tokens: int, temperature: float) -> Any:
    from lattice_inference import GenerateConfig

    return GenerateConfig(
        max_new_tokens=tokens,
        temperature=temperature,
        top_k=0,
        top_p=1.0,
        repetition_penalty=1.0,
        seed=1,
        ignore_stop_tokens=True,
    )


class LlamaCppServer:
    """llama.cpp's batched decoding through llama-cpp-python, with llama.cpp's own samplers."""

    def __init__(self, path: str, threads: int) -> None:
        import llama_cpp

        self._library = library = llama_cpp
        library.llama_backend_init()
        settings = library.llama_model_default_params()
        settings.n_gpu_layers = 0
        self._threads = threads
        self._model = library.llama_model_load_from_file(os.fsencode(path), settings)
        if not self._model:
            raise RuntimeError(f"llama.cpp did not load {path}")
        self.instructions = library.llama_print_system_info().decode()

    def streams(self, streams: int, prompt: int, tokens: int, temperature: float) -> dict[str, Any]:
        """Time texts that all come at once."""
        library = self._library
        settings = library.llama_context_default_params()
        settings.n_ctx = streams * (prompt + tokens + 64)
        settings.n_batch, settings.n_ubatch, settings.n_seq_max = streams * CHUNK, CHUNK, streams
        settings.n_threads = settings.n_threads_batch = self._threads
        context = library.llama_init_from_model(self._model, settings)
        batch = library.llama_batch_init(streams * max(prompt, 1), 0, 1)
        samplers = [self._sampler(temperature, seed) for seed in range(streams)]
        prompts = drawn_prompts(streams, prompt)
        seconds, processor = time.perf_counter(), time.process_time()
        rows = [
            (token, at, stream, at == prompt - 1) for stream, ids in enumerate(prompts) for at, token in enumerate(ids)
        ]
        self._run(context, batch, rows)
        chosen = [
            library.llama_sampler_sample(sampler, context, (stream + 1) * prompt - 1)
            for stream, sampler in enumerate(samplers)
        ]
        for step in range(tokens - 1):
            self._run(context, batch, [(token, prompt + step, stream, True) for stream, token in enumerate(chosen)])
            chosen = [library.llama_sampler_sample(sampler, context, stream) for stream, sampler in enumerate(samplers)]
        seconds, processor = time.perf_counter() - seconds, time.process_time() - processor
        for sampler in samplers:
            library.llama_sampler_free(sampler)
        library.llama_batch_free(batch)
        library.llama_free(context)
        return {"seconds": seconds, "processor_seconds": processor, "kernel_seconds": None}

    def _sampler(self, temperature: float, seed: int) -> Any:
        library = self._library
        chain = library.llama_sampler_chain_init(library.llama_sampler_chain_default_params())
        if temperature:
            library.llama_sampler_chain_add(chain, library.llama_sampler_init_temp(temperature))
            library.llama_sampler_chain_add(chain, library.llama_sampler_init_dist(seed))
        else:
            library.llama_sampler_chain_add(chain, library.llama_sampler_init_greedy())
        return chain

    def _run(self, context: Any, batch: Any, rows: Sequence[tuple[int, int, int, bool]]) -> None:
        batch.n_tokens = len(rows)
        for place, (token, position, stream, wants_logits) in enumerate(rows):
            batch.token[place], batch.pos[place] = token, position
            batch.n_seq_id[place], batch.seq_id[place][0] = 1, stream
            batch.logits[place] = wants_logits
        status = self._library.llama_decode(context, batch)
        if status != 0:
            raise RuntimeError(f"llama.cpp's llama_decode returned {status}")


SERVERS: dict[str, Callable[[str, int], Any]] = {"lattice": LatticeServer, "llama.cpp": LlamaCppServer}
"""What can be measured, ours first."""


def main(arguments: Sequence[str]) -> None:
    """Serve requests until standard input ends."""
    name, path, _, threads = arguments
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not come between the answers
    server = SERVERS[name](path, int(threads))
    _answer(answers, {"ready": True, "instructions": server.instructions})
    for line in sys.stdin:
        request = json.loads(line)
        _answer(answers, getattr(server, request.pop("do"))(**request))


def _answer(answers: Any, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
