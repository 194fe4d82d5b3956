"""Files of datasets: what is read, and how what is none is refused with its file and line."""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from lattice_tune import Dataset, DatasetConfig, DatasetError, InvalidInputError, TrainingExample


def jsonl(folder: Path, *lines: object, name: str = "data.jsonl") -> Path:
    path = folder / name
    path.write_bytes(
        b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)
    )
    return path


def test_jsonl_holds_texts_vectors_labels_and_more(tmp_path: Path) -> None:
    path = jsonl(
        tmp_path,
        {"text": "Where?", "label": "place", "source": "a", "metadata": {"n": 1}},
        b"",
        {"text": "Who?", "labels": {"person": 0.75, "place": 0.25}, "weight": 2},
        {"vector": [1, 2.5], "label": 3},
    )
    first, second, third = Dataset.open(path)
    assert (first.text, first.label, first.metadata) == ("Where?", "place", {"source": "a", "n": 1})
    assert (second.hard_label, second.weight) == ("person", 2.0)
    assert third.vector is not None
    assert third.vector.tolist() == [1.0, 2.5]
    assert third.label == "3"


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    examples = [
        TrainingExample(text='ä\u2028\n"', label="x", metadata={"deep": [1, None, {"a": True}]}),
        TrainingExample(vector=np.array([0.1, -3e30], np.float32), labels={"x": 1 / 3, "y": 2 / 3}, weight=0.5),
    ]
    assert Dataset(examples).write_jsonl(tmp_path / "out.jsonl") == 2
    back = list(Dataset.open(tmp_path / "out.jsonl"))
    assert [(e.text, e.label, e.labels, e.weight, e.metadata) for e in back] == [
        (e.text, e.label, e.labels, e.weight, e.metadata) for e in examples
    ]
    assert (back[1].vector == examples[1].vector).all()  # type: ignore[union-attr]
    assert Dataset(examples).digest() == Dataset.open(tmp_path / "out.jsonl").digest()


def test_nothing_is_left_of_a_file_that_cannot_be_written_whole(tmp_path: Path) -> None:
    examples = [TrainingExample(text="a"), TrainingExample(text="b", metadata={"x": float("nan")})]
    with pytest.raises(DatasetError, match="JSON"):
        Dataset(examples).write_jsonl(tmp_path / "out.jsonl")
    with pytest.raises(DatasetError):
        Dataset(examples[:1]).write_jsonl(tmp_path / "no" / "folder.jsonl")
    assert list(tmp_path.iterdir()) == []


BAD_LINES = {
    "array": b"[1, 2]",
    "number": b"3",
    "half": b'{"text": "a"',
    "nan": b'{"text": "a", "weight": NaN}',
    "nan deep": b'{"text": "a", "metadata": {"x": [Infinity]}}',
    "too large": b'{"text": "a", "weight": 1e999}',
    "huge integer": b'{"vector": [1' + b"0" * 400 + b"]}",
    "integer of many digits": b'{"text": "a", "n": 1' + b"0" * 5000 + b"}",
    "deep": b'{"text": "a", "n": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "twice": b'{"text": "a", "text": "b"}',
    "no text": b'{"label": "a"}',
    "text is object": b'{"text": {"a": 1}}',
    "text is number": b'{"text": 3}',
    "NUL": b'{"text": "a\\u0000b"}',
    "raw NUL": b'{"text": "a\0b"}',
    "surrogate": b'{"text": "\\ud800"}',
    "no UTF-8": b'{"text": "\xff"}',
    "label is object": b'{"text": "a", "label": {"x": 1}}',
    "empty label": b'{"text": "a", "label": ""}',
    "sum": b'{"text": "a", "labels": {"x": 0.5, "y": 0.4}}',
    "negative": b'{"text": "a", "labels": {"x": 1.0, "y": -0.0001}}',
    "no probability": b'{"text": "a", "labels": {"x": "1"}}',
    "empty labels": b'{"text": "a", "labels": {}}',
    "vector of texts": b'{"vector": ["1"]}',
    "empty vector": b'{"vector": []}',
    "matrix": b'{"vector": [[1, 2], [3, 4]]}',
    "ragged": b'{"vector": [[1, 2], [3]]}',
    "other dimension": b'{"vector": [1, 2, 3]}',
    "infinite in float32": b'{"vector": [1e39, 1]}',
    "negative weight": b'{"text": "a", "weight": -1}',
    "weight is true": b'{"text": "a", "weight": true}',
    "metadata": b'{"text": "a", "metadata": 1}',
}


