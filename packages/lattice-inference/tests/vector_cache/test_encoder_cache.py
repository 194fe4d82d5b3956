"""An encoder that keeps its vectors: the same bits, computed once, and never another model's."""

from __future__ import annotations

import json
import os
import pickle
import random
import select
import shutil
import signal
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lattice_inference import Encoder, InvalidInputError, NonFiniteError, VectorCache, load_encoder
from lattice_inference.tokenizer import PackedEncoding
from lattice_inference.vector_cache.keys import TokenKeys

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TEXTS = ["the cat sat on the mat", "a", "", "the zebra", "the cat", "a " * 100]


@pytest.fixture
def directory(data_directory: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(data_directory / "tiny_bert", tmp_path / "model"))


def text_of(number: int) -> str:
    """A text of its own for every number: letters are tokens of the tiny model."""
    return " ".join(LETTERS[int(digit)] for digit in str(number))


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


class Counted:
    """An encoder whose computed texts are counted."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.computed = 0
        run = encoder._program.run

        def counting(packed: PackedEncoding, output: str) -> Any:
            self.computed += len(packed.truncated)
            return run(packed, output)

        encoder._program.run = counting  # type: ignore[method-assign]

    def __call__(self, texts: list[str], **options: Any) -> tuple[Any, int]:
        """Encode, and return the result and how many texts were computed for it."""
        before = self.computed
        return self.encoder.encode(texts, **options), self.computed - before


def test_a_text_is_computed_once_and_has_the_same_bits_ever_after(directory: Path, tmp_path: Path) -> None:
    with load_encoder(directory) as plain:
        want = plain.encode(TEXTS)
    for expected in (len(TEXTS), 0):  # this process, and as if it were the next
        with load_encoder(directory, cache=tmp_path / "cache") as encoder:
            encode = Counted(encoder)
            for computed in (expected, 0):
                result, work = encode(TEXTS)
                assert work == computed
                assert result.vectors.tobytes() == want.vectors.tobytes()
                assert result.token_counts.tolist() == want.token_counts.tolist()
                assert result.truncated.tolist() == want.truncated.tolist()


def test_hits_misses_and_repeats_may_stand_in_any_order(directory: Path, tmp_path: Path) -> None:
    with load_encoder(directory) as plain, load_encoder(directory, cache=tmp_path / "cache") as encoder:
        encode = Counted(encoder)
        encode([TEXTS[0], TEXTS[4]])
        result, work = encode([TEXTS[1], TEXTS[0], TEXTS[1], TEXTS[3], TEXTS[0], TEXTS[4], TEXTS[3]])
        assert work == 2
        order = [1, 0, 1, 3, 0, 4, 3]
        assert result.vectors.tobytes() == plain.encode(TEXTS).vectors[order].tobytes()


def test_texts_of_the_same_tokens_share_a_vector(directory: Path, tmp_path: Path) -> None:
    with load_encoder(directory, cache=tmp_path / "cache") as encoder:
        encode = Counted(encoder)
        result, work = encode(["The  CAT", "the cat", "the cat "])
        assert work == 1
        assert len({vector.tobytes() for vector in result.vectors}) == 1


def test_an_empty_call_stays_empty(directory: Path, tmp_path: Path) -> None:
    with load_encoder(directory, cache=tmp_path / "cache") as encoder:
        assert encoder.encode([]).vectors.shape == (0, 48)


def test_a_vector_belongs_to_its_caller(directory: Path, tmp_path: Path) -> None:
    with load_encoder(directory, cache=tmp_path / "cache") as encoder:
        first = encoder.encode(["a", "b"]).vectors
        want = first.copy()
        first[:] = 7
        second = encoder.encode(["a", "b"]).vectors
        assert second.tobytes() == want.tobytes()
        second[:] = 7
        assert encoder.encode(["a"]).vectors.tobytes() == want[0].tobytes()


def _change_weights(directory: Path) -> None:
    path = directory / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1  # one bit of the last weight
    path.write_bytes(content)


def _change_vocabulary(directory: Path) -> None:
    path = directory / "tokenizer.json"
    path.write_text(path.read_text().replace('"zebra"', '"zebras"'))


CHANGES = {
    "weights": _change_weights,
    "config": lambda directory: edit(directory / "config.json", layer_norm_eps=1e-6),
    "vocabulary": _change_vocabulary,
    "pooling": lambda directory: edit(
        directory / "1_Pooling" / "config.json", pooling_mode_cls_token=True, pooling_mode_mean_tokens=False
    ),
    "token limit": lambda directory: edit(directory / "sentence_bert_config.json", max_seq_length=20),
    "lower case": lambda directory: edit(directory / "sentence_bert_config.json", do_lower_case=True),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_model_finds_no_stale_vector(change: str, directory: Path, tmp_path: Path) -> None:
    with load_encoder(directory, cache=tmp_path / "cache") as encoder:
        encoder.encode(TEXTS)
    CHANGES[change](directory)
    with load_encoder(directory) as plain, load_encoder(directory, cache=tmp_path / "cache") as encoder:
        encode = Counted(encoder)
        result, work = encode(TEXTS)
        assert work == len(TEXTS)
        assert result.vectors.tobytes() == plain.encode(TEXTS).vectors.tobytes()


@pytest.mark.parametrize("change", ["precision", "normalize", "prompt"])
def test_changed_options_find_no_stale_vector(change: str, directory: Path, tmp_path: Path) -> None:
    load: dict[str, Any] = {"precision": "bfloat16"} if change == "precision" else {}
    call: dict[str, Any] = {"normalize": {"normalize": False}, "prompt": {"prompt": "query : "}}.get(change, {})
    with load_encoder(directory, cache=tmp_path / "cache") as encoder:
        encoder.encode(["the cat"])
    with load_encoder(directory, **load) as plain, load_encoder(directory, cache=tmp_path / "cache", **load) as encoder:
        encode = Counted(encoder)
        result, work = encode(["the cat"], **call)
        assert work == 1
        assert result.vectors.tobytes() == plain.encode(["the cat"], **call).vectors.tobytes()


def test_weights_that_are_replaced_under_a_loaded_model_are_not_taken_for_its_own(
    directory: Path, tmp_path: Path
) -> None:
    """The model in memory has the old weights; filed under the new ones' digest its vectors would be stale for ever."""
    with load_encoder(directory, cache=tmp_path / "cache") as encoder:
        with load_encoder(directory) as plain:
            want = plain.encode(["the cat"]).vectors
        _change_weights(directory)
        assert encoder.encode(["the cat"]).vectors.tobytes() == want.tobytes()
    with load_encoder(directory, cache=tmp_path / "cache") as encoder:
        assert Counted(encoder)(["the cat"])[1] == 1


