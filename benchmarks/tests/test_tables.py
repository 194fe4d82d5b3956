"""Markdown tables, generated sections and records."""

from pathlib import Path

import pytest

from harness.record import describe_run, read_record, write_record
from harness.tables import markdown_table, provenance, replace_section


def test_table_aligns_numbers_right_and_escapes_bars() -> None:
    assert markdown_table(["what", "ms"], [["a|b", "1.5"]]) == "| what | ms |\n| --- | ---: |\n| a\\|b | 1.5 |"


def test_row_of_another_width_is_refused() -> None:
    with pytest.raises(ValueError, match="2 cells"):
        markdown_table(["only"], [["a", "b"]])


def test_section_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text("top\n<!-- begin: embed -->\nold\n<!-- end: embed -->\nbottom\n", encoding="utf-8")
    for text in ("first", "second\n"):
        replace_section(document, "embed", text)
    written = document.read_text(encoding="utf-8")
    assert written == "top\n<!-- begin: embed -->\n\nsecond\n\n<!-- end: embed -->\nbottom\n"
    assert list(tmp_path.iterdir()) == [document]


@pytest.mark.parametrize(
    "text",
    [
        "nothing\n",
        "<!-- end: embed -->\n<!-- begin: embed -->\n",
        "<!-- begin: embed -->\n" * 2 + "<!-- end: embed -->\n",
    ],
)
def test_document_without_one_section_is_left_alone(tmp_path: Path, text: str) -> None:
    document = tmp_path / "page.md"
    document.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="must have one line"):
        replace_section(document, "embed", "new")
    assert document.read_text(encoding="utf-8") == text


def test_record_comes_back_and_says_where_it_ran(tmp_path: Path) -> None:
    record = {**describe_run("embed", distributions=["numpy", "no-such-distribution"]), "samples": [1.5]}
    write_record(tmp_path / "sub" / "record.json", record)
    assert read_record(tmp_path / "sub" / "record.json", "embed") == record
    assert [path.name for path in (tmp_path / "sub").iterdir()] == ["record.json"]
    text = provenance(record)
    for part in (record["machine"]["cpu"], record["date"], record["command"], f"numpy {record['versions']['numpy']}"):
        assert part in text
    assert "no-such-distribution" not in record["versions"]


def test_record_of_nan_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        write_record(tmp_path / "record.json", {"samples": [float("nan")]})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["{", "[]", '{"format": 1, "script": "peak"}', '{"format": 0, "script": "embed"}'])
def test_file_that_is_no_record_of_the_script_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "record.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=r"record\.json is no"):
        read_record(path, "embed")
