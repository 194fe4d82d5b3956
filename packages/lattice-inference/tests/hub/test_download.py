"""Downloads, by the real huggingface_hub client from a hub on this machine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
COMMIT = "0123456789abcdef0123456789abcdef01234567"

FIND = """
import json, sys
from lattice_inference.hub import find_model
options = json.loads(sys.argv[2])
try:
    found = find_model(sys.argv[1], **options)
    print(json.dumps([found.source, str(found.directory), found.revision]))
except Exception as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""


@pytest.fixture
def hub(tmp_path):
    """A running local hub: its folder, its address, and the requests it has answered so far."""
    folder = tmp_path / "hub"
    folder.mkdir()
    log = tmp_path / "requests.txt"
    with open(log, "w") as output:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "local_hub.py"), str(folder)],
            stdout=output,
            stderr=subprocess.DEVNULL,
        )
    try:
        while not log.read_text().endswith("\n"):
            assert process.poll() is None
        yield folder, log.read_text().split()[0], lambda: log.read_text().splitlines()[1:]
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def start(tmp_path, hub):
    """Start a process that looks for a model, on a machine whose hub is the local one."""
    home = tmp_path / "home"
    home.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "LATTICE_", "XDG_"))}

    def start(name, environment=None, **options):
        variables = {"HOME": str(home), "HF_ENDPOINT": hub[1], "PYTHONPATH": str(SOURCE), "HF_HUB_DISABLE_XET": "1"}
        return subprocess.Popen(
            [sys.executable, "-c", FIND, name, json.dumps(options)],
            env=kept | variables | (environment or {}),
            cwd=home,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    return start


@pytest.fixture
def find(start):
    return lambda *arguments, **options: json.loads(start(*arguments, **options).communicate(timeout=60)[0])


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


def test_shards_are_downloaded(hub, find, write_model):
    write_model(hub[0] / "org" / "sharded", shards=3)
    source, directory, _ = find("org/sharded")
    assert source == "hub"
    assert len(list(Path(directory).glob("model-*-of-00003.safetensors"))) == 3


def test_an_interrupted_download_is_finished_not_used(hub, find, write_model):
    write_model(hub[0] / "org" / "name")
    _, directory, _ = find("org/name")
    (Path(directory) / "modules.json").unlink()
    kind, message = find("org/name", offline=True)
    assert kind == "ModelNotFoundError"
    assert "lacks modules.json" in message
    assert find("org/name")[0] == "hub"
    assert (Path(directory) / "modules.json").is_file()


def test_only_the_files_asked_for_are_downloaded(hub, find, write_model):
    write_model(hub[0] / "org" / "name")
    source, directory, _ = find("org/name", files=["vocab.txt"])
    assert source == "hub"
    assert [path.name for path in Path(directory).iterdir()] == ["vocab.txt"]


def test_several_processes_download_the_same_model_at_once(hub, start, write_model):
    write_model(hub[0] / "org" / "name")
    processes = [start("org/name") for _ in range(3)]
    results = [json.loads(process.communicate(timeout=60)[0]) for process in processes]
    assert {tuple(result[1:]) for result in results} == {(results[0][1], COMMIT)}
    assert {result[0] for result in results} <= {"hub", "hf_cache"}


def test_a_relative_cache_gives_links_that_hold(hub, find, write_model, tmp_path):
    write_model(hub[0] / "org" / "name")
    source, directory, _ = find("org/name", {"HF_HUB_CACHE": "relative/cache"})
    assert source == "hub"
    assert Path(directory).is_relative_to(tmp_path / "home" / "relative" / "cache")
    assert (Path(directory) / "config.json").read_text().startswith("{")


def test_a_download_that_is_not_the_known_model_is_refused(hub, find, write_model):
    write_model(hub[0] / "BAAI" / "bge-small-en-v1.5")
    kind, message = find("bge-small")
    assert kind == "ChecksumError"
    assert "3c9f31665447c8911517620762200d2245a2518d6e7208acc78cd9db317e21ad is on record" in message
    assert "--force-download" in message


def test_an_absent_repository_is_said_to_be_absent_after_every_place(find):
    kind, message = find("org/absent")
    assert kind == "ModelNotFoundError"
    assert "no model 'org/absent'" in message
    assert "Looked in:" in message


def test_an_absent_revision_is_named(hub, find, write_model):
    write_model(hub[0] / "org" / "name")
    kind, message = find("org/name", revision="v9")
    assert kind == "ModelNotFoundError"
    assert "revision v9" in message


def test_a_repository_without_safetensors_is_refused(hub, find, write_model):
    directory = write_model(hub[0] / "org" / "name")
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    kind, message = find("org/name")
    assert kind == "ModelNotFoundError"
    assert "lacks model.safetensors" in message


def test_a_hub_that_is_away_is_a_download_error(find):
    kind, message = find("org/name", {"HF_ENDPOINT": "http://127.0.0.1:9"})
    assert kind == "DownloadError"
    assert "'org/name'" in message


@pytest.mark.parametrize("variable", ["LATTICE_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline_asks_the_hub_nothing(hub, find, write_model, variable):
    write_model(hub[0] / "org" / "name")
    assert find("org/name", {variable: "1"})[0] == "ModelNotFoundError"
    assert hub[2]() == []


def test_a_hub_that_fails_in_between_is_not_taken_for_one_without_weights(hub, find, write_model):
    directory = write_model(hub[0] / "org" / "name")
    (directory / ".fail-on-model.safetensors").touch()
    kind, message = find("org/name")
    assert kind == "DownloadError"
    assert "Try again" in message
