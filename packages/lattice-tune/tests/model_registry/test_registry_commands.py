"""``lattice-tune registry``: every action, its JSON, its exit status."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lattice_tune import ModelRegistry
from lattice_tune.cli import main

Run = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Call ``lattice-tune registry`` in an empty folder, and return what it prints; JSON where that was asked for."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights.bin").write_bytes(b"weights")

    def call(*arguments: str, status: int = 0) -> Any:
        found = main(["registry", *arguments])
        out, err = capsys.readouterr()
        assert found == status, err
        if status:
            assert (out, err.count("\n"), "Traceback" in err) == ("", 1, False)
            return err
        return json.loads(out) if "--json" in arguments else out

    return call


def staged(run: Run, version: str, *more: str) -> None:
    run("register", "intent", version, "weights.bin", *more)
    for status in ("validated", "staged"):
        run("promote", "intent", version, "--to", status)


def test_version_goes_all_the_way_and_back(run: Run) -> None:
    staged(run, "1.0.0", "--metric", "f1=0.9", "--tag", "nightly", "--by", "me")
    assert "is production" in run("promote", "intent", "1.0.0", "--min-metric", "f1=0.9")
    staged(run, "1.1.0", "--metric", "f1=0.8", "--parent", "intent@1.0.0")
    assert "0.8, and at least 0.85" in run("promote", "intent", "1.1.0", "--min-metric", "f1=0.85", status=1)
    assert "at most 0.7" in run("promote", "intent", "1.1.0", "--max-metric", "f1=0.7", status=1)
    assert "intent@1.0.0 has 0.9" in run("promote", "intent", "1.1.0", "--not-worse", "f1", status=1)
    assert "no shadow session" in run("promote", "intent", "1.1.0", "--require-shadow", status=1)
    assert run("promote", "intent", "1.1.0", "--json")["aliases"] == ["champion"]
    listed = {row["version"]: row["status"] for row in run("list", "--json")["versions"]}
    assert listed == {"1.0.0": "archived", "1.1.0": "production"}
    record = run("rollback", "intent", "--reason", "slow", "--json")
    assert (record["from_version"], record["to_version"], record["reason"]) == ("1.1.0", "1.0.0", "slow")
    shown = run("show", "intent", "champion", "--json", "--events")
    assert (shown["version"], shown["registered_by"], shown["metadata"]["metrics"]) == ("1.0.0", "me", {"f1": 0.9})
    assert [event["kind"] for event in shown["events"]] == ["registered", "status", "status", "promoted", "rolled_back"]
    assert "rolled_back" in run("show", "intent", "champion", "--events")
    assert "0 problems; 2 versions" in run("verify")


def test_list_filters(run: Run) -> None:
    run("register", "intent", "1.0.0", "weights.bin", "--kind", "student", "--validation-accuracy", "0.9")
    run("register", "topic", "1.0.0", "weights.bin", "--tag", "a")
    assert run("list").count("\n") == 2
    assert run("list", "topic").startswith("topic@1.0.0  pending")
    for filters, expected in (
        (["--kind", "student"], ["intent"]),
        (["--tag", "a"], ["topic"]),
        (["--min-accuracy", "0.8"], ["intent"]),
        (["--limit", "1"], ["intent"]),
        (["--status", "archived"], []),
    ):
        assert [row["name"] for row in run("list", *filters, "--json")["versions"]] == expected
    assert run("list", "--status", "archived") == "no versions\n"


def test_lineage_export_import_delete_gc(run: Run, tmp_path: Path) -> None:
    run("register", "base", "1.0.0", "weights.bin")
    made = run(
        "register",
        "intent",
        "1.0.0",
        "weights.bin",
        "--parent",
        "base@1.0.0",
        "--teacher",
        "t",
        "--code",
        "a=1",
        "--json",
    )
    assert made["digest"] == hashlib.sha256(b"weights").hexdigest()
    assert made["lineage"]["code_versions"] == {"a": "1"}
    assert run("lineage", "intent", "1.0.0", "--json")["ancestors"] == ["base@1.0.0"]
    assert "descendants  -" in run("lineage", "intent", "1.0.0")
    assert '"base@1.0.0" -> "intent@1.0.0"' in run("lineage", "intent", "1.0.0", "--dot")
    assert run("export", "intent", "1.0.0", "x.zip", "--json")["file"] == "x.zip"
    assert "import it first" in run("import", "x.zip", "--registry", "other", status=1)
    assert "imported" in run("import", "x.zip", "--registry", "other", "--detach")
    assert "delete its children first" in run("delete", "base", "1.0.0", status=1)
    run("delete", "intent", "1.0.0", "--reason", "a test")
    assert run("delete", "base", "1.0.0", "--json")["deleted"] == "base@1.0.0"
    assert run("gc", "--json") == {"blobs": 0, "size": 0, "kept": 1, "dry_run": False}
    assert "1 files of 7 bytes would be removed" in run("gc", "--grace-hours", "0", "--dry-run")
    assert run("gc", "--grace-hours", "0", "--json")["blobs"] == 1


def test_verify_ends_with_1_when_something_is_wrong(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    digest = run("register", "intent", "1.0.0", "weights.bin", "--json")["digest"]
    with ModelRegistry("lattice-registry") as registry:
        path = registry.store.blobs.path_of(digest)
    path.chmod(0o644)
    path.write_bytes(b"WEIGHTS")
    assert main(["registry", "verify"]) == 1
    assert "SHA-256 is" in capsys.readouterr().out
    assert main(["registry", "verify", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["is_clean"], len(report["problems"])) == (False, 1)
    assert main(["registry", "verify", "--quick"]) == 0


def test_manifest_governs_what_is_registered(run: Run, tmp_path: Path) -> None:
    entry = {
        "id": "style",
        "name": "style",
        "owner": "team",
        "uri": "weights.bin",
        "rank": 4,
        "alpha": 4,
        "dtype": "F32",
        "base_model_rev": "a",
        "tokenizer_rev": "b",
        "target_modules": [],
        "status": "quarantined",
        "integrity_sha256": hashlib.sha256(b"weights").hexdigest(),
    }
    (tmp_path / "m.json").write_text(json.dumps({"version": 1, "adapters": [entry]}))
    governed = ["--kind", "adapter", "--manifest", "m.json", "--adapter", "style"]
    made = run("register", "style", "1.0.0", "weights.bin", *governed, "--json")
    assert (made["governance"]["owner"], made["governance"]["status"]) == ("team", "quarantined")
    for status in ("validated", "staged"):
        run("promote", "style", "1.0.0", "--to", status)
    assert "quarantined" in run("promote", "style", "1.0.0", status=1)
    (tmp_path / "other.bin").write_bytes(b"other")
    assert "SHA-256 is" in run("register", "style", "1.1.0", "other.bin", *governed, status=1)
    run("register", "style", "1.1.0", "weights.bin", *governed[:4], status=2)


@pytest.mark.parametrize(
    "action", ["list", "show x", "verify", "gc", "lineage x 1.0.0", "export x 1.0.0 y", "delete x 1.0.0"]
)
def test_registry_that_is_not_there_is_not_made(run: Run, tmp_path: Path, action: str) -> None:
    assert "is no model registry" in run(*action.split(), status=1)
    assert not (tmp_path / "lattice-registry").exists()


def test_texts_of_others_cannot_steer_the_terminal(run: Run) -> None:
    run("register", "intent", "1.0.0", "weights.bin", "--description", "\x1b[2Jgone", "--by", "a\x1b[31m")
    assert "\x1b" not in run("show", "intent", "--events")


@pytest.mark.parametrize(
    "action", ["", "list", "show", "register", "promote", "rollback", "verify", "gc", "lineage", "export"]
)
def test_help_teaches(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["registry", *action.split(), "--help"])
    assert ended.value.code == 0
    assert "examples:\n  lattice-tune registry" in capsys.readouterr().out
