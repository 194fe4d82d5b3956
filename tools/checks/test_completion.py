"""Completion of every command line, in real shells."""

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

from .command_cases import PROGRAMS, command_names

# Completes the last of the given words as a shell does at the tabulator key, and prints what it would offer.
_COMPLETE = """
source "$1" && shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*"
COMP_POINT=${#COMP_LINE}
read -r -a registered <<< "$(complete -p "$1")"
for ((i = 0; i < ${#registered[@]}; i++)); do [ "${registered[i]}" = -F ] && complete=${registered[i + 1]}; done
"$complete" "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""

FILES = ("data.csv", "model.gguf", "vectors.npy")
FOLDERS = ("daily", "models")


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The scripts for bash, and beside each those of the other shells."""
    folder = tmp_path_factory.mktemp("scripts")
    for program, package in PROGRAMS.items():
        main = importlib.import_module(f"{package}.cli").main
        for shell in ("bash", "zsh", "fish"):
            with (
                (folder / f"{program}.{shell}").open("w", encoding="utf-8") as file,
                pytest.MonkeyPatch.context() as patch,
            ):
                patch.setattr(sys, "stdout", file)
                assert main(["completion", shell]) == 0
    return {program: folder / f"{program}.bash" for program in PROGRAMS}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in FILES:
        (tmp_path / name).touch()
    for name in FOLDERS:
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def offered(script: Path, *words: str) -> set[str]:
    command = ["bash", "--norc", "-c", _COMPLETE, "bash", str(script), script.stem, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    return set(done.stdout.split())


def commands_of(
    parser: argparse.ArgumentParser, *path: str
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """Every command and action, with the words that lead there."""
    yield path, parser
    for action in getattr(parser, "options", parser._actions):
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                yield from commands_of(command, *path, name)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_reads_its_script(scripts: dict[str, Path], program: str, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    script = scripts[program].with_suffix(f".{shell}")
    done = subprocess.run([shell, "-n", str(script)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_shell_gets_a_script_of_its_own(scripts: dict[str, Path], program: str) -> None:
    zsh, fish = (scripts[program].with_suffix(f".{shell}").read_text(encoding="utf-8") for shell in ("zsh", "fish"))
    assert zsh.startswith(f"#compdef {program}\n")
    for name in command_names(PROGRAMS[program]):
        assert f"\n    {name}:'" in zsh
        assert re.search(f"complete -c {program} .*{name}", fish)


@pytest.mark.parametrize("program", PROGRAMS)
def test_commands_are_completed(scripts: dict[str, Path], program: str) -> None:
    names = set(command_names(PROGRAMS[program]))
    assert names <= offered(scripts[program], "")
    assert offered(scripts[program], "comp") == {name for name in names if name.startswith("comp")}


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_every_option_is_completed(scripts: dict[str, Path], program: str) -> None:
    parser = importlib.import_module(f"{PROGRAMS[program]}.cli.parser").build_parser()
    for path, command in commands_of(parser):
        actions = getattr(command, "options", command._actions)
        known = {name for action in actions for name in action.option_strings if name.startswith("--")}
        assert offered(scripts[program], *path, "--") == known, path


def test_values_are_completed(scripts: dict[str, Path], folder: Path) -> None:
    fann, embed, lattice, tune = (scripts[f"lattice{of}"] for of in ("-fann", "-embed", "", "-tune"))
    assert offered(fann, "train", "--optimizer", "ada") == {"adam", "adamw"}
    assert offered(fann, "completion", "") == {"bash", "zsh", "fish"}
    assert offered(fann, "train", "da") == {"data.csv", "daily"}
    assert offered(embed, "store", "im") == {"import"}
    assert offered(embed, "embed", "--cache-folder", "m") == {"models"}
    assert offered(lattice, "generate", "--model", "m") == {"model.gguf", "models"}
    assert offered(lattice, "generate", "--config", "") == {*FILES, *FOLDERS}
    assert offered(tune, "registry", "list", "--registry", "da") == {"daily"}
    assert offered(scripts["lattice-transport"], "drift", "data.csv", "v") == {"vectors.npy"}


@pytest.mark.parametrize(("program", "package"), PROGRAMS.items())
def test_without_shtab_the_extra_is_named(
    program: str, package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert importlib.import_module(f"{package}.cli").main(["completion", "bash"]) == 1
    out, err = capsys.readouterr()
    extra = f"{package.replace('_', '-')}[completion]"
    assert out == ""
    assert err == f"{program}: error: completion needs shtab, which is not installed: pip install '{extra}'\n"