@pytest.mark.parametrize("line", BAD_LINES.values(), ids=BAD_LINES)
def test_a_bad_line_is_an_error_that_names_it_or_is_skipped_and_listed(tmp_path: Path, line: bytes) -> None:
    path = jsonl(tmp_path, {"vector": [1, 2]}, line, {"text": "good"})
    with pytest.raises(DatasetError, match=r"data\.jsonl:2: "):
        list(Dataset.open(path))
    data = Dataset.open(path, config=DatasetConfig(on_error="skip"))
    for _ in range(2):  # each pass counts for itself
        assert [example.text for example in data] == [None, "good"]
        assert data.skipped.count == 1
        assert data.skipped.errors[0].startswith(f"{path}:2: ")


def test_a_line_beyond_the_limit_is_never_held_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    with path.open("wb") as file:
        file.write(b'{"text": "')
        file.seek(1 << 30)  # a gibibyte of NULs that takes no room on the disk
        file.write(b'"}\n{"text": "good"}\n')
    with pytest.raises(DatasetError, match=r"data\.jsonl:1: the line is longer than 1,024 bytes"):
        next(iter(Dataset.open(path, config=DatasetConfig(max_line_bytes=1024))))


def test_what_follows_a_long_line_is_read(tmp_path: Path) -> None:
    path = jsonl(tmp_path, {"text": "x" * 300_000}, {"text": "good"})
    data = Dataset.open(path, config=DatasetConfig(max_line_bytes=1024, on_error="skip"))
    assert [example.text for example in data] == ["good"]
    assert data.skipped.count == 1


def test_a_byte_order_mark_is_no_part_of_the_first_field(tmp_path: Path) -> None:
    jsonl(tmp_path, b"\xef\xbb\xbf" + b'{"text": "a"}')
    (tmp_path / "data.csv").write_bytes(b"\xef\xbb\xbftext,label\r\na,b\r\n")
    assert [e.text for e in Dataset.open(tmp_path / "data.jsonl")] == ["a"]
    assert [(e.text, e.label) for e in Dataset.open(tmp_path / "data.csv")] == [("a", "b")]
    (tmp_path / "data.csv").write_text("text\na\n", encoding="utf-16")
    with pytest.raises(DatasetError, match="UTF-16"):
        list(Dataset.open(tmp_path / "data.csv"))


def test_csv_columns_become_fields(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text(
        'kind,body,source,p\nplace,"Where, then?\nThere.",web,"{""place"": 1}"\n\n,Who?,,\n', encoding="utf-8"
    )
    config = DatasetConfig(text_field="body", label_field="kind", labels_field="p")
    first, second = Dataset.open(path, config=config)
    assert (first.text, first.label, first.labels) == ("Where, then?\nThere.", "place", {"place": 1.0})
    assert first.metadata == {"source": "web"}
    assert (second.text, second.label, second.metadata) == ("Who?", None, {})
    (tmp_path / "data.tsv").write_text("text\tlabel\na,b\tc\n", encoding="utf-8")
    assert [(e.text, e.label) for e in Dataset.open(tmp_path / "data.tsv")] == [("a,b", "c")]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"text,label\na,b,c\n", 2),
        (b"text,label\na\n", 2),
        (b'text,label\n"a"b,c\n', 2),
        (b'text,label\n"a,c\n' + b"x" * 200_000 + b"\n", 3),
        (b"text,label\n\xff,c\n", 2),
        (b"text,label\na\0,c\n", 2),
        (b"text,weight\na,b\n", 2),
        (b"text,weight\na,NaN\n", 2),
        (b"text,text\na,b\n", 1),
        (b"body,label\na,b\n", 1),
        (b'"text\n' + b"x" * 200_000, 2),
    ],
)
def test_a_bad_csv_row_is_an_error_that_names_its_line(tmp_path: Path, content: bytes, line: int) -> None:
    (tmp_path / "data.csv").write_bytes(content)
    with pytest.raises(DatasetError, match=rf"data\.csv:{line}: "):
        list(Dataset.open(tmp_path / "data.csv"))


def test_long_csv_fields_are_read(tmp_path: Path) -> None:
    """The csv module's limit, 131,072 characters, is not ours."""
    vector = json.dumps([0.123456789012345] * 10_000)
    (tmp_path / "data.csv").write_text(f'text,vector\n{"word " * 40_000},"{vector}"\n')
    (example,) = Dataset.open(tmp_path / "data.csv")
    assert example.text is not None
    assert len(example.text) == 200_000
    assert example.vector is not None
    assert example.vector.size == 10_000


