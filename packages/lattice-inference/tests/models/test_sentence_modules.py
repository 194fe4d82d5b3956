"""What sentence-transformers' files say about pooling, normalising, lengths and prompts."""

import json
import shutil
from pathlib import Path

import pytest

from lattice_inference.errors import ModelConfigError, ModelNotFoundError, UnsupportedError
from lattice_inference.models.sentence_modules import Pooling, SentenceModules, read_sentence_modules

# Written by sentence-transformers 2.0 (all-MiniLM-L6-v2 as published) and 6.2.0 (the same model, saved again).
LAYOUTS = json.loads((Path(__file__).parent / "sentence_transformers_layouts.json").read_text())
OLD, NEW = LAYOUTS["2.0.0"], LAYOUTS["6.2.0"]


@pytest.fixture
def write(tmp_path):
    """Write the files of a layout with some of them replaced (None: left out), and return the directory."""

    def write(layout, **changes):
        directory = tmp_path / "model"
        shutil.rmtree(directory, ignore_errors=True)
        names = {
            "modules": "modules.json",
            "pooling": "1_Pooling/config.json",
            "normalize": "2_Normalize/config.json",
            "transformer": "sentence_bert_config.json",
            "model": "config_sentence_transformers.json",
            "tokenizer": "tokenizer_config.json",
        }
        files = layout | {names[key]: value for key, value in changes.items()}
        for name, content in files.items():
            if content is not None:
                path = directory / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(content))
        return directory

    return write


def module(kind, path="x", position=9):
    return {"idx": position, "name": str(position), "path": path, "type": kind}


def test_both_layouts_of_the_same_model_read_the_same(write):
    old = read_sentence_modules(write(OLD))
    assert old == SentenceModules(
        pooling=Pooling.MEAN,
        layers=(),
        normalize=True,
        embedding_dimension=384,
        max_seq_length=256,
        do_lower_case=False,
        prompts={},
        default_prompt_name=None,
        similarity=None,
    )
    new = read_sentence_modules(write(NEW))
    assert (new.pooling, new.normalize, new.embedding_dimension, new.max_seq_length) == (Pooling.MEAN, True, 384, 256)
    assert new.prompts == {"query": "query: ", "document": ""}
    assert new.similarity == "cosine"


def test_without_modules_nothing_is_assumed(tmp_path):
    assert read_sentence_modules(tmp_path) is None


def test_normalize_is_optional(write):
    for layout in (OLD, NEW):
        modules = read_sentence_modules(write(layout, modules=layout["modules.json"][:2]))
        assert not modules.normalize


@pytest.mark.parametrize(
    ("switch", "name", "pooling"),
    [
        ("pooling_mode_cls_token", "cls", Pooling.CLS),
        ("pooling_mode_mean_tokens", "mean", Pooling.MEAN),
        ("pooling_mode_lasttoken", "lasttoken", Pooling.LAST),
    ],
)
def test_poolings_that_are_built(write, switch, name, pooling):
    assert read_sentence_modules(write(OLD, pooling={switch: True})).pooling is pooling
    assert read_sentence_modules(write(NEW, pooling={"pooling_mode": name})).pooling is pooling
    assert read_sentence_modules(write(NEW, pooling={"pooling_mode": [name]})).pooling is pooling
    assert read_sentence_modules(write(NEW, pooling={"pooling_mode": name, switch: True})).pooling is pooling


@pytest.mark.parametrize(
    ("pooling", "message"),
    [
        ({"pooling_mode_max_tokens": True}, "'max' is not built"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "'mean_sqrt_len_tokens' is not built"),
        ({"pooling_mode_weightedmean_tokens": True}, "'weightedmean' is not built"),
        ({"pooling_mode": "max"}, "'max' is not built"),
        ({"pooling_mode": "new_kind"}, "'new_kind' is not built"),
        ({"pooling_mode_new_kind": True, "pooling_mode_mean_tokens": True}, "pooling_mode_new_kind is not built"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, r"\(cls, mean\) are concatenated"),
        ({"pooling_mode": ["cls", "mean"]}, r"\(cls, mean\) are concatenated"),
        ({"pooling_mode": "mean", "include_prompt": False}, "include_prompt is false"),
        ({"pooling_mode": [["mean"]]}, "is not built"),
    ],
)
def test_poolings_that_are_not_built_are_refused_by_name(write, pooling, message):
    with pytest.raises(UnsupportedError, match=message):
        read_sentence_modules(write(OLD, pooling=pooling))


