"""Weights that nothing would read are refused by name, by every loader and in every format; idle ones are not."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from changed_checkpoints import change_config, change_gguf, change_tensors
from drawn_checkpoints import write_directory
from lattice_inference import load_cross_encoder, load_encoder, load_model
from lattice_inference.errors import CheckpointError, ModelNotFoundError, UnsupportedError
from lattice_inference.quantize import Calibrator, export_bert_gguf, quantize_int8

DATA = Path(__file__).parents[1] / "data"
ENCODERS = json.loads((DATA / "architectures" / "cases.json").read_text())["cases"]
DECODERS = json.loads((DATA / "decoders" / "cases.json").read_text())["cases"]
QUERY = "attention.self.query"


def drawn(name: str, directory: Path) -> Path:
    return write_directory(directory, ENCODERS.get(name) or DECODERS[name])


def array(*shape: int) -> np.ndarray:
    return np.full(shape, 0.25, np.float32)


def loader(name: str):
    if name in DECODERS:
        return load_model
    return load_cross_encoder if name.startswith("cross") else load_encoder


@pytest.mark.parametrize(
    ("name", "tensor", "shape", "remedy"),
    [
        ("dense-tanh", f"encoder.layer.0.{QUERY}.lora_A.default.weight", (4, 64), "merge_and_unload"),
        ("dense-tanh", "encoder.layer.1.output.adapters.domain.adapter_down.0.bias", (4,), "merge_and_unload"),
        ("dense-tanh", f"encoder.layer.2.{QUERY}.weight", (64, 64), "num_hidden_layers is 2"),
        ("dense-tanh", "embeddings.projection.weight", (64, 64), "taken out of the file"),
        ("dense-tanh", "2_Dense/linear.weight", (64, 64), "taken out of the file"),
        ("roberta", "roberta.encoder.layer.0.attention.self.distance_embedding.weight", (9, 32), "taken out"),
        ("cross-encoder-bert-logits", "classifier.modules_to_save.default.weight", (1, 64), "merge_and_unload"),
        ("cross-encoder-bert-logits", "classifier.out_proj.weight", (1, 64), "taken out of the file"),
        ("llama", "model.layers.0.self_attn.q_proj.bias", (64,), "taken out of the file"),
        ("llama", "model.layers.1.self_attn.q_norm.weight", (16,), "taken out of the file"),
        ("llama", "model.layers.0.mlp.up_proj.lora_B.default.weight", (96, 4), "merge_and_unload"),
        ("mistral", "model.layers.3.input_layernorm.weight", (64,), "num_hidden_layers is 3"),
        ("qwen2", "model.layers.0.self_attn.o_proj.bias", (64,), "taken out of the file"),
        ("qwen3", "model.layers.0.self_attn.q_norm.bias", (24,), "taken out of the file"),
    ],
)
def test_a_tensor_that_nothing_reads_is_refused_by_name(tmp_path, name, tensor, shape, remedy):
    directory = drawn(name, tmp_path)
    change_tensors(directory / "model.safetensors", {tensor: array(*shape)})
    with pytest.raises(CheckpointError, match=f"{re.escape(tensor)}.*{re.escape(remedy)}"):
        loader(name)(directory)


@pytest.mark.parametrize("name", ["all-minilm-l6-v2", "cross-encoder-bert-logits", "camembert", "llama", "qwen2"])
def test_fewer_layers_than_the_file_has_are_refused(tmp_path, name):
    directory = drawn(name, tmp_path)
    layers = json.loads((directory / "config.json").read_text())["num_hidden_layers"]
    change_config(directory, num_hidden_layers=layers - 1)
    with pytest.raises(CheckpointError, match=rf"layers?\.{layers - 1}\..*num_hidden_layers is {layers - 1}"):
        loader(name)(directory)


@pytest.mark.parametrize("folder", ["2_Dense", "6_LayerNorm"])
def test_modules_on_top_are_looked_at_too(tmp_path, folder):
    directory = drawn("dense-chain", tmp_path)
    change_tensors(directory / folder / "model.safetensors", {"linear.lora_A.weight": array(2, 2)})
    with pytest.raises(CheckpointError, match=f"{folder}/linear.lora_A.weight"):
        load_encoder(directory)
    with pytest.raises(CheckpointError, match=f"{folder}/linear.lora_A.weight"):
        quantize_int8(directory, tmp_path / "int8")


def test_a_bias_that_a_dense_layer_leaves_out_is_refused(tmp_path):
    directory = drawn("dense-tanh", tmp_path)
    path = directory / "2_Dense" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"bias": False}))
    with pytest.raises(CheckpointError, match=r"2_Dense/linear\.bias"):
        load_encoder(directory)


@pytest.mark.parametrize("name", ["dense-tanh", "llama"])
def test_shards_are_looked_at_whether_or_not_the_index_names_the_tensor(tmp_path, name):
    directory = drawn(name, tmp_path)
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for shard, held in shards.items():
        save_file(
            {held_name: tensors[held_name] for held_name in held} | {f"extra.{shard}": array(2)}, directory / shard
        )
    weight_map = {held_name: shard for shard, held in shards.items() for held_name in held}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match=r"\(2\).*extra.a.safetensors, extra.b.safetensors"):
        loader(name)(directory)


def test_a_gguf_encoder_with_more_than_its_keys_say_is_refused(tmp_path):
    path = export_bert_gguf(DATA / "tiny_bert", tmp_path / "m.gguf", "F32").path
    with load_encoder(path) as encoder:
        layers = encoder._program._config.num_hidden_layers
    change_gguf(path, bert__block_count=layers - 1)
    for load in (load_encoder, Calibrator):
        with pytest.raises(CheckpointError, match=rf"blk\.{layers - 1}\.attn_q.*bert.block_count is {layers - 1}"):
            load(path)
    change_gguf(path, {"blk.0.attn_q.weight.lora_a": array(2, 2)}, bert__block_count=layers)
    with pytest.raises(CheckpointError, match=r"blk\.0\.attn_q\.weight\.lora_a.*merge"):
        load_encoder(path)


def test_a_gguf_decoder_with_more_than_its_keys_say_is_refused(tmp_path):
    from test_decoder_gguf import write

    path = write(tmp_path / "m.gguf", "llama")
    change_gguf(path, llama__block_count=2)
    for load in (load_model, Calibrator):
        with pytest.raises(CheckpointError, match=r"blk\.2\.attn_q\.weight.*block_count is 2"):
            load(path)
    change_gguf(path, {"blk.1.attn_q.bias": array(64)}, llama__block_count=3)
    with pytest.raises(CheckpointError, match=r"blk\.1\.attn_q\.bias"):
        load_model(path)


def test_an_int8_directory_is_looked_at_as_any_other(tmp_path):
    for name in ("dense-tanh", "llama"):
        source = drawn(name, tmp_path / name)
        quantized = quantize_int8(source, tmp_path / f"{name}-int8").path
        loader(name)(quantized, precision="int8").close()
        change_tensors(quantized / "model.safetensors", {"extra.weight_scale": array(2)})
        with pytest.raises(CheckpointError, match=r"extra\.weight_scale"):
            loader(name)(quantized, precision="int8")


@pytest.mark.parametrize("name", ["dense-tanh", "cross-encoder-bert-logits", "llama"])
def test_what_writes_or_watches_a_model_refuses_what_a_loader_refuses(tmp_path, name):
    directory = drawn(name, tmp_path)
    change_tensors(directory / "model.safetensors", {"extra.weight": array(2, 2)})
    with pytest.raises(CheckpointError, match=r"extra\.weight"):
        Calibrator(directory)
    with pytest.raises(CheckpointError, match=r"extra\.weight"):
        quantize_int8(directory, tmp_path / "int8")
    assert not (tmp_path / "int8").exists()


def test_the_exporter_of_gguf_files_refuses_it_too(tmp_path):
    directory = shutil.copytree(DATA / "tiny_bert", tmp_path / "tiny")
    change_tensors(directory / "model.safetensors", {"extra.weight": array(2, 2)})
    with pytest.raises(CheckpointError, match=r"extra\.weight"):
        export_bert_gguf(directory, tmp_path / "m.gguf")


IDLE = {
    "dense-tanh": [
        "embeddings.position_ids",
        "embeddings.token_type_ids",
        "cls.predictions.bias",
        "cls.predictions.decoder.weight",
        "cls.predictions.transform.LayerNorm.gamma",
        "cls.seq_relationship.weight",
        "classifier.weight",
        "qa_outputs.bias",
    ],
    "roberta": [
        "roberta.embeddings.position_ids",
        "lm_head.layer_norm.weight",
        "lm_head.bias",
        "classifier.out_proj.bias",
    ],
    "cross-encoder-bert-logits": ["bert.embeddings.position_ids", "cls.predictions.bias"],
    "llama": ["model.layers.1.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq", "score.weight"],
}


@pytest.mark.parametrize("name", IDLE)
def test_idle_tensors_are_taken_and_move_no_bit(tmp_path, name):
    directory = drawn(name, tmp_path)

    def result():
        with loader(name)(directory) as model:
            if name in DECODERS:
                from lattice_inference import Extension

                with model.open_cache() as cache:
                    return model.forward([Extension(cache.sequence(), [1, 2, 3])])
            return model.score("a cat", ["a dog"]) if name.startswith("cross") else model.encode(["a cat"]).vectors

    before = result()
    tensors = set(load_file(directory / "model.safetensors"))
    prefix = next((p for p in ("bert.", "roberta.") if f"{p}embeddings.word_embeddings.weight" in tensors), "")
    names = [re.sub(r"^(?:ro)?bert[a]?\.", prefix, idle) for idle in IDLE[name]]
    change_tensors(directory / "model.safetensors", {idle: array(2) for idle in names})
    assert np.array_equal(result(), before)


def test_a_stored_copy_of_a_tied_embedding_is_taken_and_another_matrix_is_not(tmp_path):
    directory = drawn("llama-tied", tmp_path)
    path = directory / "model.safetensors"
    embedding = load_file(path)["model.embed_tokens.weight"]
    change_tensors(path, {"lm_head.weight": embedding})
    load_model(directory).close()
    for other in (embedding + np.float32(1), embedding.astype(np.float16), embedding[1:]):
        change_tensors(path, {"lm_head.weight": other})
        with pytest.raises(CheckpointError, match=r"tie_word_embeddings is true and lm_head\.weight is not"):
            load_model(directory)


@pytest.mark.parametrize("name", ["dense-tanh", "cross-encoder-bert-logits", "llama"])
def test_an_adapter_beside_the_weights_is_refused(tmp_path, name):
    directory = drawn(name, tmp_path)
    (directory / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    for load in (loader(name), Calibrator, lambda path: quantize_int8(path, tmp_path / "int8")):
        with pytest.raises(UnsupportedError, match=r"adapter_config\.json.*merge_and_unload"):
            load(directory)


def test_an_adapter_beside_the_one_gguf_file_of_a_folder_is_refused(tmp_path):
    from test_decoder_gguf import write

    path = write(tmp_path / "m.gguf", "llama")
    (tmp_path / "adapter_config.json").write_text("{}")
    for named in (tmp_path, path):
        with pytest.raises(UnsupportedError, match=r"adapter_config\.json"):
            load_model(named)
    shutil.copy(path, tmp_path / "other.gguf")  # a folder of downloads, where nothing says what the adapter is of
    load_model(path).close()


def test_an_adapter_alone_is_said_to_be_no_model(tmp_path):
    directory = drawn("dense-tanh", tmp_path / "model")
    (directory / "model.safetensors").rename(directory / "adapter_model.safetensors")
    (directory / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelNotFoundError, match="an adapter is no model"):
        load_encoder(directory)


def test_a_gguf_file_of_an_adapter_is_said_to_be_one(tmp_path):
    from test_decoder_gguf import write

    path = change_gguf(write(tmp_path / "m.gguf", "llama"), general__type="adapter")
    for load in (load_model, load_encoder):
        with pytest.raises(UnsupportedError, match="adapter"):
            load(path)
