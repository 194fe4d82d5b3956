"""A GGUF file is known by its first bytes, whatever its name, and a file in a directory's place is said to be one."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from lattice_inference import (
    find_model,
    load_chat_template,
    load_cross_encoder,
    load_encoder,
    load_model,
    load_tokenizer,
)
from lattice_inference.checkpoint.formats import is_gguf, only_gguf, open_weights
from lattice_inference.checkpoint.gguf import open_gguf_file
from lattice_inference.checkpoint.gguf_writer import EncodedEntry, TensorToWrite, write_gguf
from lattice_inference.checkpoint.safetensors import open_checkpoint
from lattice_inference.checkpoint.summary import summarize
from lattice_inference.cli import main
from lattice_inference.errors import CheckpointError, InvalidInputError, LatticeError, ModelNotFoundError
from lattice_inference.memory.fit import estimate_memory
from lattice_inference.models.bert_config import BertConfig
from lattice_inference.quantize import Calibrator, export_bert_gguf, quantize_gguf, quantize_int8

TINY = Path(__file__).parents[1] / "data" / "tiny_bert"
BLOB = "sha256-6a1a2eb6d15622bf3c96857206351ba97e1af16c30d7a74ee38970e434e9407e"
NAMES = [BLOB, "MODEL.GGUF", "model", "model.bin", "model.safetensors", "tokenizer.json", "vocab.txt"]


@pytest.fixture(scope="module")
def gguf(tmp_path_factory):
    return export_bert_gguf(TINY, tmp_path_factory.mktemp("gguf") / "m.gguf", "F32").path


@pytest.fixture
def named(gguf, tmp_path):
    def copy(name):
        (tmp_path / "folder").mkdir()
        return Path(shutil.copy(gguf, tmp_path / "folder" / name))

    return copy


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("as_folder", [False, True])
def test_every_call_takes_it_by_any_name(named, gguf, tmp_path, name, as_folder):
    file = named(name)
    if as_folder and name in ("model.safetensors", "tokenizer.json", "vocab.txt"):
        return  # a directory of Hugging Face's form says by its names what its files are
    path = file.parent if as_folder else file
    assert is_gguf(file)
    assert only_gguf(file.parent) == file
    assert find_model(path).directory == file
    with load_encoder(path) as encoder, load_encoder(gguf) as plain:
        assert np.array_equal(encoder.encode(["a cat"]).vectors, plain.encode(["a cat"]).vectors)
        assert encoder.directory == file
        assert encoder.fingerprint != ""
    assert load_tokenizer(path).vocab_size == load_tokenizer(gguf).vocab_size
    assert load_chat_template(path) is None
    assert summarize(path).architecture == "bert"
    assert estimate_memory(path).weights_bytes == estimate_memory(gguf).weights_bytes
    with open_weights(path) as checkpoint:
        assert "token_embd.weight" in checkpoint
    with Calibrator(path) as calibrator:
        calibrator.observe(["a cat"])
    assert quantize_gguf(path, tmp_path / "q8.gguf", "Q8_0").path.exists()
    with pytest.raises(LatticeError, match="Q8_0"):
        quantize_int8(path, tmp_path / "int8")
    with pytest.raises(LatticeError, match="cross-encoders in GGUF files"):
        load_cross_encoder(path)


@pytest.mark.parametrize("as_folder", [False, True])
def test_the_commands_take_it_by_any_name(named, tmp_path, capsys, as_folder):
    file = named(BLOB)
    path = str(file.parent if as_folder else file)
    for arguments in (
        ["inspect", path, "--json"],
        ["doctor", path, "--json"],
        ["tokenize", "--model", path, "--json", "a cat"],
        ["quantize", path, str(tmp_path / "out.gguf"), "--type", "Q8_0", "--json"],
    ):
        assert main(arguments) == 0, capsys.readouterr().err
        json.loads(capsys.readouterr().out)


def test_a_name_of_a_file_here_means_the_file(named, monkeypatch):
    file = named(BLOB)
    monkeypatch.chdir(file.parent)
    assert find_model(BLOB, offline=True).directory == file
    with load_encoder(f"../folder/{BLOB}") as encoder:
        assert encoder.directory == file


def test_a_file_with_the_suffix_says_what_it_is(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    for place in (path, tmp_path):
        for load in (load_encoder, load_model, load_tokenizer, summarize):
            with pytest.raises(CheckpointError, match="git lfs pull"):
                load(place)


def test_parts_keep_the_case_of_their_suffix(gguf, tmp_path):
    with open_gguf_file(gguf) as file:
        entries = {key: EncodedEntry(file.encoded_entry(key)) for key in file.metadata}
        names = file.names()
        for number, held in enumerate((names[:5], names[5:])):
            split = {"split.no": number, "split.count": 2, "split.tensors.count": len(names)}
            tensors = [
                TensorToWrite(name, file.info(name).shape, file.info(name).dtype, lambda name=name: [file.array(name)])
                for name in held
            ]
            write_gguf(tmp_path / f"m-0000{number + 1}-of-00002.GGUF", {**entries, **split}, tensors)
    for path in (tmp_path, tmp_path / "m-00001-of-00002.GGUF", tmp_path / "m-00002-of-00002.GGUF"):
        with load_encoder(path) as encoder:
            assert encoder.encode(["a cat"]).vectors.shape == (1, encoder.dimension)


def test_a_folder_of_several_names_them(named, gguf):
    file = named(BLOB)
    shutil.copy(gguf, file.parent / "other.gguf")
    with pytest.raises(ModelNotFoundError, match=r"has 2 GGUF files.*name one of other\.gguf, sha256-"):
        load_encoder(file.parent)
    with pytest.raises(InvalidInputError, match="has 2 GGUF files"):
        load_tokenizer(file.parent)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"PK\x03\x04" + bytes(60), "a zip archive"),
        (b"\x80\x02}q\x00" + bytes(60), "a Python pickle"),
        (b"", "an empty file"),
        (b"hello, world", "a file of another kind"),
        ((2).to_bytes(8, "little") + b"{}", "a safetensors file; the model is the directory"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
    ],
)
def test_a_file_where_a_folder_is_due_says_what_was_found(tmp_path, content, what):
    path = tmp_path / "weights.bin"
    path.write_bytes(content)
    for load in (load_encoder, load_cross_encoder, load_model, Calibrator, find_model):
        with pytest.raises(ModelNotFoundError, match=f"a directory or a GGUF file is needed, and this is {what}"):
            load(path)
    with pytest.raises(CheckpointError, match=f"a directory with weights is needed, and this is {what}"):
        open_checkpoint(path)
    for call in (lambda: export_bert_gguf(path, tmp_path / "o.gguf"), lambda: quantize_int8(path, tmp_path / "o")):
        with pytest.raises(LatticeError, match=what):
            call()
    with pytest.raises(LatticeError, match=rf"weights\.bin is no directory but {what}"):
        BertConfig.from_directory(path)
    with pytest.raises(LatticeError, match=what):
        load_tokenizer(path)


def test_a_safetensors_file_is_known_by_its_content_too(tmp_path):
    path = Path(shutil.copy(TINY / "model.safetensors", tmp_path / "blob"))
    assert summarize(path).format == "safetensors"


def test_nothing_that_could_make_a_call_wait_is_opened_for_good(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert not is_gguf(tmp_path / "pipe")
    assert only_gguf(tmp_path) is None
    with pytest.raises(ModelNotFoundError):
        find_model(tmp_path / "pipe")


def test_a_directory_may_be_called_like_a_file(gguf, tmp_path):
    folder = tmp_path / "model.gguf"
    folder.mkdir()
    shutil.copy(gguf, folder / "inner.gguf")
    with load_encoder(folder) as encoder:
        assert encoder.directory == folder / "inner.gguf"
