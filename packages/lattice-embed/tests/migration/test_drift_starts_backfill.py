"""The verdict ``reindex`` of drift detection starts a backfill; any other one does nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lattice_embed.cli import main
from lattice_embed.errors import InvalidInputError
from lattice_embed.migration import BackfillCoordinator, MigrationState, read_verdict
from lattice_embed.stores import SqliteVectorStore, VectorSpace

from .hash_service import HashService

transport = pytest.importorskip("lattice_transport")
pytestmark = pytest.mark.usefixtures("no_sync")


def vectors(shift: float) -> np.ndarray:
    return np.random.RandomState(int(shift * 10)).standard_normal((60, 8)) + shift


def report(shift: float, **options: Any) -> Any:
    return transport.detect_drift(vectors(0.0), vectors(shift), permutations=99, **options)


def fields(decision: str, **more: Any) -> dict[str, Any]:
    return {"verdict": {"decision": decision, "reasons": ["a reason"]}, **more}


def test_the_reports_of_lattice_transport_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    far, near = report(2.0), report(0.0)
    assert far.verdict.decision.value == "reindex"
    for given in (far, far.to_dict(), far.to_dict(items=False)):
        assert read_verdict(given).wants_backfill
        assert read_verdict(given).reasons == tuple(far.verdict.reasons)
    assert not read_verdict(near).wants_backfill
    np.save(tmp_path / "a.npy", vectors(0.0))
    np.save(tmp_path / "b.npy", vectors(2.0))
    from lattice_transport.cli import main as transport_main

    files = [str(tmp_path / "a.npy"), str(tmp_path / "b.npy")]
    assert transport_main(["drift", *files, "--permutations", "99", "--reference-model", "m", "--json"]) == 0
    (tmp_path / "drift.json").write_text(capsys.readouterr().out)
    assert read_verdict(tmp_path / "drift.json").wants_backfill
    assert read_verdict(str(tmp_path / "drift.json")).spaces == {"m"}


NO_REPORTS: list[Any] = [None, 5, b"x", {}, {"verdict": "reindex"}, {"verdict": {"decision": "Reindex"}}]
NO_REPORTS += [{"verdict": {"decision": ["reindex"]}}, {"verdict": {"decision": "reindex", "reasons": "x"}}]
NO_REPORTS += [{"verdict": {"decision": "reindex", "reasons": [1]}}]


@pytest.mark.parametrize("wrong", NO_REPORTS, ids=repr)
def test_what_is_no_report_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidInputError):
        read_verdict(wrong)


@pytest.mark.parametrize("content", [b"", b"[1]", b"\xff", b"[" * 100_000, b"3", b'{"verdict": null}'])
def test_damaged_report_files_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "drift.json").write_bytes(content)
    with pytest.raises(InvalidInputError, match=r"drift\.json"):
        read_verdict(tmp_path / "drift.json")
    with pytest.raises(FileNotFoundError):
        read_verdict(tmp_path / "missing.json")


def test_only_reindex_makes_a_migration(tmp_path: Path) -> None:
    old, new = HashService("old"), HashService("new")
    spaces = VectorSpace.of(old), VectorSpace.of(new)
    with (
        SqliteVectorStore.create(tmp_path / "old.db", spaces[0]) as source,
        SqliteVectorStore.create(tmp_path / "new.db", spaces[1]) as target,
    ):
        stores: dict[str, Any] = {"source": source, "target": target, "target_service": new}
        journal = tmp_path / "journal"
        for decision in ("stable", "watch"):
            assert BackfillCoordinator.create_if_drifted(fields(decision), journal, **stores) is None
            assert not journal.exists()
        with pytest.raises(InvalidInputError, match="this store's vectors"):
            BackfillCoordinator.create_if_drifted(fields("reindex", reference_model="x"), journal, **stores)
        assert not journal.exists()
        given = [fields("reindex", reference_model=name) for name in (spaces[0].fingerprint, spaces[0].model)]
        for drifted in [*given, fields("reindex")]:  # made by the first call, opened by the others
            coordinator = BackfillCoordinator.create_if_drifted(drifted, journal, **stores)
            assert coordinator is not None
            with coordinator:
                assert coordinator.run().state is MigrationState.COMPLETED


def test_the_command_does_as_the_verdict_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loader: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("corpus.txt").write_text("one\ntwo\n")
    assert main(["store", "import", "corpus.db", "--input", "corpus.txt"]) == 0
    command = ["backfill", "--from-store", "corpus.db", "--model", "minilm", "--to-store", "new.db", "--if-drift"]
    Path("watch.json").write_text(json.dumps(fields("watch")))
    Path("reindex.json").write_text(json.dumps(fields("reindex")))
    Path("bad.json").write_text("{}")
    capsys.readouterr()
    assert main([*command, "watch.json"]) == 0
    assert capsys.readouterr().out == "the verdict is watch, not reindex: nothing is embedded again\n  a reason\n"
    assert main([*command, "watch.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"started": False, "decision": "watch", "reasons": ["a reason"]}
    assert main([*command, "bad.json"]) == 2
    assert main(["backfill", "status", *command[1:], "reindex.json"]) == 2
    assert not Path("new.db").exists()
    assert not loader.encoders
    for _ in range(2):  # the second time there is nothing left to do
        capsys.readouterr()
        assert main([*command, "reindex.json", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["processed"] == 2
    Path("other.json").write_text(json.dumps(fields("reindex", reference_model="x")))
    assert main(["backfill", "--from-store", "new.db", "--to-store", "third.db", "--if-drift", "other.json"]) == 2
    assert "this store's vectors" in capsys.readouterr().err
