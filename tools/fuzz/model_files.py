"""Weight files and the directories of models: what is loaded is also used."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import safetensors.numpy
from mutation import damage_any_file, mutated_bytes, mutated_document
from target import Target, add_tests

from lattice_inference import GenerateConfig, LatticeError, Session, load_encoder, load_model
from lattice_inference.checkpoint.formats import open_weights
from lattice_inference.checkpoint.summary import summarize
from lattice_inference.memory.fit import estimate_memory
from lattice_inference.quantize import quantize_int8
from lattice_inference.state.prefix_file import read_prefix, write_prefix

__all__ = ["TARGETS"]

add_tests("inference", "damage")
TINY_BERT = add_tests("inference", "models").parent / "data" / "tiny_bert"

from weight_files import change_weight_file, use_weight_file, write_weight_files  # noqa: E402

from tiny_decoders import write_drawn_model  # noqa: E402


def make_weight_files(folder: Path) -> None:
    """Write one file to a folder, whose name says the kind."""
    made = folder / "all"
    made.mkdir()
    write_weight_files(made, TINY_BERT)
    for path in list(made.iterdir()):
        (folder / path.stem).mkdir()
        path.rename(folder / path.stem / path.name)
    made.rmdir()


def only_file(folder: Path) -> Path:
    """Return the one file of a folder."""
    (path,) = folder.iterdir()
    return path


def change_weights(folder: Path, draw: random.Random) -> None:
    """Change bytes, most of them where a file's claims are."""
    path = only_file(folder)
    path.write_bytes(change_weight_file(path.read_bytes(), draw))


def make_safetensors(folder: Path) -> None:
    """Write a file of many kinds of tensors, and one model in two parts with an index."""
    arrays: dict[str, Any] = {
        f"tensor.{kind}": np.ones((3, 4), kind)
        for kind in ("float32", "float16", "float64", "int8", "uint8", "int64", "bool")
    }
    (folder / "file").mkdir()
    safetensors.numpy.save_file(arrays, folder / "file" / "model.safetensors", {"format": "pt"})
    parts = folder / "parts"
    parts.mkdir()
    weight_map = {}
    for number, name in enumerate(("a", "b"), 1):
        part = f"model-0000{number}-of-00002.safetensors"
        safetensors.numpy.save_file({name: np.ones((number, 3), np.float32)}, parts / part)
        weight_map[name] = part
    index = {"metadata": {"total_size": 36}, "weight_map": weight_map}
    (parts / "model.safetensors.index.json").write_text(json.dumps(index))


def use_safetensors(folder: Path) -> None:
    """Read every tensor."""
    path = folder if (folder / "model.safetensors.index.json").exists() else folder / "model.safetensors"
    summarize(path)
    with open_weights(path) as checkpoint:
        for name in checkpoint.names():
            try:
                checkpoint.array(name)
                checkpoint.float32(name)
            except LatticeError:
                pass


def make_encoder(folder: Path) -> None:
    """Copy the small BERT, once as it is and once with the settings of a tokenizer and prompts."""
    shutil.copytree(TINY_BERT, folder / "plain")
    shutil.copytree(TINY_BERT, folder / "settings")
    (folder / "settings" / "tokenizer.json").unlink()
    (folder / "settings" / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 64})
    )
    for path in (folder / "plain" / "expected.json", folder / "settings" / "expected.json"):
        path.unlink()


def damage_settings(folder: Path, draw: random.Random) -> None:
    """Damage the small files more often than the weights."""
    paths = [path for path in sorted(folder.rglob("*.json")) if path.stat().st_size < 10_000]
    if not paths or draw.random() < 0.2:
        damage_any_file(folder, draw)
        return
    for _ in range(draw.choice((1, 1, 2))):
        path = draw.choice(paths)
        path.write_bytes(mutated_document(path.read_bytes(), draw))


def use_encoder(folder: Path) -> None:
    """Load an encoder and embed with it."""
    summarize(folder)
    with load_encoder(folder) as encoder:
        encoder.encode(["a cat sat", "", "the " * 90])


def make_decoder(folder: Path) -> None:
    """Write a small decoder."""
    write_drawn_model(
        folder / "decoder", generation_config={"temperature": 0.7, "top_p": 0.9, "eos_token_id": [257, 260]}
    )


def use_decoder(folder: Path) -> None:
    """Load a decoder, write with it and chat."""
    summarize(folder)
    estimate_memory(folder)
    with load_model(folder) as model, Session(model) as session:
        session.generate("a b", GenerateConfig(max_new_tokens=2))


def make_int8(folder: Path) -> None:
    """Quantize the small BERT."""
    quantize_int8(TINY_BERT, folder / "int8")


def use_int8(folder: Path) -> None:
    """Load it in integers and in float32."""
    for precision in ("int8", "float32"):
        with load_encoder(folder, precision=precision) as encoder:  # type: ignore[arg-type]
            encoder.encode(["a cat sat"])


STORAGE: Any = SimpleNamespace(
    recurrent=None, page_tokens=4, page_bytes=100, pages=3, specs=(), export=lambda page: bytes([page + 1]) * 100
)


def make_prefix(folder: Path) -> None:
    """Write a prefix of two pages."""
    (folder / "prefix").mkdir()
    write_prefix(folder / "prefix" / "prefix", STORAGE, [1, 2, 3, 4, 5, 6], [0, 1], identity="model")


def damage_prefix(folder: Path, draw: random.Random) -> None:
    """Damage the header or the pages; the digest fits in two of three."""
    path = only_file(folder)
    data = path.read_bytes()
    length = int.from_bytes(data[8:16], "little")
    kind = draw.randrange(3)
    if kind == 0:
        path.write_bytes(mutated_bytes(data, draw))
        return
    if kind == 1:
        body = mutated_bytes(data[:-32], draw)
    else:
        header = mutated_document(data[16 : 16 + length], draw)
        body = data[:8] + len(header).to_bytes(8, "little") + header + data[16 + length : -32]
    path.write_bytes(body + hashlib.sha256(body).digest())


def use_prefix(folder: Path) -> None:
    """Read all pages."""
    with read_prefix(only_file(folder), STORAGE, identity="model") as prefix:
        prefix.token_ids.tolist()
        list(prefix.pages())


def use_weights(folder: Path) -> None:
    """List, read, tokenize and load."""
    use_weight_file(only_file(folder))


ERRORS = (LatticeError,)

TARGETS = [
    Target("weight-files", make_weight_files, change_weights, use_weights, ERRORS),
    Target("safetensors", make_safetensors, damage_any_file, use_safetensors, ERRORS),
    Target("encoder-directory", make_encoder, damage_settings, use_encoder, ERRORS),
    Target("decoder-directory", make_decoder, damage_settings, use_decoder, ERRORS),
    Target("int8-directory", make_int8, damage_settings, use_int8, ERRORS),
    Target("prefix-file", make_prefix, damage_prefix, use_prefix, ERRORS),
]
