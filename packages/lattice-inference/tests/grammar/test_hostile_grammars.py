"""Schemas and grammars of excessive sizes: each is compiled or refused by name, with little time and memory."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from lattice_inference import Choice, Engine, EngineConfig, Gbnf, GenerateConfig, GrammarError, JsonSchema, Lark, Regex
from lattice_inference.grammar.schema_intersections import MOST_MET_PATTERNS
from lattice_inference.tools.definitions import MOST_TOOLS, checked_tools
from lattice_inference.tools.formats import FORMATS
from lattice_inference.tools.grammar import ToolGrammar

MOST_SECONDS = 20
"""A stop for what hangs; what each takes is measured by benchmarks/grammar.py."""

MOST_BYTES = 400_000_000
STATM = Path("/proc/self/statm")


def patterns(count: int) -> list[dict[str, object]]:
    return [{"type": "string", "pattern": f"a.{{{index}}}b"} for index in range(count)]


MANY = MOST_MET_PATTERNS + 1
TOO_MANY = {
    "allOf": {"allOf": patterns(MANY)},
    "allOf of properties": {"allOf": [{"properties": {"x": one}} for one in patterns(MANY)]},
    "allOf of references": {
        "allOf": [{"$ref": f"#/$defs/{index}"} for index in range(MANY)],
        "$defs": {str(index): one for index, one in enumerate(patterns(MANY))},
    },
    "references with siblings": {
        "$ref": "#/$defs/0",
        "$defs": {str(index): {"$ref": f"#/$defs/{index + 1}", "pattern": str(index)} for index in range(MANY)}
        | {str(MANY): {"type": "string"}},
    },
    "anyOf in allOf": {"allOf": [{"anyOf": [one, {"pattern": "x"}]} for one in patterns(MANY)]},
    "items": {"allOf": [{"items": one} for one in patterns(MANY - 1)] + [{"prefixItems": [{"pattern": "c"}]}]},
    "members that others leave free": {
        "allOf": [{"additionalProperties": one} for one in patterns(MANY - 1)]
        + [{"properties": {"x": {"pattern": "c"}}}]
    },
    "100 branches": {"allOf": patterns(100)},
}


@pytest.mark.parametrize("name", TOO_MANY)
def test_patterns_that_meet_are_counted(name):
    with pytest.raises(GrammarError, match=r"patterns hold for one text") as caught:
        JsonSchema({"type": "object", "properties": {"p": TOO_MANY[name]}, "$defs": TOO_MANY[name].get("$defs", {})})
    assert caught.value.pointer.startswith(("/properties/p", "/$defs"))


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": patterns(MOST_MET_PATTERNS)},
        {"anyOf": patterns(100)},
        {"allOf": [{"properties": {f"x{index}": one}} for index, one in enumerate(patterns(50))]},
        {"allOf": [{"anyOf": patterns(50)}, {"maxLength": 3}]},
        {"$defs": {"a": {"allOf": [{"properties": {"x": {"$ref": "#/$defs/a"}}}, {"$ref": "#/$defs/b"}]},
                   "b": {"properties": {"x": {"$ref": "#/$defs/b"}}}}, "$ref": "#/$defs/a"},
    ],
)  # fmt: skip
def test_patterns_of_several_texts_are_taken(schema):
    JsonSchema(schema)


def doubled(first: str, step: str, last: str) -> str:
    """Rules of which each names the next one twice, 16 times over."""
    return "\n".join([first, *[step.format(index, index + 1) for index in range(16)], last.format(16)])


def references(depth: int) -> dict[str, object]:
    """A reference beside a keyword, in two members of each of ``depth`` schemas."""
    definitions: dict[str, object] = {
        f"a{index}": {"properties": {name: {"$ref": f"#/$defs/a{index + 1}", "minimum": 1} for name in "xy"}}
        for index in range(depth)
    }
    return {"$ref": "#/$defs/a0", "$defs": {**definitions, f"a{depth}": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("make", "pointer"),
    [
        (lambda: JsonSchema({"properties": {"n": {"multipleOf": 999_983}}}), "/properties/n/multipleOf"),
        (lambda: JsonSchema({"properties": {"n": {"minimum": 10**4000}}}), "/properties/n/minimum"),
        (lambda: JsonSchema({"const": -(10**400)}), "/const"),
        (lambda: JsonSchema(references(30)), "/$defs"),
        (lambda: JsonSchema({"items": {"enum": [[]] * 10_000}}), "/items/enum"),
        (lambda: Regex("a?" * 2_001), None),
        (lambda: Regex("(a|)" * 2_001), None),
        (lambda: Gbnf("root ::= " + '"a"? ' * 2_001), None),
        (lambda: Lark(doubled("start: T0", "T{0}: T{1} T{1}", 'T{0}: "a"?')), None),
        (lambda: Lark(f"start: %json {json.dumps({'allOf': patterns(9)})}"), ""),
    ],
)
def test_what_no_limit_of_the_engine_ends_is_refused_before(make, pointer):
    """20,000 optional parts took 1.6 GB, 999,983 remainders 16 s, 30 references 2**30 schemas."""
    with pytest.raises(GrammarError) as caught:
        make()
    assert pointer is None or caught.value.pointer.startswith(pointer)


@pytest.mark.parametrize(
    "make",
    [
        lambda: JsonSchema({"type": "integer", "multipleOf": 997}),
        lambda: JsonSchema({"type": "integer", "multipleOf": 10**9}),
        lambda: JsonSchema({"type": "number", "multipleOf": 0.000_01}),
        lambda: JsonSchema({"properties": {f"n{n}": {"multipleOf": n} for n in (97, 101, 103, 107)}}),
        lambda: JsonSchema(references(8)),
        lambda: Regex("a?" * 2_000),
        lambda: Regex(r"[?*]\?\*" * 2_000),
        lambda: Lark('start: T*\nT: /[a-z]?x/ | "?" | "*"\n' + "%ignore /[ ]*/"),
    ],
)
def test_what_stays_below_is_taken(make, byte_compiler):
    byte_compiler.matcher(make())


HOSTILE = {
    "4 MB": lambda: JsonSchema({"description": "x" * 4_000_000}),
    "4 MB of values": lambda: JsonSchema(json.dumps({"enum": [f"{'x' * 40}{index}" for index in range(80_000)]})),
    "10,000 levels": lambda: JsonSchema('{"items":' * 10_000 + "{}" + "}" * 10_000),
    "100,000 values": lambda: JsonSchema({"enum": list(range(100_000))}),
    "10,000 values": lambda: JsonSchema({"enum": [f"name {index * 7919}" for index in range(10_000)]}),
    "minItems": lambda: JsonSchema({"type": "array", "minItems": 10**6}),
    "minItems at the limit": lambda: JsonSchema({"type": "array", "minItems": 10**4, "items": {"type": "integer"}}),
    "maxLength": lambda: JsonSchema({"type": "string", "maxLength": 10**9}),
    "maxLength at the limit": lambda: JsonSchema({"type": "string", "maxLength": 10**5}),
    "repetitions": lambda: Regex("(a|aa){1000}"),
    "repetitions of repetitions": lambda: Regex("((a{100}){100}){100}"),
    "a pattern of many states": lambda: Regex("(a|b)*a(a|b){500}"),
    "repetitions with a length": lambda: JsonSchema({"type": "string", "pattern": "^(a|aa){1000}$", "maxLength": 5000}),
    "a circle": lambda: JsonSchema({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
    "a web page": lambda: JsonSchema({"$ref": "https://example.com/schema"}),
    "a value without an end": lambda: JsonSchema({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}),
    "false": lambda: JsonSchema(False),
    "false inside": lambda: JsonSchema({"type": "object", "properties": {"a": False}, "required": ["a"]}),
    "a rule that begins with itself": lambda: Gbnf('root ::= root "a" | "b"'),
    "a rule that is missing": lambda: Gbnf("root ::= x"),
    "an ambiguous rule": lambda: Gbnf('root ::= "a" root "a" | "a" root | "a"'),
    "intersections": lambda: Lark("start: A\nA: " + " & ".join(f"/(?s:.)*{c}(?s:.)*/" for c in "abcdefghijklmnopqrstuvwx")),
    "look-around": lambda: Regex("(?=a)a"),
    "an unknown draft": lambda: JsonSchema({"$schema": "http://json-schema.org/draft-99/schema#"}),
    "1,000 properties": lambda: JsonSchema(
        {"type": "object", "properties": {f"p{index}": {"type": "string", "maxLength": 100} for index in range(1_000)}}
    ),
    "products": lambda: JsonSchema({"allOf": [{"anyOf": [{"properties": {f"{name}{index}": {"type": "integer"}}}
                                                         for name in "ab"]} for index in range(20)]}),
    "patterns": lambda: JsonSchema({"patternProperties": {f"^{index}(a|b)*a(a|b){{{index}}}$": {"type": "integer"}
                                                          for index in range(30)}}),
    "multiples of a large prime": lambda: JsonSchema({"type": "integer", "multipleOf": 999_983}),
    "multiples of several primes": lambda: JsonSchema({"allOf": [{"multipleOf": n} for n in (97, 101, 103, 107)]}),
    "a number of 4,000 digits": lambda: JsonSchema({"type": "integer", "minimum": 10**4000}),
    "optional parts": lambda: Regex("a?" * 100_000),
    "optional parts of a pattern": lambda: JsonSchema({"type": "string", "pattern": "(a|)" * 20_000}),
    "optional parts in GBNF": lambda: Gbnf(doubled("root ::= r0", "r{0} ::= r{1} r{1}", 'r{0} ::= "a"?')),
    "optional parts in Lark": lambda: Lark(f"start: /{'a{0,9}' * 20_000}/"),
    "optional terminals": lambda: Lark(doubled("start: T0", "T{0}: T{1} T{1}", 'T{0}: "a"?')),
    "a schema in Lark": lambda: Lark(f"start: %json {json.dumps({'allOf': patterns(30)})}"),
    "references that double": lambda: JsonSchema(references(30)),
    "values of arrays": lambda: JsonSchema({"enum": [{"k": {"v": [index, {"z": index}]}} for index in range(10_000)]}),
    "values of arrays that are taken": lambda: JsonSchema({"enum": [{"k": [index]} for index in range(1_000)]}),
    "10,000 choices": lambda: Choice([f"text number {index}" for index in range(10_000)]),
}  # fmt: skip


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("name", HOSTILE)
def test_each_is_compiled_or_refused(name, byte_compiler):
    """In a child with a limit on time and on memory, for the engine's code cannot be interrupted."""
    import resource

    child = os.fork()
    if not child:
        code = 3
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS))
            if STATM.exists():
                size = int(STATM.read_text().split()[0]) * resource.getpagesize() + MOST_BYTES
                resource.setrlimit(resource.RLIMIT_AS, (size, size))
            code = 0
            try:
                matcher = byte_compiler.matcher(HOSTILE[name]())
                for _ in range(8):
                    allowed = next((byte for byte in range(32, 127) if matcher.count_allowed([byte])), None)
                    if allowed is None:
                        break
                    matcher.accept(allowed)
            except GrammarError as error:
                code = 0 if str(error) else 4
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.slow
def test_other_texts_go_on(drawn_model):
    """Each request is refused or begins while a text is written, whose tokens are those that it has alone."""
    config = GenerateConfig(max_new_tokens=110, temperature=1.0, top_k=0, seed=4, ignore_stop_tokens=True)
    with Engine(drawn_model, EngineConfig(page_tokens=16)) as engine:
        expected = engine.submit("Once", config).finish().token_ids
        streams, refused = [], 0
        for make in HOSTILE.values():
            other = engine.submit("Once", config)
            try:
                settings = GenerateConfig(max_new_tokens=4, seed=1, grammar=make())
                streams.append(engine.submit("Once", settings))
            except GrammarError:
                refused += 1
            assert other.finish().token_ids == expected
        for stream in streams:
            try:
                assert len(stream.finish().token_ids) <= 4
            except GrammarError:  # a limit is passed at a token
                refused += 1
    assert refused >= 10
    assert len(streams) >= 10


@pytest.mark.parametrize("name", ["hermes", "qwen3-coder"])
def test_128_tools_of_20_arguments_are_taken(name, byte_compiler):
    members = {f"p{index}": {"type": ["string", "integer", "array"][index % 3]} for index in range(20)}
    tools = checked_tools(
        [
            {"type": "function", "function": {"name": f"t{index}", "parameters": {"properties": members}}}
            for index in range(MOST_TOOLS)
        ]
    )
    byte_compiler.matcher(ToolGrammar(FORMATS[name], tools))
