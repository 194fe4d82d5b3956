"""Documents longer than the model: nothing is lost, chunks fit, and they overlap as the store says."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drawn_checkpoints import write_directory
from lattice_embed import InvalidInputError, NativeEmbeddingService
from lattice_embed.stores import Chunking, DocumentEmbedder, DocumentState, SqliteVectorStore, VectorSpace
from lattice_embed.stores.chunking import spans_of_chunks

from .hash_service import HashService

WORDS = ["cat", "dogs", "unbelievably", "x", "日本語", "réservé", "don't", "\n\n", "  ", "...", "e\u0301"]


@pytest.mark.parametrize(("tokens", "overlap"), [(0, 0), (5, 5), (5, 6), (5, -1), (True, 0), (2.5, 0)])
def test_impossible_chunks_are_refused(tokens: Any, overlap: Any) -> None:
    with pytest.raises(InvalidInputError):
        Chunking(tokens, overlap)


def test_chunks_longer_than_the_model_are_refused() -> None:
    assert Chunking(None, 3).within(10) == Chunking(10, 3)
    with pytest.raises(InvalidInputError, match="room for 10"):
        Chunking(11, 3).within(10)
    with pytest.raises(InvalidInputError, match="overlap is 32"):
        Chunking().within(20)


def test_service_without_a_tokenizer_is_told() -> None:
    with pytest.raises(InvalidInputError, match="no tokenizer"):
        VectorSpace.of(HashService("old"), chunking=Chunking(10, 2))


@pytest.mark.slow
@pytest.mark.model
@settings(max_examples=40, deadline=None)
@given(
    words=st.lists(st.sampled_from(WORDS), max_size=80),
    separator=st.sampled_from([" ", "", "\n"]),
    size=st.integers(4, 30),  # a token by itself may be more than one or two
    data=st.data(),
)
def test_chunks_cover_the_text_and_fit(
    minilm: NativeEmbeddingService, words: list[str], separator: str, size: int, data: st.DataObject
) -> None:
    text = separator.join(words)
    chunking = Chunking(size, data.draw(st.integers(0, size - 1)))
    spans = spans_of_chunks(minilm, text, chunking)
    offsets = minilm.token_offsets(text)
    if len(offsets) <= size:
        assert spans == [(0, len(text))]
        return
    for start, end in spans:
        assert len(minilm.token_offsets(text[start:end])) <= size
    assert [start for start, _ in spans] == sorted({start for start, _ in spans})  # each begins after the one before
    for start, end in offsets.tolist():  # no token is lost
        assert any(low <= start and end <= high for low, high in spans)


@pytest.mark.model
def test_chunks_share_the_tokens_that_are_asked_for(minilm: NativeEmbeddingService) -> None:
    text = "the cat sat on a mat " * 50
    offsets = minilm.token_offsets(text)
    spans = spans_of_chunks(minilm, text, Chunking(40, 10))
    assert len(offsets) == 300
    for (_, end), (start, _) in itertools.pairwise(spans):
        assert sum(low >= start and high <= end for low, high in offsets.tolist()) == 10
        assert text[start - 1] == " "


@pytest.mark.slow
@pytest.mark.model
def test_end_of_a_long_document_is_found_by_its_chunk(minilm: NativeEmbeddingService, tmp_path: Path) -> None:
    """E14: two texts that differ only after the limit must not be the same to a search."""
    filler = "The committee met on Tuesday and discussed the budget of the coming year in some detail. " * 40
    ending = "A giant squid was seen near the harbour."
    documents = [("long", filler + ending), ("plain", filler)]
    best = {}
    for chunking in (None, Chunking(overlap=16)):
        space = VectorSpace.of(minilm, chunking=chunking)
        embedder = DocumentEmbedder(minilm, space)
        with SqliteVectorStore.create(tmp_path / f"{chunking is None}.db", space) as store:
            store.put(embedder.embed(documents))
            assert store.space.chunking == (None if chunking is None else Chunking(254, 16))
            found = store.query(embedder.embed_query("squid in the harbour"), 2, fingerprint=space.fingerprint)
            stored = {one.id: one for one in store.get(["long", "plain"]) if one is not None}
            best[chunking is None] = found[0]
            if chunking is None:
                assert all(one.truncated and len(one.vectors) == 1 for one in stored.values())
                assert found[0].score == found[1].score  # what differs was cut off: so chunking is there
            else:
                assert not any(one.truncated for one in stored.values())
                assert found[0].id == "long"
                assert found[0].score > found[1].score + 0.1
                assert ending in (filler + ending)[found[0].start : found[0].end]
                assert found[0].chunk == len(stored["long"].vectors) - 1


@pytest.mark.model
def test_vector_of_a_chunk_is_that_of_its_text(minilm: NativeEmbeddingService) -> None:
    text = "one two three four five six seven eight nine ten " * 20
    (stored,) = DocumentEmbedder(minilm, VectorSpace.of(minilm, chunking=Chunking(50, 7))).embed([("a", text)])
    assert stored.state is DocumentState.EMBEDDED
    assert len(stored.vectors) == len(stored.spans) > 3
    alone = minilm.encode([text[start:end] for start, end in stored.spans])
    assert stored.vectors.tobytes() == alone.tobytes()


@pytest.mark.model
def test_very_long_document_is_cut_in_time(minilm: NativeEmbeddingService) -> None:
    text = "word " * 40_000  # over the service's limit of characters
    spans = spans_of_chunks(minilm, text, Chunking(254, 0))
    assert len(spans) == -(-40_000 // 254)


def test_offsets_of_a_model_that_lowers_letters_are_the_callers(tmp_path: Path) -> None:
    """A letter may have two in lower case; chunks must be cut from the text that the caller knows."""
    cases = json.loads(
        (Path(__file__).parents[3] / "lattice-inference/tests/data/architectures/cases.json").read_text()
    )["cases"]
    case = next(case for name, case in cases.items() if "texts" in case)
    directory = write_directory(tmp_path, case)
    settings_file = directory / "sentence_bert_config.json"
    fields = json.loads(settings_file.read_text()) if settings_file.exists() else {}
    settings_file.write_text(json.dumps(fields | {"do_lower_case": True}))
    text = "\u0130\u0130 the CAT \u0130 sat"
    with NativeEmbeddingService(directory) as service:
        offsets = service.token_offsets(text)
        assert offsets[-1, 1] == len(text)
        assert (np.diff(offsets[:, 0]) >= 0).all()
        words = {text[start:end] for start, end in offsets.tolist()}
        assert words & {"CAT", "sat", "C", "s"}
