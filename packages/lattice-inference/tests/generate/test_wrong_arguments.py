"""Every argument of generating, evaluating and encoding is given wrong values and types: only typed errors come out.

The suite turns warnings into errors, so no warning of NumPy leaks either.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import numpy as np
import pytest

from drawn_checkpoints import write_directory
from lattice_inference import Extension, load_cross_encoder, load_encoder, load_model, load_tokenizer, memory_report
from lattice_inference.errors import InvalidInputError, LatticeError
from lattice_inference.generate.compare_logits import compare_logits
from lattice_inference.generate.config import GenerateConfig
from lattice_inference.generate.perplexity import perplexity
from lattice_inference.generate.session import Session, SessionConfig
from lattice_inference.quantize import Calibrator

DATA = Path(__file__).parents[1] / "data"
GREEDY = GenerateConfig.greedy(1)
TEXT = "abcdefgh" * 2


class Unwritable:
    def __repr__(self):
        raise RuntimeError("this object does not say what it is")


VALUES = [
    *(None, 0, -1, 1.5, float("nan"), float("inf"), 10**400, -(10**400), 10**5000, True, 1j, np.float32(2), np.True_),
    *("x", "", "\ud800", b"x", [], [None], ["a", None], [1.5], {}, {"a": 1}, {1: 2}, {"x"}, (), range(3), iter([1])),
    *(
        np.array(3),
        np.array(3.5),
        np.array([1, 2]),
        np.array([1.5]),
        np.array(["a"]),
        np.ma.masked_array([1, 2], [0, 1]),
    ),
    *(object(), Unwritable(), Path("/no/such/path")),
]


@pytest.fixture(scope="module")
def encoder():
    with load_encoder(DATA / "tiny_bert") as made:
        yield made


@pytest.fixture(scope="module")
def scorer(tmp_path_factory):
    cases = json.loads((DATA / "architectures" / "cases.json").read_text())["cases"]
    with load_cross_encoder(write_directory(tmp_path_factory.mktemp("m") / "m", cases["cross-encoder-bert"])) as made:
        yield made


def assert_only_typed_errors(call):
    messages = []
    for value in VALUES:
        try:
            call(value)
        except LatticeError as error:
            messages.append(str(error))
    assert max(map(len, messages)) < 600


def session_calls(model):
    def made(call):
        def with_a_session(value):
            with Session(model) as session:
                call(session, value)

        return with_a_session

    yield made(lambda session, value: session.generate(value, GREEDY))
    yield made(lambda session, value: session.generate("a", value))
    yield made(lambda session, value: session.generate("a", GREEDY, cancelled=value))
    yield made(lambda session, value: session.extend(value, GREEDY))
    yield made(lambda session, value: list(session.stream("a", GREEDY, extend=value)))
    yield made(lambda session, value: list(session.stream("a", GREEDY, continues=value)))
    yield made(lambda session, value: session.generate_batch(value, GREEDY))
    yield made(lambda session, value: session.generate_batch(["a"], value))
    yield made(lambda session, value: session.generate_batch(["a"], GREEDY, cancelled=value))
    yield made(lambda session, value: session.rewind(value))


@pytest.mark.parametrize("index", range(10))
def test_calls_of_a_session(drawn_model, index):
    assert_only_typed_errors(list(session_calls(drawn_model))[index])


@pytest.mark.parametrize("name", SessionConfig.__dataclass_fields__)
def test_a_session_and_its_configuration(drawn_model, name):
    assert_only_typed_errors(lambda value: Session(drawn_model, config=SessionConfig(**{name: value})).close())


def test_integers_of_numpy_are_integers(drawn_model):
    numbers = {"max_tokens": np.int64(64), "chunk_tokens": np.int32(3), "cache_tokens": np.uint16(128)}
    with Session(drawn_model, config=SessionConfig(**numbers)) as session:
        session.generate("abc", GREEDY)
        session.rewind(np.int64(2))
        assert session.token_ids == tuple(b"ab")
        with pytest.raises(InvalidInputError, match="chunk_tokens is None"):
            SessionConfig(chunk_tokens=None)
    sizes = {"window": 8, "stride": 4}
    numbers = {name: np.int64(size) for name, size in sizes.items()}
    wanted = perplexity(drawn_model, "abcdefghij", **sizes).perplexity
    assert perplexity(drawn_model, "abcdefghij", **numbers).perplexity == wanted


def test_what_a_session_is_made_of(drawn_model):
    assert_only_typed_errors(Session)
    assert_only_typed_errors(lambda value: Session(drawn_model, value).close())
    assert_only_typed_errors(lambda value: Session(drawn_model, config=value).close())


@pytest.mark.parametrize("name", [name for name in GenerateConfig.__dataclass_fields__ if name != "max_new_tokens"])
def test_a_configuration_of_generating(drawn_model, name):
    with Session(drawn_model) as session:
        assert_only_typed_errors(lambda value: session.generate("a", GenerateConfig(max_new_tokens=1, **{name: value})))


def test_what_configurations_are_made_of():
    for call in (
        GenerateConfig.greedy,
        lambda value: GenerateConfig(max_new_tokens=value),
        GREEDY.filled_from,
        GREEDY.resolve,
        lambda value: GREEDY.resolve(stop_token_ids=value),
    ):
        assert_only_typed_errors(call)


@pytest.mark.parametrize("name", ["text", "window", "stride", "max_tokens", "tokenizer", "progress"])
def test_evaluations(drawn_model, name):
    given = {"text": TEXT, "window": 8, "stride": 4}
    assert_only_typed_errors(lambda value: perplexity(drawn_model, **(given | {name: value})))
    assert_only_typed_errors(lambda value: compare_logits(drawn_model, drawn_model, **(given | {name: value})))


def test_models_that_are_none(drawn_model):
    for call in (
        lambda value: perplexity(value, TEXT),
        lambda value: compare_logits(value, drawn_model, TEXT),
        lambda value: compare_logits(drawn_model, value, TEXT),
        memory_report,
    ):
        assert_only_typed_errors(call)
    assert_only_typed_errors(lambda value: memory_report(drawn_model, cache_bytes=value).as_text())
    assert_only_typed_errors(lambda value: memory_report(drawn_model, cache_token_bytes=value).as_text())


@pytest.mark.parametrize("name", ["tokens", "dtype", "page_tokens", "prefix_bytes"])
def test_caches(drawn_model, name):
    assert_only_typed_errors(lambda value: drawn_model.open_cache(**({"tokens": 32} | {name: value})).close())


def test_extensions(drawn_model):
    with drawn_model.open_cache(tokens=64) as cache:
        for call in (
            drawn_model.forward,
            lambda value: drawn_model.forward([value]),
            lambda value: drawn_model.forward([Extension(value, [1])]),
            lambda value: drawn_model.forward([Extension(cache.sequence(), value)]),
            lambda value: drawn_model.forward([Extension(cache.sequence(), [1], value)]),
        ):
            assert_only_typed_errors(call)


def test_encoders(encoder):
    for call in (
        encoder.encode,
        encoder.count_tokens,
        encoder.token_offsets,
        lambda value: encoder.encode([value]),
        lambda value: encoder.encode(["a"], prompt=value),
        lambda value: encoder.encode(["a"], normalize=value),
        lambda value: encoder.encode(["a"], truncate=value),
    ):
        assert_only_typed_errors(call)


def test_cross_encoders(scorer):
    for call in (
        scorer.score_pairs,
        lambda value: scorer.score_pairs([value]),
        lambda value: scorer.score_pairs([("a", value)]),
        lambda value: scorer.score_pairs([("a", "b")], activation=value),
        lambda value: scorer.score_pairs([("a", "b")], truncate=value),
    ):
        assert_only_typed_errors(call)


def test_tokenizers(encoder):
    tokenizer = encoder.tokenizer
    for call in (
        tokenizer.encode,
        tokenizer.encode_batch,
        tokenizer.encode_packed,
        tokenizer.count,
        tokenizer.decode,
        tokenizer.id_to_token,
        tokenizer.token_to_id,
        lambda value: tokenizer.encode("a", value),
        lambda value: tokenizer.encode("a", truncation=value),
        lambda value: tokenizer.encode("a", add_special_tokens=value),
        lambda value: tokenizer.encode("a", special_tokens_in_text=value),
        lambda value: tokenizer.encode_packed(["a"], max_tokens=value),
        lambda value: tokenizer.encode_packed(["a"], threads=value),
        lambda value: tokenizer.decode([value]),
        lambda value: tokenizer.stream().push(value),
        load_tokenizer,
    ):
        assert_only_typed_errors(call)
    assert tokenizer.encode("a", truncation=10**400).ids.tolist() == tokenizer.encode("a").ids.tolist()


@pytest.mark.parametrize("name", ["path_or_name", "method", "percentile", "momentum"])
def test_a_calibrator(name):
    method = {"momentum": "ema"}.get(name, "percentile")
    given = {"path_or_name": DATA / "tiny_bert", "method": method}
    values = VALUES if name == "path_or_name" else [1j, "x", 10**400, [], np.array([1, 2]), float("nan")]
    for value in values:
        with pytest.raises(LatticeError):
            Calibrator(**(given | {name: value}))


def test_what_a_calibrator_observes():
    with Calibrator(DATA / "tiny_bert") as calibrator:
        for name in ("texts", "max_tokens", "on_step"):
            assert_only_typed_errors(
                lambda value, name=name: calibrator.observe(**({"texts": ["abc"]} | {name: value}))
            )


@pytest.mark.parametrize("load", [load_encoder, load_model, load_cross_encoder], ids=lambda load: load.__name__)
def test_loaders_of_models_that_are_not_there(load, monkeypatch):
    monkeypatch.setenv("LATTICE_OFFLINE", "1")
    assert_only_typed_errors(load)
    for name in list(inspect.signature(load).parameters)[1:]:
        if name not in ("offline", "cache"):
            assert_only_typed_errors(lambda value, name=name: load("/no/such/model", **{name: value}))


def test_an_error_names_argument_value_and_what_is_expected(drawn_model):
    with pytest.raises(InvalidInputError, match=r"^top_k is 1.5; expected an integer from 0 to 2,147,483,647$"):
        GenerateConfig(top_k=1.5)
    with pytest.raises(InvalidInputError, match=r"^temperature is 10{76}\.\.\.; expected a number from 0 to 100$"):
        GenerateConfig(temperature=10**400)
    with pytest.raises(InvalidInputError, match=r"^temperature is <int>; expected a number from 0 to 100$"):
        GenerateConfig(temperature=10**5000)
    with pytest.raises(InvalidInputError, match=r"^cancelled is 5; expected a threading.Event or a function$"):
        Session(drawn_model).generate("a", cancelled=5)
