"""Damage of any kind in a saved prefix is a typed error, or the content is what was saved."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mutated_files import mutate_file, mutated_bytes, mutated_json

from lattice_inference import LatticeError
from lattice_inference.state.prefix_file import read_prefix, write_prefix

STORAGE: Any = SimpleNamespace(
    page_tokens=4, page_bytes=100, pages=3, specs=(), recurrent=None, export=lambda page: bytes([page + 1]) * 100
)
TOKENS = [1, 2, 3, 4, 5, 6]


def read(path: Path) -> tuple[list[int], list[bytes]]:
    with read_prefix(path, STORAGE, identity="model") as prefix:
        return prefix.token_ids.tolist(), list(prefix.pages())


def seal(body: bytes) -> bytes:
    return body + hashlib.sha256(body).digest()


def mutate(path: Path, draw: random.Random) -> bool:
    """Damage a file; return whether its digest fits what is in it."""
    data = path.read_bytes()
    length = int.from_bytes(data[8:16], "little")
    kind = draw.randrange(3)
    if kind == 0:
        mutate_file(path, draw)
        return False
    if kind == 1:
        path.write_bytes(seal(mutated_bytes(data[:-32], draw)))
        return True
    header = json.dumps(mutated_json(json.loads(data[16 : 16 + length]), draw)).encode()
    path.write_bytes(seal(data[:8] + len(header).to_bytes(8, "little") + header + data[16 + length : -32]))
    return True


def check(folder: Path, count: int, seed: int) -> None:
    path = folder / "prefix"
    for number in range(count):
        write_prefix(path, STORAGE, TOKENS, [0, 1], identity="model")
        saved = read(path)
        is_sealed = mutate(path, random.Random(seed * 1_000_003 + number))
        try:
            found = read(path)
        except LatticeError:
            continue
        assert is_sealed or found == saved, number


def test_damaged_prefix_is_refused(tmp_path: Path) -> None:
    check(tmp_path, 60, 1)


@pytest.mark.slow
def test_many_damaged_prefixes_are_refused(tmp_path: Path) -> None:
    check(tmp_path, 3_000, 2)


@pytest.mark.slow
def test_two_thousand_flipped_bits_are_found(tmp_path: Path) -> None:
    path = tmp_path / "prefix"
    write_prefix(path, STORAGE, TOKENS, [0, 1], identity="model")
    data, draw = path.read_bytes(), random.Random(3)
    for _ in range(2_000):
        content = bytearray(data)
        content[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        path.write_bytes(content)
        with pytest.raises(LatticeError):
            read(path)


@pytest.mark.parametrize("path", ["x" * 5_000, "a\0b"])
def test_odd_paths_are_refused(path: str) -> None:
    with pytest.raises(LatticeError):
        read(Path(path))
    with pytest.raises(LatticeError):
        write_prefix(Path(path), STORAGE, TOKENS, [0, 1], identity="model")
