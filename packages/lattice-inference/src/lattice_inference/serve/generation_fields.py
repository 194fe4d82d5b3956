"""The fields that say how to generate, in the bodies of chat and of completions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lattice_inference.generate.config import MOST_LOGPROBS
from lattice_inference.serve.fields import Fields

if TYPE_CHECKING:
    from lattice_inference.generate.engine import Engine

__all__ = ["Asked", "SAMPLING_FIELDS", "asked_of", "chat_logprobs", "room_for"]

SAMPLING_FIELDS = (
    *("max_tokens", "n", "stream", "stream_options", "temperature", "top_p", "top_k", "min_p", "typical_p", "seed"),
    *(
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "stop",
        "stop_token_ids",
        "logprobs",
    ),
    "ignore_eos",
)
MOST_TOKENS = 2**31 - 1


@dataclass(frozen=True)
class Asked:
    """How a request wants its texts.

    Attributes:
        settings: the arguments of :class:`GenerateConfig`, but for ``max_new_tokens``, ``logprobs`` and ``grammar``.
        max_tokens: of a text; ``None`` for all that the context holds.
        n: how many texts.
        streams: whether they come as events.
        includes_usage: whether the last event tells the numbers of tokens.
    """

    settings: dict[str, Any]
    max_tokens: int | None
    n: int
    streams: bool
    includes_usage: bool


def asked_of(fields: Fields, most_choices: int, *, least_tokens: int = 1) -> Asked:
    """Take the fields of both routes; ``least_tokens`` is the least ``max_tokens``.

    Raises:
        ApiError: a value of a wrong type, or out of its range.
    """
    settings: dict[str, Any] = {
        "temperature": fields.number("temperature", 0, 2),
        "top_p": fields.number("top_p", 0, 1),
        "top_k": fields.integer("top_k", -1, MOST_TOKENS),
        "min_p": fields.number("min_p", 0, 1),
        "typical_p": fields.number("typical_p", 0, 1),
        "repetition_penalty": fields.number("repetition_penalty", 1e-3, 100),
        "presence_penalty": fields.number("presence_penalty", -2, 2),
        "frequency_penalty": fields.number("frequency_penalty", -2, 2),
        "logit_bias": _bias(fields),
        "stop": _stops(fields),
        "stop_token_ids": _ids(fields),
        "ignore_stop_tokens": fields.flag("ignore_eos"),
    }
    if settings["top_k"] == -1:
        settings["top_k"] = 0
    seed = fields.integer("seed", -(2**63), 2**64 - 1)
    settings["seed"] = None if seed is None else seed % 2**64
    streams = fields.flag("stream")
    options = fields.mapping("stream_options")
    if options is not None and not streams:
        fields.refuse("stream_options", "no value without stream")
    inner = Fields(options or {}, "stream_options.")
    includes_usage = inner.flag("include_usage")
    inner.flag("include_obfuscation")
    inner.finish(lenient=False)
    n = fields.integer("n", 1, most_choices)
    return Asked(settings, fields.integer("max_tokens", least_tokens, MOST_TOKENS), n or 1, streams, includes_usage)


def room_for(engine: Engine, prompt_tokens: int, asked: int | None) -> int:
    """Return how many tokens may be generated after a prompt."""
    most = min(engine.max_tokens, engine.config.cache_tokens or engine.max_tokens)
    room = max(1, most - prompt_tokens)
    return room if asked is None else min(asked, room)


def chat_logprobs(fields: Fields) -> int | None:
    """Return how many alternatives chat wants for each token, ``None`` for no log-probabilities."""
    wanted = fields.flag("logprobs")
    top = fields.integer("top_logprobs", 0, MOST_LOGPROBS)
    if top and not wanted:
        fields.refuse("top_logprobs", "no value without logprobs")
    return (top or 0) if wanted else None


def _bias(fields: Fields) -> dict[int, float] | None:
    given = fields.mapping("logit_bias")
    if not given:
        return None
    bias = {}
    for token, value in given.items():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not token.isascii() or not token.isdigit() or len(token) > 9 or not is_number or not -100 <= value <= 100:
            fields.refuse("logit_bias", "an object of token ids and numbers from -100 to 100")
        bias[int(token)] = float(value)
    return bias


def _stops(fields: Fields) -> list[str] | None:
    given = fields.any("stop")
    texts = [given] if isinstance(given, str) else given
    if texts is None:
        return None
    if not isinstance(texts, list) or len(texts) > 16 or not all(isinstance(text, str) and text for text in texts):
        fields.refuse("stop", "a text, or up to 16 texts")
    return list(texts) or None


def _ids(fields: Fields) -> list[int] | None:
    given = fields.any("stop_token_ids")
    if given is None:
        return None
    if not isinstance(given, list) or not all(type(one) is int and 0 <= one < MOST_TOKENS for one in given):
        fields.refuse("stop_token_ids", "a list of token ids")
    return list(given) or None
