"""``lattice-embed download`` as a process, from a hub on this machine."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lattice_embed
import lattice_inference
from drawn_checkpoints import write_directory

PACKAGES = Path(__file__).parents[2]
INFERENCE_TESTS = PACKAGES / "lattice-inference" / "tests"
CASES = json.loads((INFERENCE_TESTS / "data" / "architectures" / "cases.json").read_text())["cases"]
COMMIT = "0123456789abcdef0123456789abcdef01234567"

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running hub with the models org/encoder and org/ranker."""
    folder = tmp_path_factory.mktemp("hub")
    write_directory(folder / "org" / "encoder", CASES["dense-tanh"])
    write_directory(folder / "org" / "ranker", CASES["cross-encoder-bert"])
    program = INFERENCE_TESTS / "hub" / "local_hub.py"
    with subprocess.Popen([sys.executable, program, folder], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.kill()


@pytest.fixture
def environment(hub: str, tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "LATTICE_", "XDG_"))}
    path = os.pathsep.join(str(Path(package.__file__).parents[1]) for package in (lattice_inference, lattice_embed))
    return {**kept, "HOME": str(tmp_path), "HF_ENDPOINT": hub, "HF_HUB_DISABLE_XET": "1", "PYTHONPATH": path}


@pytest.fixture
def run(environment: dict[str, str]) -> Run:
    def run(*arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "lattice_embed", *arguments]
        return subprocess.run(command, env=environment | changes, capture_output=True, text=True, timeout=60)

    return run


@pytest.mark.slow
def test_a_model_is_downloaded_then_used_offline(run: Run, tmp_path: Path) -> None:
    done = run("download", "--json", "org/encoder")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    files = [path for path in Path(report["directory"]).rglob("*") if path.is_file()]
    assert report == {
        "model": "org/encoder",
        "id": "org/encoder",
        "downloaded": True,
        "source": "hub",
        "directory": report["directory"],
        "revision": COMMIT,
        "bytes": sum(path.stat().st_size for path in files),
    }
    assert Path(report["directory"]).is_relative_to(tmp_path)
    again = json.loads(run("download", "--json", "org/encoder", HF_ENDPOINT="http://127.0.0.1:9").stdout)
    assert again == report | {"downloaded": False, "source": "hf_cache"}
    vectors = run("embed", "--model", "org/encoder", "--json", "the cat", LATTICE_OFFLINE="1")
    assert json.loads(vectors.stdout)["dim"] == 48


@pytest.mark.slow
def test_people_are_told_what_happened_and_where(run: Run) -> None:
    done = run("download", "org/ranker")
    first, directory = done.stdout.splitlines()
    assert first == f"org/ranker: downloaded, 1.4 MB at {COMMIT}"
    assert (Path(directory) / "config.json").is_file()
    assert run("download", "org/ranker").stdout.startswith("org/ranker: already here (hf_cache), 1.4 MB")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "variables", "status", "words"),
    [
        (["org/absent"], {}, 1, "no model 'org/absent'"),
        (["org/encoder"], {"LATTICE_OFFLINE": "1"}, 1, "not asked: offline"),
        (["org/encoder"], {"HF_HUB_OFFLINE": "1"}, 1, "hf download org/encoder"),
        (["org/encoder"], {"HF_ENDPOINT": "http://127.0.0.1:9"}, 1, "could not download"),
        (["org/encoder", "--revision", "v9"], {}, 1, "at revision v9"),
        (["openai"], {}, 1, "no files to download"),
        (["no-such-model"], {}, 2, "known are"),
        (["."], {}, 2, "is a directory"),
    ],
)
def test_failures_are_explained(
    run: Run, arguments: list[str], variables: dict[str, str], status: int, words: str
) -> None:
    done = run("download", *arguments, **variables)
    assert (done.returncode, done.stdout) == (status, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_progress_is_shown_at_a_terminal_only(environment: dict[str, str], run: Run) -> None:
    assert run("download", "org/encoder").stderr == ""
    terminal, end = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 100))
    command = [sys.executable, "-m", "lattice_embed", "download", "org/encoder"]
    changes: dict[str, Any] = {"HF_HUB_CACHE": str(Path(environment["HOME"]) / "other")}
    with subprocess.Popen(command, env=environment | changes, stderr=end, stdout=subprocess.PIPE, text=True) as process:
        os.close(end)
        shown = b""
        while chunk := _read(terminal):
            shown += chunk
        assert process.stdout is not None
        assert process.stdout.read().startswith("org/encoder: downloaded")
    os.close(terminal)
    assert b"%" in shown


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # the other end is closed
        return b""


@pytest.mark.slow
@pytest.mark.model
def test_a_model_in_an_installed_package_is_checked_not_downloaded(run: Run) -> None:
    done = run("download", "all-minilm-l6-v2", LATTICE_OFFLINE="1")
    if done.returncode and os.environ.get("LATTICE_REQUIRE_MODELS") != "1":
        pytest.skip(done.stderr)
    assert done.stdout.startswith("all-minilm-l6-v2: already here (package), ")
