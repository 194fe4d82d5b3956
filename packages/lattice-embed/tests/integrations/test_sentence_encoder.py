"""The door for code written for sentence-transformers, on drawn vectors; beside that library, where it is installed."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lattice_embed import (
    EmbeddingService,
    InvalidInputError,
    InvalidTextError,
    LatticeEmbedError,
    NativeEmbeddingService,
    TextTooLongError,
)
from lattice_embed.integrations import sentence_transformers as door_module
from lattice_embed.integrations.sentence_transformers import SentenceEncoder

TEXTS = [
    "a cat",
    "",
    "naïve café, Straße",
    "短い日本語のテストです。",
    "hello 😀",
    "a cat",
    "ONE two  three",
]
LONG = "word " * 300  # more tokens than the model reads
PROMPTS = {"query": "find: ", "corpus": "text: "}


@pytest.fixture
def files(loader: Any, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What the model's files say."""
    stated = SimpleNamespace(prompts={}, default_prompt_name=None, similarity=None, do_lower_case=False)
    monkeypatch.setattr(door_module, "read_sentence_modules", lambda directory: stated)
    original = type(loader).__call__

    def load(source: str, **options: Any) -> Any:
        encoder = original(loader, source, **options)
        encoder.normalize = getattr(stated, "normalize", True)
        return encoder

    import lattice_inference

    monkeypatch.setitem(vars(lattice_inference), "load_encoder", load)
    return stated


def test_one_text_gives_one_vector_and_a_list_a_matrix(files: Any) -> None:
    encoder = SentenceEncoder("minilm")
    assert encoder.encode("a cat").shape == (384,)
    assert encoder.encode(["a cat"]).shape == (1, 384)
    assert encoder.encode([]).shape == (0, 384)
    assert encoder.encode(("a", "b"), batch_size=1).dtype == np.float32
    assert encoder.get_embedding_dimension() == encoder.get_sentence_embedding_dimension() == 384
    assert encoder.max_seq_length == 256


def test_length_is_what_the_files_say_unless_one_is_asked_for(files: Any) -> None:
    files.normalize = False
    encoder = SentenceEncoder("minilm")
    assert np.linalg.norm(encoder.encode("a cat")) > 5
    assert np.linalg.norm(encoder.encode("a cat", normalize_embeddings=True)) == pytest.approx(1, abs=1e-6)
    files.normalize = True
    assert np.linalg.norm(SentenceEncoder("minilm").encode("a cat")) == pytest.approx(1, abs=1e-6)


def test_prompts_go_before_the_text(files: Any, loader: Any) -> None:
    files.prompts = PROMPTS
    encoder = SentenceEncoder("minilm")

    def sent() -> str:
        return loader.encoders[-1].seen[-1]

    encoder.encode("a", prompt="my: ")
    assert sent() == "my: a"
    encoder.encode(["a"], prompt_name="query")
    assert sent() == "find: a"
    encoder.encode("a", prompt="my: ", prompt_name="query")
    assert sent() == "my: a"
    encoder.encode_query("a")
    assert sent() == "find: a"
    encoder.encode_document("a", prompt_name="corpus")
    assert sent() == "text: a"
    encoder.encode_query("a", prompt="my: ")
    assert sent() == "my: a"
    encoder.encode("a")
    assert sent() == "a"
    with pytest.raises(InvalidInputError, match="no prompt is called 'other'; there are query, document, corpus"):
        encoder.encode("a", prompt_name="other")
    files.default_prompt_name = "query"
    SentenceEncoder("minilm").encode("a")
    assert sent() == "find: a"
    SentenceEncoder("minilm", prompts={"x": "x: "}, default_prompt_name="x").encode("a")
    assert sent() == "x: a"
    with pytest.raises(InvalidInputError, match="no prompt is called"):
        SentenceEncoder("minilm", default_prompt_name="other")


