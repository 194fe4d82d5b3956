"""Asks Hugging Face ``tokenizers`` what it does with each code point.

Python's ``unicodedata`` disagrees with ``tokenizers`` on hundreds of code points: each library froze another Unicode
version. So every property is observed from outside. A code point is put between two letters, the component runs, and
the output shows the code point's class. ``unicodedata`` serves only as a hint for which combining classes exist; the
classes themselves are measured by which pairs change places.
"""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import WordPiece

__all__ = ["CODE_POINTS", "CodePointFacts", "Facts", "compositions", "probe", "probe_flags"]

CODE_POINTS: tuple[int, ...] = tuple(c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF)

HANGUL_SYLLABLES = range(0xAC00, 0xD7A4)
LOWEST_CLASS, HIGHEST_CLASS = "\u0334", "\u0345"  # combining classes 1 and 240


@dataclass(frozen=True)
class CodePointFacts:
    """What ``tokenizers`` does with a code point, named as the flags in ``unicode_tables.h``."""

    whitespace: bool
    clean_removed: bool
    punctuation: bool
    cjk: bool
    mark_nonspacing: bool
    mark_combining: bool
    word: bool
    letter: bool
    number: bool
    mark: bool
    numeric: bool


@dataclass(frozen=True)
class Facts:
    """Everything the generator stores, by code point.

    Absent keys mean "maps to itself" or class 0.
    """

    flags: dict[int, CodePointFacts]
    lowercase: dict[int, str]
    nfd: dict[int, str]
    nfkd: dict[int, str]
    combining_class: dict[int, int]
    compositions: dict[tuple[int, int], int]
    nfc_changes: frozenset[int]


class ProbeError(RuntimeError):
    """``tokenizers`` behaves in a way that the tables cannot express."""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ProbeError(message)


def _added_token_tokenizer() -> Tokenizer:
    """Return a tokenizer whose added tokens show the regex classes ``\\w`` and ``\\s``.

    They are shown as ``[X]`` and ``[Y]``.
    """
    tokenizer = Tokenizer(WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.add_tokens([AddedToken("[X]", single_word=True, normalized=False)])
    tokenizer.add_tokens([AddedToken("[Y]", rstrip=True, normalized=False)])
    return tokenizer


def regex_class(pattern: str, code_points: Sequence[int]) -> set[int]:
    """Return the code points that a one-character regex of the Split pre-tokenizer matches."""
    split = pre_tokenizers.Split(Regex(pattern), "removed")
    matched: set[int] = set()
    for start in range(0, len(code_points), 0x4000):
        block = code_points[start : start + 0x4000]
        kept = {c for piece, _ in split.pre_tokenize_str("".join(map(chr, block))) for c in piece}
        matched |= {c for c in block if chr(c) not in kept}
    return matched


def probe_flags(code_points: Iterable[int]) -> dict[int, CodePointFacts]:
    """Return the classes of ``code_points``, each observed between two letters.

    Those of Split's regexes are among them.
    """
    code_points = list(code_points)
    clean = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=False, strip_accents=False, lowercase=False
    )
    chinese = normalizers.BertNormalizer(
        clean_text=False, handle_chinese_chars=True, strip_accents=False, lowercase=False
    )
    bert_strip = normalizers.BertNormalizer(
        clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False
    )
    strip_accents = normalizers.StripAccents()
    strip = normalizers.Strip()
    whitespace_split = pre_tokenizers.WhitespaceSplit()
    whitespace_regex = pre_tokenizers.Whitespace()
    punctuation = pre_tokenizers.Punctuation("isolated")
    bert = pre_tokenizers.BertPreTokenizer()
    added = _added_token_tokenizer()
    digits = pre_tokenizers.Digits(individual_digits=True)
    letters, numbers, marks, spaces = (regex_class(p, code_points) for p in (r"\p{L}", r"\p{N}", r"\p{M}", r"\s"))
    _require(not (letters & numbers or letters & marks or numbers & marks), "the classes L, N and M overlap")

    facts = {}
    for code_point in code_points:
        c = chr(code_point)
        text = f"a{c}b"
        name = f"U+{code_point:04X}"
        cleaned = clean.normalize_str(text)
        is_whitespace = len(whitespace_split.pre_tokenize_str(text)) == 2
        is_removed = cleaned == "ab"
        _require(is_removed or cleaned == ("a b" if is_whitespace else text), f"{name}: clean_text gives {cleaned!r}")
        _require((strip.normalize_str(c) == "") == is_whitespace, f"{name}: Strip and WhitespaceSplit disagree")
        is_punctuation = len(punctuation.pre_tokenize_str(text)) == 3
        pieces = len(bert.pre_tokenize_str(text))
        _require(
            pieces == (2 if is_whitespace else 3 if is_punctuation else 1), f"{name}: BertPreTokenizer: {pieces} pieces"
        )
        regex_pieces = len(whitespace_regex.pre_tokenize_str(text))
        _require((regex_pieces == 2) == is_whitespace, f"{name}: the Whitespace regex disagrees on white space")
        is_word = regex_pieces == 1
        _require((1 in added.encode(f"{c}[X]").ids) != is_word, f"{name}: added tokens disagree on word characters")
        _require((code_point in spaces) == is_whitespace, f"{name}: Split's regex disagrees on white space")
        after = added.encode(f"[Y]{c}").offsets[0]
        _require((after == (0, 4)) == is_whitespace, f"{name}: added tokens disagree on white space")
        facts[code_point] = CodePointFacts(
            whitespace=is_whitespace,
            clean_removed=is_removed,
            punctuation=is_punctuation,
            cjk=chinese.normalize_str(text) == f"a {c} b",
            mark_nonspacing=bert_strip.normalize_str(text) == "ab",
            mark_combining=strip_accents.normalize_str(text) == "ab",
            word=is_word,
            letter=code_point in letters,
            number=code_point in numbers,
            mark=code_point in marks,
            numeric=len(digits.pre_tokenize_str(text)) == 3,
        )
    return facts


