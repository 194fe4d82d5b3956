"""Compiles grammars into matchers over a tokenizer's tokens, and keeps what it compiled."""

from __future__ import annotations

import contextlib
import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from lattice_inference.errors import GrammarError, LatticeError, UnsupportedError
from lattice_inference.grammar.kept_grammars import KeptGrammar, KeptGrammars
from lattice_inference.grammar.matcher import EngineMatcher, error_text
from lattice_inference.grammar.vocabulary import token_bytes
from lattice_inference.process_lock import ProcessLock

if TYPE_CHECKING:
    from collections.abc import Callable

    from llguidance import LLMatcher, LLTokenizer

    from lattice_inference.grammar.specification import Grammar, MarkedGrammar
    from lattice_inference.tokenizer import Tokenizer

__all__ = ["GrammarCompiler", "begin_compiler", "compiler_of"]

# Limits of the engine: states of its lexer and size of a grammar bound the memory, fuel bounds the time.
LIMITS = {
    "max_items_in_row": 8_000,  # 1,000 optional properties take 4,000
    "initial_lexer_fuel": 10_000_000,
    "step_lexer_fuel": 1_000_000,
    "step_max_items": 100_000,
    "max_lexer_states": 50_000,
    "verbose_errors": True,  # an error tells the lexer's cost
    "max_grammar_size": 60_000,  # 128 tools of 20 arguments fit; the engine takes 65,000, and tells after seconds
}


class GrammarCompiler:
    """Compiles grammars over the tokens of one tokenizer. For several threads at once.

    Args:
        tokenizer: a byte-level or SentencePiece one.
        vocab_size: how many of the model's logits belong to tokens.

    Raises:
        UnsupportedError: the extra ``[grammar]`` is not installed.
        GrammarError: the tokenizer writes texts in another way.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._engine = _engine()
        self._vocab_size = vocab_size
        tokens = {
            token_id: tokenizer.id_to_token(token_id) for token_id in tokenizer.special_ids if token_id < vocab_size
        }
        self._special = {token: token_id for token_id, token in tokens.items() if token is not None}
        self._tokenizer = _engine_tokenizer(self._engine, tokenizer, vocab_size)
        self._kept = KeptGrammars()
        self._lock = ProcessLock()
        self._compiling: dict[str, ProcessLock] = {}

    def matcher(self, grammar: Grammar) -> EngineMatcher:
        """Return a matcher at the beginning of a text.

        Raises:
            GrammarError: the engine cannot read or enforce the grammar, or not within its limits.
        """
        special = self._special_marks(grammar)
        text = cast("MarkedGrammar", grammar).engine_grammar(special) if special else grammar.engine_grammar()
        kept = self._kept.find(text)
        if kept is None:
            with self._lock:
                turn = self._compiling.setdefault(text, ProcessLock())
            with turn:  # who asks for the same grammar meanwhile waits for it
                kept = self._kept.find(text)
                if kept is None:
                    kept = self._compile(text)
        return EngineMatcher(
            kept.matcher.deep_copy(), self._vocab_size, _Source(kept, partial(self._engine_matcher, text))
        )

    def shown(self, grammar: Grammar) -> dict[int, str]:
        """Return the special tokens that are a part of the grammar's texts, with their texts."""
        return {token_id: mark for mark, token_id in self._special_marks(grammar).items()}

    def _special_marks(self, grammar: Grammar) -> dict[str, int]:
        marks = getattr(grammar, "marks", ())
        return {mark: self._special[mark] for mark in marks if mark in self._special}

    def _compile(self, text: str) -> KeptGrammar:
        try:
            matcher = self._engine_matcher(text)
            first = matcher.deep_copy()
            if not first.is_error():
                first.compute_bitmask()  # may pass a limit, which is told before a text begins
            if first.is_error():
                raise GrammarError(f"the grammar cannot be enforced: {error_text(first)}")
            kept = KeptGrammar(matcher, text)
            self._kept.keep(text, kept)
            return kept
        finally:
            with self._lock:
                self._compiling.pop(text, None)

    def _engine_matcher(self, text: str) -> LLMatcher:
        limits = self._engine.LLParserLimits(**LIMITS)
        matcher: LLMatcher = self._engine.LLMatcher(self._tokenizer, text, log_level=0, limits=limits)
        return matcher


class _Source:
    """What a matcher knows of the grammar that it is of; see :class:`Source`."""

    def __init__(self, kept: KeptGrammar, compile_again: Callable[[], LLMatcher]) -> None:
        self._kept = kept
        self.compile_again = compile_again
        self.is_quick: bool = kept.is_quick

    def note_mask(self) -> None:
        self._kept.masks += 1

    def note_failure(self) -> None:
        self._kept.has_failed = True


class _Compilers:
    """The compilers of one tokenizer, by the size of the vocabulary."""

    def __init__(self) -> None:
        self.lock = ProcessLock()
        self.made: dict[int, GrammarCompiler] = {}


_COMPILERS: weakref.WeakKeyDictionary[Tokenizer, _Compilers] = weakref.WeakKeyDictionary()
_COMPILERS_LOCK = ProcessLock()


def compiler_of(tokenizer: Tokenizer, vocab_size: int) -> GrammarCompiler:
    """Return the compiler of a tokenizer.

    It is made on first use: a table of 150,000 tokens takes half a second. :func:`begin_compiler` makes it beforehand.
    """
    with _COMPILERS_LOCK:
        compilers = _COMPILERS.setdefault(tokenizer, _Compilers())
    with compilers.lock:
        if vocab_size not in compilers.made:
            compilers.made[vocab_size] = GrammarCompiler(tokenizer, vocab_size)
        return compilers.made[vocab_size]


def begin_compiler(tokenizer: Tokenizer, vocab_size: int) -> None:
    """Let a thread make the compiler of a tokenizer.

    If it cannot be made, the first grammar tells why.
    """

    def make() -> None:
        with contextlib.suppress(LatticeError):
            compiler_of(tokenizer, vocab_size)

    threading.Thread(target=make, name="lattice-grammar", daemon=True).start()


def _engine() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise UnsupportedError(
            "grammars need the package llguidance: pip install 'lattice-inference[grammar]'"
        ) from error
    return llguidance


class _Tokens:
    """A vocabulary in the form in which the engine asks for one."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        texts, special = token_bytes(tokenizer, vocab_size)
        # One more token ends a text in the engine's eyes: the model's own, of which there may be several, are added later.
        # The engine takes a token that begins with 0xFF for a special one; UTF-8 has no such byte, so no text needs it.
        self.tokens = [b"" if text[:1] == b"\xff" else text for text in texts] + [b""]
        self.special_token_ids = [*special, vocab_size]
        self.eos_token_id = vocab_size
        self.bos_token_id = None

    def __call__(self, text: bytes | str) -> list[int]:
        """Return no tokens: the engine asks only to probe, because nothing is forced."""
        return []


def _engine_tokenizer(engine: Any, tokenizer: Tokenizer, vocab_size: int) -> LLTokenizer:
    tokens = _Tokens(tokenizer, vocab_size)
    missing = sorted(set(range(0x20, 0x7F)) - {text[0] for text in tokens.tokens if len(text) == 1})
    if missing:
        raise GrammarError(f"the tokenizer has no token for the character {chr(missing[0])!r}, which grammars need")
    made: LLTokenizer = engine.LLTokenizer(engine.TokenizerWrapper(tokens), slices=None)
    return made
