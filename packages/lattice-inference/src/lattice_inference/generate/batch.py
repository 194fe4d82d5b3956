"""Several generations in one batch: each step runs all that the cache has room for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from lattice_inference.generate.config import ResolvedConfig
from lattice_inference.generate.generation import Generation, advance
from lattice_inference.generate.result import GenerateResult

if TYPE_CHECKING:
    from lattice_inference.generate.causal_language_model import CausalLanguageModel
    from lattice_inference.lora.attached_adapter import AttachedAdapter
    from lattice_inference.state import CachedSequence, KvCache

__all__ = ["generate_batch"]

Request = tuple[list[int], ResolvedConfig, "AttachedAdapter | None"]


def generate_batch(
    model: CausalLanguageModel,
    cache: KvCache,
    requests: Sequence[Request],
    begin: Callable[[CachedSequence, list[int], ResolvedConfig], Generation],
    *,
    most_tokens: int,
    chunk: int,
) -> list[GenerateResult]:
    """Run ``requests`` and return their results in their order.

    A request begins when the cache can hold the longest context that it and those in progress may come to; one alone
    always begins. Requests end one by one and make room for the next.

    Args:
        model: the model.
        cache: where their keys and values go.
        requests: tokens, how to go on from them, and with which adapter.
        begin: makes the generation of a request whose sequence may hold a beginning of its tokens already.
        most_tokens: the longest context.
        chunk: tokens of prompts in one step.
    """
    waiting = deque(enumerate(requests))
    active: dict[int, Generation] = {}
    claimed: dict[int, int] = {}
    results: dict[int, GenerateResult] = {}
    page = cache.page_tokens
    room = (
        cache.capacity
        - -(-cache.used_bytes // cache.storage.page_bytes) * page
        + cache.remembered_bytes // (cache.storage.page_bytes) * page
    )
    try:
        while waiting or active:
            while waiting:
                index, (ids, config, adapter) = waiting[0]
                longest = min(len(ids) + config.max_new_tokens, most_tokens)
                need = -(-longest // page) * page
                if active and sum(claimed.values()) + need > room:
                    break
                waiting.popleft()
                sequence = cache.start(ids, adapter=adapter)
                try:
                    active[index] = begin(sequence, ids, config)
                except BaseException:
                    sequence.close()
                    raise
                claimed[index] = need
            running = [generation for generation in active.values() if generation.finish_reason is None]
            if running:
                advance(model, running, chunk)
            for index in [index for index, generation in active.items() if generation.finish_reason is not None]:
                generation = active.pop(index)
                del claimed[index]
                results[index] = generation.result()
                cache.remember(generation.sequence)
                generation.close()
    finally:
        for generation in active.values():
            generation.close()
    return [results[index] for index in range(len(requests))]
