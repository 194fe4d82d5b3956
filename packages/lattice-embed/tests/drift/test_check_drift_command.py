"""``lattice-embed check-drift``, driven as a user does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lattice_embed import DriftBaseline
from lattice_embed.cli import main
from lattice_inference.errors import ModelNotFoundError

Capture = pytest.CaptureFixture[str]
FROZEN = Path(__file__).parents[1] / "data" / "drift" / "all-minilm-l6-v2.json"


@pytest.fixture
def stored(loader: Any, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("LATTICE_DRIFT_BASELINES", "LATTICE_DRIFT_ENFORCE"):
        monkeypatch.delenv(variable, raising=False)
    folder = tmp_path / "baselines"
    folder.mkdir()
    (tmp_path / "texts.txt").write_text("one two\nthree\n\n")
    path = folder / "minilm.json"
    update = [
        "check-drift",
        "--update-baseline",
        "--model",
        "minilm",
        "--input",
        str(tmp_path / "texts.txt"),
        str(path),
    ]
    assert main(update) == 0
    assert "3 texts, 384 dimensions (all-minilm-l6-v2)" in capsys.readouterr().out
    return path


def run(capsys: Capture, *arguments: object) -> tuple[int, str, str]:
    status = main(["check-drift", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def outcomes(capsys: Capture, *arguments: object) -> tuple[int, list[dict[str, Any]]]:
    status, out, err = run(capsys, "--json", *arguments)
    assert err == ""
    report = json.loads(out)
    assert report["passed"] == (status == 0)
    return status, report["baselines"]


def drifted(loader: Any) -> None:
    loader.encoders.clear()
    original = type(loader).__call__

    def load(source: str, **options: Any) -> Any:
        encoder = original(loader, source, **options)
        draw = encoder._vector
        encoder._vector = lambda text: draw(text + " drifted")
        return encoder

    import lattice_inference

    vars(lattice_inference)["load_encoder"] = load  # put back by the loader fixture


def test_file_and_folder_pass(stored: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    status, found = outcomes(capsys, stored)
    assert status == 0
    assert found[0]["status"] == "ok"
    assert found[0]["same_bits"]
    status, out, _ = run(capsys, stored.parent)
    assert status == 0
    assert out.splitlines()[-1] == "passed"
    monkeypatch.setenv("LATTICE_DRIFT_BASELINES", str(stored.parent))
    assert outcomes(capsys)[0] == 0


def test_drift_does_not_pass(stored: Path, loader: Any, capsys: Capture) -> None:
    drifted(loader)
    status, found = outcomes(capsys, stored)
    assert (status, found[0]["status"]) == (1, "drift")
    assert found[0]["max_cosine_distance"] > 0.5
    status, out, _ = run(capsys, stored)
    assert status == 1
    assert out.startswith("drift")
    assert out.endswith("not passed\n")


@pytest.mark.parametrize("spoil", ["missing", "empty", "truncated", "edited"])
def test_what_cannot_be_compared_does_not_pass(stored: Path, capsys: Capture, spoil: str) -> None:
    whole = stored.read_bytes()
    other = stored.with_name("z.json")
    other.write_bytes(whole)
    if spoil == "missing":
        stored.unlink()
    else:
        stored.write_bytes({"empty": b"", "truncated": whole[:-9], "edited": whole.replace(b"three", b"tree")}[spoil])
    status, found = outcomes(capsys, stored, other)
    assert status == 1
    assert [outcome["status"] for outcome in found] == ["error", "ok"]  # the others are checked all the same


def test_folder_without_baselines_is_a_mistake(stored: Path, tmp_path: Path, capsys: Capture) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    status, out, err = run(capsys, empty)
    assert (status, out) == (2, "")
    assert "nothing would be checked" in err
    assert run(capsys)[0] == 2


def test_model_that_is_not_here_is_skipped_unless_enforced(
    stored: Path, loader: Any, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*given: Any) -> int:
        loader.failures = [ModelNotFoundError("nowhere")]
        status, found = outcomes(capsys, stored, *given)
        assert found[0]["status"] == "skipped"
        return status

    assert missing() == 0
    assert missing("--enforce") == 1
    monkeypatch.setenv("LATTICE_DRIFT_ENFORCE", "1")
    assert missing() == 1
    monkeypatch.setenv("LATTICE_DRIFT_ENFORCE", "0")
    assert missing() == 0


def test_model_that_cannot_be_loaded_does_not_pass(stored: Path, loader: Any, capsys: Capture) -> None:
    loader.failures = [OSError("disk on fire")]
    status, found = outcomes(capsys, stored)
    assert (status, found[0]["status"]) == (1, "error")
    assert "disk on fire" in found[0]["reason"]


def test_update_writes_what_the_release_gives(stored: Path, loader: Any, capsys: Capture) -> None:
    before = DriftBaseline.load(stored)
    drifted(loader)
    status, out, _ = run(capsys, "--update-baseline", stored, "--max-abs-difference", "0")
    assert status == 0
    assert "compared with what was there: drift" in out
    after = DriftBaseline.load(stored)
    assert after.texts == before.texts
    assert after.vectors.tobytes() != before.vectors.tobytes()
    assert after.tolerance.max_abs_difference == 0
    assert outcomes(capsys, stored)[0] == 0


def test_update_of_a_damaged_file_needs_everything_said(stored: Path, tmp_path: Path, capsys: Capture) -> None:
    stored.write_bytes(stored.read_bytes()[:-9])
    damaged = stored.read_bytes()
    status, _, err = run(capsys, "--update-baseline", stored)
    assert status == 1
    assert "no whole JSON" in err
    assert stored.read_bytes() == damaged
    assert run(capsys, "--update-baseline", "--model", "minilm", "--input", tmp_path / "texts.txt", stored)[0] == 0
    assert outcomes(capsys, stored)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--update-baseline"], "name one BASELINE"),
        (["--update-baseline", "a.json", "b.json"], "name one BASELINE"),
        (["--update-baseline", "."], "folder"),
        (["--update-baseline", "no/such/folder/b.json"], "folder"),
        (["--input", "x", "b.json"], "--input goes with --update-baseline"),
        (["--max-abs-difference", "1", "b.json"], "--max-abs-difference goes with"),
        (["--model", "no-such-model", "b.json"], "no-such-model"),
    ],
)
def test_request_that_makes_no_sense(loader: Any, capsys: Capture, arguments: list[str], message: str) -> None:
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert message in err


def test_new_baseline_needs_a_model(stored: Path, tmp_path: Path, capsys: Capture) -> None:
    status, _, err = run(capsys, "--update-baseline", "--input", tmp_path / "texts.txt", tmp_path / "new.json")
    assert status == 2
    assert "needs --model" in err
    assert not (tmp_path / "new.json").exists()


@pytest.mark.slow
@pytest.mark.model
def test_gate_passes_on_the_real_model_in_a_process_of_its_own(minilm: Any) -> None:
    command = [sys.executable, "-m", "lattice_embed", "check-drift", "--enforce", "--json", str(FROZEN)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["passed"]
    assert report["baselines"][0]["texts"] == 50
