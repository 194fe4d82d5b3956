"""What every program answers to a command that is missing or misspelt."""

from __future__ import annotations

import importlib

import pytest

from .command_cases import PROGRAMS, command_names


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_missing_command_gets_the_help(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = _refused(program, [], capsys)
    assert out == ""
    assert err.startswith("usage: ")
    assert all(f"\n    {name}" in err or f"\n  {name}" in err for name in command_names(PROGRAMS[program]))
    assert err.endswith(f"{program}: error: name one of the commands above\n")


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_misspelt_command_gets_the_right_one(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = command_names(PROGRAMS[program])[0]
    for written in (name[:-1], name[0] + name[2] + name[1] + name[3:]):
        _, err = _refused(program, [written, "--what", "ever"], capsys)
        assert f"{program}: error: there is no command {written!r}; did you mean {name!r}?" in err
    _, err = _refused(program, ["zzzzzz"], capsys)
    assert "invalid choice: 'zzzzzz'" in err


def test_actions_of_a_command_are_commands_too(capsys: pytest.CaptureFixture[str]) -> None:
    _, err = _refused("lattice-embed", ["store", "imprt", "x"], capsys)
    assert "lattice-embed store: error: there is no command 'imprt'; did you mean 'import'?" in err
    _, err = _refused("lattice-embed", ["store"], capsys)
    assert "usage: lattice-embed store" in err
    assert "lattice-embed store: error: name one of the commands above" in err


def _refused(program: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    main = importlib.import_module(f"{PROGRAMS[program]}.cli").main
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    return capsys.readouterr()
