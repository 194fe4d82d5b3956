"""BERT encoders in GGUF files: the bits of the directory's model, and llama.cpp's names and keys."""

import json
import pickle
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest

from lattice_inference import load_encoder
from lattice_inference.checkpoint.gguf import open_gguf_file
from lattice_inference.checkpoint.gguf_writer import EncodedEntry, TensorToWrite, write_gguf
from lattice_inference.errors import (
    CheckpointError,
    InvalidInputError,
    ModelConfigError,
    ModelNotFoundError,
    UnsupportedError,
)
from lattice_inference.quantize import export_bert_gguf

TEXTS = ["a text", "", "Another text, with ünïcödé 日本 😀", "word " * 30]


@pytest.fixture
def tiny(data_directory) -> Path:
    return data_directory / "tiny_bert"


@pytest.fixture
def exported(tiny, tmp_path) -> Path:
    return export_bert_gguf(tiny, tmp_path / "tiny.gguf", "F32").path


def rewrite(source: Path, destination: Path, leave_out: tuple[str, ...] = (), **changes: object) -> Path:
    """Write a GGUF file again with some metadata changed (None: left out) and some tensors left out."""
    with open_gguf_file(source) as file:
        metadata = {key: EncodedEntry(file.encoded_entry(key)) for key in file.metadata} | changes
        kept = {key: value for key, value in metadata.items() if value is not None}
        tensors = [
            TensorToWrite(name, file.info(name).shape, file.info(name).dtype, lambda name=name: [file.array(name)])
            for name in file.names()
            if name not in leave_out
        ]
        write_gguf(destination, kept, tensors)
    return destination


def test_vectors_are_the_bits_of_the_directory(tiny, exported):
    with load_encoder(tiny) as one, load_encoder(exported, max_tokens=one.max_tokens) as other:
        assert other.encode(TEXTS).vectors.tobytes() == one.encode(TEXTS).vectors.tobytes()
        assert (other.pooling, other.dimension, other.max_tokens) == (one.pooling, one.dimension, one.max_tokens)
        assert other.fingerprint != one.fingerprint
        assert other.directory == exported
        again = pickle.loads(pickle.dumps(other))
        assert again.encode(TEXTS).vectors.tobytes() == one.encode(TEXTS).vectors.tobytes()


def test_names_and_keys_are_llama_cpps(tiny, exported):
    reader = gguf.GGUFReader(exported)
    config = json.loads((tiny / "config.json").read_text())
    mapping = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, config["num_hidden_layers"])
    layers = range(config["num_hidden_layers"])
    parts = ["attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"]
    parts += ["attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm"]
    modules = [f"encoder.layer.{layer}.{part}" for layer in layers for part in parts]
    modules += [f"embeddings.{name}" for name in ("word_embeddings", "token_type_embeddings", "position_embeddings")]
    expected = {f"{mapping.get_name(module)}.weight" for module in [*modules, "embeddings.LayerNorm"]}
    expected |= {
        name.removesuffix("weight") + "bias" for name in expected if "embd.w" not in name and "types" not in name
    }
    assert {tensor.name for tensor in reader.tensors} == expected
    assert reader.fields[gguf.Keys.General.ARCHITECTURE].contents() == "bert"
    for key, field in [
        (gguf.Keys.LLM.BLOCK_COUNT, "num_hidden_layers"),
        (gguf.Keys.LLM.EMBEDDING_LENGTH, "hidden_size"),
        (gguf.Keys.LLM.FEED_FORWARD_LENGTH, "intermediate_size"),
        (gguf.Keys.LLM.CONTEXT_LENGTH, "max_position_embeddings"),
        (gguf.Keys.Attention.HEAD_COUNT, "num_attention_heads"),
    ]:
        assert reader.fields[key.format(arch="bert")].contents() == config[field]
    epsilon = reader.fields[gguf.Keys.Attention.LAYERNORM_EPS.format(arch="bert")].contents()
    assert epsilon == np.float32(config["layer_norm_eps"])
    assert reader.fields[gguf.Keys.Attention.CAUSAL.format(arch="bert")].contents() is False


@pytest.mark.parametrize(("dtype", "bound"), [("F16", 1e-3), ("BF16", 1e-2), ("Q8_0", 2e-2)])
def test_smaller_types_come_near(tiny, tmp_path, dtype, bound):
    """Case G6: 16-bit tensors load, near the original; so do quantized ones."""
    report = export_bert_gguf(tiny, tmp_path / "small.gguf", dtype)
    assert report.file_bytes < (tiny / "model.safetensors").stat().st_size
    with load_encoder(tiny) as one, load_encoder(report.path, max_tokens=one.max_tokens) as other:
        difference = np.abs(other.encode(TEXTS).vectors - one.encode(TEXTS).vectors).max()
    assert 0 < difference < bound


