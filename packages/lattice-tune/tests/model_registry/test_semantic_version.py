"""Versions by SemVer 2.0.0: the specification's examples, and an order compared with its rules written out."""

from __future__ import annotations

import functools
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice_tune import InvalidInputError, SemanticVersion

# § 11 of the specification
ORDERED = [
    "1.0.0-alpha",
    "1.0.0-alpha.1",
    "1.0.0-alpha.beta",
    "1.0.0-beta",
    "1.0.0-beta.2",
    "1.0.0-beta.11",
    "1.0.0-rc.1",
]
ORDERED += ["1.0.0", "2.0.0", "2.1.0", "2.1.1"]

INVALID = [
    "",
    "1",
    "1.0",
    "1.0.0.0",
    "01.0.0",
    "1.01.0",
    "1.0.00",
    "1.0.0-",
    "1.0.0-01",
    "1.0.0-a..b",
    "1.0.0+",
    "v1.0.0",
]
INVALID += [
    "1.0.0+a..b",
    "1.0.0-a_b",
    " 1.0.0",
    "1.0.0\n",
    "1.0.0\0",
    "-1.0.0",
    "1.0.0-é",
    "١.0.0",
    "1.0.0+a+b",
    "1.0.0-ä",
]
INVALID += ["1.0.0-" + "a" * 250, "9" * 10_000_000]


@pytest.mark.parametrize("lower", range(len(ORDERED)))
def test_examples_of_the_specification_are_in_order(lower: int) -> None:
    versions = [SemanticVersion.parse(text) for text in ORDERED]
    for higher in range(lower + 1, len(ORDERED)):
        assert versions[lower] < versions[higher]
        assert versions[lower].precedence < versions[higher].precedence


@pytest.mark.parametrize("text", ["0.0.0", "1.0.0-alpha+001", "1.0.0+20130313144700", "1.0.0-beta+exp.sha.5114f85"])
@pytest.mark.parametrize("more", ["", "-x-y-z.--", "-0.3.7", "-0a.1-1"])
def test_valid_version_is_written_back(text: str, more: str) -> None:
    if more and ("-" in text or "+" in text):
        return
    assert str(SemanticVersion.parse(text + more)) == text + more


@pytest.mark.parametrize("text", INVALID, ids=lambda text: repr(text[:20]))
def test_invalid_version_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="version is"):
        SemanticVersion.parse(text)


WRONG_PARTS: list[tuple[object, ...]] = [(-1, 0, 0), (True, 0, 0), (1.0, 0, 0), (10**400, 0, 0), (1, 0, 0, "rc")]
WRONG_PARTS += [(1, 0, 0, (part,)) for part in ("01", "1", "", -1, None, True)]
WRONG_PARTS += [(1, 0, 0, (), (part,)) for part in ("a b", "", 1)]


@pytest.mark.parametrize("parts", WRONG_PARTS, ids=lambda parts: repr(parts)[:40])
def test_parts_that_would_not_read_back_are_refused(parts: tuple[object, ...]) -> None:
    with pytest.raises(InvalidInputError):
        SemanticVersion(*parts)  # type: ignore[arg-type]


def test_build_metadata_does_not_count_for_precedence() -> None:
    plain, first, second = map(SemanticVersion.parse, ("1.0.0", "1.0.0+a", "1.0.0+b"))
    assert plain.precedence == first.precedence == second.precedence
    assert plain < first < second
    assert plain != first


numbers = st.one_of(st.integers(0, 12), st.integers(0, 10**30))
CHARACTERS = "0129aAbBzZ-"  # drawn by st.text: of a pattern it takes ten times as long
identifiers = st.text(CHARACTERS, min_size=1, max_size=5)
words = identifiers.filter(lambda text: not text.isdigit())
versions = st.builds(
    SemanticVersion,
    numbers,
    numbers,
    numbers,
    st.lists(st.one_of(numbers, words), max_size=3).map(tuple),
    st.lists(identifiers, max_size=2).map(tuple),
)


def compared(left: SemanticVersion, right: SemanticVersion) -> int:
    """Compare by the rules of § 11, one after the other."""
    for a, b in zip((left.major, left.minor, left.patch), (right.major, right.minor, right.patch), strict=True):
        if a != b:
            return -1 if a < b else 1
    if not left.prerelease or not right.prerelease:
        return bool(right.prerelease) - bool(left.prerelease)
    for a, b in zip(left.prerelease, right.prerelease):  # noqa: B905
        if a == b:
            continue
        if isinstance(a, int) and isinstance(b, int):
            return -1 if a < b else 1
        if isinstance(a, int) or isinstance(b, int):
            return -1 if isinstance(a, int) else 1
        return -1 if a.encode() < b.encode() else 1
    return (len(left.prerelease) > len(right.prerelease)) - (len(left.prerelease) < len(right.prerelease))


@settings(max_examples=80, deadline=None)
@given(versions, versions)
def test_precedence_is_that_of_the_specification(left: SemanticVersion, right: SemanticVersion) -> None:
    by_bytes = (left.precedence > right.precedence) - (left.precedence < right.precedence)
    assert by_bytes == compared(left, right)


@settings(max_examples=50, deadline=None)
@given(st.lists(versions, min_size=3, max_size=3))
@pytest.mark.slow
def test_order_is_total(three: list[SemanticVersion]) -> None:
    for a, b in itertools.product(three, three):
        assert (a < b) + (a == b) + (a > b) == 1
        assert (a <= b) == (a < b or a == b)
    low, middle, high = sorted(three, key=functools.cmp_to_key(lambda a, b: (a > b) - (a < b)))
    assert low <= middle <= high
    assert low <= high


@settings(max_examples=50, deadline=None)
@given(versions)
def test_version_is_read_back(version: SemanticVersion) -> None:
    assert SemanticVersion.parse(str(version)) == version
    assert hash(SemanticVersion.parse(str(version))) == hash(version)
