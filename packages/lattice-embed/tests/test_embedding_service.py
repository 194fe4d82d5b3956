"""A service of a user's own gets every derived method from four of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from lattice_embed import (
    EmbeddingModel,
    EmbeddingResult,
    EmbeddingService,
    InvalidInputError,
    InvalidTextError,
    LatticeEmbedError,
    ModelConfig,
    ModelDescription,
    Role,
)
from lattice_embed.validation import check_texts

MINE = ModelDescription(slug="lengths", model_id="me/lengths", native_dimensions=3, max_tokens=100, pooling=None)


class LengthService(EmbeddingService):
    """Embeds a text as (its length, whether it is a query, whether it was normalised)."""

    def __init__(self, max_batch_size: int = 4) -> None:
        self.limit = max_batch_size
        self.calls: list[int] = []

    def embed(
        self,
        texts: Sequence[str],
        model: EmbeddingModel | str | None = None,
        *,
        role: Role = Role.GENERIC,
        normalize: bool = True,
    ) -> EmbeddingResult:
        checked = check_texts(texts, max_texts=self.limit, max_chars=50)
        self.calls.append(len(checked))
        codes = {Role.GENERIC: 0, Role.QUERY: 1, Role.PASSAGE: 2}
        return EmbeddingResult([[len(text), codes[role], normalize] for text in checked], role=role)

    def model_config(self, model: EmbeddingModel | str | None = None) -> ModelConfig:
        return ModelConfig(MINE)

    def supports_model(self, model: EmbeddingModel | str) -> bool:
        return model == "lengths"

    @property
    def name(self) -> str:
        return "lengths"

    @property
    def max_batch_size(self) -> int:
        return self.limit


def texts_of(count: int) -> Iterator[str]:
    return ("x" * index for index in range(count))


def test_four_methods_make_a_service() -> None:
    class Nothing(EmbeddingService):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Nothing()  # type: ignore[abstract]
    assert EmbeddingService.__abstractmethods__ == {"embed", "model_config", "supports_model", "name"}


def test_one_text_gives_one_vector() -> None:
    service = LengthService()
    assert service.embed_one("abc").tolist() == [3, 0, 1]
    assert service.embed_one("abc", role=Role.PASSAGE, normalize=False).tolist() == [3, 2, 0]
    with pytest.raises(InvalidInputError, match="embed\\(\\) takes a list"):
        service.embed_one(["abc"])  # type: ignore[arg-type]


def test_query_and_passage_take_one_text_or_several() -> None:
    service = LengthService()
    assert service.embed_query("abc").tolist() == [3, 1, 1]
    assert service.embed_passage("abc").tolist() == [3, 2, 1]
    several = service.embed_query(["a", "bb"])
    assert isinstance(several, EmbeddingResult)
    assert several.vectors.tolist() == [[1, 1, 1], [2, 1, 1]]
    assert service.embed_passage(("a", "bb")).role is Role.PASSAGE


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 8, 9])
def test_any_number_of_texts_is_split_in_order(count: int) -> None:
    expected = [[length, 0, 1] for length in range(count)]
    for texts in (list(texts_of(count)), texts_of(count)):
        service = LengthService()
        vectors = service.encode(texts)
        assert vectors.shape == (count, 3)
        assert vectors.dtype == np.float32
        assert vectors.tolist() == expected
        assert max(service.calls, default=0) <= 4
    assert [vector.tolist() for vector in LengthService().embed_iter(texts_of(count), batch_size=3)] == expected
    batches = list(LengthService().embed_batches(texts_of(count), batch_size=2))
    assert [len(batch) for batch in batches] == [2] * (count // 2) + [1] * (count % 2)


def test_stream_is_read_one_batch_ahead_at_most() -> None:
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        while True:
            read += 1
            yield "a"

    stream = LengthService().embed_iter(endless(), batch_size=3)
    next(stream)
    assert read == 3


def test_progress_counts_the_texts_that_are_done() -> None:
    counts: list[int] = []
    vectors = list(LengthService().embed_iter(texts_of(8), batch_size=3, progress=counts.append))
    assert len(vectors) == 8
    assert counts == [3, 6, 8]


def test_options_reach_every_batch() -> None:
    vectors = LengthService().encode(texts_of(6), role=Role.QUERY, normalize=False)
    assert vectors[:, 1:].tolist() == [[1, 0]] * 6


def test_error_names_the_text_by_its_place_in_the_whole_input() -> None:
    texts = [*texts_of(6), 5, "a"]
    for run in (LengthService().encode, lambda given: list(LengthService().embed_iter(given, batch_size=2))):
        with pytest.raises(InvalidTextError, match="text 6 is a int") as caught:
            run(texts)  # type: ignore[arg-type]
        assert caught.value.index == 6


@pytest.mark.parametrize("texts", ["abc", b"abc", {"a"}, 5])
def test_splitting_methods_refuse_what_is_no_list_of_texts(texts: object) -> None:
    with pytest.raises(InvalidInputError):
        LengthService().encode(texts)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError):
        list(LengthService().embed_iter(texts))  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, -1, 1.5, True])
def test_batch_size_must_be_positive(size: object) -> None:
    with pytest.raises(InvalidInputError, match="batch_size"):
        list(LengthService().embed_iter(["a"], batch_size=size))  # type: ignore[arg-type]


def test_service_that_loses_a_vector_is_caught() -> None:
    class Careless(LengthService):
        def embed(self, texts, model=None, *, role=Role.GENERIC, normalize=True):  # type: ignore[no-untyped-def]
            return super().embed(texts[:-1] or texts, model, role=role, normalize=normalize)

    with pytest.raises(LatticeEmbedError, match="3 vectors for 4 texts"):
        Careless().encode(texts_of(4))


def test_async_methods_give_what_the_others_give() -> None:
    async def everything() -> None:
        service = LengthService()
        assert np.array_equal(await service.aembed(["a", "bb"]), service.embed(["a", "bb"]))
        assert (await service.aembed_one("abc", normalize=False)).tolist() == [3, 0, 0]
        assert (await service.aembed_query("abc")).tolist() == [3, 1, 1]
        assert (await service.aembed_passage(["abc"])).vectors.tolist() == [[3, 2, 1]]
        with pytest.raises(InvalidInputError):
            await service.aembed("abc")

    asyncio.run(everything())
