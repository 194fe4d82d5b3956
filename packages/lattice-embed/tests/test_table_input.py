"""Rows of tables: a column of JSONL, CSV and TSV files is embedded, and rows with vectors are written as they come."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lattice_embed import InvalidInputError
from lattice_embed.cli import main
from lattice_embed.cli import table_input as module
from lattice_embed.cli.row_output import row_output

Capture = pytest.CaptureFixture[str]

ROWS = [{"id": 7, "text": "one, two"}, {"id": 8, "text": 'a\n"line"'}, {"id": 9, "text": "fünf"}]
CSV = 'id,text\r\n7,"one, two"\r\n8,"a\n""line"""\r\n9,fünf\r\n'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loader: Any) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text("\n\n".join(json.dumps(row) for row in ROWS), encoding="utf-8")
    Path("rows.csv").write_text(CSV, encoding="utf-8", newline="")
    Path("marked.csv").write_text(CSV, encoding="utf-8-sig", newline="")
    Path("rows.tsv").write_text(CSV.replace(",", "\t").replace("one\t", "one,"), encoding="utf-8", newline="")
    return tmp_path


def embed(*arguments: str) -> int:
    return main(["embed", "--model", "minilm", *arguments])


def failure(capsys: Capture, *arguments: str) -> tuple[int, str]:
    status = embed(*arguments)
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    return status, captured.err.removeprefix("lattice-embed: error: ").rstrip("\n")


def expected_vectors(capsys: Capture) -> np.ndarray[Any, Any]:
    assert embed("--output", "expected.npy", *(str(row["text"]) for row in ROWS)) == 0
    capsys.readouterr()
    return np.asarray(np.load("expected.npy"))


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv", "marked.csv", "rows.tsv"])
def test_a_column_gives_the_vectors_of_its_texts(name: str, capsys: Capture) -> None:
    expected = expected_vectors(capsys)
    assert embed("--input", name, "--column", "text", "--output", "x.npy") == 0
    np.testing.assert_array_equal(np.load("x.npy"), expected)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv", "rows.tsv"])
def test_rows_are_written_with_their_vectors(name: str, capsys: Capture) -> None:
    expected = expected_vectors(capsys)
    assert embed("--input", name, "--column", "text", "--output", "x.jsonl") == 0
    assert capsys.readouterr().out.startswith("x.jsonl: 3 vectors of 384 float32, ")
    written = [json.loads(line) for line in Path("x.jsonl").read_text(encoding="utf-8").splitlines()]
    # every float32 comes back from its decimals
    np.testing.assert_array_equal(np.array([row.pop("embedding") for row in written], np.float32), expected)
    assert written == (
        ROWS if name.endswith("jsonl") else [{"id": str(row["id"]), "text": row["text"]} for row in ROWS]
    )


def test_lines_and_arguments_become_rows_with_a_text(capsys: Capture) -> None:
    Path("lines.txt").write_text("one\n\ntwo\n")
    for given in (["--input", "lines.txt"], ["one", "", "two"], ["--input", "lines.txt", "--input-format", "lines"]):
        assert embed(*given, "--output", "x.jsonl") == 0
        assert [json.loads(line)["text"] for line in Path("x.jsonl").read_text().splitlines()] == ["one", "", "two"]


@pytest.mark.parametrize("form", ["jsonl", "csv", "tsv", None])
def test_standard_input_holds_rows(form: str | None, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = expected_vectors(capsys)
    raw = Path(f"rows.{form or 'jsonl'}").read_bytes()
    option = [] if form is None else ["--input-format", form]
    for given in (["-"], ["--input", "-"]):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(raw), isatty=lambda: False, closed=False))
        assert embed(*option, "--column", "text", "--output", "x.npy", *given) == 0
        np.testing.assert_array_equal(np.load("x.npy"), expected)


