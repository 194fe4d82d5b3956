"""Every keyword of a schema is enforced, an annotation, or refused by its place; nothing vanishes."""

from __future__ import annotations

import json

import pytest

from lattice_inference import GrammarError, JsonSchema
from lattice_inference.grammar import schema_keywords
from lattice_inference.grammar.schema_gate import MOST_DEPTH, checked_schema


def nested(levels):
    schema: object = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize("keyword", sorted(schema_keywords.REFUSED))
def test_refused_keywords_are_named_with_place_and_remedy(keyword):
    with pytest.raises(GrammarError) as caught:
        JsonSchema({"type": "object", "properties": {"a/b": {keyword: {"type": "string"}}}})
    assert caught.value.pointer == f"/properties/a~1b/{keyword}"
    assert schema_keywords.REFUSED[keyword] in str(caught.value)


@pytest.mark.parametrize("keyword", ["x-guidance", "minimun", "Type", "nullabel", ""])
def test_unknown_keywords_are_refused(keyword):
    with pytest.raises(GrammarError, match="no keyword is called") as caught:
        JsonSchema({"items": {keyword: {"lenient": True}}})
    assert caught.value.pointer == f"/items/{keyword}"


def test_annotations_are_left_out_and_change_nothing(obeys):
    plain = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    told = plain | {name: "x" for name in schema_keywords.ANNOTATIONS if name != "$schema"}
    told["properties"] = {"a": {"type": "integer", "description": "how many", "examples": [1], "default": 0}}
    assert JsonSchema(told) == JsonSchema(plain)
    assert JsonSchema({"title": "no limit"}) == JsonSchema(True)


def test_a_property_may_be_called_as_a_keyword(obeys):
    grammar = JsonSchema({"type": "object", "properties": {"not": {"type": "integer"}}, "additionalProperties": False})
    assert obeys(grammar, '{"not": 1}')


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"type": "strin"}, "/type"),
        ({"type": []}, "/type"),
        ({"enum": []}, "/enum"),
        ({"enum": list(range(10_001))}, "/enum"),
        ({"const": float("nan")}, "/const"),
        ({"const": {"a": [object()]}}, "/const/a/0"),
        ({"properties": []}, "/properties"),
        ({"properties": {1: {}}}, "/properties"),
        ({"properties": {f"p{index}": {} for index in range(1_001)}}, "/properties"),
        ({"items": 3}, "/items"),
        ({"anyOf": []}, "/anyOf"),
        ({"allOf": {}}, "/allOf"),
        ({"prefixItems": [{}, {"minimum": "3"}]}, "/prefixItems/1/minimum"),
        ({"multipleOf": 0}, "/multipleOf"),
        ({"maximum": float("inf")}, "/maximum"),
        ({"exclusiveMinimum": True}, "/exclusiveMinimum"),
        ({"minItems": -1}, "/minItems"),
        ({"minItems": 10**6}, "/minItems"),
        ({"maxLength": 10**9}, "/maxLength"),
        ({"minLength": 1.5}, "/minLength"),
        ({"required": "a"}, "/required"),
        ({"required": ["a\x01"]}, "/required"),
        ({"enum": ["\ud800"]}, "/enum/0"),
        ({"format": "iri"}, "/format"),
        ({"pattern": 3}, "/pattern"),
        ({"pattern": "(?=a)a"}, "/pattern"),
        ({"patternProperties": {"(?<!x)a": {}}}, "/patternProperties/(?<!x)a"),
        ({"$ref": "http://example.com/schema"}, "/$ref"),
        ({"$ref": "other.json#/a"}, "/$ref"),
        ({"$ref": "#name"}, "/$ref"),
        ({"$ref": "#/$defs/none"}, "/$ref"),
        ({"$ref": "#/properties"}, "/$ref"),
        ({"$ref": "#"}, "/$ref"),
        ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "/$defs/a/$ref"),
        ({"$schema": "http://json-schema.org/draft-99/schema#"}, "/$schema"),
        ({"items": {"$id": "http://x/"}}, "/items/$id"),
        ({"uniqueItems": True}, "/uniqueItems"),
        ({"minProperties": 2}, "/minProperties"),
        (False, ""),
    ],
)
def test_what_is_malformed_or_too_large_is_refused_at_its_place(schema, pointer):
    with pytest.raises(GrammarError) as caught:
        JsonSchema(schema)
    assert caught.value.pointer == pointer


@pytest.mark.parametrize(
    "schema",
    [
        {"uniqueItems": False},
        {"nullable": False},
        {"propertyNames": True},
        {"unevaluatedProperties": {}},
        {"$id": "https://example.com/x"},
        {"$schema": "https://json-schema.org/draft/2020-12/schema"},
        {"$schema": "http://json-schema.org/draft-07/schema#"},
    ],
)
def test_keywords_that_state_nothing_are_taken(schema):
    assert JsonSchema(schema) == JsonSchema(True)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1]",
        '"a"',
        "NaN",
        '{"maximum": NaN}',
        '{"type": "string", "type": "integer"}',
        '{"items":' * 10_000 + "{}" + "}" * 10_000,
        '{"enum": ["' + "x" * 1_000_000 + '"]}',
    ],
)
def test_texts_that_are_no_schema_are_refused(text):
    with pytest.raises(GrammarError):
        JsonSchema(text)


