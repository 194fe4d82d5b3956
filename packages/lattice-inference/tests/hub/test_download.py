"""Downloads, by the real huggingface_hub client from a hub on this machine."""

import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.slow
def test_a_model_is_downloaded_once_and_only_what_is_needed(hub, find, write_model):
    folder, _, requests = hub
    write_model(folder / "org" / "name")
    for unwanted in ("pytorch_model.bin", "onnx/model.onnx", "README.md", "tf_model.h5"):
        path = folder / "org" / "name" / unwanted
        path.parent.mkdir(exist_ok=True)
        path.write_text("unwanted")
    source, directory, revision = find("org/name")
    assert (source, revision) == ("hub", COMMIT)
    files = sorted(str(path.relative_to(directory)) for path in Path(directory).rglob("*") if path.is_file())
    assert files == ["1_Pooling/config.json", "config.json", "model.safetensors", "modules.json", "vocab.txt"]
    asked = len(requests())
    assert find("org/name") == ["hf_cache", directory, COMMIT]
    assert len(requests()) == asked


@pytest.mark.slow
def test_shards_are_downloaded(hub, find, write_model):
    write_model(hub[0] / "org" / "sharded", shards=3)
    source, directory, _ = find("org/sharded")
    assert source == "hub"
    assert len(list(Path(directory).glob("model-*-of-00003.safetensors"))) == 3


@pytest.mark.slow
def test_an_interrupted_download_is_finished_not_used(hub, find, write_model):
    write_model(hub[0] / "org" / "name")
    _, directory, _ = find("org/name")
    (Path(directory) / "modules.json").unlink()
    kind, message = find("org/name", offline=True)
    assert kind == "ModelNotFoundError"
    assert "lacks modules.json" in message
    assert find("org/name")[0] == "hub"
    assert (Path(directory) / "modules.json").is_file()


@pytest.mark.slow
def test_only_the_files_asked_for_are_downloaded(hub, find, write_model):
    write_model(hub[0] / "org" / "name")
    source, directory, _ = find("org/name", files=["vocab.txt"])
    assert source == "hub"
    assert [path.name for path in Path(directory).iterdir()] == ["vocab.txt"]


def contents_asked_for(requests):
    """Count how often each file's content was asked for."""
    counts = {}
    for line in requests:
        method, path, *_ = line.split()
        if method == "GET" and "/resolve/" in path:
            name = path.split("/", 5)[5]
            counts[name] = counts.get(name, 0) + 1
    return counts


@pytest.mark.slow
def test_four_processes_that_ask_at_once_download_once(hub, start, write_model):
    directory = write_model(hub[0] / "org" / "name")
    (directory / ".slow").touch()
    processes = [start("org/name") for _ in range(4)]
    results = [json.loads(process.communicate(timeout=60)[0]) for process in processes]
    assert {tuple(result[1:]) for result in results} == {(results[0][1], COMMIT)}
    assert {result[0] for result in results} <= {"hub", "hf_cache"}
    files = ["1_Pooling/config.json", "config.json", "model.safetensors", "modules.json", "vocab.txt"]
    assert contents_asked_for(hub[2]()) == dict.fromkeys(files, 1)


@pytest.mark.slow
def test_a_connection_that_breaks_is_taken_up_where_it_broke(hub, find, write_model):
    directory = write_model(hub[0] / "org" / "name")
    save_file({"t": np.arange(6 << 20, dtype=np.float32)}, directory / "model.safetensors")  # 24 MB
    (directory / ".drop-once").touch()
    source, found, _ = find("org/name")
    assert source == "hub"
    assert (Path(found) / "model.safetensors").read_bytes() == (directory / "model.safetensors").read_bytes()
    (again,) = [line.split()[2] for line in hub[2]() if "model.safetensors" in line and "bytes=" in line]
    assert int(again.removeprefix("bytes=").removesuffix("-")) >= 8 << 20


@pytest.mark.slow
def test_a_known_model_is_downloaded_at_the_commit_on_record(hub, find, write_model):
    pinned = "5c38ec7c405ec4b44b94cc5a9bb96e735b38267a"
    directory = write_model(hub[0] / "BAAI" / "bge-small-en-v1.5")
    (directory / ".commit").write_text(pinned)
    found = find("bge-small", files=["modules.json"])
    assert found[0::2] == ["hub", pinned]
    assert not any("/main" in line for line in hub[2]())
    assert find("bge-small", files=["modules.json"], offline=True) == ["hf_cache", found[1], pinned]


@pytest.mark.slow
def test_a_commit_that_the_hub_no_longer_has_gives_way_to_the_main_branch(hub, find, write_model):
    """The digests on record, not the commit, say what a file must be."""
    write_model(hub[0] / "BAAI" / "bge-small-en-v1.5")
    found = find("bge-small", files=["modules.json"])
    assert found[0::2] == ["hub", COMMIT]
    assert find("bge-small", files=["modules.json"], offline=True) == ["hf_cache", found[1], COMMIT]


