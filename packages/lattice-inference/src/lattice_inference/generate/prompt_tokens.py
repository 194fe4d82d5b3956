"""The tokens of prompts, with one beginning-of-text token, and the tokens that end texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from lattice_inference.errors import InvalidInputError
from lattice_inference.token_ids import checked_token_ids

if TYPE_CHECKING:
    from lattice_inference.tokenizer import Tokenizer
    from lattice_inference.tokenizer.chat_template import ChatTemplate

__all__ = ["answer_end_ids", "check_vocabulary", "encode_rendered", "end_token_ids", "prompt_ids", "rendered_tokens"]

_END_ROLES = ("eos_token", "eot_token", "eom_token")


def prompt_ids(
    tokenizer: Tokenizer | None,
    prompt: str | Sequence[int],
    *,
    begins: bool,
    what: str = "the prompt",
    special_tokens_in_text: bool = True,
) -> list[int]:
    """Return the tokens of a prompt; given token ids stay as they are.

    Args:
        tokenizer: the model's tokenizer, or None.
        prompt: a text or token ids.
        begins: whether the text begins a context; the tokenizer's beginning tokens then come first, exactly once.
        what: the prompt's name in errors.
        special_tokens_in_text: whether the spelling of a special token in the text becomes that token.

    Raises:
        InvalidInputError: the prompt is neither a text nor token ids, or is a text and there is no tokenizer.
    """
    if isinstance(prompt, str):
        if tokenizer is None:
            raise InvalidInputError("the model has no tokenizer: pass token ids, or a tokenizer")
        plain = [] if special_tokens_in_text else [(0, len(prompt))]
        if begins:
            return encode_rendered(tokenizer, prompt, plain)
        ids: list[int] = tokenizer.encode_marked(prompt, plain, add_special_tokens=False).ids.tolist()
        return ids
    return checked_token_ids(prompt, what, "a str or token ids")


def check_vocabulary(token_ids: Sequence[int], vocab_size: int, what: str) -> None:
    """Raise an error if a token id is outside the model's vocabulary.

    Raises:
        InvalidInputError: ``what`` holds an id that is not below ``vocab_size``.
    """
    if token_ids and max(token_ids) >= vocab_size:
        raise InvalidInputError(
            f"{what} holds the token id {max(token_ids):,}; the model's ids go to {vocab_size - 1:,}"
        )


def encode_rendered(tokenizer: Tokenizer, text: str, plain: Sequence[tuple[int, int]] = ()) -> list[int]:
    """Return the tokens of a text that begins a context; see :func:`rendered_tokens`."""
    return rendered_tokens(tokenizer, text, plain)[0]


def rendered_tokens(
    tokenizer: Tokenizer, text: str, plain: Sequence[tuple[int, int]] = ()
) -> tuple[list[int], npt.NDArray[np.int32]]:
    """Return the tokens of a text that begins a context, and the characters of each.

    The characters are (n, 2) int32. The tokens have the tokenizer's beginning tokens exactly once. No special tokens are
    added at the end. A chat template usually writes the beginning itself, and blanks before it are removed. Otherwise the
    tokenizer's beginning tokens are added, whose characters are (0, 0).

    Args:
        tokenizer: the model's tokenizer.
        text: a prompt, or a rendered conversation.
        plain: the ranges of characters that are part of no special token; see :meth:`Tokenizer.encode_marked`.
    """
    found = tokenizer.encode_marked(text, plain, add_special_tokens=False)
    ids: list[int] = found.ids.tolist()
    beginning = _beginning(tokenizer)
    if ids[: len(beginning)] == beginning:
        return ids, found.offsets
    blanks = len(text) - len(text.lstrip())
    if blanks:
        moved = [(max(start - blanks, 0), end - blanks) for start, end in plain if end > blanks]
        later = tokenizer.encode_marked(text[blanks:], moved, add_special_tokens=False)
        later_ids: list[int] = later.ids.tolist()
        if later_ids[: len(beginning)] == beginning:
            return later_ids, later.offsets + np.int32(blanks)
    return beginning + ids, np.concatenate([np.zeros((len(beginning), 2), np.int32), found.offsets])


def _beginning(tokenizer: Tokenizer) -> list[int]:
    """Return the special tokens that the tokenizer puts before a text."""
    text = "a"
    bare = tokenizer.encode(text, add_special_tokens=False).ids.tolist()
    whole = tokenizer.encode(text).ids.tolist()
    for start in range(len(whole) - len(bare) + 1):
        if whole[start : start + len(bare)] == bare:
            return list(whole[:start])
    return []


def end_token_ids(tokenizer: Tokenizer, special_tokens: Mapping[str, str]) -> set[int]:
    """Return the tokens whose role in the tokenizer's files is to end a text."""
    ids = {tokenizer.token_to_id(special_tokens[role]) for role in _END_ROLES if role in special_tokens}
    return {token_id for token_id in ids if token_id is not None}


def answer_end_ids(tokenizer: Tokenizer, template: ChatTemplate) -> set[int]:
    """Return the special token with which the chat template ends an answer, or an empty set."""
    end = template.answer_end().lstrip()
    for token_id in tokenizer.encode(end, add_special_tokens=False).ids.tolist()[:1] if end else []:
        if tokenizer.token_of(token_id, skip_special_tokens=True) is None or (
            # some files do not mark the token as special
            tokenizer.id_to_token(token_id) == end.rstrip() and len(end.rstrip()) > 1 and not end.rstrip().isalnum()
        ):
            return {token_id}
    return set()
