"""BERT's configuration: read strictly, field by field."""

import json
import math
from pathlib import Path

import pytest

from lattice_inference.errors import ModelConfigError, ModelNotFoundError, UnsupportedError
from lattice_inference.models.bert_config import Activation, BertArchitecture, BertConfig, BertFamily

VALID = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "vocab_size": 30522,
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}
REQUIRED = sorted(VALID)
COUNTS = {
    "vocab_size": 4_000_000,
    "hidden_size": 2**20,
    "num_hidden_layers": 4096,
    "num_attention_heads": 8192,
    "intermediate_size": 2**20,
    "max_position_embeddings": 2**22,
    "type_vocab_size": 2**16,
}


def config_with(**changes):
    return BertConfig.from_mapping(VALID | changes)


def test_every_field_is_taken_from_the_file():
    assert config_with(pad_token_id=7, unknown_field={"a": 1}) == BertConfig(
        family=BertFamily.BERT,
        architecture=BertArchitecture.ENCODER,
        vocab_size=30522,
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
        hidden_act=Activation.GELU,
        max_position_embeddings=512,
        type_vocab_size=2,
        layer_norm_eps=1e-12,
        position_embedding_type="absolute",
        pad_token_id=7,
        label_count=2,
    )
    assert config_with().head_size == 32


def test_only_the_two_fields_that_hugging_face_leaves_out_have_a_default():
    config = config_with()
    assert (config.position_embedding_type, config.pad_token_id) == ("absolute", 0)
    assert config_with(pad_token_id=None).pad_token_id is None


def test_a_config_of_transformers_reads_as_transformers_reads_it():
    golden = json.loads((Path(__file__).parent / "bert_config_by_transformers.json").read_text())
    config = BertConfig.from_mapping(golden["written"])
    assert config.architecture is BertArchitecture.SEQUENCE_CLASSIFICATION
    assert config.hidden_act is Activation.GELU_NEW
    assert {name: getattr(config, name) for name in golden["read"]} == golden["read"]


@pytest.mark.parametrize("name", REQUIRED)
def test_a_missing_field_is_an_error_that_names_it(name):
    with pytest.raises(ModelConfigError, match=rf"config\.json: {name}: is missing"):
        BertConfig.from_mapping({key: value for key, value in VALID.items() if key != name})


@pytest.mark.parametrize("name", REQUIRED)
@pytest.mark.parametrize("value", [None, {}, [], [1, 2]])
def test_a_field_of_another_type_is_an_error_that_names_it(name, value):
    with pytest.raises(ModelConfigError, match=name):
        config_with(**{name: value})


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", [True, False, 1.0, "12", 0, -1, 2**31, 2**63, 10**400, 1e400, math.nan])
def test_a_count_is_an_integer_in_range(name, value):
    with pytest.raises(ModelConfigError, match=f"{name}: ") as caught:
        config_with(**{name: value})
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("name", COUNTS)
def test_a_count_just_over_its_cap_is_refused(name):
    with pytest.raises(ModelConfigError, match=f"{name}: {COUNTS[name] + 1} is outside of 1 to {COUNTS[name]:,}"):
        config_with(**{name: COUNTS[name] + 1})


@pytest.mark.parametrize("value", [0, 0.0, -1e-12, math.nan, math.inf, -math.inf, 1.5, True, "1e-12"])
def test_epsilon_is_a_small_positive_number(value):
    with pytest.raises(ModelConfigError, match="layer_norm_eps"):
        config_with(layer_norm_eps=value)


def test_epsilon_may_be_an_integer_one():
    assert isinstance(config_with(layer_norm_eps=1).layer_norm_eps, float)


@pytest.mark.parametrize("value", [-1, 30522, True, 0.0, "0"])
def test_the_padding_token_is_in_the_vocabulary(value):
    with pytest.raises(ModelConfigError, match="pad_token_id"):
        config_with(pad_token_id=value)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"hidden_size": 385}, "hidden_size"),
        ({"num_attention_heads": 7}, "hidden_size"),
        ({"hidden_size": 4096, "num_attention_heads": 1}, "num_attention_heads"),
        ({"vocab_size": 4_000_000, "hidden_size": 8192, "num_attention_heads": 64}, "vocab_size"),
        ({"max_position_embeddings": 2**22, "hidden_size": 4096, "num_attention_heads": 64}, "max_position_embeddings"),
        ({"intermediate_size": 2**20, "hidden_size": 4096, "num_attention_heads": 64}, "intermediate_size"),
    ],
)
def test_sizes_that_do_not_go_together_are_refused(changes, field):
    with pytest.raises(ModelConfigError, match=f"{field}: "):
        config_with(**changes)


