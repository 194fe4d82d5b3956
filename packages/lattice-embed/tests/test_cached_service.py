"""CachedEmbeddingService: what the inner service would give, computed once, and never another space's vector."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import shutil
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lattice_embed import (
    CachedEmbeddingService,
    EmbeddingCache,
    EmbeddingModel,
    EmbeddingResult,
    EmbeddingService,
    EmptyInputError,
    InvalidInputError,
    InvalidTextError,
    LatticeEmbedError,
    ModelConfig,
    ModelDescription,
    NativeEmbeddingService,
    NonFiniteVectorError,
    Role,
    TextTooLongError,
    TooManyTextsError,
    UnsupportedModelError,
    VectorProvenance,
)
from lattice_inference import VectorCache

MINE = ModelDescription(slug="drawn", model_id="me/drawn", native_dimensions=4, max_tokens=100, pooling=None)


class DrawnService(EmbeddingService):
    """Vectors from the text, the role and a revision; counts what it computes, and can be slow or fail."""

    def __init__(self, revision: str | None = "one") -> None:
        self.revision = revision
        self.seen: list[str] = []
        self.calls = 0
        self.delay = 0.0
        self.failures: list[BaseException] = []
        self.lock = threading.Lock()

    def embed(
        self,
        texts: Sequence[str],
        model: EmbeddingModel | str | None = None,
        *,
        role: Role = Role.GENERIC,
        normalize: bool = True,
    ) -> EmbeddingResult:
        with self.lock:
            self.calls += 1
            self.seen += texts
            failure = self.failures.pop(0) if self.failures else None
        time.sleep(self.delay)
        if failure is not None:
            raise failure
        vectors = [[len(text), ord((text + " ")[0]), len(role.value), normalize] for text in texts]
        return EmbeddingResult(vectors, token_counts=list(map(len, texts)), model="drawn", role=role, prompt="p: ")

    def provenance(
        self, model: EmbeddingModel | str | None = None, *, role: Role = Role.GENERIC, normalize: bool = True
    ) -> VectorProvenance | None:
        if self.revision is None:
            return None
        return VectorProvenance(
            model="drawn", weights=self.revision, prompt=role.value, dimensions=4, normalized=normalize
        )

    def model_config(self, model: EmbeddingModel | str | None = None) -> ModelConfig:
        return ModelConfig(MINE)

    def supports_model(self, model: EmbeddingModel | str) -> bool:
        return model == "drawn"

    @property
    def name(self) -> str:
        return "drawn"


@pytest.fixture
def inner() -> DrawnService:
    return DrawnService()


@pytest.fixture
def cached(inner: DrawnService) -> CachedEmbeddingService:
    return CachedEmbeddingService(inner)


def same(first: EmbeddingResult, second: EmbeddingResult) -> bool:
    names = ("model", "role", "prompt", "fingerprint", "provenance")
    arrays = ("vectors", "token_counts", "truncated")
    return all(getattr(first, name) == getattr(second, name) for name in names) and all(
        np.array_equal(getattr(first, name), getattr(second, name)) for name in arrays
    )


# What it promises


@pytest.mark.parametrize("texts", [["a"], ["a", "bb", ""], ["bb", "a", "bb", "a"], ["é", "é", "e\u0301"]])
def test_a_result_from_the_cache_is_that_of_the_inner_service(
    texts: list[str], service: NativeEmbeddingService
) -> None:
    cached = CachedEmbeddingService(service)
    want = service.embed(texts)
    assert same(cached.embed(texts), want)
    assert same(cached.embed(texts), want)
    assert cached.stats().hits == len(set(texts))


def test_only_what_is_not_known_is_computed(cached: CachedEmbeddingService, inner: DrawnService) -> None:
    cached.embed(["a", "b"])
    result = cached.embed(["c", "a", "d", "b", "c"])
    assert inner.seen == ["a", "b", "c", "d"]
    assert [chr(int(vector[1])) for vector in result] == ["c", "a", "d", "b", "c"]


def test_a_text_that_stands_twice_in_a_call_is_computed_once(
    cached: CachedEmbeddingService, inner: DrawnService
) -> None:
    assert len(cached.embed(["a"] * 500)) == 500
    assert inner.seen == ["a"]


def test_a_result_belongs_to_its_caller(cached: CachedEmbeddingService) -> None:
    want = cached.embed(["a", "b"]).vectors.copy()
    for result in (cached.embed(["a", "b"]), cached.embed(["a", "c"])):
        result.vectors[:] = np.nan
        result.token_counts[:] = -5
    cached.embed_one("a")[:] = np.nan
    again = cached.embed(["a", "b"])
    assert again.vectors.tobytes() == want.tobytes()
    assert again.token_counts.tolist() == [1, 1]
    assert again.vectors.flags.c_contiguous
    assert again.vectors.dtype == np.float32


def test_what_the_inner_service_gave_may_be_written_to_without_harm() -> None:
    class Kept(DrawnService):
        def embed(self, *arguments: Any, **options: Any) -> EmbeddingResult:
            self.last = super().embed(*arguments, **options)
            return self.last

    inner = Kept()
    cached = CachedEmbeddingService(inner)
    first = cached.embed(["a"]).vectors.copy()
    inner.last.vectors[:] = 9
    assert np.array_equal(cached.embed(["a"]).vectors, first)


def test_every_call_of_a_service_goes_through_the_cache(cached: CachedEmbeddingService, inner: DrawnService) -> None:
    one = cached.embed_one("a")
    assert cached.embed_one("a").tobytes() == one.tobytes() == cached.embed(["a"])[0].tobytes()
    assert cached.encode(["a", "a", "b"]).shape == (3, 4)
    assert cached.encode([]).shape == (0, 4)
    assert [vector[1] for vector in cached.embed_iter(iter("aab"), batch_size=2)] == [97, 97, 98]
    assert inner.seen == ["a", "b"]
    assert cached.embed_query("a")[2] == len("query")
    assert cached.embed_passage(["a"]).role is Role.PASSAGE
    assert inner.seen == ["a", "b", "a", "a"]

    async def tasks() -> None:
        assert (await cached.aembed_one("a")).tobytes() == one.tobytes()
        assert len(await cached.aembed(["a", "b"])) == 2
        assert (await cached.aembed_query("a"))[2] == len("query")

    asyncio.run(tasks())
    assert inner.seen == ["a", "b", "a", "a"]


def test_it_answers_for_the_inner_service(cached: CachedEmbeddingService, inner: DrawnService) -> None:
    assert (cached.name, cached.inner, cached.max_batch_size) == ("cached:drawn", inner, inner.max_batch_size)
    assert cached.model_config() == inner.model_config()
    assert (cached.supports_model("drawn"), cached.supports_model("minilm")) == (True, False)
    assert cached.provenance(role=Role.QUERY) == inner.provenance(role=Role.QUERY)
    with pytest.raises(UnsupportedModelError, match="drawn has no count_tokens"):
        cached.count_tokens(["a"])


def test_tokens_are_counted_by_a_service_that_can(service: NativeEmbeddingService) -> None:
    assert CachedEmbeddingService(service).count_tokens(["two words"]).tolist() == [4]


def test_limits_are_those_of_the_inner_service_hit_or_miss(loader: Any) -> None:
    cached = CachedEmbeddingService(NativeEmbeddingService("minilm", max_batch_size=2, max_text_chars=5))
    with pytest.raises(EmptyInputError):
        cached.embed([])
    with pytest.raises(TooManyTextsError):
        cached.embed(["a"] * 3)
    for call in (cached.embed, cached.encode):
        with pytest.raises(TextTooLongError, match="text 1 has 6 characters"):
            call(["a", "abcdef"])
    with pytest.raises(TextTooLongError):
        cached.embed_one("abcdef")
    with pytest.raises(InvalidTextError, match="surrogate"):
        cached.embed(["\ud800"])
    with pytest.raises(InvalidInputError, match="role"):
        cached.embed(["a"], role="none")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="embed\\(\\) takes a list"):
        cached.embed_one(["a"])  # type: ignore[arg-type]
    assert loader.calls == []


def test_closing_closes_the_inner_service(loader: Any) -> None:
    with CachedEmbeddingService(NativeEmbeddingService("minilm")) as cached:
        cached.embed(["a"])
    assert loader.encoders[0].closed
    with pytest.raises(LatticeEmbedError, match="closed"):
        cached.embed(["a"])  # no answer from a closed service, known or not


def test_zero_capacity_passes_every_call_on(inner: DrawnService) -> None:
    cached = CachedEmbeddingService(inner, capacity=0)
    for _ in range(2):
        assert len(cached.embed(["a", "a"])) == 2
        cached.embed_one("a")
    assert inner.seen == ["a", "a", "a"] * 2
    assert cached.stats().misses == 0


def test_a_byte_budget_is_kept(inner: DrawnService) -> None:
    cached = CachedEmbeddingService(inner, max_bytes=4_000)
    cached.encode(str(number) for number in range(100))
    assert 0 < cached.stats().bytes <= 4_000
    cached.embed(["99"])
    assert cached.stats().hits == 1


@pytest.mark.parametrize(
    "options", [{"capacity": -1}, {"capacity": 1, "max_bytes": 1}, {"capacity": 5, "cache": EmbeddingCache()}]
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], inner: DrawnService) -> None:
    with pytest.raises(InvalidInputError):
        CachedEmbeddingService(inner, **options)
    with pytest.raises(InvalidInputError, match="EmbeddingService"):
        CachedEmbeddingService("minilm")  # type: ignore[arg-type]


def test_a_copy_by_pickle_has_the_service_and_an_empty_cache(loader: Any) -> None:
    cached = CachedEmbeddingService(NativeEmbeddingService("minilm"), capacity=7)
    cached.embed(["a"])
    copy = pickle.loads(pickle.dumps(cached))
    assert copy.stats().entries == 0
    assert copy.stats().capacity == 7
    assert np.array_equal(copy.embed(["a"]), cached.embed(["a"]))


# Never a stale vector


def test_every_field_that_changes_a_vector_changes_the_key(loader: Any) -> None:
    """One cache under services that differ in one thing each: none is given another's vector."""
    cache = EmbeddingCache()
    bge = EmbeddingModel.BGE_SMALL_EN_V1_5
    calls: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"model": bge}, {}),
        ({"model": bge}, {"role": Role.QUERY}),
        ({"model": bge}, {"role": Role.PASSAGE}),
        ({"model": bge}, {"normalize": False}),
        ({"model": bge, "precision": "bfloat16"}, {}),
        ({"model": bge, "precision": "float16"}, {}),
        ({"model": "minilm"}, {}),
        ({"model": EmbeddingModel.MULTILINGUAL_E5_SMALL}, {}),
    ]
    for number, (options, call) in enumerate(calls, 1):
        CachedEmbeddingService(NativeEmbeddingService(**options), cache=cache).embed(["text"], **call)
        assert (cache.stats().hits, cache.stats().entries) == (0, number), (options, call)
    for options, call in calls:
        CachedEmbeddingService(NativeEmbeddingService(**options), cache=cache).embed(["text"], **call)
    assert cache.stats().hits == len(calls)