def test_the_line_of_an_open_quote_is_told(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text('text,label\na,b\n"c,d\ne,f\n')
    with pytest.raises(DatasetError, match=r"data\.csv:4: .*is a quote of line 3 not closed\?"):
        list(Dataset.open(tmp_path / "data.csv"))


def test_rows_after_a_bad_csv_row_are_read(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_bytes(b'text,label\na,b,c\n\xff,x\n"a"b,c\ngood,x\n')
    data = Dataset.open(tmp_path / "data.csv", config=DatasetConfig(on_error="skip"))
    assert [example.text for example in data] == ["good"]
    assert data.skipped.count == 3


def test_npz_holds_vectors_with_names_or_probabilities(tmp_path: Path) -> None:
    vectors = np.arange(6.0).reshape(2, 3)
    np.savez(tmp_path / "a.npz", vectors=vectors, labels=[1, 0], label_names=["no", "yes"], texts=["a", "b"])
    first, second = Dataset.open(tmp_path / "a.npz")
    assert (first.label, second.label, second.text) == ("yes", "no", "b")
    np.savez(tmp_path / "b.npz", vectors=vectors, labels=[[0.5, 0.5], [1, 0]], label_names=["no", "yes"])
    assert [e.labels for e in Dataset.open(tmp_path / "b.npz")] == [{"no": 0.5, "yes": 0.5}, {"no": 1.0, "yes": 0.0}]


class _Bomb:
    def __reduce__(self) -> tuple[object, ...]:
        return (Path.write_text, (Path("bomb"), "exploded"))


def test_npz_that_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    good = {"vectors": np.ones((2, 3))}
    bad: dict[str, dict[str, object]] = {
        "objects": {"vectors": np.array([[_Bomb()]], dtype=object)},
        "nothing": {"other": np.ones(3)},
        "unknown": good | {"more": np.ones(2)},
        "rows": good | {"labels": [1]},
        "flat": {"vectors": np.ones(3)},
        "texts": {"vectors": np.array([["a"]])},
        "label": good | {"labels": [0, 5], "label_names": ["a", "b"]},
        "columns": good | {"labels": np.ones((2, 3)), "label_names": ["a"]},
        "names": good | {"labels": [0, 0], "label_names": ["a", "a"]},
        "nan": {"vectors": np.array([[1, np.nan]])},
        "sum": good | {"labels": np.ones((2, 2)), "label_names": ["a", "b"]},
    }
    for name, arrays in bad.items():
        np.savez(f"{name}.npz", **arrays)  # type: ignore[arg-type]
    Path("pickle.npz").write_bytes(pickle.dumps(_Bomb()))
    Path("cut.npz").write_bytes(Path("nan.npz").read_bytes()[:100])
    with zipfile.ZipFile("large.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (10000000, 1), }"
        head = b"\x93NUMPY\x01\x00" + (len(header) + 1).to_bytes(2, "little") + header + b"\n"
        archive.writestr("vectors.npy", head + bytes(80_000_000))
    for path in [f"{name}.npz" for name in (*bad, "pickle", "cut", "large")]:
        with pytest.raises(DatasetError, match=path):
            list(Dataset.open(path))
    assert not Path("bomb").exists()


def test_a_folder_holds_a_class_each(tmp_path: Path) -> None:
    for name, text in {"no/1.txt": "bad", "no/2.txt": "worse", "yes/1.txt": "good\n", "yes/.hidden": "x"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "yes" / "link.txt").symlink_to("/etc/hostname")
    data = Dataset.open(tmp_path)
    assert [(e.text, e.label) for e in data] == [("bad", "no"), ("worse", "no"), ("good", "yes")]
    (tmp_path / "no" / "3.txt").write_bytes(b"\xff")
    with pytest.raises(DatasetError, match=r"3\.txt"):
        list(data)


def test_what_is_no_dataset_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "data.txt").write_text("a", encoding="utf-8")
    (tmp_path / "empty.csv").write_text("", encoding="utf-8")
    for path in ("nothing.jsonl", "data.txt", "empty", "empty.csv"):
        with pytest.raises(DatasetError, match=path):
            list(Dataset.open(tmp_path / path))
    for wrong in (None, 3, "", "a\0b", [], b"x.jsonl"):
        with pytest.raises(InvalidInputError):
            Dataset.open(wrong)  # type: ignore[arg-type]
