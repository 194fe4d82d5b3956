"""What lattice-inference writes, for ``disk_faults.run``: ``failing_writers.py WRITER FOLDER``."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from disk_faults import Writer, main

from lattice_inference import VectorCache
from lattice_inference.checkpoint.atomic_file import atomic_directory
from lattice_inference.checkpoint.gguf_writer import TensorToWrite, write_gguf
from lattice_inference.cli.chat_commands import ChatCommands
from lattice_inference.files.checksums import remembered_sha256
from lattice_inference.quantize import quantize_int8
from lattice_inference.state.prefix_file import write_prefix

MODEL = Path(__file__).parent.parent / "data" / "tiny_bert"


def content(path: Path) -> Any:
    """Return everything under a path, but for what a later writer removes."""
    if path.is_dir():
        return {
            str(inner.relative_to(path)): inner.read_bytes() for inner in sorted(path.rglob("*")) if inner.is_file()
        }
    return path.read_bytes() if path.exists() else None


def file_writer(write: Any) -> Writer:
    """Return the writer of one file, which replaces another."""
    return Writer(
        lambda folder: write(folder / "file", 1),
        lambda folder: write(folder / "file", 2),
        lambda folder: content(folder / "file"),
    )


def gguf(path: Path, number: int) -> None:
    rows = np.full((40, 5_000), number, np.float32)
    write_gguf(path, {"k": number}, [TensorToWrite("t", rows.shape, "F32", lambda: [rows.tobytes()] * 1)])


def prefix(path: Path, number: int) -> None:
    storage = SimpleNamespace(
        page_tokens=4, page_bytes=1_000, pages=3, specs=(), recurrent=None, export=lambda page: bytes([number]) * 1_000
    )
    write_prefix(path, storage, [1, 2, 3, 4, number], [0, 1], identity="model")  # type: ignore[arg-type]


def conversation(path: Path, number: int) -> None:
    commands = ChatCommands.__new__(ChatCommands)
    commands._chat = SimpleNamespace(messages=[{"role": "user", "content": f"text {number}"}])  # type: ignore[assignment]
    commands._save(str(path))


def directory(path: Path, number: int) -> None:
    with atomic_directory(path) as work:
        (work / "sub").mkdir()
        (work / "sub" / "inner").write_bytes(bytes([number]) * 10_000)
        (work / "config.json").write_bytes(b"{}")


def directory_writer() -> Writer:
    return file_writer(directory)


def new_directory_writer() -> Writer:
    return Writer(
        lambda folder: None, lambda folder: directory(folder / "file", 1), lambda folder: content(folder / "file")
    )


def int8_writer() -> Writer:
    def old(folder: Path) -> None:
        (folder / "file").mkdir()
        shutil.copyfile(MODEL / "config.json", folder / "file" / "config.json")

    return Writer(
        old,
        lambda folder: quantize_int8(MODEL, folder / "file", overwrite=True),
        lambda folder: content(folder / "file"),
    )


KEYS = [bytes([number]) * 32 for number in range(40)]
VECTORS = [np.full(200, number, np.float32).tobytes() for number in range(40)]


def cache_writer() -> Writer:
    """Return the writer of the cache's database and journal: on a failing disk vectors may be missing, and none is wrong."""

    def put(folder: Path, numbers: range) -> None:
        with VectorCache(folder / "cache", max_bytes=2**18) as cache:
            cache.put_many([(KEYS[number], VECTORS[number]) for number in numbers], space="model")
            cache.stats()  # moves the journal

    def read(folder: Path) -> list[int | None]:
        with VectorCache(folder / "cache", max_bytes=2**18) as cache:
            found = cache.get_many(KEYS)
        return [None if vector is None else VECTORS.index(vector) for vector in found]

    def is_subset(state: list[int | None]) -> bool:
        return all(number in (None, place) for place, number in enumerate(state))

    return Writer(
        lambda folder: put(folder, range(20)), lambda folder: put(folder, range(40)), read, is_subset, fails=False
    )


def stamp_writer() -> Writer:
    """Return the writer of the memory of a file's digest: where it cannot be written, the digest is worked out again."""

    def write(folder: Path) -> None:
        os.environ["LATTICE_MODEL_CACHE"] = str(folder)
        assert remembered_sha256(folder / "weights") == hashlib.sha256(bytes(2**20)).hexdigest()

    return Writer(
        lambda folder: (folder / "weights").write_bytes(bytes(2**20)),
        write,
        lambda folder: any((folder / ".verified").glob("*.json")),
        fails=False,
    )


WRITERS = {
    "gguf": lambda: file_writer(gguf),
    "prefix": lambda: file_writer(prefix),
    "conversation": lambda: file_writer(conversation),
    "directory": directory_writer,
    "new directory": new_directory_writer,
    "int8": int8_writer,
    "cache": cache_writer,
    "stamp": stamp_writer,
}

if __name__ == "__main__":
    main(WRITERS)