def test_new_weights_under_an_old_name_have_keys_of_their_own(
    cached: CachedEmbeddingService, inner: DrawnService
) -> None:
    cached.embed(["a"])
    inner.revision = "two"
    assert cached.embed(["a"]).fingerprint == inner.provenance().fingerprint  # type: ignore[union-attr]
    assert inner.seen == ["a", "a"]
    inner.revision = "one"
    cached.embed(["a"])
    assert inner.seen == ["a", "a"]


def test_services_that_cannot_say_which_weights_they_have_share_nothing() -> None:
    cache = EmbeddingCache()
    first, second = (CachedEmbeddingService(DrawnService(None), cache=cache) for _ in range(2))
    for _ in range(2):
        first.embed(["a"])
        second.embed(["a"])
    assert cache.stats().entries == 2
    assert first.inner.seen == second.inner.seen == ["a"]  # type: ignore[attr-defined]


def test_role_and_normalisation_are_in_the_key_of_a_service_that_says_nothing() -> None:
    inner = DrawnService(None)
    cached = CachedEmbeddingService(inner)
    for _ in range(2):
        for role in Role:
            for normalize in (True, False):
                assert cached.embed(["a"], role=role, normalize=normalize)[0].tolist()[2:] == [
                    len(role.value),
                    normalize,
                ]
    assert len(inner.seen) == 6


