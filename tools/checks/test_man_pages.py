"""The manual pages that a release writes: whole, and without a fault for ``man``."""

from __future__ import annotations

import argparse
import importlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .command_cases import PROGRAMS
from .conftest import ROOT

sys.path.insert(0, str(ROOT / "ci"))
import man_pages


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("man") / "man1"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "1790000000")
        assert [man_pages.main([package, str(folder)]) for package in PROGRAMS.values()] == [0] * len(PROGRAMS)
    return {program: folder / f"{program}.1" for program in PROGRAMS}


def commands_of(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in getattr(parser, "options", parser._actions):
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from commands_of(command)


@pytest.mark.parametrize(("program", "package"), PROGRAMS.items())
def test_a_page_has_every_command_with_all_that_it_takes(pages: dict[str, Path], program: str, package: str) -> None:
    text = pages[program].read_text(encoding="utf-8").replace("\\-", "-")
    version = importlib.import_module(package).__version__
    assert text.startswith(
        f'.TH "{program.upper()}" 1 "2026-09-21" "{package.replace("_", "-")} {version}" "Lattice"\n'
    )
    sections = dict(re.findall(r'^\.SH "?(.*?)"?\n(.*?)(?=^\.SH|\Z)', text, re.MULTILINE | re.DOTALL))
    for command in commands_of(importlib.import_module(f"{package}.cli.parser").build_parser()):
        section = sections["OPTIONS" if command.prog == program else command.prog.upper()]
        for action in getattr(command, "options", command._actions):
            for name in action.option_strings:
                assert re.search(rf"^\.B .*{re.escape(name)}\b", section, re.MULTILINE), (command.prog, name)
        assert (command.epilog or "").count("\n  lattice") <= section.count("\n  lattice")
        assert "%(" not in section


@pytest.mark.skipif(shutil.which("groff") is None, reason="there is no groff")
@pytest.mark.parametrize("program", PROGRAMS)
def test_groff_sets_a_page_without_a_warning(pages: dict[str, Path], program: str) -> None:
    command = ["groff", "-man", "-ww", "-Tascii", "-P-cbou", "-rLL=200n", str(pages[program])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{program} [options] COMMAND" in done.stdout
    if program == "lattice-fann":
        assert "  lattice-fann train iris.csv --target species --output iris.fann\n" in done.stdout
        assert "jq '.predictions[0]'" in done.stdout


def test_a_line_that_begins_as_a_request_is_text() -> None:
    parser = argparse.ArgumentParser("program", description=".x", epilog='.nf\n\'so a\\b\n\n`x` "y"')
    parser.add_argument("--for", help="%(prog)s takes 5%% of %(default)s", default=3)
    lines = man_pages.man_page(parser, "program 1", "2026-01-01").splitlines()
    assert lines[-6:] == [".nf", "\\&.nf", "\\&\\(aqso a\\eb", "", "\\(gax\\(ga \\(dqy\\(dq", ".fi"]
    assert "program takes 5% of 3" in lines
