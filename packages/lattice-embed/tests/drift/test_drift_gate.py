"""The drift gate passes what is the same, and nothing that it cannot compare."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lattice_embed.drift.comparison as comparison
from lattice_embed import (
    DriftBaseline,
    DriftBaselineError,
    DriftError,
    DriftTolerance,
    EmbeddingResult,
    InvalidInputError,
    NativeEmbeddingService,
    Role,
    check_drift,
)

FROZEN = Path(__file__).parents[1] / "data" / "drift" / "all-minilm-l6-v2.json"
TEXTS = ["one two", "three", "", "naïve\ncafé \u2028 😀", 'quotes " and \\ marks']


@pytest.fixture
def baseline(service: NativeEmbeddingService) -> DriftBaseline:
    return DriftBaseline.of(service, TEXTS)


@pytest.fixture
def stored(baseline: DriftBaseline, tmp_path: Path) -> Path:
    baseline.save(tmp_path / "baseline.json")
    return tmp_path / "baseline.json"


class Shifted(NativeEmbeddingService):
    """Gives vectors that are changed on their way out."""

    change: Callable[[np.ndarray[Any, Any]], None]

    def embed(self, *args: Any, **options: Any) -> EmbeddingResult:
        result = super().embed(*args, **options)
        self.change(result.vectors)
        return result


def shifted(change: Callable[[np.ndarray[Any, Any]], None]) -> Shifted:
    made = Shifted("minilm")
    made.change = change
    return made


def test_file_gives_back_every_bit(baseline: DriftBaseline, stored: Path) -> None:
    copy = DriftBaseline.load(stored)
    assert copy.vectors.tobytes() == baseline.vectors.tobytes()
    assert copy.texts == tuple(TEXTS)
    assert (copy.model, copy.fingerprint, copy.role) == ("all-minilm-l6-v2", baseline.fingerprint, Role.GENERIC)
    assert (copy.precision, copy.output_dim, copy.tolerance) == ("float32", None, DriftTolerance())
    assert [path.name for path in stored.parent.iterdir()] == ["baseline.json"]


def test_same_release_passes(service: NativeEmbeddingService, stored: Path) -> None:
    report = check_drift(service, DriftBaseline.load(stored))
    assert report.ok
    assert report.same_bits
    assert report.same_fingerprint
    assert (report.max_abs_difference, report.max_cosine_distance, report.texts) == (0.0, 0.0, 5)
    report.raise_for_drift()


@pytest.mark.parametrize(("factor", "status"), [(0.5, "ok"), (2.0, "drift")])
def test_one_component_beyond_the_tolerance_is_drift(
    loader: Any, baseline: DriftBaseline, factor: float, status: str
) -> None:
    def move(vectors: Any) -> None:
        vectors[3, 7] += np.float32(factor * 1e-6)

    report = check_drift(shifted(move), baseline)
    assert report.status == status
    assert not report.same_bits
    assert report.worst_index == 3
    assert report.max_abs_difference == pytest.approx(factor * 1e-6, rel=0.05)
    if not report.ok:
        with pytest.raises(DriftError, match=r"text 3.*allowed are 1e-06"):
            report.raise_for_drift()


def test_angle_beyond_the_tolerance_is_drift(loader: Any, baseline: DriftBaseline) -> None:
    def swap(vectors: Any) -> None:
        vectors[[0, 1]] = vectors[[1, 0]]

    wide = DriftBaseline(**{**vars(baseline), "tolerance": DriftTolerance(max_abs_difference=9.0)})
    report = check_drift(shifted(swap), wide)
    assert report.status == "drift"
    expected = 1 - float(baseline.vectors[0] @ baseline.vectors[1])
    assert report.max_cosine_distance == pytest.approx(expected, abs=1e-6)


def test_tolerance_of_zero_asks_for_the_same_bits(loader: Any, service: Any) -> None:
    strict = DriftBaseline.of(service, TEXTS, tolerance=DriftTolerance(max_abs_difference=0, max_cosine_distance=0))
    assert check_drift(service, strict).ok

    def nudge(vectors: Any) -> None:
        vectors[0, 0] = np.nextafter(vectors[0, 0], np.float32(9))

    assert check_drift(shifted(nudge), strict).status == "drift"


@pytest.mark.parametrize("poison", [np.nan, np.inf, 0.0])
def test_vector_without_a_direction_does_not_pass(loader: Any, baseline: DriftBaseline, poison: float) -> None:
    def spoil(vectors: Any) -> None:
        vectors[2] = poison

    report = check_drift(shifted(spoil), baseline)
    assert report.status == "drift"
    assert (report.max_cosine_distance, report.worst_index) == (np.inf, 2)


def with_fingerprint(loader: Any, fingerprint: str) -> NativeEmbeddingService:
    """A service that was loaded from other files."""
    service = NativeEmbeddingService("all-minilm-l6-v2").load()
    loader.encoders[-1].fingerprint = fingerprint
    return service


def test_other_weights_are_a_mismatch(loader: Any, baseline: DriftBaseline) -> None:
    report = check_drift(with_fingerprint(loader, "fake:other weights"), baseline)
    assert report.status == "mismatch"
    assert not report.same_fingerprint
    assert "other weights" in report.reason
    with pytest.raises(DriftError, match="fingerprint"):
        report.raise_for_drift()


def test_change_of_numerics_is_judged_by_the_vectors_and_told(
    loader: Any, baseline: DriftBaseline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "NUMERICS_VERSION", 99)
    report = check_drift(with_fingerprint(loader, "fake:n99"), baseline)
    assert report.ok
    assert not report.same_fingerprint
    assert "this is 99" in report.reason

    def swap(vectors: Any) -> None:
        vectors[[0, 1]] = vectors[[1, 0]]

    assert check_drift(shifted(swap), baseline).status == "drift"


def test_other_length_is_a_mismatch(loader: Any, service: Any, baseline: DriftBaseline) -> None:
    cut = DriftBaseline(**{**vars(baseline), "vectors": np.ascontiguousarray(baseline.vectors[:, :100])})
    report = check_drift(service, cut)
    assert report.status == "mismatch"
    assert "384 dimensions, the baseline's 100" in report.reason


def test_no_texts_make_no_baseline(service: NativeEmbeddingService) -> None:
    with pytest.raises(InvalidInputError, match="no texts"):
        DriftBaseline.of(service, [])


@pytest.mark.parametrize("value", [-1e-9, float("nan"), float("inf"), True, "1"])
def test_tolerance_that_lets_everything_pass_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInputError, match="max_abs_difference"):
        DriftTolerance(max_abs_difference=value)


# Files that are no baselines


def _edit(document: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**document, **changes}


DAMAGED: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "another format": (lambda d: _edit(d, format="x"), "format"),
    "another version": (lambda d: _edit(d, version=2), "version is 2"),
    "a list": (lambda d: [d], "format"),
    "no texts": (lambda d: _edit(d, texts=[], vectors=[]), "no list of texts"),
    "a text too few": (lambda d: _edit(d, texts=d["texts"][1:]), "another number"),
    "a text changed": (lambda d: _edit(d, texts=["else", *d["texts"][1:]]), "digest"),
    "vectors missing": (lambda d: {k: v for k, v in d.items() if k != "vectors"}, "'vectors' is missing"),
    "digest missing": (lambda d: {k: v for k, v in d.items() if k != "digest"}, "'digest' is missing"),
    "a number changed": (lambda d: d["vectors"][0].__setitem__(0, 0.5), "digest"),
    "a tolerance raised": (lambda d: d["tolerance"].update(max_abs_difference=9), "digest"),
    "a tolerance infinite": (lambda d: d["tolerance"].update(max_abs_difference=float("inf")), "max_abs_difference"),
    "a tolerance unknown": (lambda d: d["tolerance"].update(wish=1), "wish"),
    "NaN": (lambda d: d["vectors"][1].__setitem__(5, float("nan")), "NaN"),
    "too large for float32": (lambda d: d["vectors"][1].__setitem__(5, 1e39), "NaN or infinity"),
    "too large for anything": (lambda d: d["vectors"][1].__setitem__(5, 10**400), "no usable"),
    "text among the numbers": (lambda d: d["vectors"][1].__setitem__(5, "0.1"), "else than lists of numbers"),
    "rows of two lengths": (lambda d: d["vectors"][1].pop() and None, "no usable"),
    "zeros": (lambda d: _edit(d, vectors=[[0.0] * 384] * 5), "384 dimensions"),
    "dimensions wrong": (lambda d: _edit(d, dimensions=3), "3 dimensions"),
    "a role that is none": (lambda d: _edit(d, role="x"), "role|valid"),
    "fingerprint a number": (lambda d: _edit(d, fingerprint=5), "fingerprint"),
    "fingerprint of another": (lambda d: _edit(d, fingerprint="0" * 32), "digest"),
    "numerics a bool": (lambda d: _edit(d, numerics_version=True), "numerics_version"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_or_edited_file_is_refused(stored: Path, kind: str) -> None:
    change, message = DAMAGED[kind]
    document = json.loads(stored.read_text())
    stored.write_text(json.dumps(change(document) or document))
    with pytest.raises(DriftBaselineError, match=message):
        DriftBaseline.load(stored)


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", b"null", b"[" * 100_000, b'{"format": "x"}', b"\x00" * 50])
def test_file_that_is_no_json_is_refused(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "b.json").write_bytes(raw)
    with pytest.raises(DriftBaselineError, match=r"b\.json"):
        DriftBaseline.load(tmp_path / "b.json")


def test_truncated_file_is_refused(stored: Path) -> None:
    whole = stored.read_bytes()
    for size in range(0, len(whole) - 2, 997):
        stored.write_bytes(whole[:size])
        with pytest.raises(DriftBaselineError):
            DriftBaseline.load(stored)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DriftBaselineError, match="No such file"):
        DriftBaseline.load(tmp_path / "none.json")
    with pytest.raises(DriftBaselineError):
        DriftBaseline.load(tmp_path)


def test_file_that_is_far_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "b.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(DriftBaselineError, match="at most"):
        DriftBaseline.load(tmp_path / "b.json")


def test_interrupted_write_leaves_the_former_file(
    stored: Path, baseline: DriftBaseline, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = stored.read_bytes()
    monkeypatch.setattr("os.fsync", lambda handle: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        baseline.save(stored)
    assert stored.read_bytes() == before
    assert [path.name for path in stored.parent.iterdir()] == ["baseline.json"]


# This release against the committed baseline


@pytest.mark.model
def test_this_release_gives_the_vectors_that_are_frozen(minilm: NativeEmbeddingService) -> None:
    baseline = DriftBaseline.load(FROZEN)
    assert len(baseline.texts) == 50
    report = check_drift(minilm, baseline)
    report.raise_for_drift()
    assert report.texts == 50


@pytest.mark.slow
@pytest.mark.model
def test_other_precision_is_noticed(minilm: NativeEmbeddingService) -> None:
    with NativeEmbeddingService("minilm", precision="bfloat16") as rougher:
        report = check_drift(rougher, DriftBaseline.load(FROZEN))
    assert report.status == "mismatch"
    assert report.max_abs_difference is not None
    assert report.max_abs_difference > 1e-6
