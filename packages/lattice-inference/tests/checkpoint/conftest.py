"""Fixtures for the tests of checkpoint files."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

WriteSafetensors = Callable[..., Path]


@pytest.fixture
def write_safetensors(tmp_path: Path) -> WriteSafetensors:
    """Write a file in the safetensors format byte by byte, right or wrong, and return its path."""

    def write(header: str | bytes | Mapping[str, object], data: bytes = b"", name: str = "model.safetensors") -> Path:
        if isinstance(header, Mapping):
            header = json.dumps(header, separators=(",", ":"))
        if isinstance(header, str):
            header = header.encode()
        path = tmp_path / name
        path.write_bytes(len(header).to_bytes(8, "little") + header + data)
        return path

    return write