@pytest.mark.parametrize("schema", [3, None, ["a"], object(), nested(10_000), {"enum": ["x" * 1_000_001]}])
def test_values_that_are_no_schema_are_refused(schema):
    with pytest.raises(GrammarError):
        JsonSchema(schema)


def test_depth_is_bounded_at_what_is_said(obeys):
    deep = nested(MOST_DEPTH - 1)
    assert checked_schema(deep) == deep
    with pytest.raises(GrammarError, match="deeper than 100"):
        checked_schema(nested(MOST_DEPTH + 1))


def test_pydantic_models_are_taken_by_their_method(obeys):
    class Person:
        @classmethod
        def model_json_schema(cls):
            return {
                "title": "Person",
                "type": "object",
                "properties": {"age": {"type": "integer"}},
                "required": ["age"],
            }

    assert obeys(JsonSchema(Person), '{"age": 3}')
    assert not obeys(JsonSchema(Person), "{}")


# Cases that other systems got wrong.
@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "string", "pattern": r"^[\x20-\x7E]+$", "maxLength": 8}, ['"12345678"'], ['"123456789"', '""']),
        ({"type": "object", "properties": {"a": {"type": "string"}}}, ['{"a": "x", "direction": "NW"}'], ['{"a": 1}']),
        ({"type": "number", "minimum": 0, "maximum": 1}, ["0.5", "1", "0"], ["7.5", "-0.1", "1.01"]),
        ({"type": "integer"}, ["7", "0", "-3"], ["007", "-", "1.5", "+1"]),
        ({"anyOf": [{"enum": ["ab", "c_d"]}, {"enum": ["ab_c", "d"]}]}, ['"ab"', '"c_d"', '"ab_c"'], ['"ab_c_d"', '"c"']),
        (
            {"type": "object", "properties": {"r": {"type": "integer"}, "o": {"type": "integer"}}, "required": ["r"]},
            ['{"r":1}', '{"r":1,"o":2}', '{"r": 1, "o": 2}'],
            ['{"r":1,}', '{"o":2}', '{,"r":1}', '{"r":1 ,"o":2}', '{"r":1,  "o":2}'],
        ),
        ({"type": "object", "required": ["y"]}, ['{"y":1}'], ["{}", '{"x":1}']),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, ["[1,2]", "[1, 2, 3]"], ["[]", "[1]"]),
        ({"const": {"a": [1, None]}}, ['{"a":[1,null]}'], ['{"a":[1]}']),
        ({"type": ["string", "null"]}, ["null", '"a"'], ["1"]),
        ({"$defs": {"n": {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}, "additionalProperties": False}},
          "$ref": "#/$defs/n"}, ["{}", '{"next":{"next":{}}}'], ['{"next":1}', '{"other":{}}']),
    ],
)  # fmt: skip
def test_values_of_a_schema(schema, right, wrong, obeys):
    grammar = JsonSchema(schema)
    for text in right:
        json.loads(text)
        assert obeys(grammar, text), text
    for text in wrong:
        assert not obeys(grammar, text), text


def test_a_key_has_one_spelling(obeys):
    """Else an escaped spelling of a listed key would pass for an additional one, whose value is free."""
    grammar = JsonSchema(
        {"type": "object", "properties": {"a": {"type": "integer"}}, "patternProperties": {"^b": {"type": "null"}}}
    )
    assert obeys(grammar, '{"a":1,"b":null,"c":"x"}')
    for text in (r'{"\u0061":"x"}', r'{"\u0062":"x"}', '{"b":"x"}', '{"c":1,"a":"x"}', '{"a":1,"a":"x"}'):
        assert not obeys(grammar, text), text


def test_whitespace_is_bounded(obeys):
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}}
    compact, indented = JsonSchema(schema), JsonSchema(schema, whitespace="indented")
    for text in ('{"a":[1,2]}', '{"a": [1, 2]}'):
        assert obeys(compact, text)
        assert obeys(indented, text)
    assert obeys(indented, '{\n  "a": [\n    1,\n    2\n  ]\n}')
    for text in ('{\n"a":[]}', '{ "a":[]}', '{"a" :[]}', '{"a":  []}', '{"a":\t[]}'):
        assert not obeys(compact, text), text
    for text in ("{\n" + 21 * " " + '"a":[]}', '{\n\n"a":[]}', '{"a":  []}', '{"a":\n \n[]}'):
        assert not obeys(indented, text), text
    with pytest.raises(GrammarError, match="whitespace"):
        JsonSchema(schema, whitespace="any")  # type: ignore[arg-type]
