"""Versions by SemVer 2.0.0: parsed strictly, written back the same, ordered as specified."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from lattice_tune.errors import InvalidInputError, shown

__all__ = ["MOST_VERSION_CHARACTERS", "SemanticVersion"]

MOST_VERSION_CHARACTERS = 255
"""The longest version: the specification's own advice, and what the lengths in :attr:`SemanticVersion.precedence` hold."""

_NUMBER = r"(?:0|[1-9][0-9]*)"
_IDENTIFIER = rf"(?:{_NUMBER}|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_BUILD = r"[0-9A-Za-z-]+"
_VERSION = re.compile(
    rf"({_NUMBER})\.({_NUMBER})\.({_NUMBER})(?:-({_IDENTIFIER}(?:\.{_IDENTIFIER})*))?(?:\+({_BUILD}(?:\.{_BUILD})*))?"
)


@functools.total_ordering
@dataclass(frozen=True)
class SemanticVersion:
    """A version by SemVer 2.0.0.

    Versions are ordered by precedence. By the specification, versions that differ in build metadata have the same
    precedence. Here the metadata decides between those, so two versions are equal only if their texts are.

    Attributes:
        major: first number.
        minor: second number.
        patch: third number.
        prerelease: identifiers after ``-``; those of digits only are ints.
        build: identifiers after ``+``.

    Raises:
        InvalidInputError: a part is not what the specification allows, or the text is longer than 255 characters.
    """

    major: int
    minor: int
    patch: int
    prerelease: tuple[int | str, ...] = ()
    build: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        numbers = (self.major, self.minor, self.patch)
        if not all(type(number) is int and 0 <= number < 10**MOST_VERSION_CHARACTERS for number in numbers):
            raise InvalidInputError(f"a version has three integers of at least 0, not {shown(numbers)}")
        if not all(isinstance(part, tuple) for part in (self.prerelease, self.build)):
            raise InvalidInputError("prerelease and build are tuples of identifiers")
        if any(type(part) is int and not 0 <= part < 10**MOST_VERSION_CHARACTERS for part in self.prerelease):
            raise InvalidInputError(f"prerelease is {shown(self.prerelease)}; its integers must be at least 0")
        if not all(type(part) in (int, str) for part in self.prerelease) or not all(
            type(part) is str for part in self.build
        ):
            raise InvalidInputError("the identifiers of a version are ASCII letters, digits and hyphens")
        if _parts_of(str(self)) != (*numbers, self.prerelease, self.build):
            raise InvalidInputError(
                f"{shown(str(self))} is no version by SemVer 2.0.0: its parts must read back the same"
            )

    @classmethod
    def parse(cls, text: object) -> SemanticVersion:
        """Return the version that ``text`` is.

        Raises:
            InvalidInputError: it is none: three numbers without leading zeros, then perhaps ``-prerelease``, ``+build``.
        """
        parts = _parts_of(text) if isinstance(text, str) else None
        if parts is None:
            raise InvalidInputError(
                f"version is {shown(text)}; it must be three numbers without leading zeros, such as 1.4.0 or 2.0.0-rc.1, "
                f"of at most {MOST_VERSION_CHARACTERS} characters"
            )
        return cls(*parts)

    def __str__(self) -> str:
        text = f"{self.major}.{self.minor}.{self.patch}"
        if self.prerelease:
            text += "-" + ".".join(map(str, self.prerelease))
        return text + ("+" + ".".join(self.build) if self.build else "")

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, SemanticVersion):
            return NotImplemented
        return (self.precedence, self.build) < (other.precedence, other.build)

    @property
    def is_prerelease(self) -> bool:
        """Whether there is a part after ``-``."""
        return bool(self.prerelease)

    @property
    def precedence(self) -> bytes:
        """Bytes that compare in the specified order of versions; build metadata has no effect.

        A number is its count of digits, then its digits, so that longer numbers are higher. A release ends in 255, above
        every pre-release. A numeric identifier begins with 1 and an alphanumeric one with 2; the end is 0, below both.
        """
        key = b"".join(_number_key(number) for number in (self.major, self.minor, self.patch))
        if not self.prerelease:
            return key + b"\xff"
        for part in self.prerelease:
            key += b"\x01" + _number_key(part) if isinstance(part, int) else b"\x02" + part.encode("ascii") + b"\0"
        return key + b"\0"


def _number_key(number: int) -> bytes:
    digits = str(number).encode("ascii")
    return bytes([len(digits)]) + digits


def _parts_of(text: str) -> tuple[int, int, int, tuple[int | str, ...], tuple[str, ...]] | None:
    found = _VERSION.fullmatch(text) if len(text) <= MOST_VERSION_CHARACTERS else None
    if found is None:
        return None
    major, minor, patch, prerelease, build = found.groups()
    identifiers = tuple(int(part) if part.isdigit() else part for part in prerelease.split(".")) if prerelease else ()
    return int(major), int(minor), int(patch), identifiers, tuple(build.split(".")) if build else ()