@pytest.mark.parametrize(
    "pooling",
    [
        {},
        {"pooling_mode_mean_tokens": False},
        {"pooling_mode": []},
        {"pooling_mode": None},
        {"pooling_mode": 1},
        {"pooling_mode_mean_tokens": 1},
        {"pooling_mode_mean_tokens": "true"},
        {"pooling_mode": "mean", "pooling_mode_cls_token": True},
        {"pooling_mode": "mean", "include_prompt": None},
        {"pooling_mode": "mean", "embedding_dimension": 0},
        {"pooling_mode": "mean", "embedding_dimension": 3, "word_embedding_dimension": 4},
        [],
    ],
)
def test_a_pooling_file_that_says_nothing_or_two_things_is_an_error(write, pooling):
    with pytest.raises(ModelConfigError, match="1_Pooling"):
        read_sentence_modules(write(OLD, pooling=pooling))


def test_a_missing_pooling_file_is_an_error(write):
    with pytest.raises(ModelNotFoundError, match="1_Pooling"):
        read_sentence_modules(write(OLD, pooling=None))


@pytest.mark.parametrize(
    "kind",
    [
        "sentence_transformers.models.WordEmbeddings",
        "sentence_transformers.models.WeightedLayerPooling",
        "sentence_transformers.sentence_transformer.modules.cnn.CNN",
        "custom_code.MyPooling",
        "sentence_transformers.models.pooling",
    ],
)
def test_any_other_module_is_refused_by_name(write, kind):
    with pytest.raises(UnsupportedError, match=f"module 2 is '{kind}'"):
        read_sentence_modules(write(OLD, modules=[*OLD["modules.json"][:2], module(kind)]))


def test_modules_in_another_order_or_number_are_refused(write):
    transformer, pooling, normalize = OLD["modules.json"]
    for modules in (
        [transformer],
        [pooling, transformer],
        [transformer, normalize],
        [transformer, normalize, pooling],
        [transformer, pooling, pooling],
        [transformer, pooling, normalize, transformer],
        [normalize, transformer, pooling],
    ):
        with pytest.raises(UnsupportedError, match=r"modules\.json"):
            read_sentence_modules(write(OLD, modules=modules))


@pytest.mark.parametrize("path", ["..", "../1_Pooling", "a/../../b", "/etc", "C:\\x", "..\\x", "a\0b"])
def test_paths_stay_inside_the_directory(write, path):
    transformer, pooling, _ = OLD["modules.json"]
    with pytest.raises(ModelConfigError, match="leaves the model's directory"):
        read_sentence_modules(write(OLD, modules=[transformer, pooling | {"path": path}]))


def test_a_transformer_in_a_folder_of_its_own_is_refused(write):
    transformer, pooling, _ = OLD["modules.json"]
    with pytest.raises(UnsupportedError, match="'0_Transformer'"):
        read_sentence_modules(write(OLD, modules=[transformer | {"path": "0_Transformer"}, pooling]))


@pytest.mark.parametrize("modules", [{}, [], [1], [{}], [{"type": 1, "path": ""}], ["x"] * 100, None])
def test_a_malformed_list_of_modules_is_an_error(write, modules):
    directory = write(OLD)
    (directory / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ModelConfigError, match=r"modules\.json"):
        read_sentence_modules(directory)


def test_module_arguments_are_refused(write):
    transformer, pooling, _ = NEW["modules.json"]
    with pytest.raises(UnsupportedError, match="kwargs"):
        read_sentence_modules(write(NEW, modules=[transformer, pooling | {"kwargs": ["task"]}]))


def test_normalizing_anything_but_the_result_is_refused(write):
    with pytest.raises(UnsupportedError, match="'token_embeddings'"):
        read_sentence_modules(write(NEW, normalize={"module_input_name": "token_embeddings"}))


