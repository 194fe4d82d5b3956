"""What an engine is given, and what it says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lattice_inference.argument_checks import as_number, check_integer, checked_flag
from lattice_inference.errors import InvalidInputError
from lattice_inference.value_text import value_text

if TYPE_CHECKING:
    from lattice_inference.generate.causal_language_model import CacheType

__all__ = ["EngineConfig", "EngineStats"]


@dataclass(frozen=True)
class EngineConfig:
    """The configuration of an :class:`Engine`.

    Attributes:
        cache_tokens: the most tokens in the cache, over all requests and remembered prefixes; by default ``max_tokens``.
        max_tokens: the longest context of a request, prompt and generated tokens together; by default the model's context
            length. A request that is longer than the cache is refused.
        step_ms: how long a step should take while texts are being generated, in milliseconds. Prompts get what is left.
        step_tokens: the most tokens of prompts in a step, 1 to 2**20; by default the model's ``step_tokens``.
        cache_dtype: the type of the cached keys and values.
        page_tokens: the number of tokens in a page of the cache.
        prefix_bytes: the most bytes of remembered prompts and texts. They lie in pages that no request needs.
        sequences: how many requests run at once, at most, for a model with recurrent layers. 1 to 4,096.
        outbox_pieces: how many unread pieces a stream holds before its request is parked. 1 to 2**20.
        stall_timeout: after how many seconds without a read a parked request is cancelled.
        use_model_config: as in :class:`SessionConfig`.
        special_tokens_in_text: as in :class:`SessionConfig`.

    Raises:
        InvalidInputError: a value out of its range.
    """

    cache_tokens: int | None = None
    max_tokens: int | None = None
    step_ms: float = 100.0
    step_tokens: int | None = None
    cache_dtype: CacheType = "float16"
    page_tokens: Literal[16, 32, 64] = 32
    prefix_bytes: int = 2**28
    sequences: int = 64
    outbox_pieces: int = 1024
    stall_timeout: float = 60.0
    use_model_config: bool = True
    special_tokens_in_text: bool = True

    def __post_init__(self) -> None:
        check_integer("cache_tokens", self.cache_tokens, 1, 2**40)
        check_integer("max_tokens", self.max_tokens, 1, 2**31)
        check_integer("step_tokens", self.step_tokens, 1, 2**20)
        check_integer("outbox_pieces", self.outbox_pieces, 1, 2**20)
        if self.outbox_pieces is None:
            raise InvalidInputError("outbox_pieces is None; expected an integer from 1 to 1,048,576")
        for name in ("step_ms", "stall_timeout"):
            number = as_number(getattr(self, name))
            if number is None or not 0 < number <= 1e9:
                raise InvalidInputError(
                    f"{name} is {value_text(getattr(self, name))}; expected a positive number, at most 1e9"
                )
        checked_flag("use_model_config", self.use_model_config)
        checked_flag("special_tokens_in_text", self.special_tokens_in_text)


@dataclass(frozen=True)
class EngineStats:
    """What an engine does and has done.

    Attributes:
        waiting: requests that have no sequence in the cache.
        running: requests that have one.
        parked: how many of both wait for their readers, or for another prompt with the same beginning.
        finished: requests that came to their end.
        cancelled: requests that were cancelled, or had no time left.
        failed: requests that ended by an error.
        steps: calls of the model.
        rows: of all steps together: parts of requests that were run in them.
        step_seconds: how long the steps took.
        prompt_tokens: tokens of prompts that were run, those of preempted requests again.
        new_tokens: tokens that were generated.
        preemptions: how often a request lost its pages and was run again.
        cache_pages: the pages of the cache.
        used_pages: the pages that requests or remembered prefixes hold.
        remembered_pages: the pages that remembered prefixes hold, shared or not.
    """

    waiting: int
    running: int
    parked: int
    finished: int
    cancelled: int
    failed: int
    steps: int
    rows: int
    step_seconds: float
    prompt_tokens: int
    new_tokens: int
    preemptions: int
    cache_pages: int
    used_pages: int
    remembered_pages: int
