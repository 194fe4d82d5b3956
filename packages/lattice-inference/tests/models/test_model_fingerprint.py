"""A fingerprint covers every file that changes a vector: whatever loading reads, and a change of any of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from drawn_checkpoints import write_directory
from lattice_inference import load_cross_encoder, load_encoder
from lattice_inference.errors import CheckpointError
from lattice_inference.files.fingerprint import ModelSnapshot

# Read, and covered by what they say instead: prompts by the callers' own digests, the others by fields of the fingerprint.
SAID_OTHERWISE = {
    "config_sentence_transformers.json": "prompts and activation",
    "sentence_bert_config.json": "token limit and lower case",
}

_LIST_OPENED = """
import os, sys, lattice_inference
directory, kind = os.path.realpath(sys.argv[1]), sys.argv[2]
opened = set()
def watch(event, arguments):
    if event == "open" and isinstance(arguments[0], str) and os.path.isfile(arguments[0]):
        opened.add(os.path.realpath(arguments[0]))
sys.addaudithook(watch)
getattr(lattice_inference, kind)(directory)
print(*sorted(os.path.relpath(path, directory) for path in opened if path.startswith(directory + os.sep)), sep="\\n")
"""


@pytest.fixture(scope="module")
def cases(data_directory: Path) -> dict[str, object]:
    cases: dict[str, object] = json.loads((data_directory / "architectures" / "cases.json").read_text())["cases"]
    return cases


def _tiny(data_directory: Path, target: Path) -> Path:
    return Path(shutil.copytree(data_directory / "tiny_bert", target))


def _with_vocab_txt(directory: Path) -> None:
    (directory / "tokenizer.json").unlink()
    (directory / "tokenizer_config.json").write_text('{"do_lower_case": true, "tokenizer_class": "BertTokenizer"}')


def _with_merges(directory: Path) -> None:
    (directory / "tokenizer.json").unlink()
    (directory / "vocab.txt").unlink()
    (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    tokens = [chr(byte) for byte in range(33, 127)] + [chr(256 + byte) for byte in range(33)] + ["<|endoftext|>", "ab"]
    (directory / "vocab.json").write_text(json.dumps({token: index for index, token in enumerate(tokens)}))
    (directory / "merges.txt").write_text("#version: 0.2\na b\n")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _with_sentencepiece(directory: Path) -> None:
    (directory / "tokenizer.json").unlink()
    (directory / "vocab.txt").unlink()
    (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    pieces = [("<unk>", 2), ("<s>", 3), ("</s>", 3), ("\u2581", 1), *((letter, 1) for letter in "abcdefgh")]
    content = b""
    for text, kind in pieces:
        encoded = text.encode()
        piece = b"\x0a" + _varint(len(encoded)) + encoded + b"\x15" + np.float32(-1).tobytes() + b"\x18" + _varint(kind)
        content += b"\x0a" + _varint(len(piece)) + piece
    trainer = b"\x18\x01"  # model_type: unigram
    (directory / "tokenizer.model").write_bytes(content + b"\x12" + _varint(len(trainer)) + trainer)


def _with_shards(directory: Path) -> None:
    """Cut the weights into two shards, one of them in a folder."""
    from safetensors.numpy import load_file, save_file

    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    (directory / "parts").mkdir()
    places = {name: ("parts/a.safetensors" if index % 2 else "b.safetensors") for index, name in enumerate(tensors)}
    for shard in set(places.values()):
        save_file({name: tensors[name] for name in tensors if places[name] == shard}, directory / shard)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


LAYOUTS = {
    "tokenizer.json": lambda directory: None,
    "vocab.txt": _with_vocab_txt,
    "vocab.json and merges.txt": _with_merges,
    "a SentencePiece model": _with_sentencepiece,
    "shards": _with_shards,
}


def _opened_by_loading(directory: Path, kind: str = "load_encoder") -> set[str]:
    command = [sys.executable, "-c", _LIST_OPENED, str(directory), kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split("\n")) - {""}


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_file_that_loading_reads_is_covered(layout: str, data_directory: Path, tmp_path: Path) -> None:
    directory = _tiny(data_directory, tmp_path / "model")
    LAYOUTS[layout](directory)
    opened = _opened_by_loading(directory)
    assert {"config.json", "modules.json", "1_Pooling/config.json"} < opened
    covered = {name for name, _ in ModelSnapshot.take(directory).files}
    assert opened - covered - set(SAID_OTHERWISE) == set()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_change_of_any_covered_file_changes_the_fingerprint(
    layout: str, data_directory: Path, tmp_path: Path
) -> None:
    directory = _tiny(data_directory, tmp_path / "model")
    LAYOUTS[layout](directory)
    snapshot = ModelSnapshot.take(directory)
    prints = {snapshot.digest()}
    for name, _ in snapshot.files:
        path = directory / name
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        prints.add(ModelSnapshot.take(directory).digest())
        path.write_bytes(content)
    assert len(prints) == len(snapshot.files) + 1


def snapshot_of(directory: Path) -> str:
    return ModelSnapshot.take(directory).digest()


@pytest.mark.slow
def test_modules_with_weights_are_covered_in_any_folder(cases: dict[str, object], tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "model", cases["dense-tanh"])  # type: ignore[arg-type]
    (directory / "2_Dense").rename(directory / "2_[Dense]*")  # no pattern, only a name
    modules = json.loads((directory / "modules.json").read_text())
    for module in modules:
        module["path"] = module["path"].replace("2_Dense", "2_[Dense]*")
    (directory / "modules.json").write_text(json.dumps(modules))
    opened = _opened_by_loading(directory)
    assert "2_[Dense]*/model.safetensors" in opened
    assert opened - {name for name, _ in ModelSnapshot.take(directory).files} - set(SAID_OTHERWISE) == set()


@pytest.mark.slow
def test_every_file_that_a_cross_encoder_reads_is_covered(cases: dict[str, object], tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "model", cases["cross-encoder-bert"])  # type: ignore[arg-type]
    opened = _opened_by_loading(directory, "load_cross_encoder")
    assert opened - {name for name, _ in ModelSnapshot.take(directory).files} - set(SAID_OTHERWISE) == set()
    with load_cross_encoder(directory) as scorer:
        before = scorer.fingerprint
    weights = directory / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with load_cross_encoder(directory) as scorer:
        assert scorer.fingerprint != before


def test_what_is_said_otherwise_changes_the_fingerprint(data_directory: Path, tmp_path: Path) -> None:
    directory = _tiny(data_directory, tmp_path / "model")
    path = directory / "sentence_bert_config.json"
    prints = set()
    for options in ({"max_seq_length": 40}, {"max_seq_length": 41}, {"max_seq_length": 41, "do_lower_case": True}):
        path.write_text(json.dumps(options))
        with load_encoder(directory) as encoder:
            prints.add(encoder.fingerprint)
    assert len(prints) == 3


def test_files_that_no_vector_depends_on_do_not_change_it(data_directory: Path, tmp_path: Path) -> None:
    directory = _tiny(data_directory, tmp_path / "model")
    before = snapshot_of(directory)
    for name in ("README.md", "special_tokens_map.json", "generation_config.json", "adapter.safetensors"):
        (directory / name).write_text("{}")
    assert snapshot_of(directory) == before
    assert snapshot_of(_tiny(data_directory, tmp_path / "elsewhere")) == before


@pytest.mark.parametrize("late", ["rewritten", "replaced", "removed", "added"])
def test_a_file_that_changes_under_a_loaded_model_is_noticed(late: str, data_directory: Path, tmp_path: Path) -> None:
    directory = _tiny(data_directory, tmp_path / "model")
    weights = directory / "model.safetensors"
    with load_encoder(directory) as encoder:
        if late == "rewritten":
            times = (weights.stat().st_atime_ns, weights.stat().st_mtime_ns)
            content = weights.read_bytes()
            weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
            os.utime(weights, ns=times)
        elif late == "replaced":
            copy = directory / "copy"
            copy.write_bytes(weights.read_bytes())
            os.replace(copy, weights)
        elif late == "removed":
            weights.unlink()
        else:
            (directory / "tokenizer_config.json").write_text("{}")
        with pytest.raises(CheckpointError, match=r"\w+ was changed after the model was loaded"):
            _ = encoder.fingerprint


def test_digests_of_large_files_are_remembered_and_not_believed_blindly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lattice_inference.files import checksums

    monkeypatch.setenv("LATTICE_MODEL_CACHE", str(tmp_path / "models"))
    path = tmp_path / "large.safetensors"
    path.write_bytes(bytes(2**20))
    first = checksums.remembered_sha256(path)
    assert first == checksums.sha256_of_file(path)
    monkeypatch.setattr(checksums, "sha256_of_file", lambda path: pytest.fail("hashed again"))
    assert checksums.remembered_sha256(path) == first
    monkeypatch.undo()
    monkeypatch.setenv("LATTICE_MODEL_CACHE", str(tmp_path / "models"))
    path.write_bytes(bytes(2**20 - 1) + b"\1")
    assert checksums.remembered_sha256(path) == checksums.sha256_of_file(path) != first
