"""``LatticeModule`` inside ``SentenceTransformer``, and in the libraries that take no other class."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lattice_embed import EmbeddingService, InvalidInputError, NativeEmbeddingService
from lattice_inference import VectorCache

torch = pytest.importorskip("torch")
library = pytest.importorskip("sentence_transformers")
from lattice_embed.integrations.sentence_transformers_module import LatticeModule  # noqa: E402

TEXTS = ["a cat", "", "naïve café, Straße", "短い日本語のテストです。", "a cat", "word " * 300]

pytestmark = pytest.mark.model


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)  # its threads spin where others work


@pytest.fixture(scope="module")
def ours(minilm: NativeEmbeddingService) -> Any:
    return library.SentenceTransformer(modules=[LatticeModule(minilm)], device="cpu")


@pytest.fixture(scope="module")
def theirs(minilm: NativeEmbeddingService) -> Any:
    return library.SentenceTransformer(str(minilm.directory), device="cpu")


def test_vectors_are_those_of_the_service_to_the_bit(ours: Any, minilm: NativeEmbeddingService) -> None:
    expected = minilm.encode(TEXTS)
    for options in ({}, {"batch_size": 1}, {"batch_size": 4}):
        assert ours.encode(TEXTS, **options).tobytes() == expected.tobytes()
    assert ours.encode(TEXTS, convert_to_tensor=True).numpy().tobytes() == expected.tobytes()
    assert ours.encode("a cat").tobytes() == minilm.embed_one("a cat").tobytes()


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("encode", {"prompt": "find: "}),
        ("encode", {"normalize_embeddings": True, "truncate_dim": 100}),
        ("encode", {"precision": "binary"}),
        ("encode_query", {}),
        ("encode_document", {"prompt": "text: "}),
    ],
)
def test_results_are_those_of_the_original_modules(ours: Any, theirs: Any, method: str, options: Any) -> None:
    got, expected = (getattr(each, method)(TEXTS, **options) for each in (ours, theirs))
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    if got.dtype == np.int8:  # bits of values at the threshold may differ
        assert np.unpackbits((got ^ expected).view(np.uint8)).mean() < 0.01
    else:
        np.testing.assert_allclose(got, expected, atol=2e-6)


def test_facts_are_those_of_the_original_modules(ours: Any, theirs: Any) -> None:
    assert ours.get_embedding_dimension() == theirs.get_embedding_dimension() == 384
    assert ours.max_seq_length == theirs.max_seq_length == 256
    assert ours.device == theirs.device
    assert ours[0].tokenizer.encode("a cat").ids.tolist() == theirs.tokenizer("a cat")["input_ids"]
    a, b = ours.encode(TEXTS[:3]), ours.encode(TEXTS[3:])
    np.testing.assert_allclose(ours.similarity(a, b), theirs.similarity(a, b), atol=1e-6)


def test_is_a_torch_module_without_weights(ours: Any) -> None:
    module = ours[0]
    assert isinstance(module, torch.nn.Module)
    assert list(module.parameters()) == []
    assert module.state_dict() == {}
    assert ours.to("cpu").eval() is ours
    meta = LatticeModule(module.service).to("meta")  # stands for a device that this machine lacks
    assert meta(meta.preprocess(["a cat"]))["sentence_embedding"].device.type == "meta"


def test_modules_after_it_learn(minilm: NativeEmbeddingService) -> None:
    from sentence_transformers.base.modules import Dense

    model = library.SentenceTransformer(modules=[LatticeModule(minilm), Dense(384, 8)], device="cpu")
    model(model.preprocess(["a cat"]))["sentence_embedding"].sum().backward()
    assert model[1].linear.weight.grad.abs().sum() > 0
    assert model.encode(TEXTS).shape == (len(TEXTS), 8)


def test_saved_model_is_loaded_with_its_prompts_and_options(minilm: NativeEmbeddingService, tmp_path: Path) -> None:
    prompts = {"query": "find: ", "document": "text: "}
    module = LatticeModule(str(minilm.directory), max_tokens=5)
    saved = library.SentenceTransformer(modules=[module], prompts=prompts, default_prompt_name="query", device="cpu")
    saved.save(str(tmp_path / "saved"), create_model_card=False)
    assert not list(tmp_path.rglob("*.safetensors"))
    loaded = library.SentenceTransformer(str(tmp_path / "saved"), trust_remote_code=True, device="cpu")
    assert isinstance(loaded[0], LatticeModule)
    assert loaded.prompts == prompts
    assert loaded.max_seq_length == 5
    assert loaded.encode(TEXTS).tobytes() == saved.encode(TEXTS).tobytes()
    assert loaded.encode("a").tobytes() == minilm.embed_one("find: a").tobytes()
    file = tmp_path / "saved" / "0_LatticeModule" / "lattice_module.json"
    for content in ("{}", '{"model": "minilm"}', json.dumps({"model": "minilm", "options": {"no_such_option": 1}})):
        file.write_text(content)
        with pytest.raises(ValueError, match=r"lattice_module\.json"):
            LatticeModule.load(str(tmp_path / "saved"), "0_LatticeModule")


def test_copies_and_pickles_give_the_same_vectors(ours: Any) -> None:
    expected = ours.encode("a cat").tobytes()
    for other in (copy.deepcopy(ours[0]), pickle.loads(pickle.dumps(ours[0]))):
        assert library.SentenceTransformer(modules=[other], device="cpu").encode("a cat").tobytes() == expected


def test_fewer_tokens_are_read_where_max_seq_length_is_set(minilm: NativeEmbeddingService) -> None:
    model = library.SentenceTransformer(modules=[LatticeModule(minilm)], device="cpu")
    model.max_seq_length = 5
    assert model.max_seq_length == 5
    assert model.encode("one two three four").tobytes() == minilm.embed_one("one two three").tobytes()
    assert minilm.max_tokens == 256  # the service that was given is as it was
    with pytest.raises(InvalidInputError, match=r"max_tokens is 257 and .* takes 256 tokens"):
        model.max_seq_length = 257


def test_prompts_are_those_of_the_files(minilm: NativeEmbeddingService, tmp_path: Path) -> None:
    for file in minilm.directory.rglob("*"):
        target = tmp_path / file.relative_to(minilm.directory)
        if file.is_file():
            target.parent.mkdir(exist_ok=True)
            target.symlink_to(file.resolve())
    assert LatticeModule(minilm).prompts == {}
    config = json.loads((tmp_path / "config_sentence_transformers.json").read_text()) | {"prompts": {"query": "find: "}}
    (tmp_path / "config_sentence_transformers.json").unlink()
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(config))
    assert LatticeModule(tmp_path).prompts == {"query": "find: "}


def test_what_cannot_be_is_refused_by_its_name(ours: Any, minilm: NativeEmbeddingService, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="token_embeddings is not computed"):
        ours.encode("a", output_value="token_embeddings")
    with pytest.raises(InvalidInputError, match="processing_kwargs"):
        ours.encode("a", processing_kwargs={"text": {"max_length": 3}})
    with pytest.raises(InvalidInputError, match="a text is a int"):
        ours[0](ours[0].preprocess(["a", 5]))
    with pytest.raises(InvalidInputError, match="the features are input_ids"):
        ours[0]({"input_ids": torch.zeros(1, 2)})

    class Elsewhere(EmbeddingService):
        embed = model_config = supports_model = None  # type: ignore[assignment]
        name = "elsewhere"

    with pytest.raises(InvalidInputError, match="elsewhere runs elsewhere"):
        LatticeModule(Elsewhere())
    with VectorCache(tmp_path / "cache") as cache, pytest.raises(InvalidInputError, match=r"cache is .* folder"):
        LatticeModule(str(minilm.directory), cache=cache).save(str(tmp_path))
    assert not list(tmp_path.glob("*.json"))


# Other libraries

DOCUMENTS = [
    "Supervised learning maps an input to an output from example pairs. It infers a function from labelled training data.",
    "The stock market fell as investors sold shares of banks. Traders expect higher interest rates from the central bank.",
    "The bakery sells fresh bread and sweet pastries. Bakers start long before dawn and heat the ovens with wood.",
]


@pytest.mark.slow
def test_keybert_finds_the_keywords_of_the_original_model(ours: Any, theirs: Any) -> None:
    keybert = pytest.importorskip("keybert")
    got, expected = (
        keybert.KeyBERT(model).extract_keywords(DOCUMENTS, keyphrase_ngram_range=(1, 2), top_n=5)
        for model in (ours, theirs)
    )
    for ours_of_one, theirs_of_one in zip(got, expected, strict=True):
        assert [word for word, _ in ours_of_one] == [word for word, _ in theirs_of_one]
        np.testing.assert_allclose([s for _, s in ours_of_one], [s for _, s in theirs_of_one], atol=1e-4)


@pytest.mark.slow
def test_setfit_predicts_what_it_predicts_with_the_original_model(ours: Any, theirs: Any) -> None:
    setfit = pytest.importorskip("setfit")
    linear_model = pytest.importorskip("sklearn.linear_model")
    labels = ["learning", "money", "food"]
    questions = ["a neural network and its data", "shares and bonds", "cakes and flour", "a loan from a bank"]
    predicted = []
    for body in (ours, theirs):
        model = setfit.SetFitModel(
            model_body=body, model_head=linear_model.LogisticRegression(), labels=labels, normalize_embeddings=True
        )
        model.fit(DOCUMENTS, labels, num_epochs=1)  # the head alone: the body has no weights to train
        predicted.append(model.predict_proba(questions, as_numpy=True))
        assert list(model.predict(questions)) == ["learning", "money", "food", "money"]
    np.testing.assert_allclose(predicted[0], predicted[1], atol=1e-5)


@pytest.mark.slow
def test_bertopic_finds_the_topics_of_the_original_model(ours: Any, theirs: Any) -> None:
    bertopic = pytest.importorskip("bertopic")
    cluster, decomposition = pytest.importorskip("sklearn.cluster"), pytest.importorskip("sklearn.decomposition")
    sentences = [part for text in DOCUMENTS for part in text.split(". ")]
    topics = []
    for model in (ours, theirs):
        found = bertopic.BERTopic(  # steps without chance, and small enough for six texts
            embedding_model=model,
            umap_model=decomposition.PCA(3, svd_solver="full"),
            hdbscan_model=cluster.AgglomerativeClustering(3),
            min_topic_size=2,
        )
        topics.append(found.fit_transform(sentences)[0])
        assert found.get_topic_info()["Count"].tolist() == [2, 2, 2]
    assert topics[0] == topics[1]
    assert topics[0][0::2] == topics[0][1::2]  # the two sentences of a document