@pytest.mark.slow
def test_a_token_opens_a_private_repository(hub, find, write_model):
    directory = write_model(hub[0] / "org" / "name")
    (directory / ".token").write_text("hf_secret")
    kind, message = find("org/name")
    assert kind == "ModelNotFoundError"
    assert "private or gated" in message
    assert find("org/name", token="hf_secret")[0] == "hub"
    assert find("org/name", {"HF_HUB_CACHE": "second", "HF_TOKEN": "hf_secret"})[0] == "hub"


@pytest.mark.slow
def test_a_flipped_byte_in_the_cache_is_found_by_the_name_of_the_file(hub, find, write_model):
    """Large files of the Hugging Face cache are named by their SHA-256, so every model has digests there."""
    write_model(hub[0] / "org" / "name")
    _, directory, _ = find("org/name")
    blob = (Path(directory) / "model.safetensors").resolve()
    content = bytearray(blob.read_bytes())
    content[-1] ^= 1
    blob.write_bytes(content)
    kind, message = find("org/name")
    assert kind == "ChecksumError"
    assert "hf download org/name --force-download" in message
    assert blob.read_bytes() == content
    assert find("org/name", verify=False)[0] == "hf_cache"


@pytest.mark.slow
def test_a_cache_on_another_volume_works(hub, find, write_model, tmp_path):
    shared_memory = Path("/dev/shm")
    if not os.access(shared_memory, os.W_OK) or shared_memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("this machine has no second volume to write to")
    write_model(hub[0] / "org" / "name")
    with tempfile.TemporaryDirectory(dir=shared_memory) as cache:
        source, directory, _ = find("org/name", {"HF_HUB_CACHE": cache})
        assert source == "hub"
        assert Path(directory).is_relative_to(cache)
        assert find("org/name", {"HF_HUB_CACHE": cache}, offline=True)[0] == "hf_cache"


@pytest.mark.slow
def test_dense_modules_come_with_their_weights(hub, find, write_model):
    directory = write_model(hub[0] / "org" / "name")
    modules = json.loads((directory / "modules.json").read_text())
    modules.append({"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"})
    (directory / "modules.json").write_text(json.dumps(modules))
    kind, message = find("org/name")
    assert kind == "ModelNotFoundError"
    assert "lacks 2_Dense/config.json, 2_Dense/model.safetensors" in message
    (directory / "2_Dense").mkdir()
    (directory / "2_Dense" / "config.json").write_text("{}")
    shutil.copy(directory / "model.safetensors", directory / "2_Dense")
    (directory / ".commit").write_text("f" * 40)
    source, found, _ = find("org/name")
    assert source == "hub"
    assert (Path(found) / "2_Dense" / "model.safetensors").is_file()


@pytest.mark.slow
def test_a_relative_cache_gives_links_that_hold(hub, find, write_model, tmp_path):
    write_model(hub[0] / "org" / "name")
    source, directory, _ = find("org/name", {"HF_HUB_CACHE": "relative/cache"})
    assert source == "hub"
    assert Path(directory).is_relative_to(tmp_path / "home" / "relative" / "cache")
    assert (Path(directory) / "config.json").read_text().startswith("{")


@pytest.mark.slow
def test_a_download_that_is_not_the_known_model_is_refused(hub, find, write_model):
    write_model(hub[0] / "BAAI" / "bge-small-en-v1.5")
    kind, message = find("bge-small")
    assert kind == "ChecksumError"
    assert "3c9f31665447c8911517620762200d2245a2518d6e7208acc78cd9db317e21ad is on record" in message
    assert "--force-download" in message


@pytest.mark.slow
def test_an_absent_repository_is_said_to_be_absent_after_every_place(find):
    kind, message = find("org/absent")
    assert kind == "ModelNotFoundError"
    assert "no model 'org/absent'" in message
    assert "Looked in:" in message


@pytest.mark.slow
def test_an_absent_revision_is_named(hub, find, write_model):
    write_model(hub[0] / "org" / "name")
    kind, message = find("org/name", revision="v9")
    assert kind == "ModelNotFoundError"
    assert "revision v9" in message


@pytest.mark.slow
def test_a_repository_without_safetensors_is_refused(hub, find, write_model):
    directory = write_model(hub[0] / "org" / "name")
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    kind, message = find("org/name")
    assert kind == "ModelNotFoundError"
    assert "lacks model.safetensors" in message


@pytest.mark.slow
def test_a_hub_that_is_away_is_a_download_error(find):
    kind, message = find("org/name", {"HF_ENDPOINT": "http://127.0.0.1:9"})
    assert kind == "DownloadError"
    assert "'org/name'" in message


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["LATTICE_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline_asks_the_hub_nothing(hub, find, write_model, variable):
    write_model(hub[0] / "org" / "name")
    assert find("org/name", {variable: "1"})[0] == "ModelNotFoundError"
    assert hub[2]() == []


@pytest.mark.slow
def test_a_hub_that_fails_in_between_is_not_taken_for_one_without_weights(hub, find, write_model):
    directory = write_model(hub[0] / "org" / "name")
    (directory / ".fail-on-model.safetensors").touch()
    kind, message = find("org/name")
    assert kind == "DownloadError"
    assert "Try again" in message
