"""The files of known models are what they are known to be."""

import hashlib
import os
import shutil

import pytest

from lattice_inference.errors import ChecksumError
from lattice_inference.files.environment import model_cache_root
from lattice_inference.files.hub import find_model
from lattice_inference.files.known_models import known_model

pytestmark = pytest.mark.usefixtures("empty_machine", "no_network")

MINILM = "sentence-transformers/all-MiniLM-L6-v2"


@pytest.fixture
def cached(small_known_model, empty_machine):
    return shutil.copytree(small_known_model, empty_machine / ".lattice/models/all-minilm-l6-v2")


@pytest.mark.parametrize("name", ["model.safetensors", "vocab.txt"])
@pytest.mark.parametrize("verified_before", [False, True])
def test_a_flipped_byte_is_found_and_the_file_kept(cached, name, verified_before):
    if verified_before:
        find_model("minilm", offline=True)
    path = cached / name
    content = bytearray(path.read_bytes())
    status = path.stat()
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # as a bad disk or copy would leave it
    with pytest.raises(ChecksumError, match=f"{name}: SHA-256 is [0-9a-f]{{64}}, but [0-9a-f]{{64}} is on record"):
        find_model("minilm", offline=True)
    assert path.read_bytes() == content
    assert find_model("minilm", offline=True, verify=False).directory == cached


@pytest.mark.parametrize("content", [b"1234", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"])
def test_a_stub_in_place_of_the_weights_is_found(cached, content):
    (cached / "model.safetensors").write_bytes(content)
    with pytest.raises(ChecksumError, match=r"left as it is\. Remove it"):
        find_model("minilm", offline=True)


def test_a_revision_is_not_compared_with_the_digests_on_record(
    small_known_model, empty_machine, put_into_hugging_face_cache
):
    """They are those of the commit on record; another revision may have other weights."""
    (small_known_model / "vocab.txt").write_text("[PAD]\nother words\n")
    root = empty_machine / ".cache/huggingface/hub"
    snapshot = put_into_hugging_face_cache(small_known_model, root, MINILM)
    assert find_model("minilm", revision="main", offline=True).directory == snapshot
    with pytest.raises(ChecksumError, match=r"vocab\.txt"):
        find_model("minilm", offline=True)


def test_a_flipped_byte_is_found_in_a_large_file_that_is_not_on_record(
    small_known_model, empty_machine, put_into_hugging_face_cache
):
    """The Hugging Face cache stores a large file under its own SHA-256, which counts for known models, too."""
    original = small_known_model / "tokenizer.json"
    original.write_text("{}")
    snapshot = put_into_hugging_face_cache(small_known_model, empty_machine / ".cache/huggingface/hub", MINILM)
    link = snapshot / "tokenizer.json"
    blob = link.resolve().with_name(hashlib.sha256(b"{}").hexdigest())
    link.resolve().rename(blob)
    link.unlink()
    link.symlink_to(blob)
    for revision in (None, "main"):
        blob.write_text("{}")
        assert find_model("minilm", offline=True, revision=revision).directory == snapshot
        blob.write_text("{ }")
        with pytest.raises(ChecksumError, match=r"tokenizer\.json"):
            find_model("minilm", offline=True, revision=revision)


def test_a_verified_file_is_not_hashed_again(cached, monkeypatch):
    find_model("minilm", offline=True)
    monkeypatch.setattr("lattice_inference.files.checksums.sha256_of_file", lambda path: pytest.fail(f"hashed {path}"))
    assert find_model("minilm", offline=True).directory == cached


@pytest.mark.parametrize("damage", ["{", "[]", '{"sha256": "0"}', "[" * 5000, ""])
def test_a_stamp_that_is_not_exactly_right_is_not_believed(cached, damage):
    find_model("minilm", offline=True)
    for stamp in (model_cache_root() / ".verified").iterdir():
        stamp.write_text(damage)
    (cached / "vocab.txt").write_text("changed")
    with pytest.raises(ChecksumError):
        find_model("minilm", offline=True)


def test_a_replaced_file_of_the_same_size_and_time_is_hashed_again(cached):
    find_model("minilm", offline=True)
    path = cached / "vocab.txt"
    status = path.stat()
    other = cached / "other"
    other.write_bytes(bytes(status.st_size))
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.replace(other, path)
    with pytest.raises(ChecksumError):
        find_model("minilm", offline=True)


def test_an_unwritable_cache_only_costs_the_stamp(small_known_model, empty_machine, monkeypatch):
    root = empty_machine / "file-in-the-way"
    root.write_text("")
    monkeypatch.setenv("LATTICE_MODEL_CACHE", str(root))
    monkeypatch.setenv("HF_HUB_CACHE", str(empty_machine / "hub"))
    from lattice_inference.files.checksums import check_digest

    digest = dict(known_model("minilm").digests)["vocab.txt"]
    check_digest(small_known_model / "vocab.txt", digest, cache_root=model_cache_root(), remedy="")
    assert root.read_text() == ""


def test_no_part_of_a_stamp_is_left_behind(cached):
    find_model("minilm", offline=True)
    names = [path.name for path in (model_cache_root() / ".verified").iterdir()]
    assert len(names) == 2
    assert all(name.endswith(".json") for name in names)


def test_an_explicit_directory_is_the_callers_own(cached):
    (cached / "vocab.txt").write_text("my own words")
    assert find_model(cached).source == "directory"
