"""Text that knows which characters came from users, and which from the template.

A chat template is rendered with contents of this kind where control tokens must not come out of them. Joined, cut and
repeated, the marks move along. Any other change of text by a template is done twice. The second time a sign replaces
each of the users' characters: where signs come out, the text is theirs. If the two results do not lie side by side,
all of the result counts as theirs. So a mistake can turn a control token into plain text, but never creates one.
"""

from __future__ import annotations

import bisect
import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, SupportsIndex

from lattice_inference.tokenizer.template_budget import current_budget

__all__ = [
    "Ranges",
    "UserText",
    "concatenated",
    "has_users_text",
    "marked",
    "method_result",
    "ranges_of",
    "shown",
    "tracked",
]

Ranges = tuple[tuple[int, int], ...]
"""Where users' characters lie in a text: (start, end), in order."""

_SIGN = "\uf8ff"  # of the private use area: it has no case, and nothing escapes it
_SIGNS = re.compile(f"{_SIGN}+")
_WORDS = re.compile(r"\S+")  # blanks stay what they are: templates trim them and count lines


class UserText(str):
    """A text, some of whose characters are users'; by default all."""

    __slots__ = ("_ranges",)
    _ranges: Ranges

    def __new__(cls, text: str, ranges: Ranges | None = None) -> UserText:
        """Mark a text."""
        made = super().__new__(cls, text)
        made._ranges = (((0, len(text)),) if text else ()) if ranges is None else ranges
        return made

    def __str__(self) -> str:
        """Return the text with its marks."""
        return self

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        """Return a part with its marks."""
        made = super().__getitem__(key)
        start, stop, step = (key if isinstance(key, slice) else _one(key, len(self))).indices(len(self))
        if step == 1:
            return UserText(made, _cut(self._ranges, start, max(start, stop)))
        mask = bytearray(len(self))
        for first, last in self._ranges:
            mask[first:last] = b"\1" * (last - first)
        return UserText(made, _runs(bytes(map(mask.__getitem__, range(start, stop, step)))))

    def __iter__(self) -> Iterator[str]:
        """Yield the characters with their marks."""
        return (self[index] for index in range(len(self)))

    def __add__(self, other: str) -> str:
        """Return both, one after the other."""
        return concatenated([self, other]) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> str:
        """Return both, one after the other."""
        return concatenated([other, self]) if isinstance(other, str) else NotImplemented

    def __mul__(self, times: SupportsIndex) -> str:
        """Return the text several times."""
        return concatenated([self] * times.__index__())

    __rmul__ = __mul__


def _one(key: SupportsIndex, length: int) -> slice:
    index = key.__index__()
    index += length if index < 0 else 0
    return slice(index, index + 1)


def _cut(ranges: Ranges, start: int, stop: int) -> Ranges:
    if not ranges or (len(ranges) == 1 and ranges[0][0] <= start and stop <= ranges[0][1]):
        return ((0, stop - start),) if ranges and start < stop else ()
    low = bisect.bisect_right(ranges, start, key=lambda found: found[1])
    high = bisect.bisect_left(ranges, stop, key=lambda found: found[0])
    return tuple((max(first, start) - start, min(last, stop) - start) for first, last in ranges[low:high])


def _runs(mask: bytes) -> Ranges:
    return tuple(match.span() for match in re.finditer(b"\1+", mask))


def ranges_of(text: str) -> Ranges:
    """Return where a text is users'; nowhere if it has no marks."""
    return text._ranges if isinstance(text, UserText) else ()


def marked(value: Any) -> Any:
    """Return JSON data with every text in it, keys too, marked as users'."""
    if isinstance(value, str):
        return UserText(value)
    if isinstance(value, Mapping):
        return {marked(key): marked(item) for key, item in value.items()}
    return [marked(item) for item in value] if isinstance(value, list) else value


def has_users_text(value: Any) -> bool:
    """Return whether a value holds users' text, or may hold it."""
    signer = Signer()
    signer.sign(value)
    return signer.found or signer.unknown


def shown(value: Any) -> str:
    """Return the text that a value shows as, with marks."""
    if isinstance(value, str):
        return value
    text = str(value)
    return UserText(text) if has_users_text(value) and not _shows_nothing(value) else text


def _shows_nothing(value: Any) -> bool:
    """Return whether a value of another kind holds no text of users."""
    return isinstance(value, (bool, int, float)) or not str(value)


