"""LQECACHE files of the reference implementation: read whole, or refused whole."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lattice_inference import ModelNotFoundError, VectorCacheError
from lattice_inference.vector_cache import read_lqecache
from lattice_inference.vector_cache.lqecache import lqecache_key

RECORDS = {(1, 2, 3): [0.5, -1.0, 2.0], (7,): [3.0, 0.0, 1.0]}


def fnv1a(data: bytes) -> int:
    """FNV-1a, 64 bits, as http://www.isthe.com/chongo/tech/comp/fnv/ defines it."""
    value = 14695981039346656037
    for byte in data:
        value = ((value ^ byte) * 1099511628211) % 2**64
    return value


def make_file(path: Path, **manifest: Any) -> Path:
    payload = b"".join(
        struct.pack("<QI3f", fnv1a(struct.pack(f"<{len(ids)}I", *ids)), 3, *vector) for ids, vector in RECORDS.items()
    )
    fields = {
        "version": 1,
        "payload_sha256": hashlib.sha256(payload).hexdigest(),
        "base_model_rev": "sha256:0123456789abcdef",
        "tokenizer_rev": "sha256:fedcba9876543210",
        "embedding_dim": 3,
        "entry_count": 2,
    }
    encoded = json.dumps(fields | manifest).encode()
    path.write_bytes(b"LQECACHE" + struct.pack("<I", len(encoded)) + encoded + payload)
    return path


def test_a_file_is_read_and_its_vectors_are_found_by_token_ids(tmp_path: Path) -> None:
    cache = read_lqecache(make_file(tmp_path / "c.bin"))
    assert (len(cache), cache.dimension) == (2, 3)
    assert (cache.base_model_rev, cache.tokenizer_rev) == ("sha256:0123456789abcdef", "sha256:fedcba9876543210")
    for ids, vector in RECORDS.items():
        found = cache.find(ids)
        assert found is not None
        assert found.tolist() == vector
        assert np.array_equal(cache.find(np.array(ids, np.int64)), found)  # type: ignore[arg-type]
    assert cache.find([1, 2]) is None
    with pytest.raises(ValueError, match="read-only"):
        cache.find([7])[0] = 1  # type: ignore[index]


def test_the_key_is_fnv_1a_over_little_endian_ids() -> None:
    assert lqecache_key([]) == 0xCBF29CE484222325
    assert lqecache_key([97]) == fnv1a(b"a\0\0\0")
    assert lqecache_key([151_643, 2]) == fnv1a(struct.pack("<II", 151_643, 2))


def test_revisions_that_are_asked_for_must_agree(tmp_path: Path) -> None:
    path = make_file(tmp_path / "c.bin")
    assert len(read_lqecache(path, base_model_rev="sha256:0123456789abcdef")) == 2
    with pytest.raises(VectorCacheError, match="tokenizer_rev 'sha256:fedcba9876543210', not 'other'"):
        read_lqecache(path, tokenizer_rev="other")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, "version 1"),
        ({"version": None}, "version 1"),
        ({"payload_sha256": "0" * 64}, "SHA-256"),
        ({"payload_sha256": None}, "SHA-256"),
        ({"base_model_rev": 5}, "base_model_rev is 5"),
        ({"embedding_dim": 4}, "only 48 follow"),
        ({"embedding_dim": 0}, "0 dimensions"),
        ({"embedding_dim": 2**40}, "more than is read"),
        ({"embedding_dim": "3"}, "not an integer"),
        ({"embedding_dim": True}, "not an integer"),
        ({"entry_count": 1}, "more follow"),
        ({"entry_count": 3}, "only 48 follow"),
        ({"entry_count": 10_001}, "more than is read"),
        ({"entry_count": -1}, "more than is read"),
    ],
)
def test_a_manifest_that_contradicts_the_file_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(VectorCacheError, match=message):
        read_lqecache(make_file(tmp_path / "c.bin", **changes))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_vector_that_is_no_number_is_refused(value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RECORDS, (9,), [1.0, value, 0.0])
    with pytest.raises(VectorCacheError, match="NaN"):
        read_lqecache(make_file(tmp_path / "c.bin", entry_count=3))


def test_every_cut_and_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    whole = make_file(tmp_path / "c.bin").read_bytes()
    path = tmp_path / "damaged.bin"
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(VectorCacheError):
            read_lqecache(path)
    start = len(whole) - 48
    for place in range(start, len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(VectorCacheError):
            read_lqecache(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(VectorCacheError, match="more follow"):
        read_lqecache(path)


def test_what_is_no_such_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no file"):
        read_lqecache(tmp_path / "missing.bin")
    with pytest.raises(VectorCacheError, match="cannot be read"):
        read_lqecache(tmp_path)
    (tmp_path / "huge.bin").write_bytes(b"LQECACHE" + struct.pack("<I", 2**32 - 1) + b"{}")
    with pytest.raises(VectorCacheError, match="manifest of 4,294,967,295 bytes"):
        read_lqecache(tmp_path / "huge.bin")
    (tmp_path / "deep.bin").write_bytes(b"LQECACHE" + struct.pack("<I", 60_000) + b"[" * 60_000)
    with pytest.raises(VectorCacheError, match="no JSON"):
        read_lqecache(tmp_path / "deep.bin")
