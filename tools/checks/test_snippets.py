"""What the READMEs and the manual show works: snippets run, commands are accepted."""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from .command_cases import PROGRAMS
from .conftest import MINILM, ROOT, link_models, needs_model, with_our_commands
from .snippets import blocks_of, commands_of

PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("packages/*/README.md")])
TEXTS = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in PAGES}
SNIPPETS = {name: "".join(block.code for block in blocks_of(text) if block.runs) for name, text in TEXTS.items()}
TUTORIAL = "docs/tutorial.md"  # its blocks need each other: test_tutorial.py runs them in order
RUNNER = Path(__file__).with_name("snippets.py")


def is_local(command: str) -> bool:
    """Whether the command can run here, and ends: it names the tests' model, or needs none.

    Those of lattice-tune read data files that no page makes.
    """
    if re.search(r"lattice(-embed)? serve |lattice-tune ", command):
        return False
    return bool(MINILM.search(command) or re.search(r"lattice(-embed)? (models|doctor|--version|--help)$", command))


COMMANDS = [(f"{name}:{line}", command) for name, text in TEXTS.items() for line, command in commands_of(text)]


def cases(table: dict[str, str]) -> list[object]:
    return [
        pytest.param(name, id=name, marks=pytest.mark.model if needs_model(code) else ())
        for name, code in table.items()
    ]


@pytest.mark.slow
@pytest.mark.parametrize("page", cases({name: code for name, code in SNIPPETS.items() if code and name != TUTORIAL}))
def test_snippets_of_the_page_run(page, request, snippet_folder, snippet_environment):
    link_models(snippet_folder, SNIPPETS[page], request)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(RUNNER), str(ROOT / page)],
        cwd=snippet_folder,
        env=snippet_environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == f"{sum(block.runs for block in blocks_of(TEXTS[page]))} snippets ran"


@pytest.mark.parametrize("name", TEXTS)
def test_snippets_that_are_not_run_compile(name):
    for block in blocks_of(TEXTS[name]):
        if block.is_python and not block.runs:
            compile("\n" * (block.line - 1) + block.code, name, "exec")


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize(
    "command",
    [pytest.param(c, id=place) for place, c in COMMANDS if is_local(c) and not place.startswith(f"{TUTORIAL}:")],
)
def test_command_succeeds(command, minilm_directory, snippet_folder, snippet_environment):
    done = subprocess.run(
        ["bash", "-c", with_our_commands(command)],
        cwd=snippet_folder,
        env=snippet_environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout or "--output" in command


@pytest.mark.parametrize("command", [pytest.param(c, id=place) for place, c in COMMANDS])
def test_command_has_only_options_that_exist(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("lora.toml").write_text("model = 'smollm2.gguf'", encoding="utf-8")  # read by the parser
    words = shlex.split(command, comments=True)
    start = next(place for place, word in enumerate(words) if word in PROGRAMS)
    rest = words[start + 1 :]
    end = next((place for place, word in enumerate(rest) if word in ("|", ">")), None)
    parser = importlib.import_module(f"{PROGRAMS[words[start]]}.cli.parser").build_parser()
    assert parser.parse_args(rest[:end]).run


def test_continued_command_is_one_command():
    page = "```\nlattice serve --model a=b \\\n    --port 0\nlattice doctor\n```\n"
    assert list(commands_of(page)) == [(2, "lattice serve --model a=b --port 0"), (4, "lattice doctor")]


def test_pages_show_snippets_and_commands():
    """Guards the tests above: a change of the fences cannot empty them."""
    assert sum(bool(code) for code in SNIPPETS.values()) >= 10
    assert len(COMMANDS) >= 8


def test_commands_of_every_program_are_tried():
    tried = {shlex.split(command)[0] for _, command in COMMANDS}
    assert set(PROGRAMS) <= tried


def test_links_to_headings_lead_somewhere():
    """An anchor is the heading in lower case, without punctuation, with hyphens for blanks."""
    headings = {
        name: {
            re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title.lower())).strip().replace(" ", "-")
            for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        }
        for name, text in TEXTS.items()
    }
    for name, text in TEXTS.items():
        for path, anchor in re.findall(r"\]\(([^):#\s]*)#([^)\s]+)\)", text):
            target = (ROOT / name).parent / path if path else ROOT / name
            assert anchor in headings[target.resolve().relative_to(ROOT).as_posix()], f"{name}: {path}#{anchor}"


def test_unclosed_fence_is_found():
    with pytest.raises(ValueError, match="line 2 is not closed"):
        blocks_of("text\n```python\nx = 1\n")


def test_snippet_that_warns_or_connects_fails(snippet_folder, snippet_environment):
    for code in ("import warnings; warnings.warn('old')", "import socket; socket.create_connection(('127.0.0.1', 9))"):
        page = snippet_folder / "page.md"
        page.write_text(f"```python\n{code}\n```\n", encoding="utf-8")
        command = [sys.executable, "-W", "error", str(RUNNER), str(page)]
        done = subprocess.run(command, env=snippet_environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 1
        assert f'File "{page}", line 2' in done.stderr