def test_rows_are_read_as_they_are_embedded(capsys: Capture, loader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many rows no more than a batch is ever held."""
    Path("many.jsonl").write_text("".join(f'{{"text": "text {i}"}}\n' for i in range(300)))
    monkeypatch.setattr("lattice_embed.cli.embed_command.BATCH", 32)
    read: list[int] = []
    ahead: list[int] = []
    original = module.read_rows

    def counting(*arguments: Any, **options: Any) -> Any:
        for row in original(*arguments, **options):
            read.append(row.line)
            if len(read) % 10 == 0:
                ahead.append(len(read) - written())
            yield row

    def written() -> int:
        return sum(path.read_bytes().count(b"\n") for path in Path().glob(".x.jsonl*"))

    monkeypatch.setattr("lattice_embed.cli.embed_command.read_rows", counting)
    assert embed("--input", "many.jsonl", "--column", "text", "--output", "x.jsonl") == 0
    assert len(read) == 300 == len(Path("x.jsonl").read_text().splitlines())
    assert max(ahead) < 100


def test_empty_cells_are_told_and_left_out_on_request(capsys: Capture) -> None:
    Path("gaps.csv").write_text('id,text\n1,a\n2,\n3,"  "\n4,b\n')
    assert embed("--input", "gaps.csv", "--column", "text", "--output", "x.npy") == 0
    assert "2 of 4 rows are empty in 'text' and were embedded as empty texts" in capsys.readouterr().err
    assert np.load("x.npy").shape == (4, 384)
    assert embed("--input", "gaps.csv", "--column", "text", "--skip-empty", "--output", "x.jsonl") == 0
    assert "2 of 4 rows are empty in 'text' and were left out" in capsys.readouterr().err
    assert [json.loads(line)["id"] for line in Path("x.jsonl").read_text().splitlines()] == ["1", "4"]
    Path("null.jsonl").write_text('{"text": null}\n')
    for output in ("y.npy", "y.jsonl"):
        status, error = failure(capsys, "--input", "null.jsonl", "--column", "text", "--skip-empty", "--output", output)
        assert (status, error) == (2, "every row is empty in 'text': nothing to embed")
        assert not Path(output).exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.jsonl", b"", "x.jsonl holds no rows"),
        ("x.jsonl", b"\n \n", "x.jsonl holds no rows"),
        ("x.jsonl", b'{"text": "a"}\n{"text": 5}\n', "x.jsonl, line 2: 'text' is a int"),
        (
            "x.jsonl",
            b'{"text": "a"}\n{"body": "b", "id": 1}\n',
            "x.jsonl, line 2: no column 'text'; there are 'body', 'id'",
        ),
        ("x.jsonl", b'{"text": "a"\n', "x.jsonl, line 1: no JSON object"),
        ("x.jsonl", b"[1]\n", "x.jsonl, line 1: a JSON list; each line must be an object"),
        ("x.jsonl", b"[" * 100_000, "x.jsonl, line 1: no JSON object"),
        ("x.jsonl", b'{"text": "a", "embedding": [1]}', "a row has a column 'embedding' already; rename it"),
        ("x.jsonl", b'{"text": "\xff"}', "x.jsonl, line 1: not UTF-8 (byte 0xff)"),
        ("x.csv", b"", "x.csv is empty: its first line must name the columns"),
        ("x.csv", b"id,text\n", "x.csv holds no rows"),
        ("x.csv", b"id,body\n1,a\n", "x.csv: no column 'text'; there are 'id', 'body'"),
        ("x.csv", b"text,text\n1,a\n", "x.csv: 2 columns are called 'text'; rename one"),
        ("x.csv", b"id,text\n1,a\n2\n", "x.csv, line 3: 1 cells, and the header has 2"),
        ("x.csv", b'id,text\n1,"a\n2,b\n', "x.csv, line 3: unexpected end of data"),
        ("x.csv", b"id,text\n1,a\0b\n", None),
        ("x.csv", "id,text\n1,ä\n".encode("utf-16"), "x.csv is UTF-16; convert it: iconv -f UTF-16 -t UTF-8"),
        ("x.csv", "id,text\n1,ä\n".encode("latin-1"), "x.csv, line 2: not UTF-8 (byte 0xe4)"),
    ],
)
def test_malformed_rows_are_named_by_their_line(
    name: str, content: bytes, message: str | None, capsys: Capture
) -> None:
    Path(name).write_bytes(content)
    if message is None:  # Python 3.11 takes a NUL, others refuse it
        assert embed("--input", name, "--column", "text", "--output", "y.jsonl") in (0, 2)
        return
    status, error = failure(capsys, "--input", name, "--column", "text", "--output", "y.jsonl")
    assert status == 2
    assert message in error
    assert sorted(path.name for path in Path().glob("*y.jsonl*")) == []


def test_a_line_without_end_is_refused_before_it_is_read_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 1 << 20)
    Path("x.jsonl").write_bytes(b'{"text": "' + b"a" * (1 << 20))
    status, error = failure(capsys, "--input", "x.jsonl", "--column", "text", "--output", "y.npy")
    assert (status, error) == (2, "x.jsonl, line 1: longer than 1 MiB")
    Path("x.csv").write_bytes(b'id,text\n1,"' + b"a\n" * (1 << 20))
    status, error = failure(capsys, "--input", "x.csv", "--column", "text", "--output", "y.npy")
    assert status == 2
    assert "field larger than field limit" in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--input", "rows.jsonl"], "rows.jsonl holds rows: name the column of the texts by --column NAME"),
        (["--input", "rows.csv"], "rows.csv holds rows: name the column"),
        (["--input", "rows.txt", "--column", "text"], "--column is for rows of a table"),
        (["--skip-empty", "a"], "--skip-empty is for rows of a table"),
        (["--column", "text", "a"], "--column is for rows of a table"),
        (["--input-format", "csv", "--column", "text", "a"], "--input-format is for --input FILE or standard input"),
        (["--input", "rows.csv", "--column", "text", "a"], "texts and --input are both given"),
        (["--json", "--output", "x.jsonl", "a"], "--json and --output x.jsonl both write the vectors"),
        (["--output", "x.csv", "a"], "vectors are written as .npy, .jsonl, .parquet files only"),
    ],
)
def test_options_that_do_not_go_together_are_refused(arguments: list[str], message: str, capsys: Capture) -> None:
    status, error = failure(capsys, *arguments)
    assert status == 2
    assert message in error


def test_raw_lines_of_a_table_can_be_embedded_by_name(capsys: Capture) -> None:
    assert embed("--input", "rows.tsv", "--input-format", "lines", "--output", "x.npy") == 0
    assert np.load("x.npy").shape == (5, 384)


def test_rows_are_written_with_all_columns_or_refused(capsys: Capture) -> None:
    Path("two.csv").write_text("text,x,x\na,1,2\n")
    assert embed("--input", "two.csv", "--column", "text", "--output", "x.npy") == 0
    capsys.readouterr()
    status, error = failure(capsys, "--input", "two.csv", "--column", "text", "--output", "x.jsonl")
    assert (status, error) == (2, "two.csv: 2 columns are called 'x'; rename one")
    assert not Path("x.jsonl").exists()


def test_rows_are_written_as_parquet(capsys: Capture) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    expected = expected_vectors(capsys)
    assert embed("--input", "rows.jsonl", "--column", "text", "--output", "x.parquet") == 0
    table = parquet.read_table("x.parquet")
    assert table.column_names == ["id", "text", "embedding"]
    assert table.select(["id", "text"]).to_pylist() == ROWS
    np.testing.assert_array_equal(np.array(table["embedding"].to_pylist(), np.float32), expected)
    capsys.readouterr()
    Path("mixed.jsonl").write_text('{"text": "a", "x": 1}\n{"text": "b", "x": "1"}\n')
    status, error = failure(capsys, "--input", "mixed.jsonl", "--column", "text", "--output", "y.parquet")
    assert status == 2
    assert "the rows are no table of one type a column" in error
    assert not Path("y.parquet").exists()


def test_parquet_keeps_columns_that_the_first_row_lacks(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{"a": 1}, {"b": [{"x": 1.5}], "a": None}, {"b": [{"x": 2}]}]
    with row_output(tmp_path / "x.parquet") as write:
        write(rows[:2], np.ones((2, 3), np.float32))
        write(rows[2:], np.ones((1, 3), np.float32))
    table = parquet.read_table(tmp_path / "x.parquet").select(["a", "b"])
    assert table.to_pylist() == [{"a": 1, "b": None}, rows[1], {"a": None, "b": [{"x": 2.0}]}]


@pytest.mark.parametrize(
    ("first", "later", "reason"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, "has the column 'b'"),
        ({"a": 1}, {"a": 1.5}, "'a' holds double"),
        ({"a": True}, {"a": 2}, "'a' holds int64"),
        ({"a": 1}, {"a": "1"}, "'a' holds string"),
        ({"a": None}, {"a": "x"}, "'a' holds string"),
        ({"a": [{"x": 1}]}, {"a": [{"x": 1, "y": 2}]}, "'a' holds a field 'y'"),
        ({"a": {"x": 1}}, {"a": {"x": 0.5}}, "'a.x' holds double"),
        ({"a": 0.5}, {"a": 2**53 + 1}, "outside of the range"),
        ({"a": 1}, {"a": 2**70}, "too large"),
        ({"a": 2**70}, {"a": 1}, "too large"),
    ],
)
def test_parquet_changes_no_value_of_a_later_row(
    first: dict[str, object], later: dict[str, object], reason: str, tmp_path: Path
) -> None:
    pytest.importorskip("pyarrow.parquet")

    def write_rows() -> None:
        with row_output(tmp_path / "x.parquet") as write:
            for row in (first, later):
                write([row], np.ones((1, 3), np.float32))

    with pytest.raises(InvalidInputError, match=reason):
        write_rows()
    assert not (tmp_path / "x.parquet").exists()


def test_a_missing_parquet_library_is_named(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    status, error = failure(capsys, "--output", "x.parquet", "a")
    assert status == 1
    assert error == "--output x.parquet: Parquet files need pyarrow: pip install pyarrow"
