"""The script that times gradients of adapters: what it renders, and what it calls a miss."""

from __future__ import annotations

from typing import Any

import training
from harness.record import describe_run


def training_record(**seconds: float) -> dict[str, Any]:
    ours = dict.fromkeys(training.OURS, 1.0) | dict.fromkeys(training.PEERS, 1.5) | seconds
    peaks = dict.fromkeys(training.OURS, 100.0) | dict.fromkeys(training.PEERS, 400.0)
    sizes = {"model": "a.gguf", "tokens": 512, "threads": 1}
    return {**describe_run("training"), **sizes, "seconds": ours, "peak_mb": peaks}


def test_slow_gradients_and_much_memory_are_a_miss() -> None:
    record = training_record()
    assert training.misses(record) == []
    assert "| float32 | 1.00 | 100 | 1.50x PEFT float32 | 0.25x |" in training.render(record)
    assert training.misses(training_record(bfloat16=1.4)) == [
        "bfloat16: 1.07 times as fast as PEFT bfloat16, at least 1.2 wanted"
    ]
    record["peak_mb"]["Q4_1"] = 200.0
    assert training.misses(record) == ["Q4_1: 0.50 of the memory of PEFT float32, at most 0.35 wanted"]
