"""One text under a grammar: which tokens may come next, and what has come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from lattice_inference.errors import GrammarError

if TYPE_CHECKING:
    from llguidance import LLMatcher

__all__ = ["Bits", "EngineMatcher", "Matcher", "error_text", "mask_words"]

Bits = npt.NDArray[np.uint32]
"""One bit a token: of token i it is bit i % 32 of word i // 32."""


def mask_words(vocab_size: int) -> int:
    """Return how many 32-bit words a mask has: one bit a token, and at least one more."""
    return vocab_size // 32 + 1


def error_text(engine: LLMatcher) -> str:
    """Return what an engine's matcher says went wrong, without its listings."""
    text = str(engine.get_error()).split("\n<state>")[0].split("\n   1 |")[0].strip()[:500]
    return "the vocabulary cannot spell what the text needs" if text == "NoExtensionBias" else text


class Matcher(Protocol):
    """Follows one text. What a mask allows depends on the accepted tokens alone."""

    def fill(self, bits: Bits) -> bool:
        """Set the bits of the tokens that may come next, and return :attr:`can_end`.

        All other bits are cleared.

        Args:
            bits: (:func:`mask_words`,) uint32.

        Raises:
            GrammarError: the grammar passes a limit of the engine.
        """

    @property
    def can_end(self) -> bool:
        """Whether the text obeys the grammar as it is."""

    @property
    def may_have_choice(self) -> bool:
        """``False`` where the text has to go on in one way or cannot go on, told without a mask.

        ``True`` where several tokens fit, as a rule; a mask may still have one only.
        """

    def accept(self, token_id: int) -> None:
        """Take the next token.

        Raises:
            GrammarError: the grammar does not allow it.
        """

    def count_allowed(self, token_ids: list[int]) -> int:
        """Return how many of ``token_ids``, counted from the first, may come next; none is taken."""

    def rollback(self, count: int) -> None:
        """Forget the last ``count`` accepted tokens."""

    def fork(self) -> Matcher:
        """Return another matcher of the same text, which goes its own way."""


class Source(Protocol):
    """The grammar of a matcher, whose lexer other texts share."""

    @property
    def is_quick(self) -> bool:
        """Whether it is compiled in some milliseconds."""

    def note_mask(self) -> None:
        """Take note of a mask, with which the lexer may have grown."""

    def note_failure(self) -> None:
        """Take note that the lexer has passed a limit."""

    def compile_again(self) -> LLMatcher:
        """Return a matcher with a new lexer, at its beginning."""


TOKENS_BETWEEN_LEXERS = 32
"""After how many tokens a text may get another lexer; one that needs it sooner passes a limit by itself."""


class EngineMatcher:
    """A :class:`Matcher` over llguidance's.

    The lexer is shared by a grammar's texts. Where it passes a limit, maybe because of other texts, this text goes on with
    a new one.

    Args:
        engine: at the beginning of a text.
        vocab_size: how many tokens there are.
        source: its grammar; without it a limit of the lexer ends the text.
    """

    def __init__(self, engine: LLMatcher, vocab_size: int, source: Source | None = None) -> None:
        self._engine = engine
        self._source = source
        self._tokens: list[int] = []
        self._lexer_since: int | None = None  # where the text got a lexer for itself
        self._vocab_size = vocab_size
        self._words = mask_words(vocab_size)
        self._end_bit = 1 << vocab_size % 32  # of the engine's own end token, in the last word
        self._filled: Bits | None = None
        self._address = self._bytes = 0

    def fill(self, bits: Bits) -> bool:
        """Set the bits of the tokens that may come next; see :meth:`Matcher.fill`."""
        if bits is not self._filled:  # looked at once: a text fills the same array again and again
            assert bits.dtype == np.uint32
            assert bits.shape == (self._words,)
            assert bits.flags.c_contiguous
            self._filled, self._address, self._bytes = bits, bits.ctypes.data, bits.nbytes
        self._engine.unsafe_compute_mask_ptr(self._address, self._bytes)
        last = int(bits[-1])
        can_end = bool(last & self._end_bit)
        if can_end and self._engine.is_error():  # where it fails, the engine allows its end token alone
            if self._takes_new_lexer():
                self._engine.unsafe_compute_mask_ptr(self._address, self._bytes)
                last = int(bits[-1])
                can_end = bool(last & self._end_bit)
            self._check()
        if self._source is not None:
            self._source.note_mask()
        bits[-1] = last & (self._end_bit - 1)
        return can_end

    @property
    def can_end(self) -> bool:
        """Whether the text obeys the grammar as it is."""
        return bool(self._engine.is_accepting())

    @property
    def may_have_choice(self) -> bool:
        """Whether more than one token may fit; see :meth:`Matcher.may_have_choice`."""
        # one token alone fits only if its first byte is the only one that may follow
        return not (self._engine.compute_ff_bytes() or self._engine.is_stopped())

    def accept(self, token_id: int) -> None:
        """Take the next token; see :meth:`Matcher.accept`."""
        if not self._engine.consume_token(token_id) and not (
            self._takes_new_lexer() and self._engine.consume_token(token_id)
        ):
            raise GrammarError(f"the grammar does not allow the token {token_id}: {error_text(self._engine)}")
        self._tokens.append(token_id)

    def count_allowed(self, token_ids: list[int]) -> int:
        """Return how many of ``token_ids``, counted from the first, may come next; none is taken."""
        return int(self._engine.validate_tokens(token_ids))

    def rollback(self, count: int) -> None:
        """Forget the last ``count`` accepted tokens."""
        if not count:
            return
        del self._tokens[-count:]
        if not self._engine.rollback(count) and not self._takes_new_lexer():
            self._check()

    def fork(self) -> EngineMatcher:
        """Return another matcher of the same text."""
        other = EngineMatcher(self._engine.deep_copy(), self._vocab_size, self._source)
        other._tokens, other._lexer_since = list(self._tokens), self._lexer_since
        return other

    def _takes_new_lexer(self) -> bool:
        """Follow the text with a new lexer if its own is full; return whether that was done."""
        if self._source is None or not error_text(self._engine).startswith("lexer error"):
            return False
        if self._lexer_since is None:
            self._source.note_failure()
        elif not self._source.is_quick or len(self._tokens) < self._lexer_since + TOKENS_BETWEEN_LEXERS:
            return False
        engine = self._source.compile_again()
        if engine.is_error() or not engine.consume_tokens(self._tokens):
            return False
        self._engine, self._lexer_since = engine, len(self._tokens)
        return True

    def _check(self) -> None:
        if self._engine.is_error():
            raise GrammarError(f"the grammar cannot be followed: {error_text(self._engine)}")
