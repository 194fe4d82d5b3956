"""Every option of every command refuses wrong values in one line, with status 1 or 2 and no traceback."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lattice_embed.cli import main
from lattice_embed.cli.parser import build_parser

Capture = pytest.CaptureFixture[str]

WRONG = ["", "-1", "nan", "9" * 5000, "."]

VALID: dict[str, list[str]] = {
    "embed": ["--model", "minilm", "a"],
    "similarity": ["--model", "minilm", "a", "b"],
    "rerank": ["--model", ".", "a", "b"],
    "search": ["s.db", "a"],
    "compare": ["minilm", "minilm", "--input", "texts.txt"],
    "serve": ["--model", "minilm", "--port", "0", "--check"],
    "models": [],
    "download": ["all-minilm-l6-v2"],
    "cache": ["stats", "--cache-folder", "c"],
    "store import": ["new.db", "--input", "texts.txt", "--model", "minilm"],
    "store info": ["s.db"],
    "store query": ["s.db", "one"],
    "backfill": ["--from-store", "s.db", "--model", "small", "--dry-run"],
    "check-drift": ["--update-baseline", "--model", "minilm", "--input", "texts.txt", "b.json"],
    "doctor": [],
    "completion": ["bash"],
}
ARGUMENTS: dict[str, list[list[str]]] = {
    "embed": [["{}"], ["--input", "{}"], ["--model", "minilm", "--base-url", "http://host", "--model", "{}", "a"]],
    "similarity": [["{}"], ["{}", "--input", "{}"]],
    "rerank": [["{}"], ["--model", "{}", "a", "b"], ["--model", ".", "{}", "--input", "{}"]],
    "search": [["{}", "a"], ["x.npy", "{}", "--texts", "texts.txt"], ["{}", "a", "--texts", "{}"]],
    "compare": [["{}", "minilm", "--input", "texts.txt"], ["minilm", "minilm", "--input", "{}"]],
    "download": [["{}"]],
    "cache": [["{}"], ["inspect", "{}"], ["clear", "--of", "{}", "--cache-folder", "c"]],
    "store info": [["{}"]],
    "store query": [["{}", "one"], ["s.db", "{}"]],
    "store import": [["{}", "--input", "texts.txt"], ["{}", "--input", "texts.txt", "--model", "minilm"]],
    "backfill": [["{}"], ["status", "--journal", "{}"], ["run", "--from-store", "{}"]],
    "check-drift": [["{}"], ["--update-baseline", "{}"]],
}


def commands() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command, and every action of those that have actions."""

    def below(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
        inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        if not inner:
            yield name, parser
        for action in inner:
            for word, child in action.choices.items():
                yield from below(child, f"{name} {word}".strip())

    return below(build_parser(), "")


def cases() -> Iterator[tuple[str, list[str]]]:
    for name, parser in commands():
        for action in parser._actions:
            if action.option_strings and action.nargs != 0:
                yield name, [*VALID[name], action.option_strings[-1], "{}"]
        yield from ((name, arguments) for arguments in ARGUMENTS.get(name, []))


@pytest.fixture(autouse=True)
def folder(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    loader: Any,
    capsys: Capture,
    stdin_closed: None,
) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LATTICE_OFFLINE", "1")
    monkeypatch.setenv("HOME", str(tmp_path))
    Path("texts.txt").write_text("one\ntwo\n")
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    if "s.db" in request.node.name:
        assert main(["store", "import", "s.db", "--input", "texts.txt", "--model", "minilm"]) == 0
        capsys.readouterr()
    return tmp_path


@pytest.fixture
def stdin_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)


@pytest.mark.parametrize(
    ("name", "arguments"), [pytest.param(*case, id=" ".join((case[0], *case[1]))) for case in cases()]
)
def test_wrong_values_are_refused_in_one_line(name: str, arguments: list[str], capsys: Capture) -> None:
    for value in WRONG:
        try:
            status = main([*name.split(), *(word.format(value) for word in arguments)])
        except SystemExit as ended:
            status = int(str(ended.code))
        captured = capsys.readouterr()
        assert status in (0, 1, 2), (value, captured)
        assert "Traceback" not in captured.err
        if status == 1 and name != "check-drift":  # whose verdict is a status too
            assert captured.err.startswith("lattice-embed: error: "), (value, captured)


def test_every_command_is_tried() -> None:
    assert {name for name, _ in commands()} == set(VALID)
