"""An interrupt during a command line's imports gives one line and status 130."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .command_cases import CASES, PROGRAMS, remove_results, run_command_line, write_command_folder

COMMANDS = {
    "lattice": "inspect",
    "lattice-embed": "models",
    "lattice-fann": "train",
    "lattice-transport": "distance",
    "lattice-tune": "label",
}

# Interrupts a command line when it looks for its n-th module, for each n of a spread, in children that have imported no more
# than the module of the entry point. The last n is reached by none: that child ends its work.
_AT_EACH_STEP = """
import json, os, signal, sys
package, *sys.argv[1:] = json.loads(sys.argv[1])
sys.argv[0] = package
entry = __import__(f"{package}.__main__", fromlist=["run"])
signal.signal(signal.SIGINT, signal.default_int_handler)

class Interrupting:
    def __init__(self, left):
        self.left = left
    def find_spec(self, name, path=None, target=None):
        self.left -= 1
        if self.left == 0:
            signal.raise_signal(signal.SIGINT)

step, reached = 1, True
while reached:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writing, 2)
        os.close(reading)
        os.close(writing)
        sys.meta_path.insert(0, Interrupting(step))
        entry.run()
    os.close(writing)
    with os.fdopen(reading) as pipe:
        told = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps([step, status, told]), flush=True)
    reached = status != 0
    step += 1 + step // 4
"""

_SITE = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPTED_AT"]:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_command_folder(tmp_path_factory.mktemp("commands"))


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_an_interrupt_at_any_step_of_the_imports_is_one_line(
    folder: Path, program: str, snippet_environment: dict[str, str]
) -> None:
    command = COMMANDS[program]
    done = subprocess.run(
        [sys.executable, "-c", _AT_EACH_STEP, json.dumps([PROGRAMS[program], command, *CASES[program, command]])],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
        env=snippet_environment | {"LATTICE_NUM_THREADS": "1"},
    )
    remove_results(folder)
    assert (done.returncode, done.stderr) == (0, "")
    *interrupted, last = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert last[1:] == [0, ""]
    assert len(interrupted) > 8
    assert [entry for entry in interrupted if entry[1:] != [130, f"{program}: interrupted\n"]] == []


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_module_as_a_program_is_guarded_from_its_first_import(folder: Path, tmp_path: Path, program: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(_SITE, encoding="utf-8")
    path = ":".join([str(tmp_path), *(entry for entry in sys.path if entry)])
    for module in ("cli", "cli.process", "cli.parser"):
        if program in ("lattice-embed", "lattice-tune") and module == "cli.process":
            continue  # they use that of lattice_inference
        environment = {"INTERRUPTED_AT": f"{PROGRAMS[program]}.{module}", "PYTHONPATH": path}
        done = run_command_line(program, ["--version"], folder, environment=environment)
        assert (done.returncode, done.stdout, done.stderr) == (130, b"", f"{program}: interrupted\n".encode())


@pytest.mark.parametrize("package", PROGRAMS.values())
def test_a_package_imports_nothing_ahead(package: str, snippet_environment: dict[str, str]) -> None:
    """What a package imports before its entry point runs cannot be guarded."""
    code = f"import sys; before = set(sys.modules); import {package}.__main__; print(*set(sys.modules) - before)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, env=snippet_environment
    )
    assert set(done.stdout.split()) == {package, f"{package}.__main__"}