def test_one_cache_serves_several_models(directory: Path, tmp_path: Path, data_directory: Path) -> None:
    with VectorCache(tmp_path / "cache") as cache:
        _change_weights(directory)
        with (
            load_encoder(directory, cache=cache) as first,
            load_encoder(data_directory / "tiny_bert", cache=cache) as other,
        ):
            first.encode(TEXTS)
            assert Counted(other)(TEXTS)[1] == len(TEXTS)
        assert sorted(cache.stats().models.values()) == [len(TEXTS), len(TEXTS)]  # it was lent, and is still open


def test_a_cached_encoder_is_copied_with_its_cache(directory: Path, tmp_path: Path) -> None:
    with load_encoder(directory, cache=tmp_path / "cache") as encoder:
        encoder.encode(["the cat"])
        with pickle.loads(pickle.dumps(encoder)) as copy:
            assert Counted(copy)(["the cat"])[1] == 0


@pytest.mark.parametrize("cache", ["", 5, b"folder", [1]])
def test_what_is_no_cache_is_refused(cache: object, directory: Path) -> None:
    with pytest.raises(InvalidInputError, match="cache"):
        load_encoder(directory, cache=cache)  # type: ignore[arg-type]


def test_without_a_cache_nothing_is_written(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATTICE_VECTOR_CACHE", str(tmp_path / "cache"))
    for cache in (None, False):
        with load_encoder(directory, cache=cache) as encoder:
            encoder.encode(["a"])
    assert not (tmp_path / "cache").exists()
    with load_encoder(directory, cache=True) as encoder:
        encoder.encode(["a"])
    assert (tmp_path / "cache").exists()


def test_nan_is_an_error_that_names_the_text_and_is_not_kept(directory: Path, tmp_path: Path) -> None:
    with load_encoder(directory, cache=tmp_path / "cache") as encoder:
        encoder.encode(["b", "c"])
        run = encoder._program.run

        def poisoned(packed: PackedEncoding, output: str) -> Any:
            raise NonFiniteError("the result for text 1 holds NaN or infinity", (1,))

        encoder._program.run = poisoned  # type: ignore[method-assign]
        with pytest.raises(NonFiniteError, match="text 4 holds NaN") as caught:
            encoder.encode(["b", "a", "c", "a", "d"])
        assert caught.value.rows == (4,)
        encoder._program.run = run  # type: ignore[method-assign]
        assert Counted(encoder)(["a", "d"])[1] == 2


# Keys


def packed(*texts: list[int], types: list[int] | None = None) -> PackedEncoding:
    ids = np.array([token for text in texts for token in text], np.int32)
    bounds = np.cumsum([0, *map(len, texts)]).astype(np.int32)
    kinds = np.zeros(len(ids), np.int32) if types is None else np.array(types, np.int32)
    return PackedEncoding(ids, bounds, kinds, np.diff(bounds), np.zeros(len(texts), bool))


def test_keys_tell_all_that_a_vector_depends_on_apart() -> None:
    cases = [
        TokenKeys("print", "pooled", 48)(packed([1, 2])),
        TokenKeys("print2", "pooled", 48)(packed([1, 2])),
        TokenKeys("print", "normalized", 48)(packed([1, 2])),
        TokenKeys("print", "pooled", 32)(packed([1, 2])),
        TokenKeys("print", "pooled", 48)(packed([2, 1])),
        TokenKeys("print", "pooled", 48)(packed([1])),
        TokenKeys("print", "pooled", 48)(packed([])),
        TokenKeys("print", "pooled", 48)(packed([1, 2], types=[0, 1])),
        TokenKeys("printpooled", "", 48)(packed([1, 2])),
        TokenKeys("print", "pooled4", 8)(packed([1, 2])),
    ]
    assert len({key for (key,) in cases}) == len(cases)
    assert {len(key) for (key,) in cases} == {32}


def test_a_key_does_not_depend_on_the_company() -> None:
    make = TokenKeys("print", "pooled", 48)
    alone = [make(packed([1, 2]))[0], make(packed([3]))[0], make(packed([4, 5], types=[0, 1]))[0]]
    assert make(packed([1, 2], [3], [4, 5], types=[0, 0, 0, 0, 1])) == alone


# Killed processes


def _encode_until_killed(encoder: Encoder, cache: VectorCache, pipe: int, seed: int) -> None:
    """Encode the corpus from its start in calls of some texts; after each, tell how far it got and what was computed."""
    generator = random.Random(seed)
    done = 0
    while True:
        count = generator.choice((1, 1, 1, 2, 5, 17))
        before = cache.misses
        encoder.encode([text_of(number) for number in range(done, done + count)])
        done += count
        os.write(pipe, struct.pack("<II", done, cache.misses - before))


@pytest.mark.slow
def test_killed_fifty_times_loses_nothing_and_repeats_nothing(directory: Path, tmp_path: Path) -> None:
    """SIGKILL at a random moment: every vector whose call returned is there, whole, and is not computed again."""
    generator = random.Random(8)
    cache = VectorCache(tmp_path / "cache")
    acknowledged = 0
    repeated = []
    with cache, load_encoder(directory, cache=cache, threads=1) as encoder:
        for kill in range(50):
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(reader)
                try:
                    _encode_until_killed(encoder, cache, writer, kill)
                finally:
                    os._exit(1)
            os.close(writer)
            select.select([reader], [], [], 5)  # it is at work
            time.sleep(generator.random() * 0.03)
            os.kill(child, signal.SIGKILL)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
            with os.fdopen(reader, "rb") as pipe:
                told = pipe.read()
            reached, computed = 0, 0
            for done, work in struct.iter_unpack("<II", told[: len(told) // 8 * 8]):
                fresh = max(0, done - max(acknowledged, reached))  # texts that no earlier child was told to have
                if work > fresh:
                    repeated.append((kill, done, work, fresh))
                reached, computed = done, computed + work
            acknowledged = max(acknowledged, reached)
        assert repeated == []
        assert acknowledged > 100
        found = cache.misses
        texts = [text_of(number) for number in range(acknowledged)]
        vectors = encoder.encode(texts).vectors
        assert cache.misses == found
        with load_encoder(directory) as plain:
            assert vectors.tobytes() == plain.encode(texts).vectors.tobytes()
