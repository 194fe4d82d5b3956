"""The fuzzer finds each kind of fault, names an input that repeats it, knows its targets."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from .conftest import ROOT

RUN = ROOT / "tools" / "fuzz" / "run.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(RUN), *arguments], capture_output=True, text=True)


@pytest.mark.slow
def test_every_fault_is_seen_and_can_be_shown_again():
    done = run("--target", "faults", "--seed", "5", "--rounds", "7", "--seconds", "300")
    assert done.returncode == 1, done.stdout + done.stderr
    for words in (
        "crash by SIGSEGV",
        "over 1 GB",
        "a message without end",
        "over 5 s of processor time",
        "untyped error KeyError at faults.py",
        "faults: 7 inputs",
        "5 failures with seed 5",
    ):
        assert words in done.stdout, done.stdout
    number, kept = re.findall(r"--first (\d+) --rounds 1\ninput: (.*)", done.stdout)[-1]
    for again in (["--seed", "5", "--first", number, "--rounds", "1"], ["--input", kept]):
        assert "1 failures" in run("--target", "faults", *again).stdout


def test_every_target_has_a_module_that_gives_it():
    listed = run("--list").stdout.split()
    assert len(listed) == len(set(listed)) > 20
    written = "".join(path.read_text(encoding="utf-8") for path in RUN.parent.glob("*.py"))
    assert [name for name in listed if not re.search(rf'Target\(\s*"{name}"', written)] == []


@pytest.mark.parametrize(
    "arguments", [["--target", "nothing"], ["--input", "."], ["--target", "networks", "--input", "/nowhere"]]
)
def test_wrong_options_are_refused(arguments):
    done = run(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
