"""What the script for structured output concludes from a record."""

from typing import Any

import grammar
from harness.record import describe_run


def grammar_record(
    *,
    ours: float = 22e-6,
    constrained: float = 0.0102,
    compiled: float = 2e-3,
    peer: float | None = 20e-3,
    crowd: float = 0.0105,
    gap: float = 0.02,
    hostile: tuple[float, float] = (0.2, 30.0),
) -> dict[str, Any]:
    beside = {} if peer is None else {"xgrammar": [peer]}
    return describe_run("grammar") | {
        "model": "a.gguf",
        "vocabulary": 49_152,
        "mask": {"ours": [ours, ours, 1.0], "bare": [20e-6, 20e-6, 2.0]},
        "compile": {"ours": [compiled], **beside},
        "decode": {"free": [0.01], "constrained": [constrained]},
        "streams": {"free": [0.01], "constrained": [crowd]},
        "gaps": {"alone": [0.02], "compiling": [gap]},
        "hostile": {"large": list(hostile), "small": [0.0, 0.0]},
    }


def test_masks_schemas_and_speed_are_compared() -> None:
    assert grammar.misses(grammar_record()) == []
    lines = grammar.render(grammar_record()).splitlines()
    assert "| a mask, median | 22.0 us | 20.0 us by llguidance alone |" in lines
    assert "| tokens a second under a grammar | 0.98 | of a free text's |" in lines
    assert "| the same with 16 streams | 0.95 | of 16 free texts' |" in lines
    assert "| a schema of excessive size | 0.20 s, 30 MB | the worst of 14 |" in lines
    assert any("0.10 of xgrammar's time" in line for line in lines)
    assert any("xgrammar was not there" in line for line in grammar.render(grammar_record(peer=None)).splitlines())
    assert grammar.misses(grammar_record(peer=None)) == []
    for record in (
        grammar_record(ours=27e-6),
        grammar_record(constrained=0.011),
        grammar_record(compiled=6e-3),
        grammar_record(constrained=float("nan")),
        grammar_record(crowd=0.012),
        grammar_record(gap=0.03),
        grammar_record(hostile=(1.1, 3)),
        grammar_record(hostile=(0.1, 300)),
    ):
        assert len(grammar.misses(record)) == 1
