"""Each rule of ``words.py``: what it finds, and what it leaves alone."""

from __future__ import annotations

import subprocess

import pytest

from . import words


def _code(source: str) -> list[str]:
    return [message.split(":")[0] for _, message in words.problems(words.python_texts(source))]


def _page(source: str, exists: frozenset[str] = frozenset()) -> list[str]:
    return [message.split(":")[0] for _, message in words.problems(words.markdown_texts(source), exists)]


@pytest.mark.parametrize(
    ("prose", "found"),
    [
        ("Every door into C.", ["door"]),
        ("The OUTDOOR text and a `door` in code.", []),
        ("RoBERTa and its kin, kind and kindred.", ["kin"]),
        ("The house rules.", ["house"]),
        ("An unmasked twin and twine.", ["twin"]),
        ("A process of its own, models of their own.", ["of its own"]),
        ("Texts of our own.", ["of its own"]),
        ("Use your own model.", []),
        ("Nobody waits.", ["nobody"]),
        ("No bit is another.", ["no bit is another"]),
        ("Bytes behind the last tensor.", ["behind (for after)"]),
        ("It runs behind a proxy, behind a reverse proxy.", []),
        ("The server stands behind a load balancer or behind a company firewall.", []),
        ("A file must not be left behind.", []),
        ("What is asked for, was asked for.", ["is asked for"]),
        ("The server asked for a password.", []),
        ("Whoever calls it.", ["whoever"]),
        ("None where there is none.", ["where there is none"]),
        ("We reckon with it.", ["reckon"]),
    ],
)
def test_words_to_avoid_are_found_and_ordinary_uses_left(prose, found):
    assert _page(prose) == found
    assert _code(f'"""Title.\n\n{prose}\n"""\n') == found
    assert _code(f"# {prose}\n") == found
    assert _code(f'raise ValueError(f"{prose} {{value}} and more words")\n') == found


def test_a_sentence_has_at_most_40_words_and_code_counts_as_one():
    assert _page("word " * 40 + ".") == []
    assert _page("word " * 41 + ".") == ["sentence of 41 words"]
    assert _page("word " * 30 + ".\n" + "Word " * 30 + ".") == []
    assert _page("word " * 39 + "`one two three`.") == []
    assert _page("- " + "word " * 30 + "\n- " + "word " * 30) == []
    assert _page("See e.g. " + "word " * 39 + ".") == ["sentence of 41 words"]


def test_code_blocks_tables_and_examples_are_no_sentences():
    long = "word " * 50
    assert _page(f"```text\n{long}\n```\n") == []
    assert _page(f"| {long} | cell |\n") == []
    assert _page(f"<!-- {long}\nnobody -->\n") == []
    assert _code(f'def f():\n    """Title.\n\n    >>> f("{long}")\n    {long}\n    """\n') == []
    assert _code(f'def f():\n    """Title::\n\n        {long}\n    """\n') == []
    assert _code(f"b = b'{long}'\n") == []
    assert _code(f'def f():\n    """Title.\n\n    {long}\n    """\n') == ["sentence of 50 words"]
    assert _code(f'x = ("{long}"\n     "{long}")\n') == ["sentence of 100 words"]


def test_first_line_of_a_docstring_has_at_most_90_characters():
    assert _code(f'def f() -> int:\n    """{"a" * 90}\n\n    More.\n    """\n') == []
    assert len(_code(f'def f() -> int:\n    """{"a" * 91}"""\n')) == 1
    assert len(_code(f'cdef class A:\n    r"""{"a" * 91}"""\n')) == 1
    assert len(_code(f'# comment\n"""{"a" * 91}"""\n')) == 1
    assert _code(f'x = f("""{"a" * 91}""")\n') == []


def test_planned_is_wrong_of_what_exists():
    exists = frozenset({"lattice_fann/cli", "docs/ops.md"})
    assert _page("| `lattice_fann/cli/` | *planned* |\n", exists) == ["planned, but exists"]
    assert _page("The page `docs/ops.md` is planned.\n", exists) == ["planned, but exists"]
    assert _page("A `lattice_fann/gpu` is planned. See `docs/ops.md`.\n", exists) == []


def test_line_numbers_are_those_of_the_file():
    function = '\n\ndef f():\n    """Title.\n\n    Nobody.\n    """\n'
    source = f'"""Title."""\n{function}    x = 1  # whoever\n    # A door\n    # and kin.\n'
    found = [line for line, _ in words.problems(words.python_texts(source))]
    assert found == [7, 9, 10, 10]


def test_list_of_files_holds_exactly_those_that_are_not_clean(tmp_path, monkeypatch, capsys):
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    monkeypatch.setattr(words, "ROOT", tmp_path)
    monkeypatch.setattr(words, "NOT_CLEAN", tmp_path / "list.txt")
    (tmp_path / "README.md").write_text("Three good words.\n")
    assert words.main([]) == 0
    assert "3 words in all pages" in capsys.readouterr().out
    (tmp_path / "README.md").write_text("Nobody.\n")
    assert words.main([]) == 1
    assert "README.md:1: nobody" in capsys.readouterr().out
    (tmp_path / "list.txt").write_text("README.md\n")
    assert words.main([]) == 0
    (tmp_path / "README.md").write_text("Good.\n")
    assert words.main([]) == 1
    assert "README.md is clean" in capsys.readouterr().out
    assert words.main(["--shrink"]) == 0
    assert (tmp_path / "list.txt").read_text() == ""
    monkeypatch.setattr(words, "MOST_PAGE_WORDS", 0)
    assert words.main([]) == 1