@pytest.mark.slow
@pytest.mark.model
def test_the_real_minilm(minilm_directory, tmp_path):
    with load_encoder(minilm_directory) as encoder:
        expected = encoder.encode(TEXTS).vectors
        limit = encoder.max_tokens
    for dtype, least in (("F32", 1.0), ("F16", 0.999999), ("Q8_0", 0.999)):
        path = export_bert_gguf(minilm_directory, tmp_path / f"{dtype}.gguf", dtype).path  # type: ignore[arg-type]
        with load_encoder(path, max_tokens=limit) as encoder:
            vectors = encoder.encode(TEXTS).vectors
        if dtype == "F32":
            assert vectors.tobytes() == expected.tobytes()
        assert (vectors * expected).sum(axis=1).min() > least - 1e-6


def test_pooling_of_a_file_that_names_none_is_the_callers(exported, tmp_path):
    path = rewrite(exported, tmp_path / "none.gguf", **{"bert.pooling_type": None})
    with pytest.raises(InvalidInputError, match=r"no bert\.pooling_type"):
        load_encoder(path)
    with load_encoder(path, pooling="cls") as encoder:
        assert encoder.pooling == "cls"


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"general.architecture": "nomic-bert"}, UnsupportedError, "general.architecture is 'nomic-bert'"),
        ({"general.architecture": 3}, ModelConfigError, "general.architecture: 3 is not a string"),
        ({"bert.pooling_type": 4}, UnsupportedError, "bert.pooling_type is 4"),
        ({"bert.attention.causal": True}, UnsupportedError, "bert.attention.causal"),
        ({"bert.block_count": None}, ModelConfigError, "bert.block_count: is missing"),
        ({"bert.block_count": 2**31}, ModelConfigError, "bert.block_count: 2147483648 is outside"),
        ({"bert.attention.head_count": 0}, ModelConfigError, "bert.attention.head_count: 0 is outside"),
        ({"bert.attention.head_count": 7}, ModelConfigError, "not a multiple of num_attention_heads 7"),
        ({"bert.embedding_length": 2**31}, ModelConfigError, "bert.embedding_length: 2147483648 is outside"),
        ({"bert.embedding_length": 64}, CheckpointError, "the model needs a tensor of shape"),
        ({"bert.context_length": 10**6}, ModelConfigError, "bert.context_length: is 1,000,000, and the position"),
        ({"bert.attention.layer_norm_epsilon": float("nan")}, ModelConfigError, "layer_norm_epsilon: nan"),
    ],
)
def test_bad_keys_are_refused_by_name(exported, tmp_path, changes, error, message):
    """Case G14: no heads, absurd widths, fields missing."""
    path = rewrite(exported, tmp_path / "bad.gguf", **changes)
    with pytest.raises(error, match=message):
        load_encoder(path)


@pytest.mark.parametrize(
    "name", ["token_embd.weight", "position_embd.weight", "blk.0.attn_q.bias", "blk.1.ffn_up.weight"]
)
def test_missing_tensors_are_refused_by_their_own_name(exported, tmp_path, name):
    path = rewrite(exported, tmp_path / "bad.gguf", leave_out=(name,))
    with pytest.raises(CheckpointError, match=name):
        load_encoder(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ModelNotFoundError, match=r"absent\.gguf"):
        load_encoder(tmp_path / "absent.gguf")
    with pytest.raises(ModelNotFoundError, match=r"absent\.gguf"):
        load_encoder("absent.gguf")


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("config.json", {"hidden_act": "relu"}, "a bert encoder with relu; only BERT with GELU"),
        ("config.json", {"model_type": "roberta", "architectures": ["RobertaModel"]}, "a roberta encoder"),
        ("sentence_bert_config.json", {"do_lower_case": True}, "no place for what modules.json adds"),
        ("tokenizer.json", {"normalizer": {"type": "Lowercase"}}, "settings are not BERT's own"),
    ],
)
def test_what_a_file_cannot_say_is_refused(tiny, tmp_path, file, changes, message):
    directory = tmp_path / "model"
    shutil.copytree(tiny, directory)
    (directory / file).chmod(0o644)
    (directory / file).write_text(json.dumps(json.loads((directory / file).read_text()) | changes))
    with pytest.raises(UnsupportedError, match=message):
        export_bert_gguf(directory, tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()


def test_an_existing_file_is_kept(tiny, exported):
    content = exported.read_bytes()
    with pytest.raises(InvalidInputError, match="exists"):
        export_bert_gguf(tiny, exported, "F16")
    assert exported.read_bytes() == content
    assert len(export_bert_gguf(tiny, exported, "F16", overwrite=True).tensors) == 2
