"""Asks Hugging Face ``tokenizers`` how it puts characters together to grapheme clusters.

Only its Precompiled normalizer uses clusters, and only those of fewer than six bytes. If a rule matches the beginning
of such a cluster, the whole cluster becomes the rule's replacement. So a rule for one character P shows whether P
stands alone. "P, mark" becomes the replacement if the mark belongs to P's cluster and that is short enough. It keeps
the mark if something before P made the cluster longer.

What no rule can show does not matter: regional indicators (four bytes each) are never in a short cluster with another
character that a rule could match.
"""

from __future__ import annotations

from collections.abc import Iterable

from charsmap import compile_charsmap
from tokenizers import normalizers

__all__ = ["CODE_POINTS", "GRAPHEME_FLAGS", "probe_graphemes"]

CODE_POINTS: tuple[int, ...] = tuple(c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF)

MARK, SECOND_MARK, JOINER = "\u0301", "\u0302", "\u200d"
PICTOGRAPH, CONSONANT, VIRAMA = "\u00a9", "\u0915", "\u094d"
LEADING, VOWEL, TRAILING = "\u1100", "\u1161", "\u11a8"  # Hangul jamo

GRAPHEME_FLAGS = (
    "extends",  # belongs to the character before it
    "control",  # belongs to nothing, nothing to it
    "prepends",  # the next character belongs to it
    "pictograph",
    "pictograph_skips",  # may stand between a pictograph and the joiner after it
    "consonant",  # of a script with conjuncts
    "linker",  # joins two consonants
    "consonant_skips",  # may stand between consonants and linkers
    "joins_leading",  # a Hangul leading jamo after it belongs to it
    "joins_vowel",
    "joins_trailing",
)
"""What ``probe_graphemes`` finds; in this order the flags of ``grapheme.h``."""


def probe_graphemes(code_points: Iterable[int] = CODE_POINTS) -> dict[str, set[int]]:
    """Return, for each of ``GRAPHEME_FLAGS``, which of ``code_points`` have it."""
    asked = [c for c in code_points if c != ord("\n")]

    def ask(probed: str, pattern: str) -> dict[int, str]:
        """Return the result of ``pattern`` with each code point, under a rule for ``probed``."""
        normalizer = normalizers.Precompiled(compile_charsmap({probed: "!"}))
        lines = normalizer.normalize_str("\n".join(pattern.format(chr(c)) for c in asked)).split("\n")
        return dict(zip(asked, lines, strict=True))

    def keeps_mark(probed: str, before: str) -> set[int]:
        return {c for c, line in ask(probed, before + probed + MARK).items() if line.endswith(MARK)}

    extends = {c for c, line in ask("a", "a{}").items() if line == "!"}
    control = {c for c, line in ask(MARK, "{}" + MARK + SECOND_MARK).items() if not line.endswith(SECOND_MARK)}
    prepends = keeps_mark("a", "{}")
    return {
        "extends": extends,
        "control": control | {ord("\n")},
        "prepends": prepends,
        "pictograph": keeps_mark(PICTOGRAPH, "{}" + JOINER),
        "pictograph_skips": keeps_mark(PICTOGRAPH, PICTOGRAPH + "{}" + JOINER) & extends,
        "consonant": keeps_mark(CONSONANT, "{}" + VIRAMA) - prepends,
        "linker": keeps_mark(CONSONANT, CONSONANT + "{}") & extends,
        "consonant_skips": keeps_mark(CONSONANT, CONSONANT + "{}" + VIRAMA) & extends,
        "joins_leading": keeps_mark(LEADING, "{}") - prepends,
        "joins_vowel": keeps_mark(VOWEL, "{}") - prepends,
        "joins_trailing": keeps_mark(TRAILING, "{}") - prepends,
    }