@pytest.mark.parametrize(
    "options", [{"precision": "int8"}, {"device": "cuda"}, {"output_value": "tokens"}, {"output_value": None}]
)
def test_option_that_does_not_exist_here_is_refused(files: Any, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(options))):
        SentenceEncoder("minilm").encode("a", **options)


@pytest.mark.parametrize("options", [{"precision": "int8"}, {"device": ["cpu"]}, {"device": "cuda"}])
def test_option_that_vectors_of_tokens_do_not_have_is_refused(files: Any, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(options))):
        SentenceEncoder("minilm").encode("a", output_value="token_embeddings", **options)


@pytest.mark.model
def test_vectors_of_tokens_are_those_that_are_pooled(
    minilm: NativeEmbeddingService, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder = SentenceEncoder(minilm)

    def tokens_of(texts: Any, **options: Any) -> Any:
        return encoder.encode(texts, output_value="token_embeddings", **options)

    found = tokens_of(TEXTS, batch_size=3, prompt="find: ", truncate_dim=9, normalize_embeddings=True)
    assert [array.shape for array in found] == [
        (count, 384) for count in minilm.count_tokens(["find: " + text for text in TEXTS])
    ]
    pooled = np.stack([array.mean(axis=0) for array in found])
    expected = minilm.encode(["find: " + text for text in TEXTS], normalize=False)
    np.testing.assert_allclose(pooled, expected, atol=2e-6)
    alone = tokens_of(TEXTS[0], prompt="find: ")
    assert (type(alone), alone.tobytes()) == (np.ndarray, found[0].tobytes())
    assert tokens_of([]) == []
    assert tokens_of(LONG).shape == (256, 384)
    pytest.importorskip("tqdm")
    tokens_of(TEXTS, batch_size=3, show_progress_bar=True)
    assert "3/3" in capsys.readouterr().err


@pytest.mark.model
def test_errors_of_vectors_of_tokens_name_the_text(minilm: NativeEmbeddingService) -> None:
    with pytest.raises(InvalidTextError, match="text 40 is a int"):
        SentenceEncoder(minilm).encode(["a"] * 40 + [5], output_value="token_embeddings")  # type: ignore[list-item]
    with (
        NativeEmbeddingService("minilm", truncate="error", max_tokens=9) as short,
        pytest.raises(TextTooLongError, match="text 34 has 302 tokens; the limit is 9"),
    ):
        SentenceEncoder(short).encode(["a"] * 34 + [LONG], output_value="token_embeddings")


def test_texts_are_checked_with_their_place(files: Any) -> None:
    with pytest.raises(InvalidTextError, match="text 40 is a int"):
        SentenceEncoder("minilm").encode(["a"] * 40 + [5], prompt="x: ")  # type: ignore[list-item]


def test_service_that_runs_elsewhere_is_refused(files: Any, service: NativeEmbeddingService) -> None:
    assert SentenceEncoder(service).service is service

    class Elsewhere(EmbeddingService):
        embed = model_config = supports_model = None  # type: ignore[assignment]
        name = "elsewhere"

    with pytest.raises(InvalidInputError, match="elsewhere runs elsewhere"):
        SentenceEncoder(Elsewhere())  # type: ignore[arg-type]


def test_progress_bar_is_shown_when_asked_for(files: Any, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tqdm")
    encoder = SentenceEncoder("minilm")
    encoder.encode(["a"] * 5, batch_size=2, show_progress_bar=True)
    assert "3/3" in capsys.readouterr().err
    encoder.encode(["a"] * 5, batch_size=2)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("metric", ["cosine", "dot", "euclidean", "manhattan"])
def test_similarity_is_that_of_the_files(files: Any, metric: str) -> None:
    files.similarity = metric
    encoder = SentenceEncoder("minilm")
    assert encoder.similarity_fn_name == metric
    rows = np.array([[3.0, 4.0], [1.0, 0.0], [0.0, 2.0]], np.float32)
    a, b = rows[:, None].astype(np.float64), rows[None].astype(np.float64)
    expected = {
        "cosine": (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1),
        "dot": (a * b).sum(-1),
        "euclidean": -np.linalg.norm(a - b, axis=-1),
        "manhattan": -np.abs(a - b).sum(-1),
    }[metric]
    np.testing.assert_allclose(encoder.similarity(rows, rows), expected, atol=1e-6)
    np.testing.assert_allclose(encoder.similarity_pairwise(rows, rows[::-1]), np.diag(expected[:, ::-1]), atol=1e-6)
    assert encoder.similarity(rows[0], rows).shape == (1, 3)


# Beside the library itself


@pytest.fixture(scope="module")
def pair(minilm: NativeEmbeddingService) -> tuple[Any, SentenceEncoder]:
    library = pytest.importorskip("sentence_transformers")
    pytest.importorskip("torch").set_num_threads(1)  # its threads spin where others work
    return library.SentenceTransformer(str(minilm.directory), device="cpu"), SentenceEncoder(minilm)


CALLS: list[dict[str, Any]] = [
    {},
    {"batch_size": 2},
    {"normalize_embeddings": True},
    {"prompt": "find: "},
    {"prompt": ""},
    {"prompt_name": "query"},
    {"prompt_name": "document"},
    {"show_progress_bar": True},
    {"convert_to_tensor": True},
    {"convert_to_numpy": False},
    {"convert_to_numpy": False, "convert_to_tensor": True},
    {"precision": "float32", "device": "cpu", "output_value": "sentence_embedding"},
]


@pytest.mark.model
@pytest.mark.parametrize(
    ("method", "options"),
    [("encode", options) for options in CALLS]
    + [(method, options) for method in ("encode_query", "encode_document") for options in CALLS[3:6]],
    ids=str,
)
def test_results_are_those_of_sentence_transformers(
    pair: tuple[Any, SentenceEncoder], method: str, options: dict[str, Any]
) -> None:
    theirs, ours = (getattr(each, method) for each in pair)
    for inputs in (TEXTS if options else [*TEXTS, LONG], "a cat", ("a cat", "a dog")):
        expected, got = theirs(inputs, **options), ours(inputs, **options)
        assert type(got) is type(expected)
        assert len(got) == len(expected)
        if isinstance(expected, list):
            expected, got = np.stack(expected), np.stack(got)
        assert got.shape == expected.shape
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(np.asarray(got), np.asarray(expected), atol=1e-6)


@pytest.mark.model
def test_everything_else_is_as_there(pair: tuple[Any, SentenceEncoder]) -> None:
    theirs, ours = pair
    assert ours.max_seq_length == theirs.max_seq_length
    assert ours.get_embedding_dimension() == theirs.get_embedding_dimension()
    assert ours.prompts == theirs.prompts
    assert ours.default_prompt_name == theirs.default_prompt_name
    assert ours.similarity_fn_name == theirs.similarity_fn_name
    a, b = ours.encode(TEXTS[:3]), ours.encode(TEXTS[3:6])
    np.testing.assert_allclose(ours.similarity(a, b), np.asarray(theirs.similarity(a, b)), atol=1e-6)
    np.testing.assert_allclose(ours.similarity_pairwise(a, b), np.asarray(theirs.similarity_pairwise(a, b)), atol=1e-6)
    with pytest.raises(ValueError, match="other"):
        theirs.encode("a", prompt_name="other")
    with pytest.raises(ValueError, match="other"):
        ours.encode("a", prompt_name="other")


@pytest.mark.model
def test_files_with_prompts_and_without_unit_length_are_read_as_there(
    minilm: NativeEmbeddingService, tmp_path: Path
) -> None:
    library = pytest.importorskip("sentence_transformers")
    pytest.importorskip("torch").set_num_threads(1)
    copy = tmp_path / "variant"
    shutil.copytree(minilm.directory, copy)
    modules = json.loads((copy / "modules.json").read_text())
    (copy / "modules.json").write_text(json.dumps([module for module in modules if "Normalize" not in module["type"]]))
    config_file = copy / "config_sentence_transformers.json"
    config = json.loads(config_file.read_text())
    config |= {"prompts": PROMPTS, "default_prompt_name": "query", "similarity_fn_name": "dot"}
    config_file.write_text(json.dumps(config))
    theirs = library.SentenceTransformer(str(copy), device="cpu")
    with SentenceEncoder(str(copy)) as ours:
        assert ours.prompts == theirs.prompts
        assert ours.similarity_fn_name == theirs.similarity_fn_name == "dot"
        for method in ("encode", "encode_query", "encode_document"):
            for options in ({}, {"normalize_embeddings": True}, {"prompt_name": "corpus"}):
                expected = getattr(theirs, method)(TEXTS, **options)
                got = getattr(ours, method)(TEXTS, **options)
                np.testing.assert_allclose(got, expected, atol=5e-6, err_msg=f"{method} {options}")
        assert np.linalg.norm(ours.encode("a cat")) != pytest.approx(1, abs=0.1)


@pytest.mark.model
def test_frozen_vectors_of_the_drift_gate_are_those_of_sentence_transformers(pair: tuple[Any, SentenceEncoder]) -> None:
    from lattice_embed import DriftBaseline

    baseline = DriftBaseline.load(Path(__file__).parents[1] / "data" / "drift" / "all-minilm-l6-v2.json")
    np.testing.assert_allclose(baseline.vectors, pair[0].encode(list(baseline.texts), batch_size=1), atol=1e-6)


# What users of other libraries hit (section E of the collected cases)


@pytest.mark.model
def test_e1_pooling_and_length_are_the_models_own(pair: tuple[Any, SentenceEncoder]) -> None:
    texts = [f"{list(range(number))} " for number in range(64)]
    theirs, ours = (each.encode(texts, normalize_embeddings=True, batch_size=8) for each in pair)
    assert np.abs(theirs - ours).max() < 1e-5


@pytest.mark.slow
@pytest.mark.model
def test_e5_e6_vector_does_not_depend_on_its_batch(minilm: NativeEmbeddingService) -> None:
    encoder = SentenceEncoder(minilm)
    mixed = ["Every morning, I make a cup of coffee to start my day.", "x", LONG, ""] * 5
    for texts in (["test test"] * 100, mixed):
        together, apart = encoder.encode(texts, batch_size=64), encoder.encode(texts, batch_size=1)
        assert together.tobytes() == apart.tobytes()


@pytest.mark.model
def test_e12_blank_text_has_a_finite_vector(pair: tuple[Any, SentenceEncoder]) -> None:
    blank = ["", "   ", "\u200b"]
    theirs, ours = (each.encode(blank) for each in pair)
    assert np.isfinite(ours).all()
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


# Names and values of the wrong kind


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"colour": 1}, "SentenceEncoder has no option colour"),
        ({"device": "cuda:0"}, "device='cuda:0' does not exist here: models run on the CPU"),
        ({"device": 0}, "device=0"),
        ({"modules": []}, r"modules=\[\]"),
        ({"model_kwargs": {"dtype": "float16"}}, "model_kwargs=.* precision="),
        ({"backend": "openvino"}, "backend='openvino'"),
        ({"similarity_fn_name": "maxsim"}, "similarity_fn_name is 'maxsim'"),
        ({"truncate_dim": 0}, "truncate_dim is 0"),
        ({"trust_remote_code": "yes"}, "trust_remote_code is 'yes'"),
        ({"token": False}, "token must be a str"),
        ({"token": "a", "use_auth_token": "b"}, "two names of one option"),
        ({"model_name_or_path": "minilm"}, "two names of one option"),
        ({"max_tokens": 1}, "max_tokens is 1"),
    ],
    ids=str,
)
def test_wrong_option_is_refused_by_its_name(files: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        SentenceEncoder("minilm", **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"colour": 1}, "encode has no option colour"),
        ({"sentences": ["a"]}, "earlier name sentences"),
        ({"truncate_dim": -1}, "truncate_dim is -1"),
        ({"chunk_size": 0}, "chunk_size is 0"),
        ({"precision": "int4"}, "precision is 'int4'"),
        ({"precision": "uint8"}, "precision='uint8' needs the range of several vectors"),
        ({"pool": {}}, "pool is {}"),
        ({"device": ["cuda"]}, "device='cuda'"),
        ({"processing_kwargs": {"text": {}}}, "processing_kwargs="),
    ],
    ids=str,
)
def test_wrong_option_of_a_call_is_refused_by_its_name(files: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        SentenceEncoder("minilm").encode("a", **options)


def test_files_decide_unless_the_caller_does(files: Any) -> None:
    files.similarity = "dot"
    encoder = SentenceEncoder("minilm", similarity_fn_name="euclidean", truncate_dim=7)
    assert encoder.similarity_fn_name == "euclidean"
    assert encoder.encode("a").shape == (7,)
    assert encoder.encode("a", truncate_dim=9).shape == (9,)
    encoder.similarity_fn_name = None  # type: ignore[assignment]
    assert encoder.similarity_fn_name == "dot"
    encoder.truncate_dim = None
    assert encoder.encode("a").shape == (384,)
    assert SentenceEncoder(encoder.service).encode([], precision="ubinary").shape == (0, 48)
    assert SentenceEncoder(encoder.service).encode([], precision="int8").dtype == np.int8
    with pytest.raises(
        InvalidInputError, match="revision, local_files_only, token and cache_folder need a model's name"
    ):
        SentenceEncoder(encoder.service, revision="main")


@pytest.mark.model
def test_copy_by_pickling_encodes_the_same(minilm: NativeEmbeddingService) -> None:
    encoder = SentenceEncoder(minilm, truncate_dim=9, prompts={"query": "find: "}, default_prompt_name="query")
    copy = pickle.loads(pickle.dumps(encoder))
    assert copy.encode(TEXTS).tobytes() == encoder.encode(TEXTS).tobytes()


@pytest.mark.model
def test_fewer_tokens_are_read_where_max_seq_length_is_set_to(minilm: NativeEmbeddingService) -> None:
    encoder = SentenceEncoder(minilm)
    encoder.max_seq_length = 5
    assert encoder.encode("one two three four").tobytes() == minilm.embed_one("one two three").tobytes()
    assert encoder.tokenize(["one two three four", "one"])["attention_mask"].tolist() == [[1] * 5, [1, 1, 1, 0, 0]]
    assert minilm.max_tokens == 256
    with pytest.raises(InvalidInputError, match=r"max_tokens is 257 and .* takes 256"):
        encoder.max_seq_length = 257
    assert encoder.max_seq_length == 5


@pytest.mark.slow
@pytest.mark.model
def test_pool_gives_the_same_bits_and_names_texts_by_their_place(minilm: NativeEmbeddingService) -> None:
    encoder = SentenceEncoder(minilm)
    with encoder.start_multi_process_pool(["cpu", "cpu"]) as pool:
        for size in (None, 1, 100):
            assert encoder.encode(TEXTS, pool=pool, chunk_size=size).tobytes() == encoder.encode(TEXTS).tobytes()
        assert encoder.encode([], pool=pool).shape == (0, 384)
        with pytest.raises(InvalidTextError, match="text 5 is a int"):
            encoder.encode([*TEXTS[:5], 5], pool=pool, chunk_size=2)  # type: ignore[list-item]
    with pytest.raises(LatticeEmbedError, match="start another one"):
        encoder.encode(TEXTS, pool=pool)
