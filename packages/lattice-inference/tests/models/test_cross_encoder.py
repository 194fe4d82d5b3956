"""The calls of a cross-encoder: batches, cutting, activations, and what is refused."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from drawn_checkpoints import write_directory
from lattice_inference import load_cross_encoder, load_encoder
from lattice_inference.backends.cpu import _cpu, sigmoid
from lattice_inference.errors import InvalidInputError, ModelConfigError, TextTooLongError, UnsupportedError

CASES = json.loads((Path(__file__).parents[1] / "data" / "architectures" / "cases.json").read_text())["cases"]
IDENTITY = "torch.nn.modules.linear.Identity"
DOCUMENTS = ["the cat sat on the mat", "", "dogs and cats are not the same animal", "a zebra"]


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return write_directory(tmp_path_factory.mktemp("cross") / "encoder", CASES["cross-encoder-bert"])


@pytest.fixture
def directory(original, tmp_path):
    target = tmp_path / "encoder"
    shutil.copytree(original, target)
    return target


@pytest.fixture(scope="module")
def scorer(original):
    with load_cross_encoder(original) as made:
        yield made


def edit(path, **changes):
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(content | changes))


def test_scores_are_float32_one_a_document(scorer):
    scores = scorer.score("the cat", DOCUMENTS)
    assert (scores.shape, scores.dtype) == ((4,), np.float32)
    assert scores.tobytes() == scorer.score_pairs([("the cat", document) for document in DOCUMENTS]).tobytes()
    assert ((scores > 0) & (scores < 1)).all()


def test_no_documents_have_no_scores(scorer):
    scores = scorer.score("the cat", [])
    assert (scores.shape, scores.dtype) == ((0,), np.float32)


def test_several_labels_are_columns(tmp_path):
    with load_cross_encoder(write_directory(tmp_path, CASES["cross-encoder-bert-three-labels"])) as scorer:
        assert scorer.label_count == 3
        assert scorer.activation == "identity"
        assert scorer.score("the cat", DOCUMENTS).shape == (4, 3)
        assert scorer.score("the cat", []).shape == (0, 3)


def test_the_sigmoid_of_the_logits_is_the_score(scorer):
    logits = scorer.score("the cat", DOCUMENTS, activation="identity")
    want = 1 / (1 + np.exp(-logits.astype(np.float64)))
    np.testing.assert_allclose(scorer.score("the cat", DOCUMENTS), want, rtol=3e-7)


def test_the_sigmoid_keeps_its_precision_in_both_tails():
    x = np.array([-100, -88, -20, -1, -0.0, 0, 1, 20, 88, 100, np.inf, -np.inf], np.float32)
    with np.errstate(over="ignore"):
        want = 1 / (1 + np.exp(-x.astype(np.float64)))
    for isa in _cpu.available_isas():
        got = sigmoid(x, isa=isa)
        np.testing.assert_allclose(got, want, rtol=4e-7, atol=1e-38)
        assert got.dtype == np.float32


def test_the_order_of_a_pair_and_the_types_of_its_tokens_count(scorer, directory):
    one, other = scorer.score_pairs([("the cat", "a dog"), ("a dog", "the cat")])
    assert one != other
    edit(directory / "tokenizer_config.json", model_input_names=["input_ids", "attention_mask"])
    with load_cross_encoder(directory) as untyped:
        assert untyped.score("the cat", ["a dog"])[0] != one


@pytest.mark.parametrize(
    ("tokenizer_class", "inputs", "typed"),
    [
        ("BertTokenizer", None, True),
        ("BertTokenizerFast", None, True),
        (None, None, True),
        ("PreTrainedTokenizerFast", None, False),
        ("PreTrainedTokenizerFast", ["input_ids", "token_type_ids"], True),
        ("BertTokenizer", ["input_ids"], False),
    ],
)
def test_token_types_are_given_as_transformers_gives_them(scorer, directory, tokenizer_class, inputs, typed):
    """The table is transformers 5.24's: which of its tokenizer classes return token types."""
    options = {"model_max_length": 40, "tokenizer_class": tokenizer_class, "model_input_names": inputs}
    content = {name: value for name, value in options.items() if value is not None}
    (directory / "tokenizer_config.json").write_text(json.dumps(content))
    with load_cross_encoder(directory) as made:
        assert (made.score("the cat", ["a dog"])[0] == scorer.score("the cat", ["a dog"])[0]) is np.bool_(typed)


def test_the_longer_text_of_a_pair_is_cut_first(scorer):
    assert scorer.max_tokens == 40
    long = " ".join(["cat"] * 100)
    assert scorer.count_tokens([("the dog", long)]).tolist() == [105]
    cut = scorer.score("the dog", [long])
    assert cut.tobytes() == scorer.score("the dog", [" ".join(["cat"] * 35)]).tobytes()
    both = scorer.score(long, [long])
    assert both.tobytes() == scorer.score(" ".join(["cat"] * 18), [" ".join(["cat"] * 19)]).tobytes()
    with pytest.raises(TextTooLongError, match="pair 1 has 105 tokens and the model takes 40"):
        scorer.score("the dog", ["a", long], truncate="error")


