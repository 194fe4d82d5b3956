"""What the script for models with recurrent layers concludes from a record."""

from typing import Any

import hybrid
from harness.record import describe_run


def hybrid_record(
    *, decode: float = 0.06, prompt: float = 6.0, long: float = 0.09, four: float = 0.05, **ours: float
) -> dict[str, Any]:
    times = [("lattice", 0.04, 1.0, 0.05), ("llama.cpp", decode, prompt, long)]
    samples = [
        {"model": "a.gguf", "engine": engine, "seconds": one, "prompt_seconds": whole, "long_seconds": after}
        for engine, one, whole, after in times
    ]
    own = {"bytes": 4e8, "peak_bytes": 6e8, "slot_over_state": 2.4, "steps": {"1": [0.04], "4": [four]}}
    own |= {
        "drafts": {"step": [0.04], "draft": [0.03]},
        "draft_shares": {"0": 0.8, "65536": 0.3, "262144": 0.1},
        **ours,
    }
    return describe_run("hybrid") | {
        "isa": "avx2",
        "peer": "AVX2, FMA",
        "absent": {},
        "early": 8,
        "late": 40,
        "prompt": 512,
        "samples": samples,
        "models": {"a.gguf": own},
    }


def test_engines_are_compared_and_limits_are_told() -> None:
    assert hybrid.misses(hybrid_record()) == []
    lines = hybrid.render(hybrid_record()).splitlines()
    assert "| a.gguf | llama.cpp | 16.7 | 1.50 | 85 | 6.00 | 11.1 | 1.80 |" in lines
    assert "| a.gguf | 1.25 | 600 | 2.40 | 0.75 | 0.80 | 0.30 | 0.10 |" in lines
    for record in (
        hybrid_record(decode=0.041),
        hybrid_record(prompt=1.1),
        hybrid_record(long=0.051),
        hybrid_record(four=0.08),
        hybrid_record(peak_bytes=float("nan")),
        hybrid_record(slot_over_state=2.6),
    ):
        assert len(hybrid.misses(record)) == 1
