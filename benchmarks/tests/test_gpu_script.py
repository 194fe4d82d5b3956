"""What the script for GPUs concludes from a record, and that it runs, where an adapter is, at tiny sizes."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

import gpu
from harness.record import describe_run

TINY_BERT = Path(__file__).parents[2] / "packages" / "lattice-inference" / "tests" / "data" / "tiny_bert"


def gpu_record(*, token: float = 0.005, peer: float = 0.004, software: bool = False) -> dict[str, Any]:
    samples = [
        {"type": "Q4_0", "bytes": 1_000_000_000, "engine": name, "token_seconds": seconds, "prompt_seconds": seconds}
        for name, seconds in (("lattice", token), ("llama.cpp", peer))
        for _ in range(3)
    ]
    record = describe_run("gpu") | {"device": "a GPU", "driver": "1.0", "software": software, "absent": {}}
    record |= {"prompt": 512, "texts": 32, "samples": samples, "copy": [3e11, 3e11, 1.0]}
    return record | {"encoder": {"wgpu": [0.01], "cpu": [0.1]}}


def test_a_record_is_compared_with_the_limits() -> None:
    assert gpu.misses(gpu_record()) == []
    assert "| Q4_0 | 200.0 | 102400 | 0.67 | 0.80 | 0.80 |" in gpu.render(gpu_record()).splitlines()
    assert gpu.misses(gpu_record(token=0.02)) == [
        "Q4_0, decode ratio: 0.20, 0.6 is the limit",
        "Q4_0, prompt ratio: 0.20, 0.25 is the limit",
        "Q4_0, share: 0.17, 0.5 is the limit",
    ]
    slow = gpu_record() | {"encoder": {"wgpu": [0.1], "cpu": [0.1]}}
    assert gpu.misses(slow) == ["encoder: 1.00 times the CPU's speed, 5 is the limit"]


def metal_record(*, mlx: float = 0.004, load: float = 0.1) -> dict[str, Any]:
    record = gpu_record(token=0.004)
    record |= {"kind": "metal", "encoder": {"metal": [0.01], "cpu": [0.04]}}
    record["loads"] = [{"type": "Q4_0", "bytes": 1_000_000_000, "seconds": load}]
    fields = {"type": "Q4_0", "bytes": 1_000_000_000, "engine": "mlx-lm", "token_seconds": mlx, "prompt_seconds": 0.1}
    record["samples"].append(fields)
    return record


def test_a_record_of_a_mac_has_its_limits_and_peers() -> None:
    assert gpu.misses(metal_record()) == []
    assert "| Q4_0 | 250.0 | 128000 | 0.83 | 1.00 | 1.00 | 1.00 | 0.10 |" in gpu.render(metal_record()).splitlines()
    assert "| decode / mlx-lm | loading, s/GB |" in gpu.render(metal_record())
    assert gpu.misses(metal_record(mlx=0.002, load=0.3)) == [
        "Q4_0, mlx ratio: 0.50, 0.75 is the limit",
        "Q4_0, loading: 0.30 s/GB, 0.2 is the limit",
    ]


def test_software_is_named_and_meets_no_limit() -> None:
    record = gpu_record(software=True)
    assert gpu.misses(record) == ["a GPU is software: the limits are a GPU's"]
    assert "software: a CPU computes" in gpu.render(record)


def test_a_peer_that_is_not_there_is_left_out() -> None:
    record = gpu_record() | {"absent": {"llama.cpp": "llama-cpp-python is not installed"}}
    record["samples"] = [sample for sample in record["samples"] if sample["engine"] == "lattice"]
    assert gpu.misses(record) == []
    assert "| Q4_0 | 200.0 | 102400 | 0.67 | - | - |" in gpu.render(record).splitlines()
    assert "llama.cpp is left out: llama-cpp-python is not installed" in gpu.render(record)


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("LATTICE_REQUIRE_WGPU") != "1", reason="only the session wgpu has an adapter")
def test_the_script_runs_at_tiny_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--early", "2", "--late", "4", "--prompt", "12", "--texts", "2", "--copy-mb", "1", "--repeats", "2"]
    path = tmp_path / "record.json"
    arguments = [*sizes, "--shape", "tiny", "--types", "Q8_0", "--folder", str(tmp_path), "--encoder", str(TINY_BERT)]
    assert gpu.main([*arguments, "--json", str(path)]) == 0
    printed = capsys.readouterr().out
    record = json.loads(path.read_text(encoding="utf-8"))
    assert "| Q8_0 |" in printed
    assert record["software"] == ("software" in printed)
    assert [sample["engine"] for sample in record["samples"] if sample["engine"] == "lattice"] == ["lattice"] * 2
    assert all(sample["token_seconds"] > 0 for sample in record["samples"])
