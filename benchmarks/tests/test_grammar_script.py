"""What the script for structured output concludes from a record."""

from typing import Any

import grammar
from harness.record import describe_run


def grammar_record(
    *, ours: float = 22e-6, constrained: float = 0.0102, compiled: float = 2e-3, peer: float | None = 20e-3
) -> dict[str, Any]:
    beside = {} if peer is None else {"xgrammar": [peer]}
    return describe_run("grammar") | {
        "model": "a.gguf",
        "vocabulary": 49_152,
        "mask": {"ours": [ours, ours, 1.0], "bare": [20e-6, 20e-6, 2.0]},
        "compile": {"ours": [compiled], **beside},
        "decode": {"free": [0.01], "constrained": [constrained]},
    }


def test_masks_schemas_and_speed_are_compared() -> None:
    assert grammar.misses(grammar_record()) == []
    lines = grammar.render(grammar_record()).splitlines()
    assert "| a mask, median | 22.0 us | 20.0 us by llguidance alone |" in lines
    assert "| tokens a second under a grammar | 0.98 | of a free text's |" in lines
    assert any("0.10 of xgrammar's time" in line for line in lines)
    assert any("xgrammar was not there" in line for line in grammar.render(grammar_record(peer=None)).splitlines())
    assert grammar.misses(grammar_record(peer=None)) == []
    for record in (
        grammar_record(ours=27e-6),
        grammar_record(constrained=0.011),
        grammar_record(compiled=6e-3),
        grammar_record(constrained=float("nan")),
    ):
        assert len(grammar.misses(record)) == 1
