"""The log-probabilities of a prompt's own tokens."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

from lattice_inference.generate.sampler import TokenLogprobs, token_logprobs
from lattice_inference.generate.windows import Window, predictions

if TYPE_CHECKING:
    from lattice_inference.generate.engine import Engine

__all__ = ["prompt_logprobs"]


def prompt_logprobs(
    engine: Engine, token_ids: Sequence[int], top: int, adapter: str | None = None
) -> Generator[list[TokenLogprobs], None, None]:
    """Yield the log-probabilities of all tokens but the first, some at a time.

    Each part is one call of the model. They are those that a generation with ``logprobs=top`` would tell if it drew these
    tokens. The prompt is run in a separate cache, so that the engine's thread can run each part between two steps.

    Args:
        engine: its model, its type of cached values and its vocabulary are used.
        token_ids: the prompt.
        top: how many of the most probable tokens to list for each.
        adapter: the name of one of the model's adapters.

    Raises:
        NonFiniteError: the model computed NaN.
        CacheFullError: the process has too little address space.
    """
    if len(token_ids) < 2:
        return
    vocabulary = engine._prepare.vocab_size
    model = engine.model
    with (
        model.open_cache(tokens=len(token_ids), dtype=engine.config.cache_dtype) as cache,
        cache.sequence(adapter=adapter) as sequence,
    ):
        for part in predictions(model, sequence, token_ids, Window(0, len(token_ids), 1)):
            rows = part.logits[:, :vocabulary]
            yield [token_logprobs(row, int(target), top) for row, target in zip(rows, part.targets, strict=True)]
