"""Stores, spaces, calibrations and the cache's native module refuse what they cannot take, and say what they can."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lattice_embed import DriftBaseline, EmbeddingModel, InvalidInputError, RetryPolicy, UnknownModelError
from lattice_embed._text_cache import Shard, TextKeys
from lattice_embed.cli import main
from lattice_embed.migration import read_verdict
from lattice_embed.stores import (
    Chunking,
    NumpyVectorStore,
    SkipReason,
    SqliteVectorStore,
    StoredDocument,
    VectorSpace,
    create_store,
)
from lattice_embed.vectors import Int8Calibration

NOT_LISTS: list[Any] = [None, True, 0, 1.5, object(), int, b"x", np.array(1.0)]


@pytest.fixture(params=["store.db", "store"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    with create_store(tmp_path / request.param) as made:
        yield made


@pytest.mark.parametrize("wrong", NOT_LISTS)
def test_ids_and_documents_are_lists(store: Any, wrong: Any) -> None:
    for call in (store.get, store.delete, store.versions, store.put):
        with pytest.raises(InvalidInputError, match=r"must be a list|pass a list"):
            call(wrong)


def test_documents_of_a_generator_are_all_stored(store: Any) -> None:
    store.put(StoredDocument.pending(str(number), "a text") for number in range(3))
    assert len(store.versions(["0", "1", "2"])) == 3


def test_ids_of_numpy_are_the_texts_that_they_are(store: Any) -> None:
    store.put([StoredDocument.pending(np.str_("a"), "a text")])
    assert [found.id for found in store.versions(iter(["a"]))] == ["a"]
    assert store.delete(np.array(["a", "b"])) == 1


@pytest.mark.parametrize("wrong", [True, 1, "x", [], np.empty(0), np.ones((2, 2)), object()])
def test_a_store_of_no_space_leaves_nothing_at_its_place(tmp_path: Path, wrong: Any) -> None:
    for name, made in (("a.db", SqliteVectorStore), ("a", NumpyVectorStore)):
        with pytest.raises(InvalidInputError, match=r"space is .*VectorSpace"):
            made.create(tmp_path / name, wrong)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong", [None, 1, np.empty(0), np.ones(3)])
def test_a_fingerprint_is_text(store: Any, wrong: Any) -> None:
    with pytest.raises(InvalidInputError, match="fingerprint"):
        store.space.check_fingerprint(wrong)


@pytest.mark.parametrize("wrong", [True, 1, "x", {"tokens": 8}, np.empty(0)])
def test_the_chunking_of_a_space_is_one(wrong: Any) -> None:
    with pytest.raises(InvalidInputError, match="chunking"):
        VectorSpace(chunking=wrong)
    assert VectorSpace(chunking=Chunking(8, 2)).chunking == Chunking(8, 2)


@pytest.mark.parametrize("wrong", [None, 1, [], np.array(1.0), np.ones(3), np.ma.array([1.0], mask=[True])])
def test_fields_of_a_space_are_a_mapping(wrong: Any) -> None:
    with pytest.raises(InvalidInputError, match="embedding space"):
        VectorSpace.from_fields(wrong)


@pytest.mark.parametrize("wrong", [None, 0, b"manual_skip", ["manual_skip"], np.ones(2)])
def test_reasons_are_read_from_texts_and_errors(wrong: Any) -> None:
    with pytest.raises(InvalidInputError):
        SkipReason.parse(wrong)
    with pytest.raises(InvalidInputError, match="error is"):
        SkipReason.of(wrong)


@pytest.mark.parametrize("wrong", [True, 0, 1.5, object()])
def test_spans_are_a_list(wrong: Any) -> None:
    with pytest.raises(InvalidInputError, match="spans"):
        StoredDocument.embedded("a", "text", [[1.0]], fingerprint="f", spans=wrong)
    with pytest.raises(InvalidInputError, match="text"):
        StoredDocument.embedded("a", wrong, [[1.0]], fingerprint="f")


@pytest.mark.parametrize(
    "wrong", [None, "x", b"x", 1j, object(), 1.5, [1, 2], [[1, 2], [3]], np.ones((2, 2, 3)), np.ones((4, 2))]
)
def test_a_calibration_takes_rows_of_its_length(wrong: Any) -> None:
    calibration = Int8Calibration.fit(np.eye(3, dtype=np.float32))
    for call in (calibration.quantize, calibration.dequantize):
        with pytest.raises(InvalidInputError):
            call(wrong)


def test_a_calibration_refuses_nan_and_other_integers_and_clips_infinity() -> None:
    calibration = Int8Calibration.fit(np.eye(3, dtype=np.float32))
    with pytest.raises(InvalidInputError, match="NaN"):
        calibration.quantize(np.array([[1.0, np.nan, 0.0]], np.float32))
    with pytest.raises(InvalidInputError, match="int16"):
        calibration.dequantize(np.zeros((1, 3), np.int16))
    assert calibration.quantize(np.array([[np.inf, -np.inf, 0.0]], np.float32)).tolist() == [[127, -127, -127]]


@pytest.mark.parametrize("wrong", [None, True, -1, 1.5, "x", 10**40, -(10**40), np.ones(2)])
def test_a_retry_is_counted_from_zero(wrong: Any) -> None:
    with pytest.raises(InvalidInputError, match="retry"):
        RetryPolicy().delay(wrong)
    assert 0 < RetryPolicy().delay(np.int64(70)) <= 20


@pytest.mark.parametrize("wrong", [None, 0, "no-such-model", ("x",), 10**40])
def test_a_value_that_no_model_has_is_a_typed_error(wrong: Any) -> None:
    with pytest.raises(UnknownModelError):
        EmbeddingModel(wrong)


def test_the_native_cache_refuses_none() -> None:
    shard, keys = Shard(2, None), TextKeys(b"")
    for call in (
        lambda: shard.put(b"k" * 32, None),  # type: ignore[arg-type]
        lambda: shard.put(None, None),  # type: ignore[arg-type]
        lambda: keys.key(None),  # type: ignore[arg-type]
        lambda: keys.keys([None]),  # type: ignore[list-item]
    ):
        with pytest.raises(TypeError):
            call()
    assert len(shard.entries) == 0


@pytest.mark.parametrize("place", ["nodir/out.db", "nodir/out"])
def test_a_store_in_a_missing_folder_is_a_request_without_sense(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("a text\n", encoding="utf-8")
    assert main(["store", "import", place, "--input", "texts.txt"]) == 2
    assert "the folder nodir does not exist" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [None, 1, "x", object(), io.BytesIO, io.StringIO(), np.ones(2)])
def test_a_baseline_is_written_to_a_file_of_bytes(wrong: Any) -> None:
    baseline = object.__new__(DriftBaseline)
    with pytest.raises(InvalidInputError, match="file is"):
        baseline.write_to(wrong)


@pytest.mark.parametrize("decision", [None, 1, [], np.ones(2), np.array(["stable", "watch"]), "never"])
def test_a_verdict_is_a_known_word(decision: Any) -> None:
    with pytest.raises(InvalidInputError, match="no drift report"):
        read_verdict({"verdict": {"decision": decision}})
    with pytest.raises(InvalidInputError, match="report"):
        read_verdict("a\0b")