def test_texts_and_fields_do_not_run_together(cached: CachedEmbeddingService, inner: DrawnService) -> None:
    texts = ["", "a", "aa", "a\0", "\0a", "a" * 255, "a" * 256, "a" * 257]
    cached.embed(texts)
    assert inner.seen == texts


def test_a_text_that_was_cut_is_not_given_to_a_service_that_refuses_to_cut(loader: Any) -> None:
    cache = EmbeddingCache()
    long = "word " * 300
    cutting = CachedEmbeddingService(NativeEmbeddingService("minilm"), cache=cache)
    strict = CachedEmbeddingService(NativeEmbeddingService("minilm", truncate="error"), cache=cache)
    assert cutting.embed([long, "short"]).truncated.tolist() == [True, False]
    with pytest.raises(TextTooLongError, match="text 1"):
        strict.embed(["short", long])
    assert strict.embed(["short"]).token_counts.tolist() == [3]
    assert cache.stats().entries == 2
    assert cutting.embed([long]).truncated.tolist() == [True]
    assert loader.encoders[0].seen == [long, "short"]


# What the inner service does wrong


def test_an_error_names_the_text_by_its_place_in_the_call(service: NativeEmbeddingService, loader: Any) -> None:
    cached = CachedEmbeddingService(service)
    cached.embed(["a", "b"])
    loader.encoders[0].poison = "bad"
    with pytest.raises(NonFiniteVectorError, match="text 3") as caught:
        cached.embed(["a", "c", "b", "bad", "c", "bad"])
    assert caught.value.index == 3
    with pytest.raises(NonFiniteVectorError, match="text 5"):
        cached.encode(["a", "c", "b", "a", "c", "bad"])


