"""The tutorial works as written: its files, its commands in order, and their output."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from .conftest import ROOT, with_our_commands
from .snippets import blocks_of

PAGE = ROOT / "docs" / "tutorial.md"
INSTALLING = re.compile(r"python3 -m venv |\. \.venv/|pip install |export LATTICE_OFFLINE=1$")


@dataclass(frozen=True)
class Step:
    """A file to save (``name``), or a command to type and what it prints (empty: not shown).

    Attributes:
        line: where it stands in the page.
        text: the file's content, or the command.
        name: the file's name; empty for a command.
        output: the lines below the command.
    """

    line: int
    text: str
    name: str = ""
    output: str = ""


def steps_of(page: str) -> Iterator[Step]:
    """Yield what a reader of the page does, in order."""
    for block in blocks_of(page):
        if block.is_python:
            name = re.match(r"# (\w+\.py)\n", block.code)
            assert name, f"line {block.line}: the first line says no file"
            yield Step(block.line, block.code, name=name[1])
            continue
        for typed in re.finditer(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block.code, re.MULTILINE):
            yield Step(block.line + block.code[: typed.start()].count("\n"), typed[1], output=typed[2])


STEPS = list(steps_of(PAGE.read_text(encoding="utf-8")))


def follow(steps: list[Step], folder: Path, environment: dict[str, str]) -> int:
    """Do the steps in ``folder`` and return how many commands were typed."""
    typed = 0
    for step in steps:
        if step.name:
            (folder / step.name).write_text(step.text, encoding="utf-8")
            continue
        if INSTALLING.match(step.text):
            continue
        done = subprocess.run(
            ["bash", "-c", with_our_commands(step.text)],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, f"line {step.line}: {done.stderr}"
        assert not step.output or done.stdout + done.stderr == step.output, f"line {step.line}"
        typed += 1
    return typed


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.usefixtures("minilm_directory")
def test_tutorial_followed_in_order_prints_what_it_shows(tmp_path, snippet_environment):
    assert follow(STEPS, tmp_path, snippet_environment) >= 10


def test_tutorial_saves_each_script_before_it_runs_and_shows_its_output():
    saved: set[str] = set()
    for step in STEPS:
        if step.name:
            saved.add(step.name)
        elif step.text.startswith("python "):
            assert step.text.split()[1] in saved
            assert step.output
    assert len(saved) == 2


def test_install_lines_name_folders_that_exist_and_no_name_of_ours():
    """Only paths and the model's package are installed.

    Our names on an index may belong to other projects.
    """
    for page in (PAGE, ROOT / "README.md", ROOT / "docs" / "index.md", ROOT / "examples" / "README.md"):
        lines = re.findall(r"^\$ (?:\S*/)?pip install (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        words = [word for line in lines for word in line.split() if not word.startswith("-")]
        paths = [word for word in words if word.startswith("./")]
        assert paths
        assert [word for word in paths if not (ROOT / word / "pyproject.toml").is_file()] == []
        assert [word for word in words if word not in paths and "lattice" in word] == []


def test_output_that_differs_is_found(tmp_path, snippet_environment):
    page = "```console\n$ echo right\nwrong\n```\n"
    with pytest.raises(AssertionError, match="line 2"):
        follow(list(steps_of(page)), tmp_path, snippet_environment)
