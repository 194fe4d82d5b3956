"""What the script for speculation concludes from a record."""

from typing import Any

import speculation
from harness.record import describe_run

NAMES = ("code edit, greedy", "code edit, drawn", "prose, greedy", "prose, drawn")


def speculation_record(*, edit: float = 1.0, prose: float = 2.0, four: float = 0.0155) -> dict[str, Any]:
    def text(drafted: float) -> dict[str, Any]:
        return {
            "plain": [2.0, 2.0, 9.0],
            "ngram": [drafted, drafted, 4.0],
            "tokens": 160,
            "drafted": 90,
            "accepted": 80,
        }

    return describe_run("speculation") | {
        "isa": "avx2",
        "model": "a.gguf",
        "texts": {name: text(edit if name.startswith("code") else prose) for name in NAMES},
        "steps": {"b.gguf": {"1": [0.01], "4": [four], "8": [0.02], "16": [0.03]}},
    }


def test_texts_and_steps_are_compared() -> None:
    assert speculation.misses(speculation_record()) == []
    lines = speculation.render(speculation_record()).splitlines()
    assert "| code edit, greedy | 160 | 90 | 80 | 2.00 |" in lines
    assert "| b.gguf | 1.55 | 2.00 | 3.00 |" in lines
    for record in (
        speculation_record(edit=1.4),
        speculation_record(prose=2.1),
        speculation_record(four=0.03),
        speculation_record(edit=float("nan")),
    ):
        assert len(speculation.misses(record)) == 1
