"""``lattice-tune lora``, from files to files; kills, and disks that are full."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lattice_inference import LoraAdapter, WriteError, load_adapter_file
from lattice_tune import (
    CheckpointError,
    InvalidInputError,
    LoraCheckpoint,
    LoraConfig,
    LoraTrainer,
    LoraTrainingConfig,
    TrainingError,
)
from lattice_tune.cli import main
from lattice_tune.lora.loop import CHECKPOINT_FILE, METRICS_FILE
from lattice_tune.lora.metrics_file import MetricsFile

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
FEW = ["--rank", "4", "--max-tokens", "32", "--micro-batch-tokens", "64", "--learning-rate", "0.01", "--threads", "1"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoder: Path) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").symlink_to(decoder)
    rows = [{"prompt": f"{number} + 1 =", "completion": f" {number + 1}"} for number in range(6)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def run(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    status = main(["lora", *arguments])
    out, err = capsys.readouterr()
    return status, out, err


def train(*more: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    return run("train", "data.jsonl", "--model", "model", "--output", "adapter", *FEW, *more, capsys=capsys)


def test_an_adapter_is_trained_measured_merged_blended_and_converted(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = train("--dry-run", "--json", capsys=capsys)
    plan = json.loads(out)
    assert (status, plan["examples"], plan["trained"], plan["updates"], plan["linears"]) == (0, 6, 18, 3, 14)
    assert not Path("adapter").exists()
    status, out, err = train("--epochs", "4", "--validation", "data.jsonl", "--folder", "work", "--json", capsys=capsys)
    told = json.loads(out)
    assert (status, err, told["updates"]) == (0, "", 4)
    assert told["sha256"] == load_adapter_file("adapter").sha256
    assert told["losses"][-1] < told["losses"][0]
    status, out, _ = run(
        "eval", "data.jsonl", "--model", "model", "--adapter", "adapter", *FEW[2:6], "--json", capsys=capsys
    )
    assert status == 0
    assert json.loads(out)["loss"] == pytest.approx(told["metrics"]["history"][-1]["val_loss"], rel=1e-6)
    status, out, _ = run("eval", "data.jsonl", "--model", "model", "--adapter", "adapter", *FEW[2:6], capsys=capsys)
    assert "perplexity" in out
    assert run("merge", "model", "adapter", "--output", "merged", capsys=capsys)[0] == 0
    assert (Path("merged") / "model.safetensors").exists()
    status, out, _ = run("blend", "adapter:0.5", "adapter:0.5", "--output", "both", "--json", capsys=capsys)
    assert json.loads(out)["ranks"] == [8]
    assert run("convert", "adapter", "--to", "gguf", "--base", "model", "--output", "a.gguf", capsys=capsys)[0] == 0
    status, out, _ = run(
        "eval", "data.jsonl", "--model", "model", "--adapter", "a.gguf", *FEW[2:6], "--json", capsys=capsys
    )
    assert json.loads(out)["loss"] == pytest.approx(told["metrics"]["history"][-1]["val_loss"], rel=1e-6)
    assert run("convert", "a.gguf", "--to", "peft", "--base", "model", "--output", "back", capsys=capsys)[0] == 0
    assert load_adapter_file("back").sha256 == told["sha256"]
    assert run("convert", "adapter", "--to", "mlx", "--output", "mlx", "--json", capsys=capsys)[0] == 0
    assert len(load_adapter_file("mlx").sites) == 14


def test_a_training_is_told_to_people(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = train("--targets", "q_proj,v_proj", "--layers", "1", "--gguf", "a.gguf", capsys=capsys)
    assert (status, err) == (0, "")
    assert "2 linears, rank 4" in out
    assert "▁" in out or "█" in out
    assert Path("a.gguf").exists()


def test_options_come_from_a_file_and_the_command_line_is_stronger(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("lora.toml").write_text(
        'model = "model"\nmax-tokens = 32\nmicro_batch_tokens = 64\nthreads = 1\njson = true\n'
        '[train]\nrank = 2\nepochs = 2\nlearning-rate = 0.01\noutput = "adapter"\nlayers = "1"\n'
        '[eval]\nadapter = "adapter"\n'
    )
    status, out, _ = run("train", "data.jsonl", "--config", "lora.toml", "--epochs", "3", capsys=capsys)
    assert (status, json.loads(out)["updates"], json.loads(out)["linears"]) == (0, 3, 7)
    assert {site.rank for site in load_adapter_file("adapter").sites.values()} == {2}
    status, out, _ = run("eval", "data.jsonl", "--config=lora.toml", capsys=capsys)
    trained = json.loads(out)["loss"]
    status, out, _ = run(
        *("train", "data.jsonl", "--config", "lora.toml", "--adapter", "adapter", "--output", "further"), capsys=capsys
    )
    assert json.loads(out)["losses"][0] == pytest.approx(trained, rel=1e-6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rank = 'two'", "rank"),
        ("ranks = 2", "no such option"),
        ("[merge]", "no command is called 'merge'"),
        ("[eval]\nrank = 2", "no such option"),
        ("rank = ", "not TOML"),
    ],
)
def test_a_file_of_options_that_does_not_fit_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    Path("lora.toml").write_text(text)
    with pytest.raises(SystemExit, match="2"):
        train("--config", "lora.toml", capsys=capsys)
    assert message in capsys.readouterr().err
    assert not Path("adapter").exists()


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--learning-rate", "0"], 2, "learning_rate"),
        (["--learning-rate", "inf"], 2, "learning_rate"),
        (["--rank", "0"], 2, "rank"),
        (["--targets", "c_attn"], 2, "c_attn"),
        (["--layers", "two"], 2, "--layers"),
        (["--optimizer", "lion"], 2, "--optimizer"),
        (["--validation", "none.jsonl"], 1, "none.jsonl"),
        (["--model", "nowhere"], 1, "nowhere"),
        (["--learning-rate", "1e38", "--warmup", "0"], 1, "update"),
        (["--folder", "data.jsonl"], 1, "data.jsonl"),
        (["--output", "model"], 2, "model"),
    ],
)
def test_what_is_wrong_is_said_with_its_status(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, message: str
) -> None:
    found, out, err = train(*arguments, capsys=capsys)
    assert (found, out) == (status, "")
    assert message in err
    assert not Path("adapter").exists()
    assert sorted(path.name for path in folder.iterdir()) == ["data.jsonl", "model"]


def test_the_folder_of_an_adapter_is_replaced_only_when_asked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--epochs", "1", capsys=capsys)[0] == 0
    before = load_adapter_file("adapter").sha256
    assert train("--epochs", "2", capsys=capsys)[0] == 2
    assert load_adapter_file("adapter").sha256 == before
    assert train("--epochs", "2", "--overwrite", capsys=capsys)[0] == 0
    assert load_adapter_file("adapter").sha256 != before


def test_a_place_that_cannot_be_written_is_refused_before_training(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("there.gguf").write_bytes(b"something else")
    for place in ("there.gguf", "no/folder.gguf"):
        status, out, err = train("--gguf", place, "--folder", "work", capsys=capsys)
        assert (status, out) == (2, "")
        assert place.partition("/")[0] in err
    assert not Path("work").exists()
    with LoraTrainer("model", LoraConfig(rank=2)) as trainer, pytest.raises(InvalidInputError, match="there"):
        trainer.save("adapter", gguf="there.gguf")
    assert not Path("adapter").exists()
    assert Path("there.gguf").read_bytes() == b"something else"


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Let no file grow beyond some bytes, as on a full disk."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def test_a_full_disk_leaves_what_was_there(decoder: Path, tmp_path: Path) -> None:
    training = LoraTrainingConfig(epochs=2, max_tokens=32, micro_batch_tokens=32, checkpoint_interval=1)
    with LoraTrainer(decoder, LoraConfig(rank=4), training) as trainer:
        trainer.train([{"text": "a text"}], folder=tmp_path / "work")
        trainer.save(tmp_path / "adapter")
        kept = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        checkpoint = LoraCheckpoint.load(tmp_path / "work" / CHECKPOINT_FILE)
        with files_of_at_most(4096):
            with pytest.raises(WriteError):
                trainer.save(tmp_path / "adapter", overwrite=True)
            with pytest.raises(CheckpointError):
                checkpoint.save(tmp_path / "work" / CHECKPOINT_FILE)
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == kept
        other = tmp_path / "other"
        with files_of_at_most(4096), pytest.raises(CheckpointError):
            trainer.train([{"text": "a text"}], folder=other)
        assert [path.name for path in other.iterdir()] == [METRICS_FILE]


def test_metrics_have_whole_lines_only(tmp_path: Path) -> None:
    file = tmp_path / METRICS_FILE
    with MetricsFile(file, 0) as metrics:
        metrics.write({"step": 1, "loss": 0.5})
        with files_of_at_most(30), pytest.raises(TrainingError, match="cannot be written"):
            metrics.write({"step": 2, "loss": 0.25})
    assert file.read_text() == '{"step": 1, "loss": 0.5}\n'
    file.write_text('{"step": 1, "loss": 0.5}\n{"step": 2}\n{"step": 3}\n{"st')
    with MetricsFile(file, 2):
        pass
    assert file.read_text() == '{"step": 1, "loss": 0.5}\n{"step": 2}\n'


@pytest.mark.slow
def test_ten_kills_leave_the_adapter_of_a_training_that_was_never_stopped(folder: Path) -> None:
    command = [sys.executable, "-m", "lattice_tune", "lora", "train", "data.jsonl", "--model", "model", *FEW]
    command += ["--epochs", "40", "--batch-size", "2", "--checkpoint-interval", "1", "--dropout", "0.1", "--noise", "2"]
    done = subprocess.run(
        [*command, "--output", "whole", "--folder", "whole-work"], capture_output=True, text=True, env=ENVIRONMENT
    )
    assert done.returncode == 0, done.stderr
    random = np.random.RandomState(0)
    kills, seen = 0, -1
    while kills < 10:
        process = subprocess.Popen(
            [*command, "--output", "parts", "--folder", "work"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
        )
        assert process.stderr is not None
        with process.stderr:
            metrics = Path("work") / METRICS_FILE
            while process.poll() is None and _lines(metrics) <= seen + random.randint(1, 8):
                time.sleep(0.002)
            if process.poll() is not None:
                break
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        kills, seen = kills + 1, _lines(metrics)
    assert kills == 10
    assert not Path("parts").exists()
    done = subprocess.run(
        [*command, "--output", "parts", "--folder", "work"], capture_output=True, text=True, env=ENVIRONMENT
    )
    assert done.returncode == 0, done.stderr
    assert _adapter("parts").sha256 == _adapter("whole").sha256


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _adapter(folder: str) -> LoraAdapter:
    return load_adapter_file(folder)