def test_a_lower_limit_may_be_set(directory):
    with load_cross_encoder(directory, max_tokens=10) as scorer:
        assert scorer.max_tokens == 10
    with pytest.raises(InvalidInputError, match="max_tokens is 1,000 and the model takes 40 tokens"):
        load_cross_encoder(directory, max_tokens=1000)
    with pytest.raises(InvalidInputError, match=r"max_tokens is 3.*at least 4"):
        load_cross_encoder(directory, max_tokens=3)


def test_bad_input_is_refused_by_name(scorer):
    for call, message in [
        (lambda: scorer.score("q", "one string"), "pass \\[document\\]"),
        (lambda: scorer.score(1, ["d"]), "query must be a string, not int"),
        (lambda: scorer.score("q", ["d", None]), "pair 1 holds NoneType"),
        (lambda: scorer.score_pairs([("a", "b"), ("a",)]), "pair 1 is tuple"),
        (lambda: scorer.score_pairs(["ab"]), "pair 0 is str"),
        (lambda: scorer.score("q", ["\ud800"]), "lone surrogate"),
        (lambda: scorer.score("q", ["d"], activation="softmax"), "'softmax'"),
        (lambda: scorer.score("q", ["d"], truncate="right"), "'right'"),
    ]:
        with pytest.raises(InvalidInputError, match=message):
            call()


def test_a_closed_cross_encoder_says_so(original):
    scorer = load_cross_encoder(original)
    scorer.close()
    scorer.close()
    with pytest.raises(InvalidInputError, match="closed"):
        scorer.score("q", ["d"])


def test_pickling_reloads_by_reference(scorer):
    data = pickle.dumps(scorer)
    assert len(data) < 1000
    assert pickle.loads(data).score("the cat", DOCUMENTS).tobytes() == scorer.score("the cat", DOCUMENTS).tobytes()


def test_the_fingerprint_names_what_a_score_depends_on(scorer, directory):
    assert load_cross_encoder(directory).fingerprint == scorer.fingerprint
    assert load_cross_encoder(directory, max_tokens=20).fingerprint != scorer.fingerprint


@pytest.mark.parametrize(
    ("files", "activation"),
    [
        ({}, "sigmoid"),
        ({"config.json": {"sentence_transformers": {"activation_fn": IDENTITY}}}, "identity"),
        ({"config.json": {"sbert_ce_default_activation_function": IDENTITY}}, "identity"),
        (
            {
                "config.json": {"sentence_transformers": {"activation_fn": IDENTITY}},
                "config_sentence_transformers.json": {
                    "model_type": "CrossEncoder",
                    "activation_fn": "torch.nn.modules.activation.Sigmoid",
                },
            },
            "sigmoid",
        ),
    ],
)
def test_the_newest_place_that_states_an_activation_counts(directory, files, activation):
    for name, changes in files.items():
        edit(directory / name, **changes)
    with load_cross_encoder(directory) as scorer:
        assert scorer.activation == activation


def test_the_layout_of_version_6_is_read(directory):
    """As sentence-transformers 6.2 saves a cross-encoder."""
    module = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"}
    (directory / "modules.json").write_text(json.dumps([module]))
    edit(
        directory / "sentence_bert_config.json",
        transformer_task="sequence-classification",
        modality_config={"text": {"method": "forward", "method_output_name": "logits"}},
        module_output_name="scores",
    )
    edit(
        directory / "config_sentence_transformers.json",
        model_type="CrossEncoder",
        activation_fn=IDENTITY,
        default_prompt_name=None,
        prompts={},
    )
    with load_cross_encoder(directory) as scorer:
        assert scorer.activation == "identity"
    dense = {"idx": 1, "name": "1", "path": "1_Dense", "type": "sentence_transformers.base.modules.dense.Dense"}
    (directory / "modules.json").write_text(json.dumps([module, dense]))
    (directory / "1_Dense").mkdir()
    (directory / "1_Dense" / "config.json").write_text("{}")
    shutil.copy(directory / "model.safetensors", directory / "1_Dense")
    with pytest.raises(UnsupportedError, match="built for a cross-encoder is one Transformer"):
        load_cross_encoder(directory)
    (directory / "modules.json").write_text("{}")
    with pytest.raises(ModelConfigError, match="not a list of modules"):
        load_cross_encoder(directory)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("config.json", {"sentence_transformers": {"activation_fn": "my_code.Scale"}}, "my_code.Scale"),
        ("config.json", {"sbert_ce_default_activation_function": 3}, "is 3; built are"),
        ("config_sentence_transformers.json", {"model_type": "SentenceTransformer"}, "'SentenceTransformer'"),
        ("config_sentence_transformers.json", {"default_prompt_name": "query"}, "default_prompt_name"),
        ("sentence_bert_config.json", {"transformer_task": "feature-extraction"}, "'feature-extraction'"),
        ("config.json", {"architectures": ["BertModel"]}, "BertModel, which has no classification head"),
    ],
)
def test_what_is_not_built_is_refused_by_name(directory, name, changes, message):
    edit(directory / name, **changes)
    with pytest.raises(UnsupportedError, match=message):
        load_cross_encoder(directory)


def test_an_encoder_of_the_same_directory_asks_for_its_pooling_and_names_the_other_door(directory):
    with pytest.raises(InvalidInputError, match="load_cross_encoder"):
        load_encoder(directory)
    with load_encoder(directory, pooling="cls") as encoder:
        assert encoder.encode(["a cat"]).vectors.shape == (1, 64)