def concatenated(texts: Iterable[str]) -> str:
    """Return texts joined, with their marks."""
    texts = list(texts)
    made = "".join(texts)
    if not any(isinstance(text, UserText) for text in texts):
        return made
    ranges: list[tuple[int, int]] = []
    start = 0
    for text in texts:
        for first, last in ranges_of(text):
            if ranges and ranges[-1][1] == start + first:
                first, last = ranges.pop()[0] - start, last
            ranges.append((start + first, start + last))
        start += len(text)
    return UserText(made, tuple(ranges))


def tracked(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return what a function of texts returns, with marks if there are any in its arguments."""
    made = function(*args, **kwargs)
    if isinstance(made, UserText) or not isinstance(made, (str, list, tuple)):
        return made
    signer = Signer()
    signed = signer.sign(list(args)), signer.sign(dict(kwargs))
    if not signer.found and not signer.unknown:
        return made
    signs = None
    if not signer.unknown:
        with contextlib.suppress(Exception):  # it looks at the text
            signs = function(*signed[0], **signed[1])
    return _with_marks(made, signs)


def method_result(owner: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return what a text's method returns, with marks."""
    made = getattr(owner, name)(*args, **kwargs)
    if isinstance(owner, UserText) and name in _SLICES and isinstance(made, (str, list, tuple)):
        return _slices(owner, name, made, args, kwargs)
    return tracked(lambda text, *rest, **named: getattr(text, name)(*rest, **named), (owner, *args), kwargs)


_SLICES = ("strip", "lstrip", "rstrip", "removeprefix", "removesuffix", "split", "rsplit", "partition", "rpartition")


def _slices(owner: UserText, name: str, made: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return what was cut out of a text with the marks that it has there."""
    if isinstance(made, str):
        left = 0 if name in ("rstrip", "removesuffix") else len(owner) - len(made)
        if name == "strip":
            left = len(owner) - len(str.lstrip(owner, *args))
        return owner[left : left + len(made)]
    separator = args[0] if args else kwargs.get("sep")
    gap = len(separator) if isinstance(separator, str) and name in ("split", "rsplit") else 0
    pieces, position = [], 0
    for piece in made:
        if separator is None:
            position = owner.find(piece, position)
        pieces.append(owner[position : position + len(piece)])
        position += len(piece) + gap
    return type(made)(pieces)


def _with_marks(made: Any, signs: Any) -> Any:
    if isinstance(made, str):
        return made if isinstance(made, UserText) else UserText(made, _found(made, signs))
    if all(isinstance(item, str) for item in made):
        matching = signs if isinstance(signs, type(made)) and len(signs) == len(made) else [None] * len(made)
        return type(made)([_with_marks(item, sign) for item, sign in zip(made, matching, strict=True)])
    return made


def _found(made: str, signs: Any) -> Ranges | None:
    """Return where signs stand for users' characters.

    ``None`` if the two texts do not lie side by side.
    """
    if not isinstance(signs, str) or len(signs) != len(made):
        return None
    ranges = tuple(match.span() for match in _SIGNS.finditer(signs))
    position = 0
    for first, last in (*ranges, (len(made), len(made))):
        if made[position:first] != signs[position:first]:
            return None
        position = last
    return ranges


class Signer:
    """Puts signs in the place of users' characters.

    Attributes:
        found: whether there were any.
        unknown: whether there was something that may show what it holds, such as a namespace.
    """

    def __init__(self) -> None:
        self.unknown: bool
        self.found: bool
        self.found = self.unknown = False
        self._done: dict[int, Any] = {}  # what is there many times is looked at once

    def sign(self, value: Any) -> Any:
        """Return a value with signs."""
        if isinstance(value, UserText):
            self.found = True
            return _signed(value)
        if value is None or isinstance(value, (str, int, float, range)):
            return value
        if id(value) in self._done:
            return self._done[id(value)]
        current_budget().spend(1)
        if isinstance(value, dict):
            made: Any = {self.sign(key): self.sign(item) for key, item in value.items()}
        elif isinstance(value, (list, tuple)):
            made = [self.sign(item) for item in value]
            made = tuple(made) if isinstance(value, tuple) else made
        else:
            self.unknown, made = True, value
        self._done[id(value)] = made
        return made


def _as_signs(word: re.Match[str]) -> str:
    return _SIGN * (word.end() - word.start())


def _signed(text: UserText) -> str:
    parts, position = [], 0
    plain = str.__getitem__
    for first, last in ranges_of(text):
        parts += [plain(text, slice(position, first)), _WORDS.sub(_as_signs, plain(text, slice(first, last)))]
        position = last
    return "".join([*parts, plain(text, slice(position, None))])
