"""``lattice-tune label``, driven as a user does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from teacher_server import LABELS, Handler, TeacherServer, label_of

from lattice_tune import (
    CallableTeacher,
    ConfigError,
    LabelingTask,
    LabelStore,
    RequestLimits,
    ServedTeacher,
    TeacherFunction,
    TeacherPrices,
)
from lattice_tune.cli import main
from tiny_decoders import write_drawn_model

Make = Callable[..., ServedTeacher]
TEXTS = [f"text {number}" for number in range(8)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n\n  \n", encoding="utf-8")
    return tmp_path


def served(server: TeacherServer, *more: str) -> list[str]:
    teacher = ["--teacher", "openai-compatible:m", "--endpoint", server.url, "--store", "labels.db"]
    return ["label", "texts.txt", "--labels", ", ".join(LABELS), *teacher, *more]


def rows_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_texts_become_rows(server: TeacherServer, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(served(server, "--output", "out.jsonl", "--json")) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["outcomes"] == {"labelled": 8}
    assert report["requests"] == 8
    rows = rows_of(folder / "out.jsonl")
    assert [row["text"] for row in rows] == TEXTS
    assert [max(row["labels"], key=row["labels"].get) for row in rows] == [label_of(text) for text in TEXTS]  # type: ignore[attr-defined, arg-type]
    assert rows[0]["metadata"]["teacher_model"] == "openai-compatible:m"  # type: ignore[index]
    assert main(served(server, "--output", "out.jsonl")) == 0
    assert "8 answers were stored, 0 requests were sent" in capsys.readouterr().out
    assert len(server.asked) == 8


def test_jsonl_in_and_a_changed_label_set(
    server: TeacherServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [json.dumps({"text": text, "other": 1}) for text in TEXTS]
    (folder / "mail.jsonl").write_text("\ufeff" + "\n\n".join(lines), encoding="utf-8")
    arguments = served(server, "--output", "out.jsonl")
    arguments[1] = "mail.jsonl"
    assert main(arguments) == 0
    capsys.readouterr()
    arguments[3] = "alpha,beta,gamma,delta"
    assert main(arguments) == 0
    assert "8 texts had answers for another labels, and were asked anew" in capsys.readouterr().out


def test_dry_run_asks_and_writes_nothing(
    server: TeacherServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = set(folder.iterdir())
    assert main(served(server, "--dry-run", "--price-input", "3", "--price-output", "15")) == 0
    told = capsys.readouterr().out
    assert "8 texts; 0 answers are stored, 8 would be requested" in told
    assert "cost: at most 0." in told
    assert "\ntext 0\n" in told
    assert main(served(server, "--dry-run", "--json")) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["requests"], plan["most_cost"], len(plan["prompts"])) == (8, None, 3)
    assert server.asked == []
    assert set(folder.iterdir()) == before


def test_budget_ends_with_status_1_and_what_there_is(
    server: TeacherServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prices = ["--price-input", "3", "--price-output", "15", "--max-tokens", "50", "--concurrency", "1"]
    assert main(served(server, "--output", "out.jsonl", *prices, "--max-cost", "0.005")) == 1
    out, err = capsys.readouterr()
    asked = len(server.asked)
    assert 0 < asked < 8
    assert len(rows_of(folder / "out.jsonl")) == asked
    assert f"{asked} of 8 texts labelled" in out
    assert "stopped by max_cost" in err
    assert (3 * server.billed_input + 15 * server.billed_output) / 1e6 <= 0.005
    assert main(served(server, "--output", "out.jsonl")) == 0  # another price is no other teacher
    assert len(server.asked) == 8


def test_refusals_are_told_and_are_no_failure(
    server: TeacherServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.script = [server.says(reason="content_filter")]
    assert main(served(server, "--output", "out.jsonl", "--concurrency", "1")) == 0
    assert "lattice-tune: refused: 1 texts; text 0: finish_reason is content_filter" in capsys.readouterr().err
    assert len(rows_of(folder / "out.jsonl")) == 7


def test_a_refused_key_is_status_1_and_keeps_the_store(
    server: TeacherServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.script = [server.right, server.status(401, {"error": {"message": "bad key"}})]
    assert main(served(server, "--output", "out.jsonl", "--concurrency", "1")) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "bad key" in err
    assert "what was answered is in labels.db" in err
    assert not (folder / "out.jsonl").exists()
    assert main(served(server, "--output", "out.jsonl")) == 0
    assert len(server.asked) == 9


@pytest.mark.parametrize(
    ("change", "status", "told"),
    [
        (["--labels", "a"], 2, "there are 1 labels"),
        (["--labels", "a,,b"], 2, "no name"),
        (["--describe", "x"], 2, "LABEL=TEXT"),
        (["--describe", "x=y"], 2, "none of the labels"),
        (["--teacher", "nonsense"], 2, "--help lists them"),
        (["--teacher", "openai:"], 2, "name the model"),
        (["--teacher", "local:"], 2, "--help lists them"),
        (["--teacher", "local:x"], 2, "--endpoint is for teachers at a server"),
        (["--endpoint", "https://api.openai.com:x@other/"], 2, "before an @"),
        (["--endpoint", "http://other/v1"], 2, "unencrypted"),
        (["--price-input", "1"], 2, "go together"),
        (["--max-cost", "1"], 2, "prices"),
        (["--max-cost", "nan"], 2, "max_cost"),
        (["--votes", "0"], 2, "votes"),
        (["--concurrency", "0"], 2, "concurrency"),
        (["--temperature", "9"], 2, "temperature"),
        (["--output", "no/such/out.jsonl"], 2, "folder that exists"),
        (["--output", "texts.txt"], 2, "the same file"),
        (["--store", "out.jsonl"], 2, "the same file"),
        (["--store", "texts.txt"], 2, "the same file"),
        (["--api-key-env", "sk-abc"], 2, "never the key itself"),
    ],
)
def test_requests_that_make_no_sense(
    change: list[str], status: int, told: str, server: TeacherServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(served(server, "--output", "out.jsonl", *change)) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err
    assert err.startswith("lattice-tune: error: ")
    assert server.asked == []
    assert {path.name for path in folder.iterdir()} <= {"texts.txt", "labels.db", "labels.db-claims"}


@pytest.mark.parametrize(
    ("name", "content", "status"),
    [
        ("none.txt", None, 1),
        ("empty.txt", b"", 2),
        ("blank.txt", b"\n \n", 2),
        ("latin.txt", b"a\xff\n", 2),
        ("bad.jsonl", b'{"text": "a"}\n{"text": 3}\n', 1),
        ("cut.jsonl", b'{"text": "a"}\n{"text": "b', 1),
        ("latin.jsonl", b'{"text": "\xff"}\n', 1),
        ("deep.jsonl", b"[" * 100_000, 1),
        ("empty.jsonl", b"\n", 2),
    ],
)
def test_files_that_cannot_be_read(
    name: str,
    content: bytes | None,
    status: int,
    server: TeacherServer,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if content is not None:
        (folder / name).write_bytes(content)
    arguments = served(server, "--output", "out.jsonl")
    arguments[1] = name
    assert main(arguments) == status
    err = capsys.readouterr().err
    assert name in err
    assert "line 2" in err or name not in ("bad.jsonl", "cut.jsonl")


def test_a_served_teacher_needs_a_store_and_all_an_output(
    server: TeacherServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = served(server, "--output", "out.jsonl")
    arguments.remove("--store")
    arguments.remove("labels.db")
    assert main(arguments) == 2
    assert "--store" in capsys.readouterr().err
    assert main(served(server)) == 2
    assert "--output" in capsys.readouterr().err


def test_a_model_in_this_process(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_drawn_model(folder / "decoder", context=1024)
    arguments = ["label", "texts.txt", "--labels", "a,b", "--teacher", "local:./decoder", "--output", "out.jsonl"]
    assert main([*arguments, "--soft"]) == 0
    assert "8 of 8 texts labelled" in capsys.readouterr().out
    assert all(0 < row["labels"]["a"] < 1 for row in rows_of(folder / "out.jsonl"))  # type: ignore[index]
    assert main([*arguments, "--dry-run"]) == 0
    assert "8 would be requested" in capsys.readouterr().out


@pytest.mark.slow
def test_ctrl_c_ends_after_the_answers_under_way(server: TeacherServer, folder: Path) -> None:
    go, all_asked = threading.Event(), threading.Event()

    def wait_and_answer(handler: Handler, asked: object) -> None:
        if len(server.asked) >= 3:
            all_asked.set()
        go.wait(20)
        server.right(handler, asked)  # type: ignore[arg-type]

    server.usual = wait_and_answer
    command = [sys.executable, "-m", "lattice_tune", *served(server, "--output", "out.jsonl", "--concurrency", "3")]
    path = os.pathsep.join(entry for entry in sys.path if entry)
    with subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert all_asked.wait(30)
        process.send_signal(signal.SIGINT)
        threading.Event().wait(0.3)
        go.set()
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "what was answered is in labels.db" in err
    with LabelStore(folder / "labels.db") as store:
        assert len(store) == len(server.asked) == 3
    assert not (folder / "out.jsonl").exists()


def test_a_teacher_as_a_function_keeps_its_budget_over_calls(
    server: TeacherServer, teacher: Make, task: LabelingTask
) -> None:
    limits = RequestLimits(concurrency=2, max_cost=0.02)
    function = TeacherFunction(teacher(max_tokens=50, prices=TeacherPrices(3.0, 15.0)), task, limits=limits)
    answers = [answer for start in range(0, 60, 4) for answer in function([f"text {start + i}" for i in range(4)])]
    labelled = [answer for answer in answers if answer is not None]
    assert 10 < len(labelled) < 60
    assert (3 * server.billed_input + 15 * server.billed_output) / 1e6 <= 0.02
    assert len(server.asked) == len(labelled)
    assert function.fingerprint != TeacherFunction(teacher(temperature=1.0), task).fingerprint
    assert function.fingerprint == TeacherFunction(teacher(timeout=3.0), task).fingerprint


def test_a_teacher_as_a_function_is_checked_when_it_is_made(teacher: Make, task: LabelingTask) -> None:
    with pytest.raises(ConfigError, match="prices"):
        TeacherFunction(teacher(prices=None), task, limits=RequestLimits(max_cost=1.0))
    rule = CallableTeacher(lambda text: "alpha" if text == "a" else "nothing", name="rule")
    assert TeacherFunction(rule, task)(["a", "b"]) == [{"alpha": 1.0, "beta": 0.0, "gamma": 0.0}, None]
