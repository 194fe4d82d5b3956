"""The file of paid answers: durable, shared, whole, private, and told apart from other files."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from teacher_server import LABELS, TeacherServer, label_of

from lattice_tune import (
    CallableTeacher,
    InvalidInputError,
    LabelingTask,
    LabelStore,
    LabelStoreError,
    Outcome,
    RequestLimits,
    ServedTeacher,
    label_texts,
)
from lattice_tune.teachers.claims import Claims
from lattice_tune.teachers.label_context import context_of

Make = Callable[..., ServedTeacher]
TEXTS = [f"text {number}" for number in range(10)]


def rule(name: str = "rule") -> CallableTeacher:
    return CallableTeacher(lambda text: label_of(text.replace("\ud800", "?")), name=name)


def test_stored_answers_are_not_asked_for(
    server: TeacherServer, teacher: Make, task: LabelingTask, store: LabelStore
) -> None:
    first = label_texts(TEXTS[:6], teacher(), task, store=store)
    second = label_texts(TEXTS, teacher(), task, store=store)
    assert sorted(server.texts()) == sorted(TEXTS)
    assert (first.from_store, second.from_store) == (0, 6)
    assert [result.from_store for result in second.results] == [True] * 6 + [False] * 4
    assert [result.label for result in second.results] == [label_of(text) for text in TEXTS]


def test_answers_outlive_the_store(tmp_path: Path, task: LabelingTask) -> None:
    path = tmp_path / "labels.db"
    with LabelStore(path) as store:
        report = label_texts(TEXTS, rule(), task, store=store)
    with LabelStore(path) as store:
        again = label_texts(TEXTS, rule(), task, store=store)
        assert again.from_store == len(TEXTS)
        assert [r.probabilities for r in again.results] == [r.probabilities for r in report.results]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"instructions": "Be quick."}, {"template": 10}),
        ({"descriptions": {"alpha": "the first"}}, {"template": 10}),
        ({"labels": (*LABELS, "delta")}, {"labels": 10}),
        ({"labels": LABELS[::-1]}, {"labels": 10}),
        ({"kind": "soft"}, {"kind": 10}),
        ({"labels": ("alpha", "x"), "instructions": "?"}, {"template and labels": 10}),
    ],
)
def test_a_changed_task_asks_anew_and_says_how_many(
    change: dict[str, object], told: dict[str, int], server: TeacherServer, teacher: Make, store: LabelStore
) -> None:
    label_texts(TEXTS, teacher(), LabelingTask(LABELS), store=store)
    changed = LabelingTask(**({"labels": LABELS} | change))  # type: ignore[arg-type]
    report = label_texts([*TEXTS, "a new text"], teacher(), changed, store=store, limits=RequestLimits(max_failures=99))
    assert report.asked_anew == told
    assert len(server.asked) == 21


def test_another_model_asks_anew(server: TeacherServer, teacher: Make, task: LabelingTask, store: LabelStore) -> None:
    label_texts(TEXTS, teacher(), task, store=store)
    assert label_texts(TEXTS, teacher(temperature=1.0), task, store=store).asked_anew == {"parameters": 10}
    assert label_texts(TEXTS, rule(), task, store=store).asked_anew
    assert label_texts(TEXTS, teacher(timeout=11.0, max_tokens=9), task, store=store).from_store == 10


def test_export_gives_rows_of_a_dataset(task: LabelingTask, store: LabelStore) -> None:
    assert list(store.export()) == []
    texts = ["plain", "two\nlines", "lone \ud800 surrogate", "", "NUL \0"]
    label_texts(texts, rule(), task, store=store)
    rows = list(store.export())
    assert sorted(row.text for row in rows) == sorted(texts)
    for row in rows:
        assert list(row.labels) == list(LABELS)
        assert row.label == label_of(row.text.replace("\ud800", "?"))
        assert row.metadata["teacher_model"] == "callable:rule"
        assert "\n" not in row.to_json()
        row.to_json().encode()
    label_texts(["plain"], rule("other"), task, store=store)
    with pytest.raises(InvalidInputError, match="2 contexts"):
        store.export()
    assert [row.text for row in store.export(store.contexts()[1].number)] == ["plain"]
    with pytest.raises(InvalidInputError, match="no context 9"):
        store.export(9)


def test_file_is_its_owners(tmp_path: Path, task: LabelingTask) -> None:
    with LabelStore(tmp_path / "labels.db") as store:
        label_texts(TEXTS, rule(), task, store=store)
        for path in tmp_path.iterdir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = LabelStore(tmp_path / "labels.db")
    store.close()
    store.close()
    for call in (
        store.contexts,
        lambda: store.get(context_of(rule(), LabelingTask(LABELS)), [b"k"]),
        lambda: store.claim(b"k" * 32),
        lambda: len(store),
    ):
        with pytest.raises(LabelStoreError, match="was closed"):
            call()


def damaged(path: Path, kind: str) -> None:
    with LabelStore(path) as store:
        label_texts([f"{number} " * 50 for number in range(60)], rule(), LabelingTask(LABELS), store=store)
    content = path.read_bytes()
    if kind == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif kind == "other file":
        path.write_bytes(b"not a database at all, but some text" * 100)
    elif kind == "random pages":
        path.write_bytes(content[:4096] + os.urandom(len(content) - 4096))
    else:
        with sqlite3.connect(path) as connection:
            if kind == "future schema":
                connection.execute("PRAGMA user_version = 99")
            elif kind == "foreign":
                connection.execute("PRAGMA application_id = 1")
            else:
                connection.execute("UPDATE answers SET probabilities = ?", ('[null, "x"]',))
        connection.close()


def read_all(path: Path) -> None:
    with LabelStore(path) as store:
        list(store.export())


@pytest.mark.parametrize(
    "kind", ["truncated", "other file", "random pages", "future schema", "foreign", "nonsense in a column"]
)
def test_damaged_and_foreign_files_are_typed_errors(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "labels.db"
    damaged(path, kind)
    before = path.read_bytes()
    with pytest.raises(LabelStoreError, match=r"labels\.db"):
        read_all(path)
    if kind in ("other file", "future schema", "foreign"):
        assert path.read_bytes() == before


def test_foreign_database_without_an_identity(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE mine (a)")
    connection.close()
    with pytest.raises(LabelStoreError, match="another program"):
        LabelStore(path)


@pytest.mark.parametrize("path", ["", "a\0b", 3, None, b"labels.db", "\udc80\ud800"])
def test_paths_that_make_no_sense(path: object) -> None:
    with pytest.raises((InvalidInputError, LabelStoreError)):
        LabelStore(path)  # type: ignore[arg-type]


def test_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LabelStoreError, match="cannot be opened"):
        LabelStore(tmp_path / "no" / "labels.db")
    with pytest.raises(LabelStoreError, match="cannot be opened"):
        LabelStore(tmp_path)


def test_a_store_held_by_another_process_is_a_typed_error(tmp_path: Path, task: LabelingTask) -> None:
    path = tmp_path / "labels.db"
    with LabelStore(path, timeout=0.05) as store:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LabelStoreError, match="locked") as caught:
            label_texts(TEXTS, rule(), task, store=store)
        assert caught.value.report.outcomes == {Outcome.NOT_ASKED: 10}  # type: ignore[attr-defined]
        other.execute("ROLLBACK")
        other.close()
        assert label_texts(TEXTS, rule(), task, store=store).is_complete


@pytest.mark.parametrize("served", [True, False])
def test_a_full_disk_ends_the_labelling_and_keeps_what_was_stored(
    served: bool, server: TeacherServer, teacher: Make, task: LabelingTask, store: LabelStore
) -> None:
    texts = [f"{number} " * 200 for number in range(100)]
    chosen = teacher() if served else rule()
    label_texts(texts[:5], chosen, task, store=store)
    size = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count = {size + 5}")
    with pytest.raises(LabelStoreError, match="full") as caught:
        label_texts(texts, chosen, task, store=store, limits=RequestLimits(concurrency=2))
    kept = len(store)
    assert 5 <= kept < 100
    assert caught.value.report.outcomes[Outcome.LABELLED] == kept  # type: ignore[attr-defined]
    assert len(server.asked) <= kept + 2
    store._connection.execute("PRAGMA max_page_count = 1073741823")
    asked = len(server.asked)
    assert label_texts(texts, chosen, task, store=store).is_complete
    assert len(server.asked) == (asked + 100 - kept if served else 0)


def test_two_stores_of_one_file_ask_for_each_text_once(
    server: TeacherServer, teacher: Make, task: LabelingTask, tmp_path: Path
) -> None:
    path = tmp_path / "labels.db"
    texts = [f"text {number}" for number in range(60)]
    reports = []

    def work() -> None:
        with LabelStore(path) as store:
            reports.append(label_texts(texts, teacher(), task, store=store, limits=RequestLimits(concurrency=4)))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [report.is_complete for report in reports] == [True, True]
    assert sorted(server.texts()) == sorted(texts)


WORKER = """
import sys
from lattice_tune import LabelingTask, LabelStore, RequestLimits, ServedTeacher, TeacherConfig, label_texts
url, path, count = sys.argv[1:]
teacher = ServedTeacher(TeacherConfig("openai", "model-1", url))
with LabelStore(path) as store:
    texts = [f"text {number}" for number in range(int(count))]
    assert label_texts(texts, teacher, LabelingTask(("alpha", "beta", "gamma")), store=store).is_complete
