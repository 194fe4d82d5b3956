"""The script that times adapters: what it renders, and what it calls a miss."""

from __future__ import annotations

from typing import Any

import lora
from harness.record import describe_run


def lora_record(**changes: float) -> dict[str, Any]:
    seconds = {f"{kind}, {name}": 1.05 for kind in ("decode", "prompt") for name in (lora.ALL, lora.QUERIES)}
    seconds |= {"decode, None": 1.0, "prompt, None": 1.0, "attach": 3.0, "sha256": 1.0}
    seconds |= {f"batch, {kind}, {adapted}": 1.0 for kind in ("together", "in turn") for adapted in (True, False)}
    samples = {name: [each, 9.0] for name, each in (seconds | changes).items()}
    return {**describe_run("lora"), "model": "a.gguf", "adapter_bytes": 20_000_000, "seconds": samples}


def test_adapters_that_cost_too_much_are_a_miss() -> None:
    assert lora.misses(lora_record()) == []
    assert "| a token | 1000.0 ms | 1.05 | 1.05 |" in lora.render(lora_record())
    slow = {f"decode, {lora.ALL}": 1.6, "batch, together, True": 2.0, "attach": 5.0}
    assert [line.split(" takes ")[0] for line in lora.misses(lora_record(**slow))] == [
        f"decode, {lora.ALL}",
        "four adapters leave 0.50 of what one step of all sequences brings, 0.85 is the least",
        "attaching",
    ]