def test_a_single_text_that_goes_wrong_is_not_kept_either(cached: CachedEmbeddingService, inner: DrawnService) -> None:
    embed = inner.embed
    for wrong in (np.nan, np.inf, -np.inf):
        result = embed(["a"])
        result.vectors[0, 3] = wrong
        inner.embed = lambda *_, result=result, **__: result  # type: ignore[method-assign, misc]
        for ask in (cached.embed, cached.encode):
            with pytest.raises(NonFiniteVectorError, match="text 0"):
                ask(["a"])
    for texts in ([], ["a", "b"]):
        inner.embed = lambda *_, texts=texts, **__: EmbeddingResult(  # type: ignore[method-assign, misc]
            np.ones((len(texts), 4), np.float32)
        )
        with pytest.raises(LatticeEmbedError, match=f"returned {len(texts)} vectors for 1 text"):
            cached.embed(["a"])
    assert cached.stats().entries == 0
    inner.embed = embed  # type: ignore[method-assign]
    assert cached.embed(["a"]).vectors.tolist() == embed(["a"]).vectors.tolist()
    with pytest.raises(InvalidInputError, match="role"):
        cached.embed(["a"], role="none")  # type: ignore[arg-type]
    assert cached.embed(["a"], role="query")[0][2] == len("query")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_is_never_kept(value: float) -> None:
    class Broken(DrawnService):
        broken = True

        def embed(self, texts: Sequence[str], *arguments: Any, **options: Any) -> EmbeddingResult:
            result = super().embed(texts, *arguments, **options)
            if self.broken:
                result.vectors[-1, 1] = value
            return result

    inner = Broken()
    cached = CachedEmbeddingService(inner)
    with pytest.raises(NonFiniteVectorError, match="text 2"):
        cached.embed(["a", "a", "b"])
    assert cached.stats().entries == 0
    inner.broken = False
    assert np.isfinite(cached.embed(["a", "b"]).vectors).all()


# At the same time


def test_threads_that_miss_the_same_text_compute_it_once(cached: CachedEmbeddingService, inner: DrawnService) -> None:
    inner.delay = 0.05
    barrier = threading.Barrier(8)

    def work(number: int) -> bytes:
        barrier.wait()
        return (cached.embed_one("same") if number % 2 else cached.embed(["same"])[0]).tobytes()

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(work, range(8)))) == 1
    assert inner.seen == ["same"]


def test_tasks_that_miss_the_same_text_compute_it_once(cached: CachedEmbeddingService, inner: DrawnService) -> None:
    inner.delay = 0.05

    async def tasks() -> set[bytes]:
        results = await asyncio.gather(*(cached.aembed_one("same") for _ in range(20)))
        return {vector.tobytes() for vector in results}

    assert len(asyncio.run(tasks())) == 1
    assert inner.seen == ["same"]


def test_calls_that_overlap_share_the_work_without_waiting_in_a_circle(
    cached: CachedEmbeddingService, inner: DrawnService
) -> None:
    inner.delay = 0.02
    letters = [chr(97 + number) for number in range(12)]
    barrier = threading.Barrier(6)

    def work(number: int) -> list[str]:
        barrier.wait()
        order = letters[number:] + letters[:number]
        return [chr(int(vector[1])) for vector in cached.embed(order if number % 2 else order[::-1])]

    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(work, range(6), timeout=30))
    assert [sorted(result) for result in results] == [letters] * 6
    assert sorted(inner.seen) == letters


