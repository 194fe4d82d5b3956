"""The JSON Schema Test Suite, draft 2020-12: each test is right, its schema is refused, or it is a listed departure."""

from __future__ import annotations

import gzip
import itertools
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from lattice_inference import GrammarError, JsonSchema
from lattice_inference.grammar import schema_keywords
from lattice_inference.grammar.schema_gate import (
    MOST_BYTES,
    MOST_DEPTH,
    MOST_ITEMS,
    MOST_LENGTH,
    MOST_PATTERNS,
    MOST_PROPERTIES,
    MOST_VALUES,
)
from lattice_inference.grammar.schema_intersections import MOST_MET_PATTERNS

ORDERS = 40
"""An object's members come in one order only, so a value is written in so many orders to find it."""

REFUSED_TESTS = 1060

# Accepted though invalid: formats that are enforced by their shape. Not written though valid: other spellings of a number,
# control characters, quoted and commented addresses, and what "format" forbids where the suite takes it for an annotation.
INVALID_ACCEPTED = {
    "optional/format/date-time.json": 2,
    "optional/format/date.json": 3,
    "optional/format/hostname.json": 24,
    "optional/format/time.json": 10,
}
VALID_NOT_WRITTEN = {
    "const.json": 4,
    "enum.json": 4,
    "format.json": 10,
    "optional/ecmascript-regex.json": 2,
    "optional/float-overflow.json": 1,
    "optional/format/email.json": 4,
    "optional/format/ipv6.json": 4,
    "type.json": 1,
}


@pytest.fixture(scope="module")
def suite(data_directory):
    return json.loads(gzip.decompress((data_directory / "json_schema_suite" / "draft2020-12.json.gz").read_bytes()))


def orders(value):
    """Return a JSON value with its members in up to :data:`ORDERS` orders."""
    if isinstance(value, list):
        products = itertools.product(*map(orders, value))
        return [list(one) for one in itertools.islice(products, ORDERS)]
    if not isinstance(value, dict):
        return [value]
    written = (
        dict(zip(names, values, strict=True))
        for names in itertools.permutations(value)
        for values in itertools.product(*(orders(value[name]) for name in names))
    )
    return list(itertools.islice(written, ORDERS))


@pytest.mark.slow
def test_suite_is_right_refused_or_a_known_departure(suite, obeys):
    assert sum(len(case["tests"]) for cases in suite.values() for case in cases) == 2225
    outcomes: Counter[str] = Counter()
    by_file: Counter[tuple[str, str]] = Counter()
    accepted: Counter[str] = Counter()
    not_written: Counter[str] = Counter()
    for name, cases in suite.items():
        for case in cases:
            try:
                grammar = JsonSchema(json.dumps(case["schema"]))
                obeys(grammar, "")
            except GrammarError:
                outcomes["refused"] += len(case["tests"])
                by_file[name, "refused"] += len(case["tests"])
                continue
            for test in case["tests"]:
                texts = (json.dumps(one, ensure_ascii=False) for one in orders(test["data"]))
                found = any(obeys(grammar, text) for text in texts)
                if found == test["valid"]:
                    outcomes["right"] += 1
                    by_file[name, "right"] += 1
                else:
                    (not_written if test["valid"] else accepted)[name] += 1
    assert dict(accepted) == INVALID_ACCEPTED
    assert dict(not_written) == VALID_NOT_WRITTEN
    assert outcomes == {"right": 2225 - REFUSED_TESTS - 39 - 30, "refused": REFUSED_TESTS}
    for keyword in schema_keywords.ENFORCED:
        assert f"{keyword}.json" not in suite or by_file[f"{keyword}.json", "right"] > 0, keyword
    for keyword in schema_keywords.REFUSED:
        if f"{keyword}.json" in suite:
            of_keyword = sum(len(case["tests"]) for case in suite[f"{keyword}.json"] if _holds(case["schema"], keyword))
            assert by_file[f"{keyword}.json", "refused"] >= of_keyword > 0, keyword


def _holds(schema, keyword) -> bool:
    """Whether the keyword stands in a schema with a value that constrains."""
    if isinstance(schema, list):
        return any(_holds(one, keyword) for one in schema)
    if not isinstance(schema, dict):
        return False
    value = schema.get(keyword)
    own = value not in (None, False, {}) and not (value is True and keyword != "uniqueItems")
    return own or any(_holds(one, keyword) for one in schema.values())


def test_the_manual_states_what_is_measured():
    page = Path(__file__).parents[4] / "docs" / "structured-output.md"
    if not page.exists():
        pytest.skip("the manual is not here")
    text = page.read_text(encoding="utf-8")
    rows = [line.strip("| \n").split(" | ") for line in text.splitlines() if line.startswith("|")]
    stated: dict[str, str] = {}
    for row in rows:
        if len(row) == 2 and row[0].startswith(("`", "other")):
            stated |= dict.fromkeys(re.findall(r"`([^`]+)`", row[0]), row[1])
    for keyword in schema_keywords.ENFORCED - {"format"}:
        assert stated[keyword].startswith("enforced"), keyword
    for keyword in schema_keywords.ANNOTATIONS:
        assert stated[keyword] == "annotations", keyword
    for keyword in schema_keywords.REFUSED:
        assert stated[keyword] == "refused", keyword
    for name in schema_keywords.FORMATS:
        assert stated[name] == "enforced", name
    for name in schema_keywords.FORMATS_BY_SHAPE:
        assert stated[name].startswith("enforced by shape"), name
    wrong, missing = sum(INVALID_ACCEPTED.values()), sum(VALID_NOT_WRITTEN.values())
    right = 2225 - REFUSED_TESTS - wrong - missing
    told = f"Of these {right:,} are right, and {REFUSED_TESTS:,} are of schemas that are refused. "
    told += f"{missing} are valid values that are never written. {wrong} are invalid values that pass, all of "
    told += "them formats by shape"
    assert told in " ".join(text.split())
    assert {Path(name).stem for name in INVALID_ACCEPTED} == schema_keywords.FORMATS_BY_SHAPE
    for limit in (MOST_BYTES, MOST_DEPTH, MOST_VALUES, MOST_PROPERTIES, MOST_PATTERNS, MOST_LENGTH, MOST_ITEMS):
        assert f"{limit:,}" in text, limit
    assert f"{MOST_MET_PATTERNS} patterns" in text