"""


@pytest.mark.slow
def test_two_processes_ask_for_each_text_once(server: TeacherServer, tmp_path: Path) -> None:
    command = [sys.executable, "-c", WORKER, server.url, str(tmp_path / "labels.db"), "150"]
    workers = [subprocess.Popen(command) for _ in range(2)]
    assert [worker.wait(60) for worker in workers] == [0, 0]
    assert sorted(server.texts()) == sorted(f"text {number}" for number in range(150))


def test_claims_are_given_back(tmp_path: Path) -> None:
    key, other = b"a" * 32, b"b" * 32
    first, second = Claims(tmp_path / "s.db"), Claims(tmp_path / "s.db")
    assert first.take(key)
    assert not second.take(key)
    assert not first.take(key)
    second.release(key)  # not its own
    assert not second.take(key)
    first.release(key)
    assert second.take(key)
    assert first.take(other)
    second.close()  # takes back its own alone
    assert first.take(key)
    third = Claims(tmp_path / "s.db")
    assert not third.take(other)
    first.close()
    assert third.take(other)
    third.close()


def test_claims_end_with_a_killed_process(tmp_path: Path) -> None:
    key = b"k" * 32
    child = os.fork()
    if child == 0:
        try:
            assert Claims(tmp_path / "s.db").take(key)
            (tmp_path / "taken").touch()
            threading.Event().wait()
        finally:
            os._exit(1)
    while not (tmp_path / "taken").exists():
        pass
    claims = Claims(tmp_path / "s.db")
    assert not claims.take(key)
    os.kill(child, 9)
    os.waitpid(child, 0)
    assert claims.take(key)
    claims.close()


def test_a_child_does_not_have_its_parents_claims(tmp_path: Path) -> None:
    key = b"k" * 32
    parent = Claims(tmp_path / "s.db")
    assert parent.take(key)
    child = os.fork()
    if child == 0:
        claims = Claims(tmp_path / "s.db")
        if claims.take(key):
            os._exit(1)  # the parent's
        (tmp_path / "asked").touch()
        while not claims.take(key):
            pass
        os._exit(0)
    while not (tmp_path / "asked").exists():
        pass
    parent.release(key)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    parent.close()


def test_a_store_is_not_used_after_a_fork(store: LabelStore) -> None:
    child = os.fork()
    if child == 0:
        try:
            len(store)
        except LabelStoreError:
            store.close()
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(store) == 0
