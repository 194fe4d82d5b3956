"""A load parses each GGUF header and reads each JSON file once, however many readers look at it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from drawn_checkpoints import write_directory
from lattice_inference import load_cross_encoder, load_encoder, load_model
from lattice_inference.checkpoint import gguf, model_file
from lattice_inference.checkpoint.json_file import load_json_object
from lattice_inference.checkpoint.read_once import reading_once
from lattice_inference.errors import ModelNotFoundError
from lattice_inference.quantize import Calibrator, export_bert_gguf, quantize_int8
from lattice_inference.tokenizer import fields

DATA = Path(__file__).parents[1] / "data"
ENCODERS = json.loads((DATA / "architectures" / "cases.json").read_text())["cases"]
DECODERS = json.loads((DATA / "decoders" / "cases.json").read_text())["cases"]


@pytest.fixture
def read(monkeypatch):
    """How often each file was read and each GGUF header parsed."""
    counts: Counter[str] = Counter()

    def counted(function):
        def instead(path, *arguments, **options):
            counts[Path(path).name if Path(path).parent.name == "m" else str(path)] += 1
            return function(path, *arguments, **options)

        return instead

    for module, name in ((model_file, "open_model_file"), (fields, "_read"), (gguf, "parse_gguf_header")):
        monkeypatch.setattr(module, name, counted(getattr(module, name)))
    return counts


@pytest.mark.parametrize(
    ("name", "load"),
    [
        ("dense-tanh", load_encoder),
        ("cross-encoder-bert-logits", load_cross_encoder),
        ("llama", load_model),
        ("dense-tanh", Calibrator),
        ("llama", Calibrator),
    ],
)
def test_a_file_of_a_directory_is_read_once(tmp_path, read, name, load):
    directory = write_directory(tmp_path / "m", ENCODERS.get(name) or DECODERS[name])
    if load is not Calibrator:
        (directory / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 32}))
    with load(directory):
        assert read["config.json"] == 1
        assert set(read.values()) == {1}


def test_files_of_a_directory_that_is_written_smaller_are_read_once(tmp_path, read):
    directory = write_directory(tmp_path / "m", ENCODERS["all-minilm-l6-v2"])
    quantize_int8(directory, tmp_path / "int8")
    assert set(read.values()) == {1}
    read.clear()
    export_bert_gguf(directory, tmp_path / "m.gguf")
    assert set(read.values()) == {1}


def test_the_header_of_an_encoders_file_is_parsed_once(tmp_path, read):
    path = export_bert_gguf(DATA / "tiny_bert", tmp_path / "e.gguf", "F32").path
    read.clear()
    with load_encoder(path, pooling="mean") as encoder:
        assert encoder.encode(["a cat"]).vectors.shape[0] == 1
    assert read == {str(path): 1}


def test_the_header_of_a_decoders_file_is_parsed_once(tmp_path, read):
    from test_decoder_gguf import write

    tokens = {
        "tokenizer.ggml.eot_token_id": 2,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": ["a", "b", "c", "ab"],
        "tokenizer.ggml.token_type": [1, 1, 3, 1],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.chat_template": "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}",
    }
    path = write(tmp_path / "d.gguf", "llama", entries=tokens)
    with load_model(path) as model:
        assert model.has_tokenizer
        assert model.special_tokens == {"bos_token": "b", "eos_token": "c", "eot_token": "c"}
        assert model.chat_template.render([{"role": "user", "content": "a"}]) == "ba"
        assert model.tokenizer.encode("a").ids.tolist() == [0]
    assert read == {str(path): 1}


def test_a_file_that_changes_or_goes_is_read_again(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"a": 1}')
    with reading_once():
        assert load_json_object(path) == {"a": 1}
        with reading_once():
            load_json_object(path)["a"] = 3  # a reader's own copy
        assert load_json_object(path) == {"a": 1}
        path.write_text('{"a": 22}')
        assert load_json_object(path) == {"a": 22}
        path.unlink()
        with pytest.raises(ModelNotFoundError):
            load_json_object(path)
