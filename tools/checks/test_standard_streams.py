"""Commands with closed, full or broken standard streams, as in daemons and pipelines."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from .command_cases import (
    CASES,
    PROGRAMS,
    command_names,
    expected_status,
    remove_results,
    run_command_line,
    write_command_folder,
)
from .conftest import ROOT

WITH_PROCESS = ("lattice_inference", "lattice_fann", "lattice_transport")

# Runs each case of a JSON list in a child of one process, so that the packages are imported once. The child's streams are
# as the interpreter makes them where the descriptors are closed, or lead to a full device.
_EACH_IN_A_CHILD = """
import importlib, json, os, sys, traceback
import numpy, lattice_inference.encode.encoder, lattice_inference.generate.session, lattice_embed.stores
state, report = sys.argv[1:]
for package, arguments in json.load(sys.stdin):
    child = os.fork()
    if child == 0:
        status = 99
        try:
            if state == "closed":
                for descriptor in range(3):
                    os.close(descriptor)
                for name in ("stdin", "stdout", "stderr"):
                    setattr(sys, name, None)
                    setattr(sys, f"__{name}__", None)
            else:
                full = os.open("/dev/full", os.O_WRONLY)
                os.dup2(full, 1)
                os.dup2(full, 2)
            try:
                status = importlib.import_module(f"{package}.cli").main(arguments)
            except SystemExit as ended:
                status = ended.code
        except BaseException:
            with open(report, "a", encoding="utf-8") as file:
                file.write(f"{package} {arguments}: {traceback.format_exc()}")
        finally:
            os._exit(status)
    _, ended = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(ended), flush=True)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_command_folder(tmp_path_factory.mktemp("commands"))


def test_every_command_has_a_case() -> None:
    for program, package in PROGRAMS.items():
        assert sorted(command for name, command in CASES if name == program) == sorted(command_names(package))


@pytest.mark.parametrize("package", WITH_PROCESS[1:])
@pytest.mark.parametrize("name", ["completion.py", "process.py", "standard_streams.py"])
def test_what_owes_the_process_an_answer_is_the_same_in_every_package(package: str, name: str) -> None:
    def text(owner: str) -> str:
        path = ROOT / "packages" / owner.replace("_", "-") / "src" / owner / "cli" / name
        return path.read_text(encoding="utf-8").replace(owner, "lattice_inference")

    assert text(package) == text("lattice_inference")


