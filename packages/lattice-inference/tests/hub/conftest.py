"""Fixtures for the tests of finding models: a machine with nothing on it, and small models to put there."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import lattice_inference
from lattice_inference.files import known_models

VARIABLES = (
    "LATTICE_MODEL_CACHE",
    "LATTICE_OFFLINE",
    "HF_HUB_OFFLINE",
    "HF_HUB_CACHE",
    "HUGGINGFACE_HUB_CACHE",
    "HF_HOME",
    "XDG_CACHE_HOME",
)

WriteModel = Callable[..., Path]

SOURCE = Path(lattice_inference.__file__).parents[1]  # the package under test, installed or not

FIND = """
import json, sys
from lattice_inference.files.hub import find_model
options = json.loads(sys.argv[2])
try:
    found = find_model(sys.argv[1], **options)
    print(json.dumps([found.source, str(found.directory), found.revision]))
except Exception as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""


@pytest.fixture
def empty_machine(tmp_path, monkeypatch):
    """A home directory with nothing in it, no environment variable set, no known model package; returns the home."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    without_packages = {name: replace(model, package=None) for name, model in known_models._BY_NAME.items()}
    monkeypatch.setattr(known_models, "_BY_NAME", without_packages)
    return home


@pytest.fixture
def write_model() -> WriteModel:
    """Write a complete small model into a directory, as a sentence-transformers repository holds it."""

    def write(directory: Path, *, shards: int = 1) -> Path:
        (directory / "1_Pooling").mkdir(parents=True)
        (directory / "config.json").write_text('{"model_type": "bert"}')
        (directory / "vocab.txt").write_text("[PAD]\n[UNK]\n")
        (directory / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
        (directory / "modules.json").write_text(
            json.dumps(
                [
                    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
                    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
                ]
            )
        )
        tensors = {f"t{number}": np.full(4, number, dtype=np.float32) for number in range(max(shards, 1))}
        if shards == 1:
            safetensors.numpy.save_file(tensors, directory / "model.safetensors")
        else:
            weight_map = {}
            for number, (name, tensor) in enumerate(tensors.items(), 1):
                weight_map[name] = f"model-{number:05}-of-{shards:05}.safetensors"
                safetensors.numpy.save_file({name: tensor}, directory / weight_map[name])
            (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        return directory

    return write


@pytest.fixture
def small_known_model(empty_machine, write_model, tmp_path, monkeypatch):
    """Make ``minilm`` a small known model with the right digests on record; returns a directory that holds it."""
    directory = write_model(tmp_path / "original")
    known = known_models.known_model("minilm")
    digests = tuple(
        (name, hashlib.sha256((directory / name).read_bytes()).hexdigest())
        for name in ("model.safetensors", "vocab.txt")
    )
    small = replace(known, digests=digests)
    for name in ("minilm", "all-minilm-l6-v2", "sentence-transformers/all-minilm-l6-v2"):
        monkeypatch.setitem(known_models._BY_NAME, name, small)
    return directory


@pytest.fixture
def no_network(monkeypatch):
    """Any socket that is opened fails the test."""
    import socket

    def refuse(*arguments, **options):
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture
def put_into_hugging_face_cache():
    """Lay a model's files out as huggingface_hub does: blobs, links to them in a snapshot, and a ref."""

    def put(source: Path, root: Path, repo_id: str, *, commit: str = "a" * 40, skip: tuple[str, ...] = ()) -> Path:
        folder = root / f"models--{repo_id.replace('/', '--')}"
        snapshot = folder / "snapshots" / commit
        (folder / "blobs").mkdir(parents=True, exist_ok=True)
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / "main").write_text(commit)
        for path in sorted(source.rglob("*")):
            name = str(path.relative_to(source))
            if path.is_file() and name not in skip:
                content = path.read_bytes()
                blob = folder / "blobs" / hashlib.sha1(content).hexdigest()
                blob.write_bytes(content)
                link = snapshot / name
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(Path("../" * (2 + name.count("/"))) / "blobs" / blob.name)
        return snapshot

    return put


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
