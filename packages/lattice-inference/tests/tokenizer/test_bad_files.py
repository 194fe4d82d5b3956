"""Files that are not tokenizers, are damaged, or ask for what is not built."""

import json
import time

import pytest

from lattice_inference import errors
from lattice_inference.tokenizer import load_tokenizer
from lattice_inference.tokenizer.fields import MAX_FILE_BYTES


def load(value, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return load_tokenizer(path)


def change(value, path, new):
    """Set (or, without ``new``, delete) the field that ``path``, like ``model.vocab.the`` or ``a.0``, names."""
    *parents, last = path.split(".")
    for name in parents:
        value = value[int(name) if isinstance(value, list) else name]
    key = int(last) if isinstance(value, list) else last
    if new:
        value[key] = new[0]
    else:
        del value[key]


def malformed(data_directory):
    return json.loads((data_directory / "wordpiece/malformed.json").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_every_malformed_file_is_refused(definition, data_directory, tmp_path):
    cases = malformed(data_directory)
    assert len(cases) > 60
    for case in cases:
        value = json.loads(json.dumps(definition))
        change(value, case["path"], [case["value"]] if "value" in case else [])
        with pytest.raises(getattr(errors, case.get("error", "TokenizerError"))) as caught:
            load(value, tmp_path)
        assert case["message"] in str(caught.value), case


def test_the_unchanged_file_is_good(definition, tmp_path):
    assert load(definition, tmp_path).vocab_size == 3000


def test_truncated_at_every_length(definition, tmp_path):
    definition["model"]["vocab"] = {token: i for i, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])}
    text = json.dumps(definition)
    load(text, tmp_path)
    for length in range(0, len(text), 7):
        with pytest.raises(errors.TokenizerError):
            load(text[:length], tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "3",
        '"tokenizer"',
        "{}",
        "[" * 100_000,
        '{"model":' * 100_000,
        '{"version": NaN}',
        "\ufeff",
        "{'a': 1}",
    ],
    ids=range(11),
)
def test_other_json_and_no_json(text, tmp_path):
    with pytest.raises(errors.TokenizerError):
        load(text, tmp_path)


def test_nesting_of_components(definition, tmp_path):
    nested = {"type": "Lowercase"}
    for _ in range(200):
        nested = {"type": "Sequence", "normalizers": [nested]}
    definition["normalizer"] = nested
    assert (
        load(definition, tmp_path).encode("THE").ids.tolist() == load(definition, tmp_path).encode("the").ids.tolist()
    )
    definition["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "NFC"}] * 65}
    with pytest.raises(errors.TokenizerError, match="65 steps"):
        load(definition, tmp_path)


def test_not_utf8(tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(b'{"version": "\xff"}')
    with pytest.raises(errors.TokenizerError, match="not UTF-8"):
        load_tokenizer(tmp_path)


def test_large_file_is_refused_without_being_read(tmp_path):
    path = tmp_path / "tokenizer.json"
    with path.open("wb") as file:
        file.truncate(2**42)  # no memory holds it
    with pytest.raises(errors.TokenizerError, match=f"{MAX_FILE_BYTES:,} bytes"):
        load_tokenizer(path)


def test_git_lfs_pointer(tmp_path):
    with pytest.raises(errors.TokenizerError, match="Git LFS pointer"):
        load("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 466247\n", tmp_path)


def test_missing_paths(tmp_path):
    with pytest.raises(errors.ModelNotFoundError, match="no tokenizer at"):
        load_tokenizer(tmp_path / "nowhere")
    with pytest.raises(errors.ModelNotFoundError, match="neither"):
        load_tokenizer(tmp_path)


def test_other_formats_are_named(tmp_path):
    (tmp_path / "vocab.tiktoken").touch()
    with pytest.raises(errors.UnsupportedError, match="tiktoken"):
        load_tokenizer(tmp_path)
    with pytest.raises(errors.UnsupportedError, match=r"vocab\.tiktoken"):
        load_tokenizer(tmp_path / "vocab.tiktoken")


def test_an_empty_gguf_file_is_damaged(tmp_path):
    (tmp_path / "model.gguf").touch()
    with pytest.raises(errors.CheckpointError, match="is empty"):
        load_tokenizer(tmp_path / "model.gguf")


def test_hostile_vocabularies_build_quickly(definition, tmp_path):
    special = definition["model"]["vocab"]
    special = {token: special[token] for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")}
    for pieces in (
        [("a" * n)[:1024] for n in range(1, 1025)],
        [chr(c) for c in range(0x4E00, 0x9FFF)],
        [f"{chr(97 + i % 26)}{i:05d}" for i in range(60_000)],
    ):
        definition["model"]["vocab"] = special | {piece: i + 5 for i, piece in enumerate(pieces)}
        started = time.thread_time()
        ours = load(definition, tmp_path)
        assert time.thread_time() - started < 3, "seconds of CPU: the work of comparing each piece with each other one"
        for piece in pieces[:: len(pieces) // 50]:
            if len(piece) <= 100:
                assert ours.encode(piece, add_special_tokens=False).tokens == [piece]
