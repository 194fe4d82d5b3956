"""``lattice-embed cache`` and ``embed --cache``, driven as a user does, on a real small model."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lattice_embed.cli import main

DATA = Path(__file__).parents[2] / "lattice-inference" / "tests" / "data" / "tiny_bert"
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LATTICE_VECTOR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def run_json(capsys: Capture, *arguments: str) -> Any:
    assert main([*arguments, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return json.loads(captured.out)


def embed(capsys: Capture, *arguments: str) -> list[list[float]]:
    report = run_json(capsys, "embed", "--model", str(DATA), *arguments)
    return [entry["embedding"] for entry in report["embeddings"]]


def test_vectors_are_kept_on_request_only(folder: Path, capsys: Capture) -> None:
    want = embed(capsys, "a cat", "a dog")
    assert not folder.exists()
    assert run_json(capsys, "cache", "stats") == {
        "path": str(folder / "vectors.sqlite3"),
        "exists": False,
        "entries": 0,
        "bytes": 0,
        "models": {},
    }
    for _ in range(2):
        assert embed(capsys, "--cache", "a cat", "a dog") == want
        stats = run_json(capsys, "cache", "stats")
        assert (stats["entries"], stats["mode"], stats["models"]) == (2, "read-write", {str(DATA): 2})
        assert stats["bytes"] == (folder / "vectors.sqlite3").stat().st_size


def test_a_vector_really_comes_from_the_cache(folder: Path, capsys: Capture) -> None:
    """Seen by putting another vector in its place: whoever prints it has not computed."""
    import sqlite3
    import zlib

    embed(capsys, "--cache", "a cat")
    connection = sqlite3.connect(folder / "vectors.sqlite3")
    ((key,),) = connection.execute("SELECT key FROM vectors").fetchall()
    vector = np.arange(48, dtype=np.float32).tobytes()
    connection.execute("UPDATE vectors SET vector = ?, checksum = ?", (vector, zlib.crc32(vector, zlib.crc32(key))))
    connection.commit()
    connection.close()
    assert embed(capsys, "--cache", "a cat") == [[float(number) for number in range(48)]]


def test_another_folder_may_be_named(folder: Path, capsys: Capture, tmp_path: Path) -> None:
    other = tmp_path / "other"
    embed(capsys, "--cache-folder", str(other), "a cat")
    assert run_json(capsys, "cache", "stats", "--cache-folder", str(other))["entries"] == 1
    assert run_json(capsys, "cache", "path", "--cache-folder", str(other))["path"] == str(other / "vectors.sqlite3")
    assert not folder.exists()


def test_path_is_one_line_and_makes_nothing(folder: Path, capsys: Capture) -> None:
    assert main(["cache", "path"]) == 0
    assert capsys.readouterr().out == f"{folder / 'vectors.sqlite3'}\n"
    assert not folder.exists()


def test_clear_removes_all_or_one_model(folder: Path, capsys: Capture) -> None:
    assert run_json(capsys, "cache", "clear")["removed"] == 0
    embed(capsys, "--cache", "a cat", "a dog")
    assert run_json(capsys, "cache", "clear", "--of", "another")["removed"] == 0
    assert run_json(capsys, "cache", "clear", "--of", str(DATA))["removed"] == 2
    embed(capsys, "--cache", "a cat")
    assert main(["cache", "clear"]) == 0
    assert "1 vectors removed" in capsys.readouterr().out
    assert main(["cache", "stats"]) == 0
    assert "0 vectors" in capsys.readouterr().out


def test_stats_for_people_name_the_models(folder: Path, capsys: Capture) -> None:
    embed(capsys, "--cache", "a cat")
    assert main(["cache", "stats"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{folder / 'vectors.sqlite3'}: 1 vectors, ")
    assert second.split() == ["1", str(DATA)]


@pytest.mark.parametrize("arguments", [["inspect"], ["stats", "file"], ["path", "--of", "m"], ["stats", "--of", "m"]])
def test_a_request_that_makes_no_sense_has_status_2(arguments: list[str], folder: Path, capsys: Capture) -> None:
    assert main(["cache", *arguments]) == 2
    assert capsys.readouterr().err.startswith("lattice-embed: error: ")


def test_inspect_tells_what_a_file_of_the_reference_holds(tmp_path: Path, capsys: Capture) -> None:
    import hashlib

    payload = struct.pack("<QI2f", 5, 2, 1.0, 2.0)
    manifest = {
        "version": 1,
        "payload_sha256": hashlib.sha256(payload).hexdigest(),
        "base_model_rev": "model-1",
        "tokenizer_rev": "tokenizer-1",
        "embedding_dim": 2,
        "entry_count": 1,
    }
    encoded = json.dumps(manifest).encode()
    path = tmp_path / "embed_x_2d.bin"
    path.write_bytes(b"LQECACHE" + struct.pack("<I", len(encoded)) + encoded + payload)
    report = run_json(capsys, "cache", "inspect", str(path))
    assert report == {
        "path": str(path),
        "entries": 1,
        "dim": 2,
        "base_model_rev": "model-1",
        "tokenizer_rev": "tokenizer-1",
    }
    assert main(["cache", "inspect", str(path)]) == 0
    assert "1 vectors of 2 dimensions" in capsys.readouterr().out
    path.write_bytes(path.read_bytes()[:-1])
    assert main(["cache", "inspect", str(path)]) == 1
    assert "only" in capsys.readouterr().err


@pytest.mark.slow
def test_a_damaged_cache_is_a_warning_and_the_vectors_are_right(folder: Path, capsys: Capture) -> None:
    want = embed(capsys, "a cat")
    folder.mkdir()
    (folder / "vectors.sqlite3").write_bytes(b"no database" * 1_000)
    command = [sys.executable, "-m", "lattice_embed", "embed", "--model", str(DATA), "--cache", "--json", "a cat"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ)
    assert done.returncode == 0
    assert done.stderr.startswith("lattice-embed: warning: ")
    assert "was damaged" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert json.loads(done.stdout)["embeddings"][0]["embedding"] == want[0]


def test_help_teaches(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["cache", "--help"])
    assert caught.value.code == 0
    assert "lattice-embed cache clear --of" in capsys.readouterr().out
