"""A folder a class: each subfolder is named for its label and holds one text a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from lattice_tune.datasets.config import DatasetConfig
from lattice_tune.datasets.lines import opened
from lattice_tune.datasets.rows import Row, RowError
from lattice_tune.errors import DatasetError

__all__ = ["folder_rows"]


def folder_rows(path: Path, config: DatasetConfig) -> Iterator[Row]:
    """Yield the texts of all files of all subfolders, sorted by name.

    Hidden files and links are left out.

    Raises:
        DatasetError: the folder cannot be read, or has no subfolder.
    """
    classes = [entry for entry in _entries(path) if entry.is_dir(follow_symlinks=False)]
    if not classes:
        raise DatasetError(f"{path}: it has no subfolder; each label needs one, with a text in each of its files")
    place = 0
    for label in classes:
        for entry in _entries(Path(label.path)):
            if entry.is_file(follow_symlinks=False):
                place += 1
                yield Row(place, _fields(Path(entry.path), label.name, config))


def _entries(path: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name)
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror or error}") from error


def _fields(path: Path, label: str, config: DatasetConfig) -> dict[str, object] | RowError:
    with opened(path) as file:
        content = file.read(config.max_line_bytes + 1)
    if len(content) > config.max_line_bytes:
        return RowError(f"{path} is larger than {config.max_line_bytes:,} bytes: raise max_line_bytes if it is meant")
    try:
        text = content.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        return RowError(f"{path}: byte {error.start} is no UTF-8")
    if "\0" in text:
        return RowError(f"{path} holds a NUL character")
    return {config.text_field: text, config.label_field: label, "file": f"{label}/{path.name}"}
