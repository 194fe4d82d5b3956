"""The normalizers of a tokenizer.json as lists of primitive steps for the C code."""

from __future__ import annotations

from collections.abc import Callable

from lattice_inference.errors import TokenizerError, UnsupportedError
from lattice_inference.tokenizer import _tokenizer as native
from lattice_inference.tokenizer.charsmap import parse_precompiled
from lattice_inference.tokenizer.fields import Fields, component_type
from lattice_inference.tokenizer.replacements import Step, parse_prepend, parse_replace

__all__ = ["bert_normalizer", "parse_normalizer"]

Steps = tuple[Step, ...]


def bert_normalizer(
    *, clean_text: bool, handle_chinese_chars: bool, strip_accents: bool | None, lowercase: bool
) -> Steps:
    """Return the steps of BERT's normalizer.

    ``strip_accents=None`` means the same as ``lowercase``.
    """
    steps: list[int] = []
    if clean_text:
        steps.append(native.NORMALIZE_CLEAN)
    if handle_chinese_chars:
        steps.append(native.NORMALIZE_SPACE_CJK)
    if lowercase if strip_accents is None else strip_accents:
        steps += [native.NORMALIZE_NFD, native.NORMALIZE_DROP_NONSPACING]
    if lowercase:
        steps.append(native.NORMALIZE_LOWERCASE)
    return tuple(steps)


def parse_normalizer(value: object, where: str = "normalizer") -> Steps:
    """Return the steps of a ``normalizer`` entry (``None``: no steps).

    Raises for one that is not built.
    """
    if value is None:
        return ()
    return _flatten(value, where)


def _flatten(value: object, where: str) -> Steps:
    kind = component_type(value, where)
    if kind not in _PARSERS:
        raise UnsupportedError(f"{where} is a {kind!r:.80} normalizer; supported are {', '.join(sorted(_PARSERS))}")
    fields = Fields(value, where)
    steps = _PARSERS[kind](fields)
    fields.finish()
    if len(steps) > native.MAX_STEPS:
        raise TokenizerError(f"{where} has {len(steps)} steps; the limit is {native.MAX_STEPS}")
    return steps


def _bert(fields: Fields) -> Steps:
    strip_accents = fields.raw("strip_accents", None)
    if not isinstance(strip_accents, bool | None):
        raise TokenizerError(f"{fields.where}.strip_accents is {strip_accents!r:.80}; expected true, false or null")
    return bert_normalizer(
        clean_text=fields.boolean("clean_text"),
        handle_chinese_chars=fields.boolean("handle_chinese_chars"),
        strip_accents=strip_accents,
        lowercase=fields.boolean("lowercase"),
    )


def _strip(fields: Fields) -> Steps:
    left = (native.NORMALIZE_STRIP_LEFT,) if fields.boolean("strip_left") else ()
    right = (native.NORMALIZE_STRIP_RIGHT,) if fields.boolean("strip_right") else ()
    return left + right


def _sequence(fields: Fields) -> Steps:
    return tuple(step for steps in fields.nested("normalizers", _flatten) for step in steps)


def _single(step: int) -> Callable[[Fields], Steps]:
    return lambda fields: (step,)


_PARSERS: dict[str, Callable[[Fields], Steps]] = {
    "BertNormalizer": _bert,
    "Lowercase": _single(native.NORMALIZE_LOWERCASE),
    "NFC": _single(native.NORMALIZE_NFC),
    "NFD": _single(native.NORMALIZE_NFD),
    "NFKC": _single(native.NORMALIZE_NFKC),
    "NFKD": _single(native.NORMALIZE_NFKD),
    "Nmt": _single(native.NORMALIZE_NMT),
    "Precompiled": parse_precompiled,
    "Prepend": parse_prepend,
    "Replace": parse_replace,
    "Sequence": _sequence,
    "Strip": _strip,
    "StripAccents": _single(native.NORMALIZE_DROP_COMBINING),
}
