"""Tools, their calls as models write them, and random arguments."""

from __future__ import annotations

import json
import random

import pytest

pytest.importorskip("llguidance")

from lattice_inference.tools.definitions import checked_tools

from ..generate.conftest import drawn_directory, drawn_model  # noqa: F401, TID252
from ..grammar.conftest import byte_compiler  # noqa: F401, TID252

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 40},
                "days": {"type": "integer", "minimum": 0, "maximum": 9},
                "units": {"type": "string", "enum": ["C", "F"]},
                "where": {"type": "object", "properties": {"note": {"type": "string"}}, "additionalProperties": False},
                "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
            },
            "required": ["city"],
        },
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
TOOLS = checked_tools([WEATHER, NOW])

_PARTS = ["a", "é", "😀", "{", "}", "[", "]", ", ", ": ", '"', "\\", "\n", " ", "\t", "</think>", "<think>", "[ARGS]"]
_PARTS += ["</tool_call>", "<tool_call>", "</parameter>", "<function=now>", "[TOOL_CALLS]", "[TOOL_CALLS]now[ARGS]{}"]


def written(name: str, calls: list[tuple[str, dict]]) -> str:
    """Return calls as a model of this format writes them; the expected value of the tests, made without the package."""

    def text(value):
        return json.dumps(value, ensure_ascii=False)

    def as_mapping(call, arguments="arguments"):
        return f'{{"name": "{call[0]}", "{arguments}": {text(call[1])}}}'

    def as_parameters(arguments):
        values = [(key, value if isinstance(value, str) else text(value)) for key, value in arguments.items()]
        return "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values)

    if name == "hermes":
        return "\n".join(f"<tool_call>\n{as_mapping(call)}\n</tool_call>" for call in calls)
    if name == "qwen3-coder":
        return "\n".join(
            f"<tool_call>\n<function={called}>\n{as_parameters(arguments)}</function>\n</tool_call>"
            for called, arguments in calls
        )
    if name == "llama3":
        return as_mapping(calls[0], "parameters")
    if name == "mistral-args":
        return "".join(f"[TOOL_CALLS]{called}[ARGS]{text(arguments)}" for called, arguments in calls)
    return ("[TOOL_CALLS]" if name == "mistral" else "") + f"[{', '.join(map(as_mapping, calls))}]"


def drawn_calls(rng: random.Random, most: int) -> list[tuple[str, dict]]:
    """Return one to ``most`` calls whose texts hold what marks and JSON are made of."""

    def drawn_text(parts):
        text = "".join(rng.choice(_PARTS) for _ in range(rng.randint(0, parts)))
        return text.replace("\n</parameter>\n", "")[:40]

    calls: list[tuple[str, dict]] = []
    for _ in range(rng.randint(1, most)):
        if rng.random() < 0.2:
            calls.append(("now", {}))
            continue
        optional = {
            "days": rng.randint(0, 9),
            "units": rng.choice("CF"),
            "where": {"note": drawn_text(8)},
            "tags": [drawn_text(4) for _ in range(rng.randint(0, 2))],
        }
        calls.append(("weather", {"city": drawn_text(6)} | {k: v for k, v in optional.items() if rng.random() < 0.5}))
    return calls
