"""``lattice-embed store`` and ``lattice-embed backfill``, driven as a user does."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest

from lattice_embed.cli import main
from lattice_embed.migration import MigrationController, MigrationState
from lattice_embed.stores import open_store
from lattice_embed.stores.space import PROBE

Capture = pytest.CaptureFixture[str]

pytestmark = pytest.mark.usefixtures("no_sync")

TEXTS = [f"line number {number}" for number in range(30)] + ["", "word " * 600]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loader: Any) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("corpus.txt").write_text("\n".join(TEXTS) + "\n")
    return tmp_path


def run(capsys: Capture, *arguments: str) -> Any:
    assert main([*arguments, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return json.loads(captured.out)


def failure(capsys: Capture, *arguments: str) -> tuple[int, str]:
    status = main(list(arguments))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("lattice-embed: error: ")
    assert "Traceback" not in captured.err
    return status, captured.err


def test_corpus_is_imported_embedded_and_searched(capsys: Capture, loader: Any) -> None:
    report = run(capsys, "store", "import", "corpus.db", "--input", "corpus.txt")
    assert report == {"store": "corpus.db", "imported": 32, "documents": 32}
    done = run(capsys, "backfill", "--from-store", "corpus.db", "--model", "minilm", "--to-store", "minilm")
    assert (done["state"], done["processed"], done["queries"]) == ("completed", 32, "target")
    assert done["truncated"] == 1
    assert Path(done["target"]).name == "minilm"
    found = run(capsys, "store", "query", "minilm", "line number 7", "--top", "2")
    assert found["model"] == "all-minilm-l6-v2"
    assert (found["matches"][0]["id"], found["matches"][0]["text"]) == ("8", "line number 7")
    assert found["matches"][0]["score"] == pytest.approx(1, abs=1e-6)
    info = run(capsys, "store", "info", "minilm", "--verify")
    assert (info["states"], info["verified"], info["dimensions"]) == ({"embedded": 32}, 32, 384)
    assert sorted(text for text in loader.encoders[0].seen if text != PROBE) == sorted(TEXTS)


QWEN = "qwen3-embedding-0.6b"


@pytest.mark.usefixtures("qwen_runs")
def test_shorter_vectors_are_kept_and_found_again(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    report = run(capsys, "store", "import", "q.db", "--input", "corpus.txt", "--model", QWEN, "--output-dim", "64")
    assert report["documents"] == 32
    monkeypatch.setenv("LATTICE_EMBED_DIM", "128")  # what is there decides, not what a new service would take
    run(capsys, "store", "import", "q.db", "--input", "corpus.txt")
    assert len(run(capsys, "store", "query", "q.db", "line number 7", "--top", "2")["matches"]) == 2
    info = run(capsys, "store", "info", "q.db")
    assert (info["dimensions"], info["states"]) == (64, {"embedded": 32})
    status, message = failure(capsys, "store", "import", "q.db", "--input", "corpus.txt", "--output-dim", "32")
    assert (status, "64 dimensions" in message) == (2, True)


@pytest.mark.usefixtures("qwen_runs")
def test_native_length_is_kept_whatever_the_environment_says(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    run(capsys, "store", "import", "q.db", "--input", "corpus.txt", "--model", QWEN)
    monkeypatch.setenv("LATTICE_EMBED_DIM", "128")
    assert len(run(capsys, "store", "query", "q.db", "line number 7", "--top", "2")["matches"]) == 2
    assert run(capsys, "store", "info", "q.db")["dimensions"] == 1024


@pytest.mark.usefixtures("qwen_runs")
def test_backfill_to_shorter_vectors(capsys: Capture) -> None:
    run(capsys, "store", "import", "corpus.db", "--input", "corpus.txt")
    arguments = ("backfill", "--from-store", "corpus.db", "--model", QWEN)
    plan = run(capsys, *arguments, "--output-dim", "64", "--dry-run")
    assert (plan["dimensions"], plan["target"]) == (64, f"corpus.{QWEN}-64.db")
    done = run(capsys, *arguments, "--output-dim", "64")
    assert (done["state"], done["processed"]) == ("completed", 32)
    assert run(capsys, "store", "info", plan["target"])["dimensions"] == 64
    whole = run(capsys, *arguments)
    assert run(capsys, "store", "info", whole["target"])["dimensions"] == 1024


def test_texts_alone_have_no_dimension(capsys: Capture) -> None:
    status, message = failure(capsys, "store", "import", "new.db", "--input", "corpus.txt", "--output-dim", "64")
    assert (status, "--model" in message) == (2, True)
    assert not Path("new.db").exists()


def test_default_places_are_beside_the_old_store(capsys: Capture, folder: Path) -> None:
    run(capsys, "store", "import", "corpus.db", "--input", "corpus.txt")
    plan = run(capsys, "backfill", "--from-store", "corpus.db", "--model", "minilm", "--dry-run")
    assert plan["target"] == "corpus.all-minilm-l6-v2.db"
    assert (plan["documents"], plan["sampled"], plan["sample_truncated"]) == (32, 32, 1)
    assert plan["vectors_bytes"] == 32 * 384 * 4
    assert plan["eta_seconds"] > 0
    assert sorted(path.name for path in folder.iterdir()) == ["corpus.db", "corpus.txt"]  # nothing was written
    run(capsys, "backfill", "--from-store", "corpus.db", "--model", "minilm")
    assert {"corpus.all-minilm-l6-v2.db", "corpus.all-minilm-l6-v2.db.migration"} <= set(os.listdir())
    status = run(capsys, "backfill", "status", "--from-store", "corpus.db", "--model", "minilm")
    assert status["state"] == "completed"


def test_long_documents_are_chunked_or_skipped_as_asked(capsys: Capture) -> None:
    run(capsys, "store", "import", "corpus.db", "--input", "corpus.txt")
    base = ("backfill", "--from-store", "corpus.db", "--model", "minilm")
    chunked = run(
        capsys, *base, "--to-store", "chunked", "--long", "chunk", "--chunk-tokens", "100", "--chunk-overlap", "10"
    )
    assert (chunked["processed"], chunked["truncated"]) == (32, 0)
    assert run(capsys, "store", "info", "chunked")["chunking"] == {"tokens": 100, "overlap": 10}
    with open_store("chunked") as store:
        (long,) = store.get(["32"])
        assert long is not None
        assert len(long.vectors) == 7
    run(capsys, *base, "--to-store", "skipped.db", "--long", "skip")
    status = run(capsys, "backfill", "status", "--to-store", "skipped.db", "--skipped")
    assert (status["processed"], status["skipped"]) == (31, 1)
    assert status["skipped_documents"] == [
        {"id": "32", "kind": "content_too_large", "detail": "602 tokens, the limit is 256"}
    ]
    assert main(["backfill", "status", "--to-store", "skipped.db", "--skipped"]) == 0
    assert "skipped 32: content_too_large: 602 tokens, the limit is 256" in capsys.readouterr().out


def test_store_is_migrated_from_one_model_to_another_and_back(capsys: Capture) -> None:
    run(capsys, "store", "import", "old.db", "--input", "corpus.txt", "--model", "minilm")
    run(capsys, "backfill", "--from-store", "old.db", "--model", "small", "--to-store", "new.db")
    with open_store("old.db") as old, open_store("new.db") as new:
        assert old.space.fingerprint != new.space.fingerprint
        assert len(old) == len(new) == 32
    back = run(capsys, "backfill", "rollback", "--to-store", "new.db")
    assert (back["state"], back["queries"]) == ("rolled_back", "source")
    status, message = failure(capsys, "backfill", "rollback", "--to-store", "new.db")
    assert (status, "cannot roll back: the migration is rolled_back" in message) == (1, True)


def test_pause_and_resume(capsys: Capture) -> None:
    run(capsys, "store", "import", "old.db", "--input", "corpus.txt")
    arguments = ("backfill", "--from-store", "old.db", "--model", "minilm", "--to-store", "new.db")
    with pytest.MonkeyPatch.context() as patch:  # somebody pauses while the first batch is embedded
        from lattice_embed.migration.backfill_worker import BackfillWorker

        prepare = BackfillWorker._prepare

        def pause_first(worker: BackfillWorker, ids: list[str]) -> Any:
            with MigrationController("new.db.migration") as controller:
                controller.pause("the machine is needed")
            return prepare(worker, ids)

        patch.setattr(BackfillWorker, "_prepare", pause_first)
        stopped = run(capsys, *arguments, "--batch-size", "10")
    assert (stopped["state"], stopped["processed"], stopped["pending"]) == ("paused", 10, 22)
    assert main(["backfill", "status", "--to-store", "new.db"]) == 0
    assert "reason: the machine is needed" in capsys.readouterr().out
    status, message = failure(capsys, *arguments)
    assert (status, "resume it" in message) == (1, True)
    assert run(capsys, "backfill", "resume", "--to-store", "new.db")["state"] == "completed"
    assert run(capsys, *arguments)["state"] == "completed"  # nothing is left: no error


@pytest.mark.parametrize(
    ("arguments", "status", "part"),
    [
        (["backfill"], 2, "which migration?"),
        (["backfill", "--from-store", "no.db", "--model", "minilm"], 1, "there is no vector store no.db"),
        (["backfill", "status", "--to-store", "no.db"], 1, "there is no migration's journal"),
        (["backfill", "resume", "--to-store", "no.db"], 2, "no migration to resume"),
        (["backfill", "status", "--to-store", "x", "--reason", "y"], 2, "--reason goes with pause only"),
        (["backfill", "status", "--to-store", "x", "--dry-run"], 2, "--dry-run goes with run only"),
        (["backfill", "--from-store", "old.db", "--model", "minilm", "--chunk-tokens", "9"], 2, "--long chunk only"),
        (["backfill", "--from-store", "old.db", "--model", "minilm", "--batch-size", "0"], 2, "batch_size is 0"),
        (["backfill", "--from-store", "old.db", "--model", "no-such"], 2, "no model is called"),
        (["backfill", "--from-store", "corpus.txt", "--model", "minilm"], 1, "no vector store"),
        (["store", "import", "new.db", "--input", "none.txt"], 1, "none.txt"),
        (["store", "import", "old.db", "--input", "corpus.txt", "--model", "minilm"], 2, "holds texts only"),
        (["store", "query", "old.db", "text"], 2, "texts only"),
        (["store", "import", "new.db", "--input", "bad.jsonl"], 2, "bad.jsonl, line 2"),
        (["store", "import", "new.db", "--input", "deep.jsonl"], 2, "deep.jsonl, line 1: no JSON"),
        (["store", "import", "new.db", "--input", "bad.NDJSON"], 2, "bad.NDJSON, line 2"),
        (["store", "import", "new.db", "--input", "table.csv"], 2, "table.csv holds rows"),
    ],
)
def test_mistakes_are_told_in_one_line(arguments: list[str], status: int, part: str, capsys: Capture) -> None:
    Path("bad.jsonl").write_text('{"id": "a", "text": "t"}\n{"id": 1, "text": "t"}\n')
    Path("bad.NDJSON").write_bytes(Path("bad.jsonl").read_bytes())
    Path("deep.jsonl").write_text("[" * 100_000)
    run(capsys, "store", "import", "old.db", "--input", "corpus.txt")
    got, message = failure(capsys, *arguments)
    assert part in message
    assert got == status


def test_other_migration_at_the_same_place_is_refused(capsys: Capture) -> None:
    run(capsys, "store", "import", "old.db", "--input", "corpus.txt")
    run(capsys, "store", "import", "other.db", "--input", "corpus.txt")
    run(capsys, "backfill", "--from-store", "old.db", "--model", "minilm", "--to-store", "new.db")
    for source, model in (("other.db", "minilm"), ("old.db", "small")):
        status, message = failure(capsys, "backfill", "--from-store", source, "--model", model, "--to-store", "new.db")
        assert (status, "name another" in message) == (2, True)
    Path("new.db.migration").unlink()
    status, message = failure(capsys, "backfill", "--from-store", "old.db", "--model", "small", "--to-store", "new.db")
    assert (status, "name another --to-store" in message) == (2, True)
    again = run(capsys, "backfill", "--from-store", "old.db", "--model", "minilm", "--to-store", "new.db")
    assert again["processed"] == 32


def test_jsonl_has_ids_of_its_own(capsys: Capture) -> None:
    Path("more.jsonl").write_text('{"id": "a", "text": "one\\ntwo", "lang": "en"}\n\n{"id": "日", "text": ""}\n')
    assert run(capsys, "store", "import", "s", "--input", "more.jsonl", "--model", "minilm")["imported"] == 2
    assert run(capsys, "store", "import", "s", "--input", "more.jsonl")["documents"] == 2
    with open_store("s") as store:
        assert [version.id for version in store.scan()] == ["a", "日"]
    assert main(["store", "query", "s", "one\ntwo"]) == 0
    assert " 1.00000  a  one two" in capsys.readouterr().out
    assert main(["store", "info", "s"]) == 0
    assert "2 embedded" in capsys.readouterr().out


# A process of its own, on a service that waits after some calls while a file lies there

HELD = """
import sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from hash_service import HashService
from lattice_embed.cli import backfill_command, main
from lattice_embed.stores import sqlite_database

