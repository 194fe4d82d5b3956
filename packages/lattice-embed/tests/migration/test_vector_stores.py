"""Both stores: what goes in comes out, searches are exact, calls are atomic, and damage is told."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice_embed import DimensionMismatchError, InvalidInputError, SpaceMismatchError, StoreCorruptError, StoreError
from lattice_embed.stores import (
    Chunking,
    DocumentState,
    NumpyVectorStore,
    SqliteVectorStore,
    StoredDocument,
    VectorSpace,
    VectorStore,
    create_store,
    open_store,
)
from lattice_embed.stores.document import digest_of_text
from lattice_embed.stores.writing import check_ids
from lattice_embed.vectors import cosine_similarity

SPACE = VectorSpace("model", "fingerprint", 4, chunking=Chunking(100, 10), location="org/model")
KINDS = ["s.db", "folder"]

pytestmark = pytest.mark.usefixtures("no_sync")


@pytest.fixture(params=KINDS)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / request.param


@pytest.fixture
def store(path: Path) -> Any:
    with create_store(path, SPACE) as made:
        yield made


def document(name: str, *vectors: Any, text: str = "some text", **fields: Any) -> StoredDocument:
    spans = [(number, number + 1) for number in range(len(vectors))]
    return StoredDocument.embedded(name, text, np.array(vectors), fingerprint="fingerprint", spans=spans, **fields)


def same(one: StoredDocument | None, other: StoredDocument | None) -> bool:
    if one is None or other is None:
        return one is other
    arrays = one.vectors.tobytes() == other.vectors.tobytes() and one.vectors.shape == other.vectors.shape
    fields = ("id", "text", "state", "spans", "fingerprint", "reason", "truncated")
    return arrays and all(getattr(one, name) == getattr(other, name) for name in fields)


def test_both_are_vector_stores(store: VectorStore, path: Path) -> None:
    assert isinstance(store, VectorStore)
    assert isinstance(store, SqliteVectorStore if path.suffix else NumpyVectorStore)


def test_space_is_kept(store: VectorStore, path: Path) -> None:
    with open_store(path) as again:
        assert again.space == store.space == SPACE


def test_what_goes_in_comes_out(store: VectorStore, path: Path) -> None:
    documents = [
        document("one", [1, 2, 3, 4]),
        document("two", [1, 0, 0, 0], [0, 1, 0, 0], truncated=True),
        StoredDocument.pending("three", "\0 odd \n\udc80 \ud800 日本語 \U0001f600"),
        StoredDocument.skipped("日本", "", "content_too_large: 3 tokens"),
    ]
    store.put(documents)
    with open_store(path) as again:
        for held in (store, again):
            got = held.get(["two", "no such", "one", "three", "日本"])
            expected = [documents[1], None, documents[0], documents[2], documents[3]]
            assert all(map(same, got, expected))
            assert len(held) == 4
            assert held.versions(["no such", "two"]) == [None, documents[1].version]
            assert again.verify() == 4


def test_scan_pages_through_all_in_order(store: VectorStore) -> None:
    names = [f"{number}" for number in range(25)] + ["日", "\U0001f600", "\uffff"]
    store.put([StoredDocument.pending(name, name) for name in names])
    store.delete(["7", "24"])
    seen: list[str] = []
    while page := store.scan(after=seen[-1] if seen else "", limit=4):
        assert len(page) <= 4
        seen += [version.id for version in page]
    assert seen == sorted(set(names) - {"7", "24"})


def test_put_replaces_and_delete_removes(store: VectorStore) -> None:
    store.put([document("a", [1, 0, 0, 0], [0, 1, 0, 0]), document("b", [0, 0, 1, 0])])
    store.put([document("a", [0, 0, 0, 1], text="new")])
    assert [match.id for match in store.query([0, 1, 0, 0.1], 2)] == ["a", "b"]
    assert store.query([0, 1, 0, 0], 1)[0].score == 0
    assert store.delete(["a", "a", "no such"]) == 1
    assert store.delete(["a"]) == 0
    assert [match.id for match in store.query([0, 0, 0, 1], 5)] == ["b"]
    assert (store.get(["a"]), len(store)) == ([None], 1)


def test_document_is_found_by_its_best_chunk_and_only_once(store: VectorStore) -> None:
    store.put([document("long", [1, 0, 0, 0], [0, 1, 0, 0], [0, 0.9, 0.1, 0]), document("short", [0, 0.5, 0.5, 0])])
    (first, second) = store.query([0, 1, 0, 0], 5)
    assert (first.id, first.score, first.chunk, first.start, first.end) == ("long", 1.0, 1, 1, 2)
    assert second.id == "short"


def test_equal_scores_go_by_id(store: VectorStore) -> None:
    store.put([document(name, [1, 0, 0, 0]) for name in "dbcae"])
    store.put([document("b", [1, 0, 0, 0])])
    for k in range(1, 7):
        assert [match.id for match in store.query([1, 0, 0, 0], k)] == list("abcde")[:k]


def test_empty_store_finds_nothing(store: VectorStore) -> None:
    assert store.query([1, 0, 0, 0], 3) == []
    assert store.scan() == []
    store.put([StoredDocument.pending("a", "text")])
    assert store.query([1, 0, 0, 0], 3) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_search_is_exact(kind: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    held: dict[str, StoredDocument] = {}
    with create_store(tmp_path_factory.mktemp("store") / kind, SPACE) as store, open_store(store.path) as reader:
        for _ in range(data.draw(st.integers(1, 12))):
            names = [f"d{number}" for number in rng.choice(30, data.draw(st.integers(1, 8)), replace=False)]
            if rng.random() < 0.3:
                assert store.delete(names) == len(set(names) & set(held))
                for name in names:
                    held.pop(name, None)
            else:
                added = [document(name, *rng.integers(-2, 3, (rng.integers(1, 4), 4)) + 0.5) for name in names]
                store.put(added)
                held |= {one.id: one for one in added}
            query = rng.integers(-2, 3, 4) + 0.5
            best = [(-max(cosine_similarity(query, row) for row in one.vectors), one.id) for one in held.values()]
            expected = sorted(best)[: (k := int(rng.integers(1, 40)))]
            for place in (store, reader):
                found = place.query(query, k)
                assert [(-match.score, match.id) for match in found] == expected
                for match in found:
                    assert cosine_similarity(query, held[match.id].vectors[match.chunk]) == match.score
            assert len(reader) == len(held)


@pytest.mark.parametrize(
    ("query", "kind", "message"),
    [
        ({"vector": [1, 0, 0]}, DimensionMismatchError, "4 and of 3"),
        ({"vector": [1, 0, 0, float("nan")]}, InvalidInputError, "NaN"),
        ({"vector": [[1, 0, 0, 0]]}, InvalidInputError, "shape"),
        ({"k": 0}, InvalidInputError, "at least 1"),
        ({"k": 1.5}, InvalidInputError, "integer"),
        ({"fingerprint": "another"}, SpaceMismatchError, "another"),
    ],
)
def test_query_of_another_space_is_refused(store: VectorStore, query: Any, kind: type[Exception], message: str) -> None:
    store.put([document("a", [1, 0, 0, 0])])
    with pytest.raises(kind, match=message):
        store.query(**{"vector": [1, 0, 0, 0], **query})


def test_store_of_texts_answers_no_query(path: Path) -> None:
    with create_store(path) as store:
        store.put([StoredDocument.pending("a", "text")])
        with pytest.raises(SpaceMismatchError, match="texts only"):
            store.query([1.0], 1)


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        (lambda: document("a", [1, 2, 3]), DimensionMismatchError),
        (lambda: StoredDocument.embedded("a", "t", [1, 2, 3, 4], fingerprint="another"), SpaceMismatchError),
        (lambda: document("b", [1, 2, 3, 4]), InvalidInputError),
    ],
    ids=["dimension", "fingerprint", "same id"],
)
def test_nothing_is_stored_of_a_call_that_is_refused(
    store: VectorStore, bad: Callable[[], StoredDocument], kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        store.put([document("b", [1, 0, 0, 0]), bad()])
    assert len(store) == 0


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800", "x" * 1025, 3, None])
def test_odd_ids_are_refused(name: Any, store: VectorStore) -> None:
    with pytest.raises(InvalidInputError):
        StoredDocument.pending(name, "text")
    with pytest.raises(InvalidInputError):
        store.get([name])


def test_documents_are_checked_when_they_are_made() -> None:
    with pytest.raises(InvalidInputError, match="NaN"):
        document("a", [1, 2, 3, float("inf")])
    with pytest.raises(InvalidInputError, match="spans"):
        StoredDocument.embedded("a", "t", [[1, 2], [3, 4]], fingerprint="f")
    with pytest.raises(InvalidInputError, match="is pending and has 1"):
        StoredDocument("a", "t", DocumentState.PENDING, np.ones((1, 2), np.float32), spans=((0, 1),))
    with pytest.raises(InvalidInputError, match="letter by letter"):
        check_ids("abc")


def test_existing_files_are_not_replaced(path: Path, store: VectorStore) -> None:
    store.put([document("a", [1, 0, 0, 0])])
    with pytest.raises(StoreError, match=r"exists already|not empty"):
        create_store(path, SPACE)
    assert len(store) == 1


def test_missing_places_are_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no vector store"):
        open_store(tmp_path / "none.db")
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError, match=r"store\.json"):
        open_store(tmp_path / "empty")
    for name in ("no/such/s.db", "no/such/folder"):
        with pytest.raises(StoreError, match="does not exist"):
            create_store(tmp_path / name)
    assert not list((tmp_path / "empty").iterdir())


def test_closed_store_says_so(store: VectorStore) -> None:
    store.close()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.get(["a"])
    with pytest.raises(StoreError, match="closed"):
        store.put([document("a", [1, 0, 0, 0])])


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("not a database, but long enough to be looked at " * 100)
    with pytest.raises(StoreCorruptError):
        open_store(tmp_path / "text.db")
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE t (x)")
    other.close()
    with pytest.raises(StoreCorruptError, match="another program"):
        open_store(tmp_path / "other.db")
    (tmp_path / "folder").mkdir()
    for text in ("{", "[]", '{"format": "x"}', '{"format": "lattice-vector-store", "version": 1}'):
        (tmp_path / "folder" / "store.json").write_text(text)
        with pytest.raises(StoreCorruptError):
            open_store(tmp_path / "folder")
    (tmp_path / "folder" / "store.json").write_text('{"format": "lattice-vector-store", "version": 2}')
    with pytest.raises(StoreError, match="version 2"):
        open_store(tmp_path / "folder")


@pytest.mark.parametrize("suffix", [".npy", ".jsonl"])
@pytest.mark.parametrize("damage", ["cut", "grown", "gone", "flipped"])
def test_damaged_segment_is_told(suffix: str, damage: str, tmp_path: Path) -> None:
    with create_store(tmp_path / "s", SPACE) as store:
        store.put([document("a", [1, 0, 0, 0], text="x" * 100)])
    (file,) = (tmp_path / "s").glob(f"segment-*{suffix}")
    data = bytearray(file.read_bytes())
    if damage == "gone":
        file.unlink()
    elif damage == "flipped":
        data[-3] ^= 1
        file.write_bytes(data)
    else:
        file.write_bytes(data[:-1] if damage == "cut" else data + b"\0")
    with pytest.raises(StoreCorruptError), open_store(tmp_path / "s") as again:
        again.verify()  # a flipped bit of a vector is found when one asks; everything else at once


def test_damaged_rows_are_told(tmp_path: Path) -> None:
    def damaged(statement: str) -> SqliteVectorStore:
        name = tmp_path / f"{len(list(tmp_path.iterdir()))}.db"
        with create_store(name, SPACE) as store:
            store.put([document("a", [1, 0, 0, 0])])
        with sqlite3.connect(name) as raw:
            raw.execute(statement)
        raw.close()
        return SqliteVectorStore(name)

    for statement in ("UPDATE documents SET vectors = x'0102'", "UPDATE documents SET spans = x''"):
        with damaged(statement) as store, pytest.raises(StoreCorruptError, match="'a'"):
            store.get(["a"])
    with damaged("UPDATE documents SET vectors = x'0102'") as store, pytest.raises(StoreCorruptError):
        store.query([1, 0, 0, 0], 1)
    with damaged("UPDATE documents SET text = 'another'") as store, pytest.raises(StoreCorruptError, match="text"):
        store.verify()
    with damaged("UPDATE documents SET state = 'odd'") as store, pytest.raises(StoreCorruptError):
        store.scan()
    with pytest.raises(StoreCorruptError, match="what its vectors are"):
        damaged("UPDATE space SET fields = '{}'")


def test_text_that_another_program_wrote_is_no_reason_to_stop(tmp_path: Path) -> None:
    with create_store(tmp_path / "s.db", SPACE) as store:
        store.put([StoredDocument.pending("a", "text")])
    with sqlite3.connect(tmp_path / "s.db") as raw:
        raw.execute("UPDATE documents SET text = CAST(x'ff41' AS TEXT)")
    raw.close()
    with open_store(tmp_path / "s.db") as store:
        (found,) = store.get(["a"])
        assert found is not None
        assert found.text == "\udcffA"


@pytest.mark.slow
def test_segments_are_merged_and_strays_removed(tmp_path: Path) -> None:
    with create_store(tmp_path / "s", SPACE) as store, open_store(tmp_path / "s") as reader:
        (tmp_path / "s" / "segment-00000099.npy").write_bytes(b"of a killed writer")
        (tmp_path / "s" / ".store.json.1.tmp").write_bytes(b"of a killed writer")
        for number in range(100):
            store.put([document(f"d{number % 40}", [1, number, 0, 0])])
            if number % 3 == 0:
                assert len(reader) == min(number + 1, 40)
        store.delete([f"d{number}" for number in range(1, 40)])
        assert [match.id for match in reader.query([1, 0, 0, 0], 3)] == ["d0"]
    names = sorted(entry.name for entry in os.scandir(tmp_path / "s"))
    assert len(names) <= 2 + 2 * 7 * 3
    assert "segment-00000099.npy" not in names
    assert not [name for name in names if name.endswith(".tmp")]


def test_folder_can_be_read_with_numpy_alone(tmp_path: Path) -> None:
    with create_store(tmp_path / "s", SPACE) as store:
        store.put([document("a", [1, 0, 0, 0], [0, 1, 0, 0], text="some text")])
    (segment,) = json.loads((tmp_path / "s" / "store.json").read_text())["segments"]
    vectors = np.load(tmp_path / "s" / f"{segment['name']}.npy")
    line = json.loads((tmp_path / "s" / f"{segment['name']}.jsonl").read_text())
    assert vectors.tolist() == [[1, 0, 0, 0], [0, 1, 0, 0]]
    assert (line["id"], line["spans"], line["digest"]) == ("a", [[0, 1], [1, 2]], digest_of_text("some text"))


@pytest.mark.slow
def test_two_processes_write_at_once(path: Path) -> None:
    create_store(path, SPACE).close()
    code = (
        "import sys, numpy as np; from lattice_embed.stores import *\n"
        "with open_store(sys.argv[1]) as store:\n"
        "    for number in range(15):\n"
        "        vectors = np.full((1, 4), number + 1.0)\n"
        "        store.put([StoredDocument.embedded(f'{sys.argv[2]}{number}', 't', vectors, fingerprint='fingerprint'),\n"
        "                   StoredDocument.pending('shared', sys.argv[2])])\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    children = [
        subprocess.Popen([sys.executable, "-W", "error", "-c", code, str(path), name], env=environment) for name in "ab"
    ]
    assert [child.wait(timeout=60) for child in children] == [0, 0]
    with open_store(path) as store:
        assert [version.id for version in store.scan()] == sorted(
            [f"{name}{number}" for name in "ab" for number in range(15)] + ["shared"]
        )
        assert store.verify() == 31


def test_reader_sees_whole_calls_only(store: VectorStore, path: Path) -> None:
    """A call replaces ten documents; whoever reads must find the ten of one call."""
    store.put([document(f"d{number}", [1, 1, 1, 1], text="0") for number in range(10)])
    stop = threading.Event()
    mixed: list[set[str]] = []

    def read() -> None:
        with open_store(path) as reader:
            while not stop.is_set():
                found = {one.text for one in reader.get([f"d{number}" for number in range(10)]) if one is not None}
                scores = {round(match.score, 6) for match in reader.query([1, 0, 0, 0], 20)}
                if len(found) != 1 or len(scores) != 1:
                    mixed.append(found)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for call in range(1, 40):
            store.put([document(f"d{number}", [1, call, 1, 1], text=str(call)) for number in range(10)])
    finally:
        stop.set()
        thread.join()
    assert not mixed


def test_fork_reads_and_writes_on_its_own(store: VectorStore) -> None:
    code = (
        "import os, sys; from lattice_embed.stores import *\n"
        "with open_store(sys.argv[1]) as store:\n"
        "    store.put([StoredDocument.pending('parent', 't')])\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        store.put([StoredDocument.pending('child', 't')])\n"
        "        assert store.get(['parent'])[0].text == 't'; os._exit(0)\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
        "    store.put([StoredDocument.pending('later', 't')]); assert len(store) == 3\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-W", "error", "-c", code, store.path], check=True, env=environment, timeout=60)  # type: ignore[attr-defined]
