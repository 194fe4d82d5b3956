"""An option that would not count is refused by its name, in Python and on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lattice_inference
from lattice_embed import (
    CachedEmbeddingService,
    EmbeddingCache,
    EmbeddingModel,
    EmbeddingResult,
    InvalidInputError,
    NativeEmbeddingService,
    RemoteEmbeddingService,
    VectorProvenance,
)
from lattice_embed.cli import main

Capture = pytest.CaptureFixture[str]

KEY = "sk-0123456789"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loader: Any) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("texts.txt").write_text("one\ntwo\n")
    return tmp_path


def refusal(capsys: Capture, *arguments: str) -> str:
    try:
        status = main(list(arguments))
    except SystemExit as ended:  # argparse
        status = int(str(ended.code))
    captured = capsys.readouterr()
    assert (status, captured.out) == (2, ""), captured
    return captured.err


def done(capsys: Capture, *arguments: str) -> str:
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "options",
    [
        {"api_key": KEY, "headers": {"authorization": "Bearer x"}},
        {"api_key_variable": "MY_KEY", "headers": {"Authorization": "Bearer x"}},
    ],
)
def test_two_places_for_one_key_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match="and an Authorization header are given") as caught:
        RemoteEmbeddingService("m", base_url="https://host/v1", **options)
    assert KEY not in str(caught.value)


def test_one_header_in_two_spellings_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="x-a is given twice"):
        RemoteEmbeddingService("m", base_url="https://host/v1", headers={"X-A": "1", "x-a": "2"})


def test_header_of_authorization_takes_the_place_of_the_default_variable() -> None:
    RemoteEmbeddingService(headers={"Authorization": "Bearer x"}).close()


def test_limits_beside_a_cache_are_refused(service: NativeEmbeddingService) -> None:
    with pytest.raises(InvalidInputError, match="not both"):
        CachedEmbeddingService(service, cache=EmbeddingCache(), capacity=9)
    with pytest.raises(InvalidInputError, match="not both"):
        CachedEmbeddingService(service, capacity=9, max_bytes=9)


def test_fingerprint_that_is_not_the_provenances_is_refused() -> None:
    made = VectorProvenance(model="m", dimensions=2)
    vectors = np.ones((1, 2), np.float32)
    with pytest.raises(InvalidInputError, match="fingerprint is abc"):
        EmbeddingResult(vectors, provenance=made, fingerprint="abc")
    assert EmbeddingResult(vectors, provenance=made, fingerprint=made.fingerprint).fingerprint == made.fingerprint


def test_facts_of_the_catalogue_yield_to_files_that_say_their_own(loader: Any, monkeypatch: Any) -> None:
    original = type(loader).__call__

    def strict(source: str, **options: Any) -> Any:
        if options.get("pooling") is not None:
            raise lattice_inference.errors.InvalidInputError("pooling does not count beside modules.json")
        return original(loader, source, **options)

    monkeypatch.setitem(vars(lattice_inference), "load_encoder", strict)
    with NativeEmbeddingService(EmbeddingModel.ALL_MINILM_L6_V2) as service:
        assert service.embed(["a"]).dimensions == 384
    monkeypatch.setitem(vars(lattice_inference), "load_encoder", refuse_all)
    with pytest.raises(lattice_inference.errors.InvalidInputError, match="pooling is 'mean'"):
        NativeEmbeddingService(EmbeddingModel.ALL_MINILM_L6_V2).load()


def refuse_all(source: str, **options: Any) -> Any:
    raise lattice_inference.errors.InvalidInputError(f"pooling is {options.get('pooling')!r}")


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["store", "info", "s.db", "--model", "minilm"], "--model"),
        (["store", "info", "s.db", "--threads", "2"], "--threads"),
        (["store", "import", "s.db", "--input", "texts.txt", "--base-url", "http://localhost/v1"], "--base-url"),
        (["store", "query", "s.db", "text", "--api-key-variable", "K"], "--api-key-variable"),
        (["store", "import", "s.db", "--input", "texts.txt", "--threads", "2"], "--threads goes with --model"),
        (["store", "import", "s.db", "--input", "texts.txt", "--precision", "int8"], "--precision goes with --model"),
        (["store", "import", "s.db", "--input", "texts.txt", "--truncate", "error"], "--truncate goes with --model"),
        (["store", "import", "s.db", "--input", "texts.txt", "--output-dim", "64"], "--output-dim goes with --model"),
        (["cache", "inspect", "texts.txt", "--cache-folder", "c"], "--cache-folder does not go with inspect"),
        (["cache", "stats", "--of", "m"], "--of goes with the action clear"),
        (["check-drift", "--update-baseline", "--enforce", "b.json"], "--enforce does not go with --update-baseline"),
        (["check-drift", "--role", "query", "b.json"], "--role goes with --update-baseline"),
        (["backfill", "status", "--journal", "j", "--threads", "2"], "--threads goes with run and resume"),
        (["backfill", "pause", "--journal", "j", "--precision", "int8"], "--precision goes with run and resume"),
        (["backfill", "cancel", "--journal", "j", "--batch-size", "7"], "--batch-size goes with run and resume"),
        (["backfill", "rollback", "--journal", "j", "--long", "skip"], "--long goes with run and resume"),
        (["backfill", "--journal", "j", "--reason", ""], "--reason goes with pause"),
        (["backfill", "--journal", "j", "--dry-run", "--skipped"], "--skipped does not go with --dry-run"),
    ],
)
def test_option_that_does_not_count_is_named(arguments: list[str], name: str, capsys: Capture) -> None:
    assert name in refusal(capsys, *arguments)
    assert not Path("s.db").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["embed", "--model", "", "a"],
        ["similarity", "--model", " ", "a", "b"],
        ["download", ""],
        ["embed", "--model", "minilm", "--cache-folder", "", "a"],
        ["embed", "--model", "minilm", "--base-url", "", "a"],
        ["embed", "--model", "m", "--base-url", "http://localhost/v1", "--api-key-variable", "", "a"],
        ["store", "import", "s.db", "--input", "texts.txt", "--model", ""],
        ["check-drift", "--model", "", "b.json"],
        ["backfill", "--from-store", "s.db", "--model", ""],
    ],
)
def test_empty_word_is_not_taken_for_a_missing_option(
    arguments: list[str], loader: Any, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal(capsys, *arguments)
    assert loader.calls == []
    assert not Path("s.db").exists()


def test_migration_that_was_begun_keeps_its_settings(capsys: Capture) -> None:
    done(capsys, "store", "import", "old.db", "--input", "texts.txt")
    begin = ("backfill", "--from-store", "old.db", "--model", "minilm", "--to-store", "new.db", "--batch-size", "5")
    done(capsys, *begin)
    done(capsys, *begin)  # the same command again
    for extra, words in (
        (("--batch-size", "6"), "--batch-size 5, not 6"),
        (("--concurrent", "2"), "--concurrent 1, not 2"),
        (("--rollback-window", "5"), "--rollback-window 86400.0, not 5.0"),
        (("--long", "chunk"), "without --long chunk"),
        (("--chunk-overlap", "3"), "None for --chunk-overlap, not 3"),
        (("--output-dim", "64"), "384 dimensions, not to --output-dim 64"),
        (("--to-store", "other.db", "--journal", "new.db.migration"), "not --to-store other.db"),
        (("--from-store", "other.db"), "not --from-store other.db"),
    ):
        assert words in refusal(capsys, *begin, *extra)
    place = ("--journal", "new.db.migration")
    assert "not --to-store x.db" in refusal(capsys, "backfill", "status", *place, "--to-store", "x.db")
    assert "not to small" in refusal(capsys, "backfill", "status", *place, "--model", "small")
    assert "completed" in done(capsys, "backfill", "status", *place, "--to-store", "./new.db", "--model", "minilm")


def test_skipped_documents_are_listed_after_a_run_too(capsys: Capture) -> None:
    Path("long.txt").write_text("short\n" + "word " * 600 + "\n")
    done(capsys, "store", "import", "old.db", "--input", "long.txt")
    begin = ("backfill", "--from-store", "old.db", "--model", "minilm", "--to-store", "new.db", "--long", "skip")
    assert "skipped 2: " in done(capsys, *begin, "--skipped")
