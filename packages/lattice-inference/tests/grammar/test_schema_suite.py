"""The JSON Schema Test Suite, draft 2020-12: each test is right, its schema is refused, or it is a listed departure."""

from __future__ import annotations

import gzip
import itertools
import json
from collections import Counter

import pytest

from lattice_inference import GrammarError, JsonSchema

ORDERS = 40
"""An object's members come in one order only, so a value is written in so many orders to find it."""

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
    accepted: Counter[str] = Counter()
    not_written: Counter[str] = Counter()
    for name, cases in suite.items():
        for case in cases:
            try:
                grammar = JsonSchema(json.dumps(case["schema"]))
                obeys(grammar, "")
            except GrammarError:
                outcomes["refused"] += len(case["tests"])
                continue
            for test in case["tests"]:
                texts = (json.dumps(one, ensure_ascii=False) for one in orders(test["data"]))
                found = any(obeys(grammar, text) for text in texts)
                if found == test["valid"]:
                    outcomes["right"] += 1
                else:
                    (not_written if test["valid"] else accepted)[name] += 1
    assert dict(accepted) == INVALID_ACCEPTED
    assert dict(not_written) == VALID_NOT_WRITTEN
    assert outcomes == {"right": 2225 - 1060 - 39 - 30, "refused": 1060}
