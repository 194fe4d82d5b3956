"""Files that stand in another's place are said to be what they are; wrong types are refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from changed_checkpoints import change_config, change_tensors
from drawn_checkpoints import write_directory
from lattice_inference import Chat, Extension, Session, load_cross_encoder, load_encoder, load_model, load_tokenizer
from lattice_inference.errors import LatticeError, ModelConfigError, TokenizerError
from lattice_inference.models.sentence_modules import read_sentence_modules
from lattice_inference.quantize import export_bert_gguf
from tiny_decoders import write_drawn_model

DATA = Path(__file__).parents[1] / "data"
CASES = json.loads((DATA / "architectures" / "cases.json").read_text())["cases"]
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 231508\n"
PAGE = b"\n<!DOCTYPE html><html><head><title>Not found</title></head></html>"


@pytest.fixture
def encoder(tmp_path):
    return write_directory(tmp_path / "encoder", CASES["dense-chain"])


@pytest.mark.parametrize(("content", "what"), [(POINTER, "git lfs pull"), (PAGE, "a web page")])
@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "model.safetensors",
        "modules.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "sentence_bert_config.json",
        "1_Pooling/config.json",
        "2_Dense/config.json",
        "2_Dense/model.safetensors",
        "config_sentence_transformers.json",
    ],
)
def test_a_file_of_an_encoder(encoder, name, content, what):
    (encoder / name).write_bytes(content)
    with pytest.raises(LatticeError, match=what):
        load_encoder(encoder)


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("vocab.txt", {}),
        ("vocab.json", {"merges.txt": "a b\n"}),
        ("merges.txt", {"vocab.json": '{"a": 0}'}),
        ("tokenizer.model", {}),
        ("sentencepiece.bpe.model", {}),
        ("spiece.model", {}),
        ("tokenizer.json", {}),
        ("tokenizer_config.json", {"vocab.txt": "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"}),
    ],
)
@pytest.mark.parametrize(("content", "what"), [(POINTER, "git lfs pull"), (PAGE, "a web page")])
def test_a_file_of_a_tokenizer(tmp_path, name, others, content, what):
    for other, text in others.items():
        (tmp_path / other).write_text(text)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TokenizerError, match=rf"{name.replace('.', '[.]')} is a.*{what}|{what}"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("name", ["generation_config.json", "model.safetensors.index.json", "chat_template.jinja"])
def test_a_file_of_a_decoder(tmp_path, name):
    directory = write_drawn_model(tmp_path / "m")
    if name.endswith("index.json"):
        (directory / "model.safetensors").unlink()
    (directory / name).write_bytes(POINTER)
    with pytest.raises(LatticeError, match="git lfs pull"), load_model(directory) as model, Session(model) as session:
        Chat(session)  # a template is read when a chat is asked for


def test_a_tokenizers_file_that_cannot_be_read_is_a_typed_error(tmp_path, monkeypatch):
    path = tmp_path / "vocab.txt"
    path.write_text("[PAD]\n")

    def refuse(self, *arguments, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(TokenizerError, match=r"vocab\.txt cannot be read: Permission denied"):
        load_tokenizer(path)


@pytest.mark.slow
@pytest.mark.parametrize("path", ["", ".", "./"])
def test_the_root_folder_may_be_named(encoder, path):
    with load_encoder(encoder) as plain:
        vectors = plain.encode(["a cat"]).vectors
    file = encoder / "modules.json"
    modules = json.loads(file.read_text())
    modules[0]["path"] = path
    file.write_text(json.dumps(modules))
    with load_encoder(encoder) as named:
        assert np.array_equal(named.encode(["a cat"]).vectors, vectors)
        assert named.fingerprint  # looks for the modules' files, too


def test_folders_of_modules_may_be_spelled_otherwise(encoder):
    file = encoder / "modules.json"
    modules = json.loads(file.read_text())
    with load_encoder(encoder) as plain:
        vectors = plain.encode(["a cat"]).vectors
    for module in modules[1:]:
        module["path"] = f"./{module['path']}/"
    file.write_text(json.dumps(modules))
    with load_encoder(encoder) as named:
        assert np.array_equal(named.encode(["a cat"]).vectors, vectors)


def test_a_pooling_in_the_root_folder_is_read_there(tmp_path):
    directory = write_directory(tmp_path / "m", CASES["roberta"])
    change_config(directory, pooling_mode_mean_tokens=True)
    for path in ("", "."):
        modules = [{"type": "sentence_transformers.models.Transformer", "path": ""}]
        modules.append({"type": "sentence_transformers.models.Pooling", "path": path})
        (directory / "modules.json").write_text(json.dumps(modules))
        assert read_sentence_modules(directory).pooling.value == "mean"


def test_the_transformer_of_a_cross_encoder_may_lie_in_a_dot(tmp_path):
    directory = write_directory(tmp_path / "m", CASES["cross-encoder-bert-logits"])
    for path in ("", ".", "./"):
        modules = [{"type": "sentence_transformers.models.Transformer", "path": path}]
        (directory / "modules.json").write_text(json.dumps(modules))
        load_cross_encoder(directory).close()


@pytest.mark.parametrize("value", [None, True, 2.0, -1, 0, "2", [2], {"a": 2}, 10**400, 1e308, ""])
@pytest.mark.parametrize(
    "name",
    ["num_hidden_layers", "hidden_size", "vocab_size", "layer_norm_eps", "hidden_act", "architectures", "model_type"],
)
def test_a_value_of_a_wrong_type_is_refused_by_name(encoder, name, value):
    path = encoder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    with pytest.raises(LatticeError, match=rf"config\.json: {name}"):
        load_encoder(encoder)


@pytest.mark.parametrize("name", ["temperature", "top_p", "repetition_penalty"])
def test_a_number_beyond_floats_in_a_generation_config_is_refused(tmp_path, name):
    directory = write_drawn_model(tmp_path / "m", generation_config={name: 10**400})
    with pytest.raises(ModelConfigError, match=r"generation_config\.json"), load_model(directory) as m, Session(m):
        pass


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
@pytest.mark.parametrize("precision", ["float32", "int8", "bfloat16"])
def test_weights_of_other_widths_are_those_of_float32(tmp_path, dtype, precision):
    directory = write_drawn_model(tmp_path / "m")
    path = directory / "model.safetensors"
    wide = {name: tensor.astype(dtype).astype(np.float32) for name, tensor in load_file(path).items()}
    results = []
    for tensors in (wide, {name: tensor.astype(dtype) for name, tensor in wide.items()}):
        change_tensors(path, tensors)
        with load_model(directory, precision=precision) as model, model.open_cache() as cache:
            results.append(model.forward([Extension(cache.sequence(), [1, 2, 3])]))
    assert np.array_equal(results[0], results[1])


def test_an_exporter_says_so_too(encoder, tmp_path):
    (encoder / "config.json").write_bytes(POINTER)
    with pytest.raises(ModelConfigError, match="git lfs pull"):
        export_bert_gguf(encoder, tmp_path / "m.gguf")


@pytest.mark.parametrize("name", ["a" * 5000, "a/" * 3000])
def test_a_name_that_no_file_can_have_is_a_typed_error(encoder, name):
    for load in (load_encoder, load_cross_encoder, load_model, load_tokenizer):
        with pytest.raises(LatticeError):
            load(Path(name))
    file = encoder / "modules.json"
    for position in (0, 1, 2):
        modules = json.loads(file.read_text())
        kept, modules[position]["path"] = modules[position]["path"], name
        file.write_text(json.dumps(modules))
        with pytest.raises(LatticeError):
            load_encoder(encoder)
        modules[position]["path"] = kept
        file.write_text(json.dumps(modules))
