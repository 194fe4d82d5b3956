"""The configuration of a generation, and the defaults of its fields."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

from lattice_inference.errors import InvalidInputError
from lattice_inference.generate.config_checks import (
    MOST_TOKENS,
    check_integer,
    check_number,
    checked_bias,
    checked_ids,
    checked_texts,
)
from lattice_inference.generate.draft_sources import Speculate, Verify, check_speculation
from lattice_inference.generate.sampler import LEAST_TEMPERATURE, SamplingConfig
from lattice_inference.value_text import value_text

if TYPE_CHECKING:
    from lattice_inference.grammar.specification import Grammar

__all__ = ["DEFAULTS", "MOST_LOGPROBS", "GenerateConfig", "ResolvedConfig"]

MOST_LOGPROBS = 20
"""The most alternatives per token that log-probabilities may list."""

MOST_SEED = 2**64 - 1


@dataclass(frozen=True)
class GenerateConfig:
    """How to generate.

    A field that is ``None`` takes its value from the model's own generation_config.json, then from :data:`DEFAULTS`.

    A temperature of 0, or below the range of float32 (1.2e-38), takes the most probable token instead of sampling. Of equal
    tokens it takes the lowest id. Fields that neither the caller nor the model's file sets then change no logits. So
    ``temperature=0`` alone is greedy decoding, unless the model's file has a repetition penalty. :meth:`greedy` uses
    nothing of the model's file.

    A step's logits go through, in this order: ``grammar``; ``logit_bias``; the repetition, presence and frequency penalties;
    ``temperature``; ``top_k``; ``typical_p``; ``top_p``; ``min_p``. Each works on the result of the one before.

    Attributes:
        max_new_tokens: the most tokens to generate; 0 generates none. Default 256.
        temperature: the logits are divided by it. 0 to 100; default 0.7. See above for 0.
        top_k: keep the ``top_k`` most probable tokens; 0 keeps all. Default 50.
        top_p: keep the most probable tokens until the sum of their probabilities reaches it. 0 to 1, 1 keeps all. Default
            0.9.
        min_p: drop tokens less probable than this fraction of the most probable one. 0 to 1, 0 keeps all. Default 0.
        typical_p: keep the tokens whose surprise is nearest to the entropy (Meister et al. 2022, arXiv 2202.00666), until
            the sum of their probabilities reaches it. 0 to 1, 1 keeps all. Default 1.
        repetition_penalty: applies once to every token that is in the prompt or was generated. Positive logits are divided
            by it and others are multiplied (Keskar et al. 2019, arXiv 1909.05858). Above 0; 1 changes nothing. Default
            1.1.
        presence_penalty: subtracted from the logit of every token generated so far. -100 to 100; default 0.
        frequency_penalty: subtracted from it once for each time it was generated. -100 to 100; default 0.
        logit_bias: a mapping of token ids to what is added to their logits; ``-inf`` forbids a token.
        seed: the seed of the random draws; the same seed draws the same token at the same position. 0 to 2**64 - 1.
            ``None`` takes a random one, and the result reports it.
        stop: texts that end the generation; the text ends before the first of them. One ``str`` is one text.
        stop_token_ids: tokens that end the generation, in addition to those of the model, its tokenizer and its chat
            template.
        ignore_stop_tokens: continue past all stop tokens; for measurements.
        logprobs: return each token's log-probability and those of this many alternatives (0 to 20). They come from the
            model's unchanged logits. ``None`` returns none.
        grammar: the grammar that the text follows: a :class:`JsonSchema`, :class:`Regex`, :class:`Gbnf`, :class:`Lark` or
            :class:`Choice`. It is applied before all that changes logits. A text that ends with a stop token follows it
            completely. One that ends by its length, a stop text or a cancellation is the beginning of such a text.
        speculate: guess tokens, and check several in one step of the model. ``"ngram"`` guesses what followed the same
            tokens earlier in the prompt or the text. A second, smaller language model with the same vocabulary guesses
            what it would say. ``"mtp"`` uses the model's own heads for further tokens, ``"self"`` its linear layers; both
            are an error for a model that has none. Tokens, text and log-probabilities have the same bits as without it.
        verify: ``"exact"``, or ``"distribution"`` for a draft model: a drafted token is kept by rejection sampling
            (Leviathan et al. 2023, arXiv 2211.17192). Tokens then have the same probabilities as without drafts, but are
            other ones for the same seed. In batches and engines they also depend on which drafts find room.

    Raises:
        InvalidInputError: a value out of its range or of the wrong type.
    """

    max_new_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = None
    seed: int | None = None
    stop: str | Collection[str] | None = None
    stop_token_ids: Collection[int] | None = None
    ignore_stop_tokens: bool = False
    logprobs: int | None = None
    grammar: Grammar | None = None
    speculate: Speculate | None = None
    verify: Verify | None = None

    def __post_init__(self) -> None:
        check_integer("max_new_tokens", self.max_new_tokens, 0, MOST_TOKENS)
        check_number("temperature", self.temperature, 0.0, 100.0)
        check_integer("top_k", self.top_k, 0, MOST_TOKENS)
        check_number("top_p", self.top_p, 0.0, 1.0)
        check_number("min_p", self.min_p, 0.0, 1.0)
        check_number("typical_p", self.typical_p, 0.0, 1.0)
        check_number("repetition_penalty", self.repetition_penalty, 0.0, 100.0)
        if self.repetition_penalty is not None and not self.repetition_penalty >= LEAST_TEMPERATURE:
            raise InvalidInputError(
                f"repetition_penalty is {self.repetition_penalty}; it must be above 0 (1.2e-38 or more); 1 "
                "changes nothing"
            )
        check_number("presence_penalty", self.presence_penalty, -100.0, 100.0)
        check_number("frequency_penalty", self.frequency_penalty, -100.0, 100.0)
        check_integer("seed", self.seed, 0, MOST_SEED)
        check_integer("logprobs", self.logprobs, 0, MOST_LOGPROBS)
        if not isinstance(self.ignore_stop_tokens, bool):
            raise InvalidInputError(
                f"ignore_stop_tokens is {value_text(self.ignore_stop_tokens)}; expected True or False"
            )
        if self.grammar is not None and not callable(getattr(self.grammar, "engine_grammar", None)):
            raise InvalidInputError(
                f"grammar is {value_text(self.grammar)}; expected a JsonSchema, Regex, Gbnf, Lark or Choice"
            )
        if self.grammar is not None and self.ignore_stop_tokens:
            raise InvalidInputError("ignore_stop_tokens and grammar exclude each other: a grammar's text ends by one")
        check_speculation(self.speculate, self.verify)
        if self.logit_bias is not None:
            object.__setattr__(self, "logit_bias", checked_bias(self.logit_bias))
        if self.stop is not None:
            object.__setattr__(self, "stop", checked_texts(self.stop))
        if self.stop_token_ids is not None:
            object.__setattr__(self, "stop_token_ids", checked_ids("stop_token_ids", self.stop_token_ids))

    @classmethod
    def greedy(cls, max_new_tokens: int | None = None) -> GenerateConfig:
        """Return greedy decoding; it ignores the model's generation_config.json."""
        return cls(
            max_new_tokens=max_new_tokens,
            temperature=0.0,
            top_k=0,
            top_p=1.0,
            min_p=0.0,
            typical_p=1.0,
            repetition_penalty=1.0,
            presence_penalty=0.0,
            frequency_penalty=0.0,
            seed=0,
        )

    def filled_from(self, other: GenerateConfig) -> GenerateConfig:
        """Return this configuration with its unset fields taken from ``other``.

        ``stop_token_ids`` is the union of both.
        """
        if not isinstance(other, GenerateConfig):
            raise InvalidInputError(f"a GenerateConfig is filled from another one, not from {value_text(other)}")
        left_out = {item.name: getattr(other, item.name) for item in fields(self) if getattr(self, item.name) is None}
        ids = frozenset(self.stop_token_ids or ()) | frozenset(other.stop_token_ids or ())
        return replace(self, **{**left_out, "stop_token_ids": ids})

    def resolve(self, model: GenerateConfig | None = None, *, stop_token_ids: Iterable[int] = ()) -> ResolvedConfig:
        """Return the configuration with every field set.

        Args:
            model: the configuration from the model's own generation_config.json.
            stop_token_ids: further tokens that end a generation.
        """
        config = self if model is None else self.filled_from(model)
        config = config.filled_from(_GREEDY_DEFAULTS if _is_greedy(config.temperature) else DEFAULTS)
        assert config.max_new_tokens is not None
        stops = frozenset(config.stop_token_ids or ()) | checked_ids("stop_token_ids", stop_token_ids)
        return ResolvedConfig(
            max_new_tokens=config.max_new_tokens,
            sampling=SamplingConfig(
                temperature=float(config.temperature or 0),
                top_k=config.top_k or 0,
                top_p=_given(config.top_p),
                min_p=float(config.min_p or 0),
                typical_p=_given(config.typical_p),
                repetition_penalty=_given(config.repetition_penalty),
                presence_penalty=float(config.presence_penalty or 0),
                frequency_penalty=float(config.frequency_penalty or 0),
                logit_bias=dict(config.logit_bias or {}),
            ),
            seed=int.from_bytes(os.urandom(8)) if config.seed is None else config.seed,
            stop=checked_texts(config.stop or ()),
            stop_token_ids=frozenset() if config.ignore_stop_tokens else stops,
            logprobs=config.logprobs,
            grammar=config.grammar,
            speculate=config.speculate,
            verify=config.verify or "exact",
        )


