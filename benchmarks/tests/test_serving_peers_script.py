"""What the script for servers beside each other concludes from a record."""

import json
from pathlib import Path
from typing import Any

import pytest

import serving_peers
from harness.record import describe_run


def peers_record(**ours: float) -> dict[str, Any]:
    figures = {"seconds": 1.0, "first": 0.2, "gap": 0.01, "texts": 1.0, "answer": 0.1} | ours
    samples = []
    for server, times in (("lattice", 1.0), ("llama-server", 4.0), ("infinity", 3.0)):
        own = figures if server == "lattice" else dict.fromkeys(figures, times)
        if server != "infinity":
            first = [own["first"]] * 16
            samples.append(
                {"part": "streams", "seconds": own["seconds"], "processor_seconds": 1.0, "first_token": first}
            )
            samples.append({"part": "gaps", "seconds": own["seconds"], "gaps": [own["gap"]] * 99})
        answers = [own["answer"]] * 99
        samples.append({"part": "texts", "seconds": own["texts"], "processor_seconds": 1.0, "answers": answers})
        for sample in samples:
            sample.setdefault("server", server)
    kept = {"streams": 16, "prompt": 128, "tokens": 128, "long": 4000, "clients": 64, "requests": 512, "threads": 2}
    return describe_run("serving_peers") | kept | {"model": "a.gguf", "absent": {}, "samples": samples}


def test_a_server_is_compared_with_each_peer() -> None:
    assert serving_peers.misses(peers_record()) == []
    lines = serving_peers.render(peers_record()).splitlines()
    assert "| tokens a second | 2048 | 4.00 | - |" in lines
    assert "| p95 time to the first token | 200 ms | 0.05 | - |" in lines
    assert "| texts a second | 512 | 4.00 | 3.00 |" in lines


@pytest.mark.parametrize(
    ("slower", "missed"),
    [
        ({"seconds": 3.0}, ["streams_tokens, llama-server"]),
        ({"first": 3.0}, ["first_token, llama-server"]),
        ({"gap": 2.0}, ["gap, llama-server"]),
        ({"texts": 1.6}, ["texts_requests, infinity"]),
        ({"answer": 2.2}, ["texts_latency, infinity"]),
        ({"answer": float("nan")}, ["texts_latency, llama-server", "texts_latency, infinity"]),
    ],
)
def test_each_limit_is_said_to_be_missed(slower: dict[str, float], missed: list[str]) -> None:
    assert [line.partition(":")[0] for line in serving_peers.misses(peers_record(**slower))] == missed


def test_a_peer_that_did_not_run_is_named() -> None:
    record = peers_record()
    record["samples"] = [sample for sample in record["samples"] if sample["server"] != "infinity"]
    record["absent"] = {"infinity, texts": "no program infinity_emb"}
    shown = serving_peers.render(record)
    assert "| texts a second | 512 | 4.00 | - |" in shown
    assert "infinity, texts is absent: no program infinity_emb" in shown
    assert serving_peers.misses(record) == []


@pytest.mark.slow
def test_our_server_runs_without_its_peers(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    words = "--parts texts --rounds 1 --requests 8 --clients 4 --threads 1 --llama-server none --infinity none".split()
    assert serving_peers.main([*words, "--json", str(record)]) == 0
    found = json.loads(record.read_text(encoding="utf-8"))
    assert [sample["server"] for sample in found["samples"]] == ["lattice"]
    assert len(found["samples"][0]["answers"]) == 8
    assert set(found["absent"]) == {"llama-server, texts", "infinity, texts"}