@pytest.mark.parametrize(
    ("transformer", "tokenizer", "expected"),
    [
        ({"max_seq_length": 128}, {"model_max_length": 512}, 128),
        ({"max_seq_length": None}, {"model_max_length": 512}, 512),
        ({}, {"model_max_length": 512}, 512),
        (None, {"model_max_length": 512}, 512),
        (None, {"model_max_length": 1000000000000000019884624838656}, None),
        (None, {"model_max_length": 1e30}, None),
        (None, {}, None),
        (None, None, None),
    ],
)
def test_the_longest_input(write, transformer, tokenizer, expected):
    modules = read_sentence_modules(write(OLD, transformer=transformer, tokenizer=tokenizer))
    assert modules.max_seq_length == expected


@pytest.mark.parametrize("value", [0, -1, 1.5, "128", True, 2**40])
def test_a_longest_input_that_is_no_count_is_an_error(write, value):
    with pytest.raises(ModelConfigError, match="max_seq_length"):
        read_sentence_modules(write(OLD, transformer={"max_seq_length": value}))


@pytest.mark.parametrize("value", [0, -1, 1.5, "128", True])
def test_a_tokenizer_limit_that_is_no_count_is_an_error(write, value):
    with pytest.raises(ModelConfigError, match="model_max_length"):
        read_sentence_modules(write(OLD, transformer=None, tokenizer={"model_max_length": value}))


def test_lower_casing_is_reported(write):
    assert read_sentence_modules(write(OLD, transformer={"do_lower_case": True})).do_lower_case
    with pytest.raises(ModelConfigError, match="do_lower_case"):
        read_sentence_modules(write(OLD, transformer={"do_lower_case": "yes"}))


def test_the_transformer_file_may_be_named_for_another_family(write):
    directory = write(OLD, transformer=None, tokenizer=None)
    (directory / "sentence_xlm-roberta_config.json").write_text('{"max_seq_length": 77}')
    assert read_sentence_modules(directory).max_seq_length == 77


@pytest.mark.parametrize(
    "changes",
    [
        {"transformer_task": "fill-mask"},
        {"module_output_name": "logits"},
        {"modality_config": {"image": {}}},
        {"modality_config": {"text": {"method": "get_text_features", "method_output_name": None}}},
        {"modality_config": 1},
        {"query_length": 32},
    ],
)
def test_other_uses_of_the_transformer_are_refused(write, changes):
    transformer = NEW["sentence_bert_config.json"] | changes
    with pytest.raises(UnsupportedError, match="sentence_bert_config"):
        read_sentence_modules(write(NEW, transformer=transformer))


def test_prompts_are_read(write):
    model = {"prompts": {"query": "Represent: ", "passage": ""}, "default_prompt_name": "query"}
    modules = read_sentence_modules(write(OLD, model=model))
    assert modules.prompts == model["prompts"]
    assert modules.default_prompt_name == "query"
    with pytest.raises(TypeError):
        modules.prompts["query"] = "x"


@pytest.mark.parametrize(
    "model",
    [
        {"prompts": []},
        {"prompts": "x"},
        {"prompts": {"query": 1}},
        {"prompts": {"query": None}},
        {"default_prompt_name": "query"},
        {"prompts": {"query": "x"}, "default_prompt_name": "passage"},
        {"default_prompt_name": ["query"]},
    ],
)
def test_malformed_prompts_are_an_error(write, model):
    with pytest.raises(ModelConfigError, match="config_sentence_transformers"):
        read_sentence_modules(write(OLD, model=model))


@pytest.mark.parametrize(
    "model", [{"model_type": "SparseEncoder"}, {"similarity_fn_name": "jaccard"}, {"similarity_fn_name": 1}]
)
def test_other_kinds_of_model_are_refused(write, model):
    with pytest.raises(UnsupportedError, match="config_sentence_transformers"):
        read_sentence_modules(write(OLD, model=model))


def test_the_model_file_is_optional(write):
    modules = read_sentence_modules(write(OLD, model=None))
    assert (dict(modules.prompts), modules.default_prompt_name, modules.similarity) == ({}, None, None)


@pytest.mark.model
def test_the_real_model_is_read(minilm_directory):
    modules = read_sentence_modules(minilm_directory)
    assert (modules.pooling, modules.normalize, modules.max_seq_length) == (Pooling.MEAN, True, 256)
