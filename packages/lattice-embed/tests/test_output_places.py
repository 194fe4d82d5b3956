"""A place that cannot be written is noticed before anything is computed, and what was computed is not lost."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lattice_embed import DriftBaseline, NativeEmbeddingService
from lattice_embed.cli import main
from lattice_embed.stores import open_store
from lattice_embed.stores.space import PROBE

Capture = pytest.CaptureFixture[str]

SEALED = Path("/proc")
"""A folder that not even root can write to."""
needs_sealed = pytest.mark.skipif(not SEALED.is_dir(), reason="no folder that root cannot write to")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loader: Any) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("texts.txt").write_text("one\ntwo\nthree\n")
    return tmp_path


def failure(capsys: Capture, *arguments: str) -> tuple[int, str]:
    status = main(list(arguments))
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert captured.err.startswith("lattice-embed: error: ")
    assert ".tmp" not in captured.err  # no temporary name
    return status, captured.err


def report(capsys: Capture, *arguments: str) -> Any:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def embedded(loader: Any) -> list[str]:
    return [text for encoder in loader.encoders for text in encoder.seen if text != PROBE]


LONG = "x" * 250
"""A name that fits, but not with the ending of a temporary file."""


@needs_sealed
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["embed", "--model", "minilm", "--output", "/proc/x.npy", "a"], "/proc/x.npy"),
        (["embed", "--model", "minilm", "--output", f"{LONG}.npy", "a"], LONG),
        (["check-drift", "--update-baseline", "--model", "minilm", "--input", "texts.txt", "/proc/b.json"], "/proc/b"),
        (["store", "import", "/proc/s.db", "--model", "minilm", "--input", "texts.txt"], "/proc/s.db"),
        (["store", "import", "/proc/s", "--model", "minilm", "--input", "texts.txt"], "/proc/s"),
        (["store", "import", "none/s.db", "--model", "minilm", "--input", "texts.txt"], "none"),
        (["backfill", "--from-store", "old.db", "--model", "minilm", "--to-store", "/proc/new.db"], "/proc/new.db"),
        (
            ["backfill", "--from-store", "old.db", "--model", "minilm", "--journal", "/proc/j", "--to-store", "n"],
            "/proc/j",
        ),
        (["backfill", "--from-store", "old.db", "--model", "minilm", "--to-store", "texts.txt"], "texts.txt"),
    ],
)
def test_place_is_tried_before_the_model_is_loaded(
    arguments: list[str], named: str, loader: Any, capsys: Capture, folder: Path
) -> None:
    report(capsys, "store", "import", "old.db", "--input", "texts.txt")
    before = sorted(os.listdir())
    status, message = failure(capsys, *arguments)
    assert status in (1, 2)
    assert named in message
    assert loader.calls == []
    assert sorted(os.listdir()) == before


def test_read_only_file_of_a_store_is_noticed_first(
    capsys: Capture, loader: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    report(capsys, "store", "import", "s.db", "--model", "minilm", "--input", "texts.txt")
    loader.calls.clear()
    Path("texts.txt").write_text("another\n")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    status, message = failure(capsys, "store", "import", "s.db", "--input", "texts.txt")
    assert (status, "Permission denied: 's.db'" in message, loader.calls) == (1, True, [])


def test_second_import_embeds_only_what_is_not_there(capsys: Capture, loader: Any) -> None:
    first = report(capsys, "store", "import", "s.db", "--model", "minilm", "--input", "texts.txt")
    assert first == {"store": "s.db", "imported": 3, "documents": 3}
    calls = len(loader.calls)
    again = report(capsys, "store", "import", "s.db", "--input", "texts.txt")
    assert again == {"store": "s.db", "imported": 0, "documents": 3, "unchanged": 3}
    assert len(loader.calls) == calls  # not even the model is loaded
    Path("texts.txt").write_text("one\nchanged\nthree\nfour\n")
    more = report(capsys, "store", "import", "s.db", "--model", "minilm", "--input", "texts.txt")
    assert more == {"store": "s.db", "imported": 2, "documents": 4, "unchanged": 2}
    assert sorted(embedded(loader)) == ["changed", "four", "one", "three", "two"]
    with open_store("s.db") as store:
        assert [document.text for document in store.get(list("1234")) if document] == [
            "one",
            "changed",
            "three",
            "four",
        ]


@pytest.mark.parametrize("name", ["s.db", "s"])
def test_import_that_was_cut_off_goes_on(
    name: str, capsys: Capture, loader: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lattice_embed.cli.store_command.BATCH", 1)
    put = type(open_created(name, capsys)).put
    done: list[int] = []

    def fail_late(store: Any, documents: Any) -> None:
        if len(done) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        done.append(1)
        put(store, documents)

    with monkeypatch.context() as patch:
        with open_store(name) as store:
            kind = type(store)
        patch.setattr(kind, "put", fail_late)
        assert main(["store", "import", name, "--model", "minilm", "--input", "texts.txt"]) == 1
    capsys.readouterr()
    report(capsys, "store", "import", name, "--model", "minilm", "--input", "texts.txt")
    assert sorted(embedded(loader)).count("one") == 1
    with open_store(name) as store:
        assert len(store) == 4


def open_created(name: str, capsys: Capture) -> Any:
    """Make a store with a document that no line of the file names."""
    Path("first.jsonl").write_text('{"id": "first", "text": "first"}\n')
    report(capsys, "store", "import", name, "--model", "minilm", "--input", "first.jsonl")
    with open_store(name) as store:
        return store


def test_texts_alone_are_not_stored_again(capsys: Capture) -> None:
    report(capsys, "store", "import", "s.db", "--input", "texts.txt")
    assert report(capsys, "store", "import", "s.db", "--input", "texts.txt")["unchanged"] == 3
    assert main(["store", "import", "s.db", "--input", "texts.txt"]) == 0
    assert capsys.readouterr().out == "s.db: 0 imported, 3 there already, 3 documents\n"


def test_skipped_documents_are_tried_again(capsys: Capture) -> None:
    Path("texts.txt").write_text("word " * 600 + "\n")
    base = ("store", "import", "s.db", "--model", "minilm", "--input", "texts.txt")
    report(capsys, *base, "--truncate", "error")
    assert report(capsys, *base)["imported"] == 1
    with open_store("s.db") as store:
        (document,) = store.get(["1"])
        assert document is not None
        assert document.truncated


@pytest.mark.parametrize("broken", ["replace", "fsync of the first"])
def test_vectors_that_cannot_be_written_are_kept_elsewhere(
    broken: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch, folder: Path, service: NativeEmbeddingService
) -> None:
    (folder / "rescue").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "rescue"))
    calls: list[int] = []
    fsync = os.fsync

    def replace(source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", source, None, target)

    def first(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 1:
            raise OSError(errno.EIO, "Input/output error")
        fsync(descriptor)

    if broken == "replace":
        monkeypatch.setattr(os, "replace", replace)
    else:
        monkeypatch.setattr(os, "fsync", first)
    status, message = failure(capsys, "embed", "--model", "minilm", "--output", "x.npy", "--input", "texts.txt")
    (kept,) = (folder / "rescue").iterdir()
    assert (status, f"the vectors lie in {kept}" in message, "'x.npy'" in message) == (1, True, True)
    assert np.load(kept).tolist() == service.encode(["one", "two", "three"]).tolist()
    assert sorted(os.listdir()) == ["rescue", "texts.txt"]


def test_baseline_that_cannot_be_written_is_kept_elsewhere(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    (folder / "rescue").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "rescue"))
    monkeypatch.setattr(os, "replace", lambda source, target: (_ for _ in ()).throw(OSError(errno.EIO, "broken")))
    arguments = ["check-drift", "--update-baseline", "--model", "minilm", "--input", "texts.txt", "b.json"]
    assert failure(capsys, *arguments)[0] == 1
    (kept,) = (folder / "rescue").iterdir()
    assert DriftBaseline.load(kept).texts == ("one", "two", "three")


@needs_sealed
def test_error_of_a_saved_baseline_names_the_file(service: NativeEmbeddingService) -> None:
    with pytest.raises(OSError, match=r"^/proc/b\.json: "):
        DriftBaseline.of(service, ["one"]).save("/proc/b.json")
