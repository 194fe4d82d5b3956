"""The commands, from files to files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from word_encoder import questions

from lattice_tune import Dataset, ModelRegistry, load_student
from lattice_tune.cli import main

ENCODER = Path(__file__).parents[3] / "lattice-inference" / "tests" / "data" / "tiny_bert"
QUICK = ["--model", str(ENCODER), "--hidden", "16", "--epochs", "4", "--learning-rate", "0.01"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LATTICE_VECTOR_CACHE", str(tmp_path / "cache"))
    data = questions(120)
    data.write_jsonl("data.jsonl")
    questions(30, seed=8).write_jsonl("test.jsonl")
    (tmp_path / "texts.txt").write_text("\n".join(data.texts()) + "\n", encoding="utf-8")
    return tmp_path


def run(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    status = main(list(arguments))
    out, err = capsys.readouterr()
    return status, out, err


def test_stats_are_printed_for_people_and_programs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run("dataset", "stats", "data.jsonl", capsys=capsys)
    assert status == 0
    assert "examples     120" in out
    status, out, _ = run("dataset", "stats", "data.jsonl", "--json", capsys=capsys)
    assert json.loads(out)["count"] == 120


def test_skipped_rows_are_listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.jsonl").write_text('{"text": "a"}\nnonsense\n', encoding="utf-8")
    assert run("dataset", "stats", "bad.jsonl", capsys=capsys)[0] == 1
    status, out, err = run("dataset", "stats", "bad.jsonl", "--on-error", "skip", "--json", capsys=capsys)
    assert status == 0
    assert "bad.jsonl:2: no JSON" in err
    assert json.loads(out)["skipped"] == 1


def test_parts_hold_every_example_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["dataset", "split", "data.jsonl", "--parts", "train=0.8,test=0.2", "--output-folder", "parts"]
    status, out, _ = run(*arguments, "--dry-run", "--json", capsys=capsys)
    assert status == 0
    assert not Path("parts").exists()
    told = json.loads(out)["parts"]
    assert run(*arguments, capsys=capsys)[0] == 0
    parts = {name: list(Dataset.open(f"parts/{name}.jsonl")) for name in ("train", "test")}
    assert {name: len(part) for name, part in parts.items()} == {name: sum(told[name].values()) for name in told}
    assert sorted(e.text or "" for part in parts.values() for e in part) == sorted(questions(120).texts())


def test_duplicates_go(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("both.jsonl").write_bytes(Path("data.jsonl").read_bytes() * 2)
    arguments = ["dataset", "dedup", "both.jsonl", "--output", "out.jsonl", "--json"]
    status, out, _ = run(*arguments, "--against", "data.jsonl", "--dry-run", capsys=capsys)
    assert (status, json.loads(out)["kept"]) == (0, 0)
    assert not Path("out.jsonl").exists()
    status, out, _ = run(*arguments, "--near", "0.9", capsys=capsys)
    assert json.loads(out)["same"] >= 120
    assert Dataset.open("out.jsonl").count() == json.loads(out)["kept"]


def test_from_texts_to_a_student_and_its_answers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["distill", "texts.txt", "--labels", "number,person,place", "--teacher", "data.jsonl", *QUICK]
    arguments += ["--test", "test.jsonl", "--folder", "work", "--output", "s.safetensors"]
    status, out, _ = run(*arguments, "--dry-run", "--json", capsys=capsys)
    assert (status, json.loads(out)["labelled"]) == (0, 120)
    assert not Path("s.safetensors").exists()
    assert not Path("work").exists()
    status, out, _ = run(*arguments, "--json", capsys=capsys)
    assert status == 0
    report = json.loads(out)["report"]
    assert report["test_gold"]["count"] == 30
    assert load_student("s.safetensors").report["test_gold"] == report["test_gold"]
    status, out, _ = run(*arguments, capsys=capsys)
    assert status == 0
    assert "not again    labels, vectors, student, test vectors" in out
    status, out, _ = run("eval", "s.safetensors", "test.jsonl", "--json", capsys=capsys)
    assert status == 0
    assert json.loads(out)["accuracy"] == pytest.approx(report["test_gold"]["accuracy"])
    assert "confusion" in run("eval", "s.safetensors", "test.jsonl", capsys=capsys)[1]
    status, out, _ = run("predict", "s.safetensors", "who wrote", "where is", capsys=capsys)
    assert status == 0
    assert [len(line.split("\t")) for line in out.splitlines()] == [3, 3]
    status, out, _ = run("predict", "s.safetensors", "--input", "texts.txt", "--json", capsys=capsys)
    answers = [json.loads(line) for line in out.splitlines()]
    assert len(answers) == 120
    assert sum(answers[0]["labels"].values()) == pytest.approx(1, abs=1e-5)
    status, out, _ = run("doctor", "s.safetensors", "--json", capsys=capsys)
    assert (status, json.loads(out)["training"]) == (0, True)
    assert json.loads(out)["student"]["labels"] == "number, person, place"


def test_a_teacher_in_this_process_labels_and_the_student_is_registered(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["distill", "texts.txt", "--labels", "number,person,place", "--teacher", f"encoder:{ENCODER}", *QUICK]
    arguments += ["--store", "labels.db", "--output", "s.safetensors", "--json"]
    status, out, _ = run(*arguments, "--dry-run", capsys=capsys)
    assert (status, json.loads(out)["texts"]) == (0, 120)
    assert not Path("labels.db").exists()
    for version in ("1.0.0", "1.1.0"):
        status, out, _ = run(*arguments, "--register", "kinds", "--registry", "models", capsys=capsys)
        assert (status, json.loads(out)["registered"]) == (0, f"kinds@{version}")
    with ModelRegistry("models") as registry:
        assert str(registry.get_latest("kinds").version) == "1.1.0"
        assert registry.verify().is_clean


@pytest.mark.slow
def test_losses_and_confusions_are_drawn(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    matplotlib = pytest.importorskip("matplotlib.image")
    status, _, _ = run("train", "data.jsonl", *QUICK, "--output", "s.safetensors", "--plot", "x.png", capsys=capsys)
    assert status == 0
    picture = matplotlib.imread("x.png")
    assert picture.shape[0] > 300
    assert picture.std() > 0.05  # something is drawn
    assert sorted(path.name for path in Path().glob("*x.png*")) == ["x.png"]


def test_train_takes_the_labels_that_are_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run("train", "data.jsonl", *QUICK, "--output", "s.safetensors", capsys=capsys)
    assert status == 0
    assert "trained on" in out
    assert load_student("s.safetensors").labels.names == ("number", "person", "place")


@pytest.mark.parametrize(
    ("status", "arguments"),
    [
        (1, ["dataset", "stats", "nothing.jsonl"]),
        (1, ["dataset", "split", "data.jsonl", "--parts", "a=0.5,b=0.5", "--output-folder", "data.jsonl"]),
        (1, ["dataset", "dedup", "data.jsonl", "--output", "no/folder.jsonl"]),
        (1, ["train", "data.jsonl", "--model", "./nothing", "--output", "s.safetensors"]),
        (1, ["train", "texts.txt", *QUICK, "--output", "s.safetensors"]),
        (1, ["train", "data.jsonl", *QUICK, "--output", "no/s.safetensors"]),
        (1, ["eval", "data.jsonl", "data.jsonl"]),
        (1, ["predict", "nothing", "a"]),
        (1, ["doctor", "data.jsonl"]),
        (2, ["dataset", "split", "data.jsonl", "--parts", "a=0.5,b=0.6", "--output-folder", "p"]),
        (2, ["dataset", "split", "data.jsonl", "--parts", "a=x,b=0.6", "--output-folder", "p"]),
        (2, ["dataset", "split", "data.jsonl", "--parts", "../a=0.5,b=0.5", "--output-folder", "p"]),
        (2, ["dataset", "dedup", "data.jsonl", "--output", "out.csv"]),
        (2, ["dataset", "dedup", "data.jsonl", "--output", "out.jsonl", "--near", "nan"]),
        (2, ["train", "data.jsonl", *QUICK, "--output", "s.pickle"]),
        (2, ["train", "data.jsonl", *QUICK, "--output", "s.safetensors", "--plot", "x.gif"]),
        (1, ["train", "data.jsonl", *QUICK, "--output", "s.safetensors", "--plot", "no/x.png"]),
        (2, ["train", "data.jsonl", *QUICK, "--output", "s.safetensors", "--hidden", "many"]),
        (2, ["train", "data.jsonl", *QUICK, "--output", "s.safetensors", "--dropout", "2"]),
        (2, ["train", "data.jsonl", *QUICK, "--output", "s.safetensors", "--labels", "number"]),
        (2, ["train", "data.jsonl", *QUICK, "--output", "s.safetensors", "--val-split", "0"]),
        (
            2,
            [
                "distill",
                "texts.txt",
                "--labels",
                "a,,b",
                "--teacher",
                "data.jsonl",
                *QUICK,
                "--output",
                "s.safetensors",
            ],
        ),
        (2, ["distill", "texts.txt", "--labels", "a,b", "--teacher", "texts.txt", *QUICK, "--output", "s.safetensors"]),
        (2, ["predict", "s.safetensors"]),
    ],
)
def test_mistakes_end_with_one_line_and_leave_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], status: int, arguments: list[str]
) -> None:
    before = sorted(folder.rglob("*"))
    found, out, err = run(*arguments, capsys=capsys)
    assert (found, out) == (status, "")
    assert err.startswith("lattice-tune: error: ")
    assert err.count("\n") == 1
    assert [path for path in sorted(folder.rglob("*")) if "cache" not in path.parts] == before


def test_a_remedy_can_be_taken(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No message of val_split leads to the next one."""
    train = ["train", "data.jsonl", *QUICK, "--output", "s.safetensors", "--val-split"]
    assert "the calibration needs examples that are kept out" in run(*train, "0", capsys=capsys)[2]
    assert "or a larger val_split" in run(*train, "0.0001", capsys=capsys)[2]
