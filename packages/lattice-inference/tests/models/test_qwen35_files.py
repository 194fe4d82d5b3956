"""Files of Qwen3.5: what they may leave out, and which are refused by name."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import qwen35_files as files
from lattice_inference import load_model
from lattice_inference.cli import main
from lattice_inference.errors import CheckpointError, ModelConfigError, UnsupportedError
from lattice_inference.models.family import LOGITS
from lattice_inference.models.opened_model import open_model
from lattice_inference.models.qwen35_config import Qwen35Config
from qwen35_gguf import write_gguf_py


def changed(tmp_path, config=None, tensors=None, *, case="double", outer=None, **options):
    """A directory with another configuration, and tensors replaced, or left out where they are None."""
    directory = files.write(tmp_path / "m", files.CASES[case], **options)
    stored = json.loads((directory / "config.json").read_text())
    stored.get("text_config", stored).update(config or {})
    stored.update(outer or {})
    (directory / "config.json").write_text(json.dumps(stored))
    found = load_file(directory / "model.safetensors") | (tensors or {})
    save_file({name: array for name, array in found.items() if array is not None}, directory / "model.safetensors")
    return directory


def rope(**changes):
    return {"rope_parameters": files.text_of({})["rope_parameters"] | changes}


LINEAR = "model.layers.1.linear_attn."


@pytest.mark.parametrize(
    ("config", "tensors", "error", "problem"),
    [
        ({"linear_num_value_heads": 3}, {}, ModelConfigError, "3 is no multiple of linear_num_key_heads 2"),
        ({"linear_num_key_heads": 0}, {}, ModelConfigError, "linear_num_key_heads"),
        ({"linear_key_head_dim": None}, {}, ModelConfigError, "linear_key_head_dim"),
        ({"linear_num_value_heads": 8192, "linear_value_head_dim": 1024}, {}, ModelConfigError, "columns"),
        ({"linear_conv_kernel_dim": 1}, {}, ModelConfigError, "linear_conv_kernel_dim"),
        ({"linear_conv_kernel_dim": 3}, {}, CheckpointError, r"conv1d\.weight \(128, 1, 4\)"),
        ({"linear_value_head_dim": 8}, {}, CheckpointError, r"needs a tensor of shape \(96, 40\)"),
        ({"layer_types": ["full_attention"]}, {}, ModelConfigError, "layer_types"),
        ({"layer_types": [["full_attention"]] * 4}, {}, ModelConfigError, "layer_types"),
        ({"layer_types": ["linear_attention"] * 4}, {}, UnsupportedError, "none of the 4 layers attends"),
        ({"full_attention_interval": 5}, {}, UnsupportedError, "none of the 4 layers attends"),
        (
            {"layer_types": ["full_attention"] + ["linear_attention"] * 3},
            {},
            CheckpointError,
            r"layers\.3\.linear_attn\.A_log",
        ),
        ({"full_attention_interval": 0}, {}, ModelConfigError, "full_attention_interval"),
        ({"attn_output_gate": False}, {}, UnsupportedError, "attn_output_gate is False"),
        ({"attention_bias": True}, {}, UnsupportedError, "attention_bias is True"),
        ({"mtp_num_hidden_layers": 99}, {}, ModelConfigError, "mtp_num_hidden_layers"),
        (rope(mrope_section=[2, 2, 1]), {}, ModelConfigError, "mrope_section.* has the sum 5, and 4 pairs turn"),
        (rope(mrope_section="211"), {}, ModelConfigError, "mrope_section"),
        (rope(partial_rotary_factor=0.07), {}, ModelConfigError, "head_dim"),
        ({"architectures": ["Qwen3_5ForTokenClassification"]}, {}, UnsupportedError, "Qwen3_5ForTokenClassification"),
        ({"model_type": "qwen3_next"}, {}, UnsupportedError, "built are Qwen3NextForCausalLM"),
        ({"quantization_config": {}}, {}, UnsupportedError, "quantization_config"),
        ({"num_hidden_layers": 900}, {}, CheckpointError, "layers.4"),
        ({"num_hidden_layers": 3}, {}, UnsupportedError, "none of the 3 layers attends"),
        ({"tie_word_embeddings": False}, {}, CheckpointError, "lm_head.weight"),
        ({}, {f"{LINEAR}A_log": None}, CheckpointError, r"layers\.1\.linear_attn\.A_log"),
        ({}, {f"{LINEAR}A_log": np.zeros(3, np.float32)}, CheckpointError, r"A_log \(3,\)"),
        ({}, {f"{LINEAR}dt_bias": None}, CheckpointError, r"layers\.1\.linear_attn\.dt_bias"),
        ({}, {f"{LINEAR}conv1d.bias": np.zeros(128, np.float32)}, CheckpointError, r"conv1d\.bias"),
        (
            {},
            {"model.layers.3.self_attn.q_proj.weight": np.zeros((160, 40), np.float32)},
            CheckpointError,
            r"shape \(128, 40\), the checkpoint has model\.layers\.3\.self_attn\.q_proj\.weight \(160, 40\)",
        ),
    ],
)
def test_a_directory_that_does_not_fit_is_refused_before_much_is_allocated(tmp_path, config, tensors, error, problem):
    directory = changed(tmp_path, config, tensors)
    tracemalloc.start()
    with pytest.raises(error, match=problem):
        load_model(directory)
    assert tracemalloc.get_traced_memory()[1] < 16_000_000
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("outer", "error", "problem"),
    [
        ({"tie_word_embeddings": True}, ModelConfigError, "is true, and in text_config it is false"),
        ({"text_config": None}, ModelConfigError, "text_config"),
        ({"text_config": {"model_type": "qwen3"}}, UnsupportedError, "text_config: model_type is 'qwen3'"),
        ({"architectures": ["Qwen3_5MoeForConditionalGeneration"]}, UnsupportedError, "Qwen3_5Moe"),
        ({"model_type": "qwen4_exp"}, UnsupportedError, "qwen4_exp"),
    ],
)
def test_contradictions_beside_a_vision_part_are_named(tmp_path, outer, error, problem):
    directory = changed(tmp_path, case="triple", outer=outer, with_vision=True)
    with pytest.raises(error, match=problem):
        load_model(directory)


def test_experts_that_do_not_fit_are_refused(tmp_path):
    for config, error, problem in (
        ({"num_experts_per_tok": 7}, ModelConfigError, "more than the 6 experts"),
        ({"mlp_only_layers": [1]}, UnsupportedError, "mlp_only_layers"),
        ({"shared_expert_intermediate_size": 20}, CheckpointError, r"shared_expert\.gate_proj\.weight \(28, 40\)"),
        ({"moe_intermediate_size": 28}, CheckpointError, r"experts\.0\.gate_proj\.weight \(20, 40\)"),
    ):
        with pytest.raises(error, match=problem):
            load_model(changed(tmp_path, config, case="experts"))


@pytest.mark.parametrize("name", ["mtp.fc.weight", "mtp.norm.weight", "mtp.layers.0.mlp.up_proj.weight"])
def test_a_part_of_the_layers_for_further_tokens_is_refused(tmp_path, name):
    with pytest.raises(
        CheckpointError, match=f"holds a part of the 1 layers that predict further tokens, without '{name}"
    ):
        load_model(changed(tmp_path, {}, {name: None}, with_mtp=True))


def test_such_layers_may_be_missing_or_be_there_without_being_promised(tmp_path):
    with open_model(files.write(tmp_path / "without", {})) as model:
        model.check(LOGITS)
        assert model.config.mtp_layers == 1
        assert model._weights(LOGITS).predicting is None
    with open_model(files.write(tmp_path / "idle", {"mtp_num_hidden_layers": 0}, with_mtp=True)) as model:
        model.check(LOGITS)
        assert model._weights(LOGITS).predicting is None


def test_inspect_tells_what_is_idle(tmp_path, capsys):
    directory = files.write(tmp_path / "m", files.CASES["triple"], with_vision=True, with_mtp=True)
    assert main(["inspect", str(directory), "--json"]) == 0
    idle = json.loads(capsys.readouterr().out)["idle"]
    names = [name for name in load_file(directory / "model.safetensors") if "visual" in name or name.startswith("mtp")]
    assert idle["tensor_count"] == len(names)
    assert main(["inspect", str(directory)]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("idle")]
    assert line.split()[1] == str(len(names))
    assert "not read by the model" in line


def test_layers_follow_the_list_or_the_interval():
    listed = Qwen35Config.from_mapping(files.config_of(files.CASES["triple"]))
    assert listed.delta.layers == (False, True, True, False, True)
    counted = Qwen35Config.from_mapping(files.config_of({"full_attention_interval": 3, "num_hidden_layers": 7}))
    assert counted.delta.layers == (True, True, False, True, True, False, True)
    text = files.config_of({})
    del text["full_attention_interval"], text["max_position_embeddings"], text["rope_parameters"]
    by_default = Qwen35Config.from_mapping(text)
    assert by_default.delta.layers == (True, True, True, False)
    assert by_default.context_length == 32_768
    assert by_default.rotary_dim == 4  # a quarter of 16
    del text["head_dim"]
    assert Qwen35Config.from_mapping(text).head_dim == 256  # as in transformers


@pytest.mark.parametrize(
    ("keys", "drop", "error", "problem"),
    [
        ({"qwen35.ssm.time_step_rank": 3}, (), ModelConfigError, r"ssm\.time_step_rank: 3 is no multiple"),
        ({"qwen35.ssm.inner_size": 63}, (), ModelConfigError, r"ssm\.inner_size"),
        ({"qwen35.ssm.conv_kernel": 1}, (), ModelConfigError, r"ssm\.conv_kernel"),
        ({"qwen35.ssm.state_size": 8}, (), CheckpointError, r"attn_qkv\.weight \(128, 40\)"),
        ({"qwen35.rope.dimension_sections": [2, 2, 1, 0]}, (), ModelConfigError, "has the sum 5, and 4 pairs turn"),
        ({"qwen35.attention.recurrent_layers": [True, False]}, (), ModelConfigError, "recurrent_layers"),
        ({"qwen35.nextn_predict_layers": 99}, (), ModelConfigError, "nextn_predict_layers"),
        ({"qwen35.nextn_predict_layers": 5}, (), ModelConfigError, "block_count"),
        ({"qwen35.nextn_predict_layers": 0}, (), CheckpointError, r"holds no tensor 'blk\.4"),
        ({}, ("blk.1.ssm_a",), CheckpointError, r"holds no tensor 'blk\.1\.ssm_a'"),
        ({}, ("blk.3.attn_q.weight",), CheckpointError, r"holds no tensor 'blk\.3\.attn_q\.weight"),
        ({}, ("blk.4.nextn.eh_proj.weight",), CheckpointError, r"a part of the 1 layers .*'blk\.4\.nextn\.eh_proj"),
    ],
)
def test_gguf_files_that_do_not_fit_are_refused(tmp_path, keys, drop, error, problem):
    directory = files.write(tmp_path / "m", {}, with_mtp=True)
    path = write_gguf_py(tmp_path / "m.gguf", directory, with_tokenizer=False, keys=keys, drop=drop)
    with pytest.raises(error, match=problem):
        load_model(path)