calls = 0

def wait():
    global calls
    calls += 1
    while calls > 8 and Path("held").exists():
        time.sleep(0.01)

class Held(HashService):
    def __enter__(self): return self
    def __exit__(self, *error): pass

sqlite_database.SYNCHRONOUS = "OFF"
backfill_command.open_service = lambda *_: Held("new", before=wait)
sys.exit(main(sys.argv[1:]))
"""
RUN = ("backfill", "--from-store", "old.db", "--to-store", "new.db", "--batch-size", "10")


def start_held(**options: Any) -> subprocess.Popen[str]:
    code = HELD.format(tests=str(Path(__file__).parent))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(
        [sys.executable, "-c", code, *RUN],
        env=environment,
        text=True,
        # a run of tests in the background of a shell hands down that interrupts are ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **options,
    )


def processed() -> int:
    if not Path("new.db.migration").exists():
        return 0
    with MigrationController("new.db.migration") as controller:
        return controller.progress().processed


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_same_command_goes_on_after_a_kill_or_an_interrupt(how: signal.Signals, capsys: Capture) -> None:
    Path("many.txt").write_text("\n".join(f"text {number}" for number in range(300)))
    run(capsys, "store", "import", "old.db", "--input", "many.txt")
    Path("held").touch()
    child = start_held(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 60
        while processed() < 20:
            assert child.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        child.send_signal(how)
        out, err = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait()
    if how is signal.SIGINT:
        assert (child.returncode, out, err) == (130, "", "lattice-embed: interrupted\n")
    assert 20 <= processed() < 300
    with MigrationController("new.db.migration") as controller:
        assert controller.state is MigrationState.IN_PROGRESS
    Path("held").unlink()
    child = start_held(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (0, "")
    assert "completed: texts -> new" in out
    assert "300 of 300 documents embedded" in out


def test_progress_is_shown_at_a_terminal_only(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("many.txt").write_text("\n".join(f"text {number}" for number in range(300)))
    run(capsys, "store", "import", "old.db", "--input", "many.txt")
    terminal, other_end = pty.openpty()
    termios.tcsetwinsize(other_end, (24, 80))
    with os.fdopen(other_end, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        assert main(["backfill", "--from-store", "old.db", "--model", "minilm", "--to-store", "new.db"]) == 0
        shown = os.read(terminal, 100_000)
    os.close(terminal)
    assert b"/300" in shown
    assert b"%" not in capsys.readouterr().out.encode()
