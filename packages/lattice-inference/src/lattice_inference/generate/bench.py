"""How fast a model reads prompts and generates."""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from lattice_inference.errors import InvalidInputError
from lattice_inference.generate.config import GenerateConfig
from lattice_inference.generate.session import Session, SessionConfig
from lattice_inference.runtime import get_num_threads
from lattice_inference.token_ids import as_token_id
from lattice_inference.value_text import value_text

if TYPE_CHECKING:
    from lattice_inference.generate.causal_language_model import CausalLanguageModel

__all__ = ["Measurement", "measure_generation"]


@dataclass(frozen=True)
class Measurement:
    """Medians of several runs.

    Attributes:
        prompt_tokens: length of the prompt.
        generate_tokens: tokens generated.
        prompt_speed: tokens of the prompt a second, to the logits of its last one.
        generate_speed: tokens a second, by the slope between a quarter of the tokens and all.
        first_token_seconds: from the call to the first token.
        cache_bytes: keys and values at the end.
        cache_token_bytes: those of one token.
        threads: threads of the pool.
        repeat: runs.
    """

    prompt_tokens: int
    generate_tokens: int
    prompt_speed: float
    generate_speed: float
    first_token_seconds: float
    cache_bytes: int
    cache_token_bytes: int
    threads: int
    repeat: int

    def as_json(self) -> dict[str, float]:
        """Return it as JSON has it."""
        return asdict(self)


def measure_generation(
    model: CausalLanguageModel,
    *,
    prompt_tokens: int = 512,
    generate_tokens: int = 128,
    repeat: int = 3,
    config: SessionConfig | None = None,
) -> Measurement:
    """Measure greedy generation after a drawn prompt, once to settle and then ``repeat`` times.

    Raises:
        InvalidInputError: fewer than 1 token of a prompt, than 8 to generate, than 1 run, or more than the context.
    """
    for name, value, least in (
        ("prompt_tokens", prompt_tokens, 1),
        ("generate_tokens", generate_tokens, 8),
        ("repeat", repeat, 1),
    ):
        if as_token_id(value) is None or value < least:
            raise InvalidInputError(f"{name} is {value_text(value)}; expected at least {least}")
    prompt = np.random.default_rng(0).integers(0, model.vocab_size, prompt_tokens).tolist()
    prompt_times, first_times, slopes = [], [], []
    with Session(model, config=config) as session:
        if prompt_tokens + generate_tokens > session.max_tokens:
            raise InvalidInputError(
                f"{prompt_tokens:,} + {generate_tokens:,} tokens do not fit into a context of {session.max_tokens:,}"
            )
        greedy = GenerateConfig(
            max_new_tokens=generate_tokens, temperature=0, repetition_penalty=1, ignore_stop_tokens=True
        )
        for run in range(repeat + 1):
            session.reset()
            start = time.perf_counter()
            times = []
            stream = session.stream(prompt, greedy)
            for piece in stream:
                if piece.token_id is not None:
                    times.append(time.perf_counter() - start)
            if run:
                early = generate_tokens // 4
                slopes.append((len(times) - early) / (times[-1] - times[early - 1]))
                first_times.append(times[0])
                prompt_times.append(stream.result.prompt_seconds)
        cache_bytes, cache_token_bytes = session.cache_bytes, session.cache_token_bytes
    return Measurement(
        prompt_tokens=prompt_tokens,
        generate_tokens=generate_tokens,
        prompt_speed=prompt_tokens / statistics.median(prompt_times),
        generate_speed=statistics.median(slopes),
        first_token_seconds=statistics.median(first_times),
        cache_bytes=cache_bytes,
        cache_token_bytes=cache_token_bytes,
        threads=get_num_threads(),
        repeat=repeat,
    )
