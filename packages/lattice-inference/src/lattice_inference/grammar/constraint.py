"""A grammar in one generation: masks with stop tokens, and tokens that need no logits."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from types import MappingProxyType

import numpy as np

from lattice_inference.errors import GrammarError
from lattice_inference.grammar.matcher import Bits, Matcher, mask_words

__all__ = ["Constraint"]

FIRST_SECONDS = 4e-4
"""What the first mask of a text is assumed to take: nothing of its lexer is computed yet."""


class Constraint:
    """Follows one text under a grammar. For one thread at a time.

    Args:
        matcher: at the text's beginning.
        stop_token_ids: the tokens that end a text; where it may end, they are all allowed, elsewhere none.
        vocab_size: how many tokens there are.
        shown: texts of special tokens that are a part of the text.

    Attributes:
        mask_seconds: what a mask takes, on average over the latest ones.

    Raises:
        GrammarError: there is no token to end a text with.
    """

    def __init__(
        self,
        matcher: Matcher,
        stop_token_ids: Collection[int],
        vocab_size: int,
        shown: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        self._matcher = matcher
        self.shown = shown
        stops = [token_id for token_id in stop_token_ids if token_id < vocab_size]
        if not stops:
            raise GrammarError("a grammar's text ends by a stop token, and the model names none: set stop_token_ids")
        self._stops = [(token_id // 32, 1 << token_id % 32) for token_id in stops]
        self._bits: Bits = np.zeros(mask_words(vocab_size), np.uint32)
        self._used = 0
        self._is_filled = False
        self.mask_seconds: float = FIRST_SECONDS

    def allowed(self) -> Bits:
        """Return the tokens that may come next, one bit each; the array is used again.

        Raises:
            GrammarError: none may.
        """
        if not self._is_filled:
            bits = self._bits
            start = time.perf_counter()
            can_end = self._matcher.fill(bits)
            self.mask_seconds += (time.perf_counter() - start - self.mask_seconds) / 4
            for word, bit in self._stops:
                here = int(bits[word])
                bits[word] = here | bit if can_end else here & ~bit
            if not can_end and bits[self._used] == 0:  # the word that had a token before mostly has one again
                self._used = int(bits.argmax())
            if not can_end and bits[self._used] == 0:
                raise GrammarError("the grammar allows no token here: the vocabulary cannot spell what it needs")
            self._is_filled = True
        return self._bits

    @property
    def is_filled(self) -> bool:
        """Whether the mask of the next token is made."""
        return self._is_filled

    def forced(self) -> int | None:
        """Return the one token that may come next, ``None`` where there are several.

        A mask is made only where there may be one alone; else it is left for the time in which the model runs.
        """
        if not self._is_filled and self._matcher.may_have_choice:
            return None
        bits = self.allowed()
        index = int(bits.argmax())
        word = int(bits[index])
        if word & (word - 1) or np.count_nonzero(bits) > 1:
            return None
        return index * 32 + word.bit_length() - 1

    def count_allowed(self, token_ids: list[int]) -> int:
        """Return how many of ``token_ids``, counted from the first, may come next.

        None of them ends a text. The constraint stays as it is.
        """
        return self._matcher.count_allowed(token_ids)

    def accept(self, token_id: int) -> None:
        """Take the next token of the text."""
        self._matcher.accept(token_id)
        self._is_filled = False
