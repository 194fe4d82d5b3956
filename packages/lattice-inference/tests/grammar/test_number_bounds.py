"""Numbers near the bounds of a schema are allowed only if jsonschema takes them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from lattice_inference import GrammarError, JsonSchema

jsonschema = pytest.importorskip("jsonschema")

STEPS = (-1, -0.1, -0.01, -0.001, 0, 0.001, 0.01, 0.1, 1)


@pytest.mark.parametrize(
    ("schema", "excluded"),
    [
        ({"exclusiveMinimum": 0, "maximum": 0.7}, "0"),
        ({"exclusiveMinimum": 2, "maximum": 2.74}, "2"),
        ({"minimum": -2.949, "exclusiveMaximum": -2.0}, "-2"),
        ({"allOf": [{"exclusiveMinimum": 1}, {"maximum": 1.05}]}, "1"),
    ],
)
def test_a_whole_number_that_is_excluded(schema, excluded, obeys):
    """In a range inside one unit the engine takes it."""
    grammar = JsonSchema({"type": "number", **schema})
    assert not obeys(grammar, excluded)
    assert not obeys(grammar, f"{excluded}.0")
    assert obeys(grammar, f"{excluded}.04")


def test_large_bounds_are_not_moved_over_a_number(obeys):
    for bound in (1_000, 10**9 + 1, 10**15):
        grammar = JsonSchema({"type": "integer", "exclusiveMinimum": bound})
        assert not obeys(grammar, str(bound))
        assert obeys(grammar, str(bound + 1))
    assert json.loads(JsonSchema({"exclusiveMinimum": 10**23}).schema)["exclusiveMinimum"] == 10**23


def schema_of(rng: np.random.Generator) -> tuple[dict[str, object], list[float]]:
    size, digits = float(rng.choice([3, 120])), int(rng.integers(4))
    bounds = sorted(round(float(rng.uniform(-size, size)), digits) for _ in range(2))
    schema: dict[str, object] = {"type": str(rng.choice(["number", "number", "integer"]))}
    if rng.random() < 0.8:
        schema[str(rng.choice(["minimum", "exclusiveMinimum"]))] = bounds[0]
    if rng.random() < 0.8:
        schema[str(rng.choice(["maximum", "exclusiveMaximum"]))] = bounds[1]
    return schema, bounds


@pytest.mark.parametrize("seed", range(3))
def test_no_number_outside_the_bounds_is_allowed(seed, obeys):
    rng = np.random.default_rng(seed)
    looked_at = 0
    for _ in range(25):
        schema, bounds = schema_of(rng)
        validator = jsonschema.Draft202012Validator(schema)
        texts = {f"{bound + step:.{digits}f}" for bound in bounds for step in STEPS for digits in (0, 3)}
        try:
            allowed = [text for text in sorted(texts) if obeys(JsonSchema(schema), text)]
        except GrammarError:  # no number fits
            continue
        looked_at += len(allowed)
        assert [text for text in allowed if not validator.is_valid(json.loads(text))] == [], schema
    assert looked_at > 50
