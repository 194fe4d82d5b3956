"""Commands that write check first what can be known, and keep what they computed when writing fails after all."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from lattice_fann import Layer, Network, UnsupportedError
from lattice_fann.cli import main


@pytest.fixture
def table(tmp_path: Path) -> Path:
    x = np.random.RandomState(0).uniform(-1, 1, (20, 2))
    rows = np.column_stack([x, x[:, 0] - x[:, 1]])
    np.savetxt(tmp_path / "t.csv", rows, delimiter=",", header="a,b,value", comments="")
    return tmp_path / "t.csv"


@pytest.fixture
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    never = Mock(side_effect=AssertionError("this is work before a check"))
    monkeypatch.setattr("lattice_fann.training.trainer.BackpropTrainer.train", never)
    monkeypatch.setattr("lattice_fann.network.Network.forward_batch", never)


def train(table: Path, *more: str) -> int:
    return main(["train", str(table), "--target", "value", "--epochs", "2", "--hidden", "3", *more])


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize(
    ("name", "more", "message"),
    [
        ("x.net", [], r"input scaling.*\.fann.*--no-scaling"),
        ("x.NET", ["--no-scaling"], r"ReLU.*--activation tanh"),
        ("x.net", ["--no-scaling", "--activation", "gelu"], "GELU"),
        ("x.net", ["--weights", "int8"], "float32 weights"),
        ("x.safetensors", ["--weights", "float16"], "float32 weights"),
        ("missing/x.fann", [], "the folder .*missing does not exist"),
        ("folder", [], "this is a folder"),
        ("t.csv", [], "this is the file that is read"),
        ("link.csv", [], "this is the file that is read"),
        ("pipe", [], "no plain file"),
        ("x.fann", ["--activation", "softmax"], "last layer"),
        ("x.fann", ["--hidden", "0"], "at least 1"),
        ("x.fann", ["--balanced"], "numbers to predict"),
        ("", [], "no file name"),
    ],
)
def test_train_refuses_before_training(
    name: str, more: list[str], message: str, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = table.parent
    (folder / "folder").mkdir()
    (folder / "link.csv").symlink_to(table)
    os.mkfifo(folder / "pipe")
    before = sorted(path.name for path in folder.iterdir())
    assert train(table, "--output", str(folder / name) if name else "", *more) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert re.search(message, captured.err), captured.err
    assert sorted(path.name for path in folder.iterdir()) == before


@pytest.mark.usefixtures("no_work")
def test_labels_are_refused_for_net_files_before_training(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--task", "regress", "--no-scaling", "--activation", "tanh"]
    (table.parent / "kinds.csv").write_text("a,value\n1,x\n2,y\n3,x\n4,y\n")
    assert train(table.parent / "kinds.csv", "--output", str(table.parent / "x.net"), *more[2:]) == 2
    assert "Softmax" in capsys.readouterr().err


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("option", ["--output", "--plot"])
def test_an_unwritable_folder_is_noticed_before_training(
    option: str, table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib") if option == "--plot" else None
    real = os.open

    def read_only(path: Any, flags: int, *more: Any, **options: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), os.fspath(path))
        return real(path, flags, *more, **options)

    monkeypatch.setattr("os.open", read_only)
    name = str(table.parent / "x.svg")
    assert train(table, option, name) == 1
    error = capsys.readouterr().err
    assert option in error
    assert "Read-only file system" in error
    assert name in error
    assert ".tmp" not in error


@pytest.mark.usefixtures("no_work")
def test_predict_refuses_before_it_predicts(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = table.parent
    model = folder / "m.fann"
    Network([Layer(np.ones((1, 2)), [0.0])]).save(model)
    (folder / "new.csv").write_text("1,2\n")
    command = ["predict", str(model), str(folder / "new.csv")]
    for name, message in [
        ("missing/p.csv", "does not exist"), (".", "folder"), ("new.csv", "is read"), ("m.fann", "is read"),
        ("p.json", "CSV"), ("p.npz", "CSV"),
    ]:  # fmt: skip
        assert main([*command, "--output", str(folder / name)]) == 2
        assert message in capsys.readouterr().err
    assert main([*command, "--output", str(folder / "p.csv"), "--json"]) == 2


def test_one_file_for_two_results_is_refused(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    name = str(table.parent / "x.png")
    assert train(table, "--output", name, "--plot", name) == 2
    assert "same file" in capsys.readouterr().err


def test_what_net_files_can_hold_is_trained_and_written(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = str(table.parent / "x.net")
    assert train(table, "--no-scaling", "--activation", "tanh", "--output", name) == 0
    assert f"wrote {name}" in capsys.readouterr().out
    assert Network.load(name).architecture() == "2 -> Tanh(3) -> Linear(1)"


def test_a_network_that_cannot_be_written_after_all_is_kept_elsewhere(
    table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from lattice_fann.formats import binary_v2

    large = UnsupportedError("beyond float16's 65504")
    monkeypatch.setattr(binary_v2, "_encode_weights", Mock(side_effect=[large, *[b""] * 9]))
    assert train(table, "--output", str(table.parent / "x.fann"), "--weights", "float16") == 1
    captured = capsys.readouterr()
    rescued = table.parent / "x.rescued.fann"
    assert f"The trained network is in {rescued} instead" in captured.err
    assert "2 -> ReLU(3) -> Linear(1)" in captured.out
    assert rescued.exists()
    assert not (table.parent / "x.fann").exists()


def test_a_full_disk_after_training_loses_nothing(
    table: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(elsewhere))
    real = os.replace

    def full(source: Any, target: Any) -> None:
        if Path(target).parent == table.parent:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        real(source, target)

    monkeypatch.setattr("os.replace", full)
    assert train(table, "--output", str(table.parent / "x.fann"), "--json") == 1
    captured = capsys.readouterr()
    assert '"output": null' in captured.out
    assert "No space left" in captured.err
    assert Network.load(elsewhere / "x.rescued.fann").num_inputs == 2
    assert sorted(path.name for path in table.parent.iterdir()) == ["t.csv"]


def test_predictions_that_cannot_be_written_are_printed(
    table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = table.parent / "m.fann"
    Network([Layer(np.ones((1, 2)), [0.0])]).save(model)
    (table.parent / "new.csv").write_text("1,2\n")
    monkeypatch.setattr("os.replace", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    assert main(["predict", str(model), str(table.parent / "new.csv"), "--output", str(table.parent / "p.csv")]) == 1
    captured = capsys.readouterr()
    assert captured.out == "prediction\n3.0\n"
    assert "printed to standard output" in captured.err


def test_a_network_with_too_much_metadata_is_not_written_where_it_could_not_be_read(tmp_path: Path) -> None:
    network = Network([Layer([[1.0]], [0.0])], metadata={"a": "x" * (1 << 20)})
    for name in ("x.fann", "x.safetensors"):
        with pytest.raises(UnsupportedError, match="metadata take"):
            network.save(tmp_path / name)
    assert not list(tmp_path.iterdir())
