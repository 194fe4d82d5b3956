"""Adapters with damaged bytes: an error of ours, or an adapter of finite numbers, and nothing else."""

from __future__ import annotations

import random
import shutil

import numpy as np
import pytest

from lattice_inference.errors import LatticeError
from lattice_inference.lora import load_adapter_file, save_gguf, save_mlx

ROUNDS = 80


@pytest.fixture(scope="module")
def adapters(drawn_base, drawn_adapter, tmp_path_factory):
    folder = tmp_path_factory.mktemp("damaged")
    adapter = load_adapter_file(drawn_adapter("llama"))
    save_mlx(adapter, folder / "mlx")
    (folder / "gguf").mkdir()
    save_gguf(adapter, folder / "gguf" / "adapter.gguf", base=drawn_base("llama"))
    shutil.copytree(drawn_adapter("llama"), folder / "peft")
    return folder


@pytest.mark.parametrize(
    "file",
    [
        "peft/adapter_config.json",
        "peft/adapter_model.safetensors",
        "mlx/adapter_config.json",
        "mlx/adapters.safetensors",
        "gguf/adapter.gguf",
    ],
)
def test_damaged_files_give_errors_of_ours(adapters, tmp_path, file):
    rng = random.Random(file)
    folder = tmp_path / "adapter"
    shutil.copytree((adapters / file).parent, folder)
    path = folder / file.partition("/")[2]
    content = path.read_bytes()
    outcomes = set()
    for _ in range(ROUNDS):
        damaged = bytearray(content)
        for _ in range(rng.choice((1, 1, 4))):
            damaged[rng.randrange(min(len(damaged), 3000))] = rng.choice(b'\0\x01\xff{}[]",:0129-eE.aZ\x80')
        path.write_bytes(damaged[: rng.choice((len(damaged), len(damaged), rng.randrange(len(damaged))))])
        try:
            adapter = load_adapter_file(folder)
        except LatticeError as error:
            outcomes.add(type(error).__name__)
            continue
        outcomes.add("read")
        assert all(np.isfinite(site.scale) and np.isfinite(site.a).all() for site in adapter.sites.values())
    assert len(outcomes) > 1
