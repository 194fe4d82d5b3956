"""From a prompt and a configuration to the tokens and settings of a generation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from lattice_inference.argument_checks import check_provides, checked_flag
from lattice_inference.errors import InvalidInputError, TextTooLongError
from lattice_inference.generate.config import GenerateConfig, ResolvedConfig
from lattice_inference.generate.generation_config_file import parse_generation_config
from lattice_inference.generate.prompt_tokens import answer_end_ids, check_vocabulary, end_token_ids, prompt_ids

if TYPE_CHECKING:
    from lattice_inference.generate.causal_language_model import CausalLanguageModel
    from lattice_inference.grammar.constraint import Constraint
    from lattice_inference.tokenizer import Tokenizer

__all__ = ["Preparation", "Prompt", "known_tokens"]

Prompt = str | Sequence[int]
"""A text, or token ids."""


class Preparation:
    """Turns prompts and configurations into what a generation takes. Thread-safe.

    Args:
        model: the model.
        tokenizer: by default the model's own, if it has one.
        max_tokens: the longest context; by default the model's.
        use_model_config: whether the model's generation_config.json sets the fields that a configuration does not.
        special_tokens_in_text: whether the spelling of a special token in a prompt becomes that token.

    Raises:
        InvalidInputError: an argument that does not fit the model.
        UnsupportedError: the model's generation_config.json demands something that is not supported.

    Attributes:
        tokenizer: the tokenizer, or None.
        max_tokens: the longest context.
        vocab_size: how many of the model's logits belong to tokens.
    """

    def __init__(
        self,
        model: CausalLanguageModel,
        tokenizer: Tokenizer | None,
        *,
        max_tokens: int | None,
        use_model_config: bool,
        special_tokens_in_text: bool,
    ) -> None:
        check_provides("model", model, "open_cache", "a language model, as load_model() gives it")
        if tokenizer is not None:
            check_provides("tokenizer", tokenizer, "token_of", "a tokenizer, as load_tokenizer() gives it, or None")
        self._model = model
        self._special_tokens_in_text = special_tokens_in_text
        self.tokenizer: Tokenizer | None = model.tokenizer if tokenizer is None and model.has_tokenizer else tokenizer
        self.max_tokens: int = model.context_length if max_tokens is None else max_tokens
        if self.max_tokens > model.context_length:
            raise InvalidInputError(
                f"max_tokens is {self.max_tokens:,}; the model takes {model.context_length:,} tokens"
            )
        self._model_config = (
            parse_generation_config(model.generation_config, f"{model.directory}/generation_config.json")
            if use_model_config
            else GenerateConfig()
        )
        self.vocab_size: int = model.vocab_size
        if self.tokenizer is not None:
            self.vocab_size = known_tokens(self.tokenizer, model.vocab_size)

    @cached_property
    def stop_token_ids(self) -> frozenset[int]:
        """The tokens that end a text, from the model's files, the tokenizer and the chat template."""
        ids = frozenset(self._model.eos_token_ids)
        if self.tokenizer is not None:
            ids |= end_token_ids(self.tokenizer, self._model.special_tokens)
            if self._model.chat_template is not None:
                ids |= answer_end_ids(self.tokenizer, self._model.chat_template)
        return ids

    def prompt_ids(
        self, prompt: Prompt, begins: bool, special_tokens_in_text: bool | None = None, what: str = "the prompt"
    ) -> list[int]:
        """Return the tokens of a prompt; see :func:`prompt_tokens.prompt_ids`."""
        found = self._special_tokens_in_text if special_tokens_in_text is None else special_tokens_in_text
        found = checked_flag("special_tokens_in_text", found)
        return prompt_ids(self.tokenizer, prompt, begins=begins, what=what, special_tokens_in_text=found)

    def resolve(self, config: GenerateConfig | None) -> ResolvedConfig:
        """Return a configuration with every field set."""
        if config is not None and not isinstance(config, GenerateConfig):
            raise InvalidInputError(f"config is a {type(config).__name__}; expected a GenerateConfig")
        resolved = (config or GenerateConfig()).resolve(self._model_config, stop_token_ids=self.stop_token_ids)
        if resolved.stop and self.tokenizer is None:
            raise InvalidInputError(
                "the model has no tokenizer, so no text can end it: leave stop out, or pass a tokenizer"
            )
        return resolved

    def constraint(self, config: ResolvedConfig) -> Constraint | None:
        """Return the constraint that makes a text follow the configuration's grammar."""
        if config.grammar is None:
            return None
        if self.tokenizer is None:
            raise InvalidInputError("the model has no tokenizer, so no grammar can be followed: pass a tokenizer")
        from lattice_inference.grammar.compiler import compiler_of
        from lattice_inference.grammar.constraint import Constraint

        compiler, grammar = compiler_of(self.tokenizer, self.vocab_size), config.grammar
        return Constraint(compiler.matcher(grammar), config.stop_token_ids, self.vocab_size, compiler.shown(grammar))

    def check_context(self, context: Sequence[int], config: ResolvedConfig) -> None:
        """Check the tokens before the first generated one.

        Raises:
            InvalidInputError: there is none, or one is outside the vocabulary.
            TextTooLongError: they are more than ``max_tokens``.
        """
        if not context and config.max_new_tokens:
            raise InvalidInputError("there is nothing to generate from: the prompt has no tokens; give it a text")
        if len(context) > self.max_tokens:
            raise TextTooLongError(
                f"the prompt makes a context of {len(context):,} tokens; at most {self.max_tokens:,} are taken"
            )
        check_vocabulary(context, self._model.vocab_size, "the prompt")

    def continues(self, context: Sequence[int], config: ResolvedConfig) -> bool:
        """Return whether a leading blank is kept: after a text, and always with a grammar."""
        return config.grammar is not None or (
            self.tokenizer is not None
            and bool(context)
            and self.tokenizer.id_to_token(context[-1]) is not None
            and (self.tokenizer.token_of(context[-1], skip_special_tokens=True) is not None)
        )


def known_tokens(tokenizer: Tokenizer, vocab_size: int) -> int:
    """Return how many of a model's logits belong to tokens; unused rows are at the end."""
    known = vocab_size
    while known and tokenizer.id_to_token(known - 1) is None:
        known -= 1
    if not known:
        raise InvalidInputError("the tokenizer has no token of the model's vocabulary")
    return known
