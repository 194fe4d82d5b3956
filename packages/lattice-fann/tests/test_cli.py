"""The command line, driven as a user does."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from lattice_fann import Network
from lattice_fann.cli import main


@pytest.fixture
def flowers(tmp_path: Path) -> Path:
    generator = np.random.RandomState(0)
    kinds = np.array(["daisy", "rose", "tulip"])
    labels = generator.randint(0, 3, 240)
    x = np.array([[0, 30], [3, 0], [-2, -20]])[labels] + generator.standard_normal((240, 2)) * [0.5, 5]
    with (tmp_path / "flowers.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["length", "kind", "width"])
        writer.writerows([[f"{a:.4f}", kinds[k], f"{b:.4f}"] for (a, b), k in zip(x, labels, strict=True)])
    return tmp_path / "flowers.csv"


def train(data: Path, *more: str) -> int:
    return main(["train", str(data), "--epochs", "60", "--learning-rate", "0.01", "--hidden", "16", *more])


def test_a_table_is_learned_and_predicted(flowers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(tmp_path / "flowers.fann")
    assert train(flowers, "--target", "kind", "--output", model, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["architecture"] == "2 -> ReLU(16) -> Softmax(3)"
    assert report["labels"] == ["daisy", "rose", "tulip"]
    assert report["validation_accuracy"] > 0.9
    assert len(report["history"]) == report["epochs"]

    # columns are found by name, in any order; others are not read
    (tmp_path / "new.csv").write_text("note,width,length\nx,30,0\ny,-20,-2\n")
    assert main(["predict", model, str(tmp_path / "new.csv")]) == 0
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert rows[0] == ["kind", "probability"]
    assert [row[0] for row in rows[1:]] == ["daisy", "tulip"]

    assert main(["predict", model, str(tmp_path / "new.csv"), "--json", "--probabilities"]) == 0
    predictions = json.loads(capsys.readouterr().out)["predictions"]
    assert sum(predictions[0][name] for name in report["labels"]) == pytest.approx(1, abs=1e-5)

    assert main(["predict", model, str(tmp_path / "new.csv"), "--output", str(tmp_path / "out.csv")]) == 0
    assert (tmp_path / "out.csv").read_text().splitlines()[1].startswith("daisy,")


def test_a_column_that_float32_cannot_hold_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "".join(f"{i % 7},{1764500000 + i},{'ab'[i % 2]}\n" for i in range(40))
    (tmp_path / "log.csv").write_text(f"size,time,kind\n{rows}")
    assert train(tmp_path / "log.csv", "--target", "kind", "--json") == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["labels"] == ["a", "b"]
    assert "log.csv, column 'time': float32 does not hold the differences between 1764500000 and 1764500039" in err
    assert err.count("warning") == 1


@pytest.mark.parametrize("mark", [";", "\t"])
def test_other_separators_are_named(mark: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "table.csv").write_text(f"size{mark}kind\n1{mark}a\n2{mark}b\n")
    assert train(tmp_path / "table.csv", "--target", "kind") == 2
    assert capsys.readouterr().err.endswith("; separate columns by commas\n")


def test_too_few_rows_to_keep_some_out_have_a_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "table.csv").write_text("size,kind\n1,a\n2,b\n")
    assert train(tmp_path / "table.csv", "--target", "kind") == 2
    assert "leaves a part without any: take 0, or more samples" in capsys.readouterr().err
    assert train(tmp_path / "table.csv", "--target", "kind", "--validation", "0") == 0


def test_columns_of_texts_become_inputs_and_columns_may_be_dropped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cities, data, model = ["Bonn", "Oslo", ""], tmp_path / "people.csv", str(tmp_path / "people.fann")
    rows = [[f"n{i}", cities[i % 3], str(i % 2), f"{i / 60:.3f}", str(i % 3 + 2 * (i % 2))] for i in range(120)]
    data.write_text("\n".join(",".join(row) for row in [["name", "city", "code", "share", "income"], *rows]) + "\n")
    wanted = ["--target", "income", "--task", "regress", "--drop", "name", "--text", "code", "--output", model]
    assert train(data, *wanted, "--epochs", "300", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["text_columns"] == {"city": ["", "Bonn", "Oslo"], "code": ["0", "1"]}
    assert report["architecture"].startswith("6 -> ")
    assert Network.load(model).metadata["columns"] == '["city", "code", "share"]'
    new = tmp_path / "new.csv"
    new.write_text("share,city,code,name\n0.5, Oslo,1,x\n0.5,Bonn,0,y\n0.5,,0,z\n")
    assert main(["predict", model, str(new), "--json"]) == 0
    answers = [row["income"] for row in json.loads(capsys.readouterr().out)["predictions"]]
    assert answers == pytest.approx([3, 0, 2], abs=0.3)
    for text, message in (
        ("share,city,code\n1,Rome,0\n", "line 2: 'city' is 'Rome', which the network does not know; it knows"),
        ("0.5,Bonn,0\n", "lacks the columns"),
        ("share,city\n0.5,Bonn\n", "lacks the columns code"),
    ):
        new.write_text(text)
        assert main(["predict", model, str(new)]) != 0
        assert message in capsys.readouterr().err
    assert train(data, "--target", "income", "--drop", "name") == 0
    assert "columns of texts, an input for each value: city (3)" in capsys.readouterr().out


def test_damaged_values_of_text_columns_are_refused(
    flowers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(tmp_path / "flowers.fann")
    assert train(flowers, "--target", "kind", "--output", model, "--epochs", "1") == 0
    network = Network.load(model)
    for damaged in ("[", "[1]", '{"length": []}', '{"length": [1]}', '{"other": ["a"]}'):
        network.metadata["text_columns"] = damaged
        network.save(model)
        assert main(["predict", model, str(flowers)]) != 0
        assert "must be lists of texts by the names of columns" in capsys.readouterr().err


def test_the_summary_draws_the_loss(flowers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(flowers, "--target", "kind") == 0
    captured = capsys.readouterr()
    assert "* training, o validation" in captured.out
    assert "validation accuracy" in captured.out
    assert "give --output" in captured.out
    assert captured.err == ""


def test_same_seed_writes_the_same_file(flowers: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert train(flowers, "--target", "kind", "--output", str(tmp_path / name), "--threads", "1") == 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_numbers_are_regressed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.random.RandomState(0).uniform(-1, 1, (300, 3))
    rows = np.column_stack([x, 5 * x[:, 0] - x[:, 2] + 0.25])
    np.savetxt(tmp_path / "t.csv", rows, delimiter=",", header="a,b,c,value", comments="")
    assert train(tmp_path / "t.csv", "--target", "value", "--output", str(tmp_path / "m.fann"), "--json") == 0
    assert json.loads(capsys.readouterr().out)["validation_loss"] < 0.1
    (tmp_path / "bare.csv").write_text("0.5,0,-0.5\n0,0,0\n")
    assert main(["predict", str(tmp_path / "m.fann"), str(tmp_path / "bare.csv")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "value"
    assert [float(line) for line in lines[1:]] == pytest.approx([3.25, 0.25], abs=0.3)


def test_arrays_are_learned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generator = np.random.RandomState(0)
    images = generator.standard_normal((200, 3, 3)).astype(np.float32)
    np.savez(tmp_path / "d.npz", x=images, y=(images[:, 1, 1] > 0).astype(int))
    model = str(tmp_path / "m.fann")
    assert train(tmp_path / "d.npz", "--target", "y", "--output", model, "--weights", "int8", "--balanced") == 0
    np.savez(tmp_path / "new.npz", x=images)
    capsys.readouterr()
    assert main(["predict", model, str(tmp_path / "new.npz"), "--json"]) == 0
    predictions = json.loads(capsys.readouterr().out)["predictions"]
    assert np.mean([p["y"] == int(image[1, 1] > 0) for p, image in zip(predictions, images, strict=True)]) > 0.9


def test_info_shows_a_network(flowers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(flowers, "--target", "kind", "--output", str(tmp_path / "m.fann"))
    capsys.readouterr()
    assert main(["info", str(tmp_path / "m.fann")]) == 0
    assert "2 -> ReLU(16) -> Softmax(3), 99 parameters" in capsys.readouterr().out
    assert main(["info", str(tmp_path / "m.fann"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["input_scaling"] is True
    assert json.loads(shown["metadata"]["columns"]) == ["length", "width"]
    assert shown["bytes"] == (tmp_path / "m.fann").stat().st_size


def test_bench_measures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--seconds", "0.01", "--batch", "8", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["architecture"] == "784 -> ReLU(128) -> ReLU(64) -> Softmax(10)"
    assert 0 < report["single_us"]["min"] <= report["single_us"]["median"]
    assert main(["bench", "--seconds", "0.01"]) == 0
    assert "one sample" in capsys.readouterr().out


@pytest.mark.slow
def test_a_plot_is_drawn_where_matplotlib_is(flowers: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert train(flowers, "--target", "kind", "--plot", str(tmp_path / "loss.png")) == 0
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_a_plot_without_matplotlib_is_refused_before_training(
    flowers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert train(flowers, "--target", "kind", "--plot", str(tmp_path / "loss.png")) == 1
    assert "lattice-fann[plot]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "more", "message"),
    [
        ("a,b\n1,2\n", ["--target", "c"], "0 columns named 'c': a, b"),
        ("a" * 9000 + ",b" * 99 + "\n1" + ",2" * 99 + "\n", ["--target", "c"], "aaa..., b, b, b"),
        (",".join(f"c{i}" for i in range(99)) + "\n" + ",".join("1" * 99) + "\n", ["--target", "c"], "c19 and 79 more"),
        ("a,b\n1,2\n" + "x" * 9000 + ",3\n", ["--target", "b"], "no finite number"),
        ("a,b\n1,2\nx,3\n", ["--target", "b"], "line 3: 'a' is 'x', no finite number"),
        ("a,b\n1,2\n1,3\n", ["--target", "b", "--drop", "a"], "no column but the target and what is dropped"),
        ("a,b\n1,2\n1,3\n", ["--target", "b", "--drop", "c"], "'c' names 0 columns"),
        ("a,b\n1,2\n1,3\n", ["--target", "b", "--text", "b"], "'b' names the target"),
        ("a,b\n1,2\n1,3\n", ["--target", "b", "--text", "a", "--drop", "a"], "in --drop and in --text"),
        ("a,b\n" + "".join(f"n{i},1\n" for i in range(101)), ["--target", "b"], "holds 101 different texts"),
        ("a,b\n1,2\n,3\n", ["--target", "b"], "line 3: 'a' is ''"),
        ("a,b\n1,2\nnan,3\n", ["--target", "b"], "line 3: 'a' is 'nan'"),
        ("a,b\n1,2\n1\n", ["--target", "b"], "line 3: 1 cells, the header has 2"),
        ("a,b\n1,2\n1,\n", ["--target", "b"], "line 3: the target 'b' is empty"),
        ("a,b\n", ["--target", "b"], "no rows"),
        ("", ["--target", "b"], "empty"),
        ("b\n1\n", ["--target", "b"], "no column but the target"),
        ("a,b\n1,x\n2,x\n", ["--target", "b"], "at least two labels"),
        ("a,b\n1,x\n2,y\n", ["--target", "b", "--task", "regress"], "texts"),
        ("a,b\n1,2\n2,3\n", ["--target", "b", "--hidden", "4,x"], "--hidden"),
        ("a,b\n1,2\n2,3\n", ["--target", "b", "--activation", "relu6"], "relu6"),
        ("a,b\n1,2\n2,3\n", ["--target", "b", "--epochs", "0"], "--epochs"),
        ("a,b\n1,2\n2,3\n", ["--target", "b", "--learning-rate", "-1"], "learning_rate"),
        ("a,b\n1,2\n2,3\n", ["--target", "b", "--output", "/no/such/folder/m"], "does not exist"),
        ("a,b\n1,2\n2,3\n", ["--target", "b", "--plot", "x.doc"], "--plot"),
    ],
)
def test_a_users_mistake_is_named_without_a_traceback(
    content: str, more: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "d.csv").write_text(content)
    assert main(["train", str(tmp_path / "d.csv"), *more]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.startswith("lattice-fann: error: ")
    assert captured.out == ""


def test_missing_and_damaged_files_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(tmp_path / "none.fann")]) == 1
    (tmp_path / "bad.fann").write_bytes(b"FANN\x01\0\0\0")
    assert main(["info", str(tmp_path / "bad.fann")]) == 1
    assert "bad.fann" in capsys.readouterr().err
    (tmp_path / "latin.csv").write_bytes(b"a,b\n\xe4,1\n")
    assert main(["train", str(tmp_path / "latin.csv"), "--target", "b"]) == 2
    assert "line 2: not UTF-8" in capsys.readouterr().err


def test_prediction_wants_the_networks_columns(
    flowers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(tmp_path / "m.fann")
    train(flowers, "--target", "kind", "--output", model)
    (tmp_path / "n.csv").write_text("length,height\n1,2\n")
    assert main(["predict", model, str(tmp_path / "n.csv")]) == 2
    assert "lacks the columns width" in capsys.readouterr().err
    (tmp_path / "n.csv").write_text("1,2,3\n")
    assert main(["predict", model, str(tmp_path / "n.csv")]) == 2
    assert "3 input columns, the network takes 2" in capsys.readouterr().err


def test_module_and_pipe(flowers: Path, tmp_path: Path) -> None:
    model = str(tmp_path / "m.fann")
    assert train(flowers, "--target", "kind", "--output", model) == 0
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-m", "lattice_fann", "predict", model, "-"],
        input="length,width\n3,0\n", capture_output=True, text=True, check=True, env=environment,
    )  # fmt: skip
    assert done.stdout.splitlines()[1].startswith("rose,")
    assert done.stderr == ""
    assert Network.load(model).metadata["target"] == "kind"


@pytest.mark.parametrize("command", [[], ["train"], ["predict"], ["info"], ["bench"]])
def test_help_teaches(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*command, "--help"])
    assert stop.value.code == 0
    if command != ["info"]:
        assert "examples:" in capsys.readouterr().out


def test_an_interrupt_before_a_command_is_known_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("argparse.ArgumentParser.parse_args", Mock(side_effect=KeyboardInterrupt))
    assert main(["train"]) == 130
    assert capsys.readouterr().err == "lattice-fann: interrupted\n"
