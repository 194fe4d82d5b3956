"""The script that times gradients of adapters: what it renders, and what it calls a miss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import training
from harness.record import describe_run


def training_record(**seconds: float) -> dict[str, Any]:
    ours = dict.fromkeys(training.OURS, 1.0) | dict.fromkeys(training.PEERS, 1.5) | {"PEFT MiniLM": 2.5} | seconds
    peaks = dict.fromkeys(training.OURS, 100.0) | dict.fromkeys(training.PEERS, 400.0)
    sizes = {"model": "a.gguf", "tokens": 512, "threads": 1}
    seconds_of_steps = {name: [9.0, time, 0.0] for name, time in ours.items()}
    return {**describe_run("training"), **sizes, "seconds": seconds_of_steps, "peak_mb": peaks}


def test_slow_gradients_and_much_memory_are_a_miss() -> None:
    record = training_record()
    assert training.misses(record) == []
    assert "| float32 | 1.00 | 100 | 1.50x PEFT float32 | 0.25x |" in training.render(record)
    assert training.misses(training_record(bfloat16=1.4)) == [
        "bfloat16: 1.07 times as fast as PEFT bfloat16, at least 1.2 wanted"
    ]
    assert training.misses(training_record(MiniLM=1.5)) == [
        "MiniLM: 1.67 times as fast as PEFT MiniLM, at least 2.0 wanted"
    ]
    record["peak_mb"]["Q4_1"] = 200.0
    assert training.misses(record) == ["Q4_1: 0.50 of the memory of PEFT float32, at most 0.35 wanted"]


def test_without_pairs_the_encoder_is_left_out() -> None:
    record = training_record()
    for part in ("seconds", "peak_mb"):
        record[part] = {name: value for name, value in record[part].items() if "MiniLM" not in name}
    assert training.misses(record) == []
    assert "MiniLM |" not in training.render(record)


def test_batches_are_pairs_as_ids_and_differ_by_step(tmp_path: Path) -> None:
    rows = [f"sentence {number},another {number},{number % 6}" for number in range(100)]
    (tmp_path / "pairs.csv").write_text("\n".join(rows), encoding="utf-8")
    first, second = training.drawn_batches(tmp_path / "pairs.csv", 2)
    assert first != second
    assert [len(column) for column in first["sentences"]] == [32, 32]
    assert {ids[0] for column in first["sentences"] for ids in column} == {101}  # [CLS]
    assert len(first["scores"]) == 32