DEFAULTS = GenerateConfig(
    max_new_tokens=256,
    temperature=0.7,
    top_k=50,
    top_p=0.9,
    min_p=0.0,
    typical_p=1.0,
    repetition_penalty=1.1,
    presence_penalty=0.0,
    frequency_penalty=0.0,
)
"""The values of fields that neither the caller nor the model's generation_config.json sets."""

_GREEDY_DEFAULTS = replace(DEFAULTS, top_k=0, top_p=1.0, repetition_penalty=1.0)


@dataclass(frozen=True)
class ResolvedConfig:
    """A configuration with every field set; made by :meth:`GenerateConfig.resolve`.

    Attributes:
        max_new_tokens: the most tokens to generate.
        sampling: how a token is chosen.
        seed: the seed of the random draws.
        stop: texts that end the generation.
        stop_token_ids: tokens that end the generation.
        logprobs: how many alternatives to return per token; ``None`` returns no log-probabilities.
        grammar: the grammar that the text follows, or ``None``.
        speculate: what guesses tokens, or ``None``.
        verify: how a guess is checked.
    """

    max_new_tokens: int
    sampling: SamplingConfig
    seed: int
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = field(default_factory=frozenset)
    logprobs: int | None = None
    grammar: Grammar | None = None
    speculate: Speculate | None = None
    verify: Verify = "exact"


def _is_greedy(temperature: float | None) -> bool:
    return temperature is not None and float(temperature) < LEAST_TEMPERATURE


def _given(value: float | None) -> float:
    assert value is not None
    return float(value)