def _changed(normalize: Callable[[str], str]) -> dict[int, str]:
    return {c: mapped for c in CODE_POINTS if (mapped := normalize(chr(c))) != chr(c)}


def _reorders(pairs: Sequence[str]) -> list[bool]:
    """Say for each pair of marks whether canonical ordering swaps it."""
    nfd = normalizers.NFD()
    joined = nfd.normalize_str("".join(f"x{pair}" for pair in pairs)).split("x")[1:]
    return [got != pair for got, pair in zip(joined, pairs, strict=True)]


def _combining_classes(nfd: dict[int, str]) -> dict[int, int]:
    """Measure canonical combining classes by which pairs of marks change places.

    One representative for each class comes from ``unicodedata``; that their order holds in ``tokenizers`` too is
    checked before they are used as the ruler.
    """
    candidates = [c for c in CODE_POINTS if c not in nfd and c != ord("x")]
    below_top = _reorders([HIGHEST_CLASS + chr(c) for c in candidates])
    above_bottom = _reorders([chr(c) + LOWEST_CLASS for c in candidates])
    marks = [c for c, below, above in zip(candidates, below_top, above_bottom, strict=True) if below or above]
    representatives: dict[int, str] = {}
    for c in marks:
        representatives.setdefault(unicodedata.combining(chr(c)), chr(c))
    representatives.pop(0, None)
    ruler = sorted(representatives)
    pairs = [representatives[high] + representatives[low] for low, high in itertools.pairwise(ruler)]
    _require(all(_reorders(pairs)), "the representatives of the combining classes are not in order")
    classes = {}
    for c in marks:
        # c moves after every mark of a higher class and before every mark of a lower one
        goes_before = _reorders([representatives[k] + chr(c) for k in ruler])
        goes_after = _reorders([chr(c) + representatives[k] for k in ruler])
        same = [k for k, before, after in zip(ruler, goes_before, goes_after, strict=True) if not before and not after]
        _require(len(same) == 1, f"U+{c:04X}: its combining class is between {same}")
        classes[c] = same[0]
    return classes


def compositions(nfd: dict[int, str], normalize: Callable[[str], str]) -> dict[tuple[int, int], int]:
    """Return the pairs (first, second) -> composite that ``normalize`` (NFC) joins.

    Hangul syllables are left out.
    """
    pairs = {}
    for c, decomposed in nfd.items():
        if c in HANGUL_SYLLABLES or len(decomposed) < 2 or normalize(chr(c)) != chr(c):
            continue
        first = normalize(decomposed[:-1])
        second = decomposed[-1]
        _require(len(first) == 1 and normalize(first + second) == chr(c), f"U+{c:04X}: no pair composes to it")
        pairs[(ord(first), ord(second))] = c
    return pairs


def _check_hangul(nfd: dict[int, str]) -> None:
    for c in HANGUL_SYLLABLES:
        index = c - 0xAC00
        parts = [0x1100 + index // 588, 0x1161 + index % 588 // 28]
        if index % 28:
            parts.append(0x11A7 + index % 28)
        _require(nfd.get(c) == "".join(map(chr, parts)), f"U+{c:04X}: Hangul does not decompose by the formula")


def probe() -> Facts:
    """Ask about every code point; takes about a minute."""
    nfd = _changed(normalizers.NFD().normalize_str)
    nfkd = _changed(normalizers.NFKD().normalize_str)
    nfc = normalizers.NFC()
    nfkc = normalizers.NFKC()
    _check_hangul(nfd)
    for c in HANGUL_SYLLABLES:
        _require(nfkd.get(c) == nfd[c], f"U+{c:04X}: NFKD of a Hangul syllable differs from NFD")
        _require(nfc.normalize_str(nfd[c]) == chr(c), f"U+{c:04X}: Hangul does not compose by the formula")
    pairs = compositions(nfd, nfc.normalize_str)
    _require(compositions(nfd, nfkc.normalize_str).items() <= pairs.items(), "NFKC composes other pairs than NFC")
    return Facts(
        flags=probe_flags(CODE_POINTS),
        lowercase=_changed(normalizers.Lowercase().normalize_str),
        nfd={c: text for c, text in nfd.items() if c not in HANGUL_SYLLABLES},
        nfkd={c: text for c, text in nfkd.items() if c not in HANGUL_SYLLABLES},
        combining_class=_combining_classes(nfd),
        compositions=pairs,
        nfc_changes=frozenset(_changed(nfc.normalize_str)),
    )
