"""Exit statuses of commands: 2 for a senseless request, 1 for failed work."""

from __future__ import annotations

import importlib
import shlex
from pathlib import Path

import pytest

from .command_cases import PROGRAMS, command_names, write_command_folder

TABLE = Path(__file__).with_name("exit_statuses.txt")
ROWS = [
    line.split(" ", 2) for line in TABLE.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_command_folder(tmp_path_factory.mktemp("commands"))
    (folder / "emptydir").mkdir()
    for name in ("empty", "empty.csv"):
        (folder / name).write_bytes(b"")
    for name in ("junk.npy", "junk.npz", "junk.fann", "junk.gguf"):
        (folder / name).write_bytes(b"abc")
    (folder / "junk.bin").write_bytes(bytes(range(256)))
    (folder / "junk.db").write_bytes(b"abc" * 100)
    (folder / "junk.json").write_bytes(b"{}")
    (folder / "latin.txt").write_bytes(b"a\xff\n")
    (folder / "long.txt").write_text("word " * 500, encoding="utf-8")
    network = (folder / "network.fann").read_bytes()
    (folder / "short.fann").write_bytes(network[:-5])
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=" ".join)
def test_a_mistake_has_its_status_and_one_line(
    row: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected, program, *rest = row
    monkeypatch.chdir(folder)
    monkeypatch.setenv("LATTICE_OFFLINE", "1")
    monkeypatch.setenv("LATTICE_VECTOR_CACHE", str(folder / "cache"))
    for name in ("LATTICE_EMBED_MODEL", "LATTICE_EMBED_DIM", "LATTICE_DRIFT_BASELINES"):
        monkeypatch.delenv(name, raising=False)
    try:
        status = importlib.import_module(f"{PROGRAMS[program]}.cli").main(shlex.split(" ".join(rest)))
    except SystemExit as ended:
        status = ended.code
    out, err = capsys.readouterr()
    assert status == int(expected), err
    if "check-drift" in row[-1] and status == 1:
        return  # what did not pass is the command's answer
    assert out == ""
    told = [line for line in err.splitlines() if line.startswith(program) and ": error: " in line]
    assert len(told) == 1
    assert "usage:" in err or "hf download" in err or err.count("\n") == 1  # each place that was searched has a line


def test_every_command_is_in_the_table() -> None:
    for program, package in PROGRAMS.items():
        tried = {rest[0].split()[0] for _, name, *rest in ROWS if name == program and rest}
        assert set(command_names(package)) <= tried | {"models"}  # it takes nothing that could be wrong