@pytest.mark.parametrize("name", ["gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_python", "relu", "silu"])
def test_known_activations_are_read(name):
    assert config_with(hidden_act=name).hidden_act.value == name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "quick_gelu"}, "hidden_act is 'quick_gelu'; built are 'gelu'"),
        ({"hidden_act": "GELU"}, "'GELU'"),
        ({"model_type": "xlm-roberta"}, "architectures is 'BertModel'; built are 'XLMRobertaModel'"),
        ({"model_type": "distilbert"}, "model_type is 'distilbert'; built are 'bert', 'roberta', 'xlm-roberta'"),
        ({"architectures": ["XLMRobertaModel"]}, "'XLMRobertaModel'; built are 'BertModel'"),
        ({"architectures": ["Bert"]}, "'Bert'; built are 'BertModel'"),
        ({"model_type": "qwen3"}, "'qwen3'"),
        ({"architectures": ["BertForQuestionAnswering"]}, "'BertForQuestionAnswering'; built are 'BertModel'"),
        ({"position_embedding_type": "relative_key"}, "'relative_key'; only 'absolute'"),
        ({"is_decoder": True}, "is_decoder is true"),
        ({"add_cross_attention": True}, "add_cross_attention is true"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ],
)
def test_what_is_not_built_is_refused_by_name(changes, message):
    with pytest.raises(UnsupportedError, match=message):
        config_with(**changes)


@pytest.mark.parametrize("family", BertFamily)
@pytest.mark.parametrize("architecture", BertArchitecture)
def test_known_architectures_are_read(family, architecture):
    name = f"{family.class_name}{architecture.value}"
    config = config_with(model_type=family.value, architectures=[name])
    assert (config.family, config.architecture) == (family, architecture)


XLMR = {
    "model_type": "xlm-roberta",
    "architectures": ["XLMRobertaModel"],
    "max_position_embeddings": 514,
    "pad_token_id": 1,
    "type_vocab_size": 1,
}


def test_positions_of_the_roberta_kin_begin_behind_the_padding_token():
    assert (config_with().position_padding_id, config_with().longest_input) == (None, 512)
    config = config_with(**XLMR)
    assert (config.position_padding_id, config.longest_input) == (1, 512)
    assert config_with(**XLMR | {"pad_token_id": 5}).longest_input == 508
    without = {key: value for key, value in XLMR.items() if key != "pad_token_id"}
    assert config_with(**without).position_padding_id == 1


def test_a_roberta_without_a_padding_token_or_without_room_behind_it_is_refused():
    with pytest.raises(ModelConfigError, match="pad_token_id: is null"):
        config_with(**XLMR | {"pad_token_id": None})
    with pytest.raises(ModelConfigError, match="max_position_embeddings: 2 leaves no position"):
        config_with(**XLMR | {"max_position_embeddings": 2})


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({}, 2),
        ({"id2label": None}, 2),
        ({"num_labels": 5}, 5),
        ({"id2label": {"0": "LABEL_0"}}, 1),
        ({"id2label": {"0": "no", "1": "maybe", "2": "yes"}}, 3),
    ],
)
def test_labels_are_counted_as_transformers_counts_them(fields, count):
    assert config_with(**fields).label_count == count


@pytest.mark.parametrize("fields", [{"id2label": {}}, {"id2label": ["a"]}, {"num_labels": 0}, {"num_labels": "1"}])
def test_labels_that_cannot_be_counted_are_an_error(fields):
    with pytest.raises(ModelConfigError, match=next(iter(fields))):
        config_with(**fields)


@pytest.mark.parametrize("value", [[], ["BertModel", "BertModel"], "BertModel", [None]])
def test_exactly_one_architecture_is_needed(value):
    with pytest.raises(ModelConfigError, match="architectures"):
        config_with(architectures=value)


def test_errors_name_the_file(tmp_path):
    with pytest.raises(ModelNotFoundError, match=r"config\.json"):
        BertConfig.from_directory(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(VALID | {"hidden_size": 0}))
    with pytest.raises(ModelConfigError, match=f"^{path}: hidden_size"):
        BertConfig.from_directory(tmp_path)
    path.write_text(json.dumps(VALID).replace("1e-12", "NaN"))
    with pytest.raises(ModelConfigError, match=f"{path}: NaN"):
        BertConfig.from_directory(tmp_path)


@pytest.mark.model
def test_the_real_config_is_read(minilm_directory):
    assert BertConfig.from_directory(minilm_directory) == config_with()
