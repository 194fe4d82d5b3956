"""The command line begins and ends as those of the other packages."""

from __future__ import annotations

import pytest

from lattice_tune.cli import main


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    from lattice_tune import __version__

    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"lattice-tune {__version__}\n"


def test_a_missing_command_makes_no_sense(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    assert "COMMAND" in capsys.readouterr().err