@pytest.mark.slow
@pytest.mark.parametrize("json_option", [[], ["--json"]], ids=["text", "json"])
@pytest.mark.parametrize(
    "state",
    ["closed", pytest.param("full", marks=pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full"))],
)
def test_every_command_bears_streams_that_take_nothing(
    folder: Path, tmp_path: Path, state: str, json_option: list[str], snippet_environment: dict[str, str]
) -> None:
    remove_results(folder)
    cases = {
        key: arguments
        for key, arguments in CASES.items()
        # one refuses --json with --output, scripts are not JSON, and serve writes nothing else
        if not json_option or (key != ("lattice-fann", "predict") and key[1] not in ("completion", "serve"))
    }
    calls = [(PROGRAMS[program], [command, *rest, *json_option]) for (program, command), rest in cases.items()]
    report = tmp_path / "report"
    done = subprocess.run(
        [sys.executable, "-c", _EACH_IN_A_CHILD, state, str(report)],
        input=json.dumps(calls),
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
        env=snippet_environment | {"LATTICE_NUM_THREADS": "1", "PYTHONUNBUFFERED": ""},
    )
    assert done.stderr == ""
    assert not report.exists() or report.read_text(encoding="utf-8") == ""
    statuses = dict(zip(cases, map(int, done.stdout.split()), strict=True))
    if state == "closed":
        assert statuses == {key: expected_status(*key) for key in cases}
    else:
        assert statuses == dict.fromkeys(cases, 1)
    written = remove_results(folder)
    assert {"out", "out.db", "out-new.db", "out-new.db.migration", "out.fann", "out.json", "out.npy"} <= set(written)


@pytest.mark.parametrize(
    "closed", [streams for count in (1, 2, 3) for streams in itertools.combinations("012", count)], ids="".join
)
def test_what_is_computed_is_kept_with_any_streams_closed(folder: Path, closed: tuple[str, ...]) -> None:
    """Otherwise the first opened file takes a closed stream's number, and what is printed."""
    remove_results(folder)
    redirections = " ".join(f"{stream}>&-" for stream in closed)
    arguments = ["distance", "a.npy", "b.npy", "--method", "emd", "--plan", "out.npy"]
    done = run_command_line("lattice-transport", arguments, folder, redirections=redirections)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (b"earth mover" in done.stdout) == ("1" not in closed)
    assert np.load(folder / "out.npy").sum() == pytest.approx(1)
    assert remove_results(folder) == ["out.npy"]


@pytest.mark.slow
@pytest.mark.parametrize("program", [name for name in PROGRAMS if name != "lattice-transport"])
@pytest.mark.parametrize("redirections", ["0<&-", "0<&- 1>&- 2>&-"], ids=["input", "all"])
def test_reading_from_a_closed_input_is_an_error_of_the_request(folder: Path, program: str, redirections: str) -> None:
    arguments = {
        "lattice": ["tokenize", "--model", "decoder", "-"],
        "lattice-embed": ["embed", "--model", "encoder", "-"],
        "lattice-fann": ["predict", "network.fann", "-"],
        "lattice-tune": ["label", "-", "--labels", "a,b", "--teacher", "encoder:./encoder", "--output", "out.jsonl"],
    }[program]
    done = run_command_line(program, arguments, folder, redirections=redirections)
    assert done.returncode == 2
    told = b"" if "2>" in redirections else f"{program}: error: standard input is closed".encode()
    assert done.stderr.startswith(told)
    assert done.stderr.count(b"\n") == bool(told)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_messages_that_cannot_be_written_stop_nothing(folder: Path) -> None:
    remove_results(folder)
    done = run_command_line(
        "lattice-fann", ["train", *CASES["lattice-fann", "train"]], folder, redirections="2>/dev/full"
    )
    assert done.returncode == 0
    assert remove_results(folder) == ["out.fann"]
    assert run_command_line("lattice-fann", ["no-command"], folder, redirections="2>/dev/full").returncode == 2


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_gone_is_no_traceback(folder: Path, program: str, unbuffered: str) -> None:
    command = {
        "lattice": "doctor",
        "lattice-embed": "models",
        "lattice-fann": "info",
        "lattice-transport": "distance",
        "lattice-tune": "doctor",
    }
    arguments = [command[program], *CASES[program, command[program]]]
    reading, writing = os.pipe()
    os.close(reading)
    done = run_command_line(
        program,
        arguments,
        folder,
        environment={"PYTHONUNBUFFERED": unbuffered},
        capture_output=False,
        stdout=writing,
        stderr=subprocess.PIPE,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("program", PROGRAMS)
def test_help_that_cannot_be_printed_is_a_failure_in_one_line(folder: Path, program: str) -> None:
    done = run_command_line(program, ["--help"], folder, redirections=">/dev/full")
    assert done.returncode == 1
    assert done.stderr.startswith(f"{program}: error: ".encode())
    assert done.stderr.count(b"\n") == 1


def test_a_download_without_a_console_shows_no_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without a console (pythonw) has ``None`` for its standard streams."""
    from lattice_inference.files import hub

    shown: list[bool] = []
    monkeypatch.setattr(hub, "_download", lambda request, token, searched, progress: shown.append(progress))
    monkeypatch.setattr(hub, "_verify", lambda found, request: None)
    monkeypatch.setattr(sys, "stderr", None)
    monkeypatch.setenv("LATTICE_MODEL_CACHE", str(tmp_path))
    for name in ("HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.setenv(name, str(tmp_path))
    for progress in (None, True):
        hub.find_model("somebody/some-model", offline=False, progress=progress)
    assert shown == [False, False]


def test_a_progress_bar_that_was_asked_for_is_left_out_without_a_console(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lattice_embed.integrations.sentence_transformers import SentenceEncoder

    with SentenceEncoder(str(folder / "encoder")) as model:
        monkeypatch.setattr(sys, "stderr", None)
        vectors = model.encode(["a text"], show_progress_bar=True)
        monkeypatch.undo()
    assert np.asarray(vectors).shape[0] == 1
