"""What users of other systems met when they filled an index (user cases, table E): each kind, through a backfill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lattice_embed import NativeEmbeddingService
from lattice_embed.cli import main
from lattice_embed.migration import BackfillCoordinator, Side
from lattice_embed.stores import (
    DocumentEmbedder,
    DocumentState,
    NumpyVectorStore,
    StoredDocument,
    VectorSpace,
    create_store,
    open_store,
)

pytestmark = pytest.mark.usefixtures("no_sync")


def fill(folder: Path, service: NativeEmbeddingService, texts: dict[str, str]) -> dict[str, StoredDocument]:
    """Run a backfill of texts into a new store, and return what it holds."""
    space = VectorSpace.of(service)
    with create_store(folder / "texts.db") as source, create_store(folder / "vectors", space) as target:
        source.put([StoredDocument.pending(name, text) for name, text in texts.items()])
        with BackfillCoordinator.create(
            folder / "journal", source=source, target=target, target_service=service
        ) as coordinator:
            coordinator.run()
        return {one.id: one for one in target.get(list(texts)) if one is not None}


def test_e11_not_a_number_is_skipped_with_its_reason_and_never_stored(loader: Any, tmp_path: Path) -> None:
    with NativeEmbeddingService("minilm") as service:
        service.load()
        loader.encoders[0].poison = "bitcoin"
        stored = fill(tmp_path, service, {"a": "fine", "b": "a bitcoin abstract", "c": "also fine", "d": "bitcoin"})
    assert {name for name, one in stored.items() if one.state is DocumentState.EMBEDDED} == {"a", "c"}
    assert stored["b"].reason == stored["d"].reason == "non_finite_vector: all-minilm-l6-v2"
    assert all(np.isfinite(one.vectors).all() for one in stored.values())


@pytest.mark.model
def test_e12_empty_texts_are_documents_like_any_other(minilm: NativeEmbeddingService, tmp_path: Path) -> None:
    stored = fill(tmp_path, minilm, {"empty": "", "spaces": "   ", "nothing to see": "\u200b"})
    for one in stored.values():
        assert one.state is DocumentState.EMBEDDED
        assert np.linalg.norm(one.vectors[0]) == pytest.approx(1, abs=1e-6)
        assert one.vectors[0].tobytes() == stored["empty"].vectors[0].tobytes()


@pytest.mark.slow
@pytest.mark.model
def test_e5_e6_vector_does_not_depend_on_the_batch_it_was_filled_in(
    minilm: NativeEmbeddingService, tmp_path: Path
) -> None:
    texts = {f"{number:03}": "coffee " * (number % 40) + f"cup {number}" for number in range(130)}
    stored = fill(tmp_path, minilm, texts)
    for name in ("000", "039", "099", "100", "129"):
        assert stored[name].vectors[0].tobytes() == minilm.embed_one(texts[name]).tobytes()


@pytest.mark.slow
@pytest.mark.model
def test_e16_text_over_the_limit_of_characters_is_cut_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LATTICE_OFFLINE", "1")
    text = ("0123456789 " * 6200)[:67_337]
    Path("corpus.txt").write_text(f"{text}\nshort\n")
    assert main(["store", "import", "corpus.db", "--input", "corpus.txt"]) == 0
    assert main(["backfill", "--from-store", "corpus.db", "--model", "minilm", "--to-store", "new"]) == 0
    assert "2 of 2 documents embedded, 0 pending, 0 skipped, 1 cut at the model's limit" in capsys.readouterr().out
    with open_store("new") as store:
        (long,) = store.get(["1"])
        assert long is not None
        assert (long.truncated, len(long.text)) == (True, 67_337)  # the text is kept whole


def test_e17_documents_and_queries_have_the_prompts_of_their_roles(loader: Any, tmp_path: Path) -> None:
    with NativeEmbeddingService("small") as service:
        space = VectorSpace.of(service)
        with create_store(tmp_path / "texts") as source, create_store(tmp_path / "new.db", space) as target:
            source.put([StoredDocument.pending("a", "what is a cat?")])
            with BackfillCoordinator.create(
                tmp_path / "journal", source=source, target=target, target_service=service
            ) as coordinator:
                coordinator.run()
                answer = coordinator.query("what is a cat?", 1)
    assert answer.side is Side.TARGET
    assert answer.matches[0].score < 0.9  # the same words, read in another role
    assert loader.encoders[0].seen[-2:] == [
        "what is a cat?",
        "Represent this sentence for searching relevant passages: what is a cat?",
    ]


def test_e18_reason_names_both_numbers_and_the_unit(loader: Any, tmp_path: Path) -> None:
    with NativeEmbeddingService("minilm", truncate="error") as service:
        stored = fill(tmp_path, service, {"long": "é" * 32_769, "many": "word " * 300, "exact": "é" * 32_768})
    assert stored["long"].reason == "content_too_large: 32769 characters, the limit is 32768"
    assert stored["many"].reason == "content_too_large: 302 tokens, the limit is 256"
    assert stored["exact"].state is DocumentState.EMBEDDED


def test_e20_store_says_what_its_vectors_were_made_with(loader: Any, tmp_path: Path) -> None:
    """A hidden prompt changes vectors: stores of two prompts must not pass for one space."""
    with NativeEmbeddingService("multilingual-e5-small") as service:
        passages = VectorSpace.of(service)
        generic = VectorSpace.of(service, role="generic")  # type: ignore[arg-type]
        assert passages.fingerprint != generic.fingerprint
        with NumpyVectorStore.create(tmp_path / "s", generic) as store:
            embedded = DocumentEmbedder(service, passages).embed([("a", "text")])
            with pytest.raises(ValueError, match="the store holds vectors of the space"):
                store.put(embedded)