@pytest.mark.parametrize("failure", [ValueError("no"), KeyboardInterrupt()])
def test_a_leader_that_fails_fails_alone(
    failure: BaseException, cached: CachedEmbeddingService, inner: DrawnService
) -> None:
    inner.delay = 0.05
    inner.failures = [failure]
    barrier = threading.Barrier(6)

    def work(number: int) -> object:
        barrier.wait()
        try:
            return (cached.embed_one("same") if number % 2 else cached.embed(["same"])[0]).tolist()
        except BaseException as error:
            return error

    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(work, range(6), timeout=30))
    assert [result for result in results if isinstance(result, BaseException)] == [failure]
    assert inner.seen == ["same", "same"]


def test_a_text_that_makes_its_leader_fail_does_not_take_others_with_it(loader: Any) -> None:
    """One call holds a good text and a poisoned one; another waits for the good one only."""
    service = NativeEmbeddingService("minilm").load()
    cached = CachedEmbeddingService(service)
    encoder = loader.encoders[0]
    encoder.poison = "bad"
    started, encode = threading.Event(), encoder.encode

    def slow(texts: Sequence[str], **options: Any) -> Any:
        started.set()
        time.sleep(0.05)
        return encode(texts, **options)

    encoder.encode = slow
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cached.embed, ["good", "bad"])
        started.wait()
        second = pool.submit(cached.embed, ["good"])
        with pytest.raises(NonFiniteVectorError, match="text 1"):
            first.result(30)
        assert len(second.result(30)) == 1


def test_a_cancelled_task_does_not_harm_the_others(cached: CachedEmbeddingService, inner: DrawnService) -> None:
    inner.delay = 0.1

    async def tasks() -> list[float]:
        first = asyncio.create_task(cached.aembed_one("same"))
        await asyncio.sleep(0.03)
        second = asyncio.create_task(cached.aembed_one("same"))
        await asyncio.sleep(0.01)
        first.cancel()
        result: list[float] = (await second).tolist()
        return result

    assert asyncio.run(tasks())[0] == 4
    assert inner.seen == ["same"]


def test_a_child_that_is_forked_while_a_leader_works_does_not_wait_for_it(
    cached: CachedEmbeddingService, inner: DrawnService
) -> None:
    inner.delay = 0.3
    thread = threading.Thread(target=cached.embed_one, args=("same",))
    thread.start()
    while not inner.seen:
        time.sleep(0.001)
    child = os.fork()
    if child == 0:
        inner.lock = threading.Lock()
        inner.delay = 0
        os._exit(0 if cached.embed_one("same")[0] == 4 else 1)
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# Both layers


def test_memory_disk_and_model_are_asked_in_this_order(tmp_path: Path) -> None:
    data = Path(__file__).parents[2] / "lattice-inference" / "tests" / "data" / "tiny_bert"
    directory = Path(shutil.copytree(data, tmp_path / "model"))
    texts = ["the cat", "a dog", "the cat"]
    with NativeEmbeddingService(directory) as plain:
        want = plain.embed(texts)
    with VectorCache(tmp_path / "cache") as disk:
        for misses in (2, 2):
            with CachedEmbeddingService(NativeEmbeddingService(directory, cache=disk)) as cached:
                for _ in range(3):
                    result = cached.embed(texts)
                    assert result.vectors.tobytes() == want.vectors.tobytes()
                    assert result.token_counts.tolist() == want.token_counts.tolist()
                assert cached.stats().misses == 2  # the disk is asked by misses of memory only
            assert disk.misses == misses
        assert disk.hits == 2
        config = json.loads((directory / "config.json").read_text())
        (directory / "config.json").write_text(json.dumps(config | {"layer_norm_eps": 1e-5}))
        with CachedEmbeddingService(NativeEmbeddingService(directory, cache=disk)) as cached:
            assert cached.embed(texts).vectors.tobytes() != want.vectors.tobytes()


def test_a_folder_for_vectors_is_kept_by_pickling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loader: Any) -> None:
    monkeypatch.chdir(tmp_path)
    service = NativeEmbeddingService("minilm", cache="vectors")
    monkeypatch.chdir("/")
    pickle.loads(pickle.dumps(service)).load()
    assert loader.calls[-1][1]["cache"] == str(tmp_path / "vectors")
    for wrong in ("", 5, [1]):
        with pytest.raises(InvalidInputError, match="cache"):
            NativeEmbeddingService("minilm", cache=wrong)  # type: ignore[arg-type]
