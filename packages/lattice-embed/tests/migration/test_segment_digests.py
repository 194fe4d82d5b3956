"""The store in a folder: damage is found and never merged, and its manifest names nothing but plain segments."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import blake3
import pytest

from lattice_embed import StoreCorruptError, StoreError
from lattice_embed.stores import create_store, open_store
from lattice_embed.stores.numpy_store import FAN_IN

from .damaged_stores import SPACE, answers_of, assert_found_or_harmless, documents, flipped_copies, make_store

pytestmark = pytest.mark.usefixtures("no_sync")


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def manifest_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "store.json").read_text()))


def write_manifest(folder: Path, fields: dict[str, Any], *, seal: bool = True) -> None:
    """Write a manifest, with the digest that it would have if the store had written it."""
    fields.pop("blake3", None)
    if seal:
        fields["blake3"] = blake3.blake3(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    (folder / "store.json").write_text(json.dumps(fields))


def test_flipped_bits_are_found_or_change_no_answer(tmp_path: Path) -> None:
    check_flips(tmp_path, 25, 1)


@pytest.mark.slow
def test_hundreds_of_flipped_bits_are_found_or_change_no_answer(tmp_path: Path) -> None:
    check_flips(tmp_path, 600, 2)


def check_flips(folder: Path, count: int, seed: int) -> None:
    expected = make_store(folder / "s")
    found = [
        assert_found_or_harmless(copy, expected, where)
        for where, copy in flipped_copies(folder / "s", folder, count, seed)
    ]
    assert sum(found) > count * 0.8


@pytest.mark.parametrize("suffix", [".npy", ".jsonl"])
@pytest.mark.parametrize("is_open", [False, True])
def test_damaged_segment_is_not_merged(suffix: str, is_open: bool, tmp_path: Path) -> None:
    """The write that would merge it fails and stores nothing; what is damaged stays known as damaged."""
    held = documents(2 * FAN_IN)
    with create_store(tmp_path / "s", SPACE) as store:
        for one in held[: FAN_IN - 1]:
            store.put([one])
        flip(sorted((tmp_path / "s").glob(f"segment-*{suffix}"))[2], -3)
        if is_open:
            with pytest.raises(StoreCorruptError, match="not what was written"):
                store.put(held[FAN_IN - 1 : FAN_IN])
            assert len(store) == FAN_IN - 1
    with pytest.raises(StoreCorruptError), open_store(tmp_path / "s") as store:
        store.put(held[FAN_IN - 1 : FAN_IN])
    with pytest.raises(StoreCorruptError), open_store(tmp_path / "s") as store:
        store.verify()


def test_line_that_changes_while_the_store_is_open_is_no_answer(tmp_path: Path) -> None:
    with create_store(tmp_path / "s", SPACE) as store:
        store.put(documents(3))
        (lines,) = (tmp_path / "s").glob("segment-*.jsonl")
        data = lines.read_bytes()
        lines.write_bytes(data.replace(b"text 1", b"text 7", 1))
        assert store.get(["document-0"])[0] is not None
        with pytest.raises(StoreCorruptError, match="not what was written"):
            store.get(["document-1"])
        lines.write_bytes(data.replace(b'"spans": [[0, 5]', b'"spans": [[0, 6]'))
        with pytest.raises(StoreCorruptError, match="not what was written"):
            store.query([1.0] * 16, 3)


@pytest.mark.parametrize(
    "change",
    [
        lambda fields: fields["space"].update(location="org/nodel"),
        lambda fields: fields.update(next_segment=fields["next_segment"] + 1),
        lambda fields: fields["segments"].pop(),
        lambda fields: fields["segments"][0].update(documents=3),
        lambda fields: fields.update(more=1),
    ],
)
def test_manifest_that_was_changed_is_told(change: Callable[[dict[str, Any]], object], tmp_path: Path) -> None:
    make_store(tmp_path / "s")
    fields = manifest_of(tmp_path / "s")
    digest = fields["blake3"]
    change(fields)
    for kept in ({"blake3": digest}, {"blake3": None}, {"blake3": "é" * 64}, {}):
        del fields["blake3"]
        fields |= kept
        (tmp_path / "s" / "store.json").write_text(json.dumps(fields))
        with pytest.raises(StoreCorruptError, match="not what was written"):
            open_store(tmp_path / "s")


def test_damaged_vector_is_not_copied_into_another_store(tmp_path: Path) -> None:
    with create_store(tmp_path / "s", SPACE) as store:
        store.put(documents(3))
    (vectors,) = (tmp_path / "s").glob("segment-*.npy")
    flip(vectors, -3)
    with open_store(tmp_path / "s") as store, create_store(tmp_path / "copy.db", SPACE) as copy:
        copy.put([one for one in store.get(["document-0", "document-1"]) if one is not None])
        with pytest.raises(StoreCorruptError, match="its vectors are not what was written"):
            store.get(["document-2"])


def test_lines_of_the_first_version_may_be_without_a_digest_of_vectors(tmp_path: Path) -> None:
    with create_store(tmp_path / "s", SPACE) as store:
        store.put(documents(3))
        expected = answers_of(store)
    (lines,) = (tmp_path / "s").glob("segment-*.jsonl")
    kept = [json.loads(line) for line in lines.read_text().splitlines()]
    for line in kept:
        del line["vectors_blake3"]
    lines.write_text("".join(json.dumps(line) + "\n" for line in kept))
    fields = {**manifest_of(tmp_path / "s"), "version": 1}
    fields["segments"][0] |= {
        "lines_bytes": lines.stat().st_size,
        "lines_blake3": blake3.blake3(lines.read_bytes()).hexdigest(),
    }
    write_manifest(tmp_path / "s", fields, seal=False)
    with open_store(tmp_path / "s") as store:
        assert answers_of(store) == expected


@pytest.mark.parametrize(
    "name",
    [
        "../outside",
        "/tmp/outside",
        "segment-00000001/../../outside",
        "segment-1",
        "segment-0000000a",
        "segment-٠٠٠٠٠٠٠١",
        "segment-00000001\n",
        "store",
        "",
        "x" * 5_000,
        "segment-" + "1" * 5_000,
        "segment-00000001\0",
        None,
        7,
        ["segment-00000001"],
    ],
)
def test_names_of_segments_are_plain(name: Any, tmp_path: Path) -> None:
    with create_store(tmp_path / "s", SPACE) as store:
        store.put(documents(3))
    for suffix in (".npy", ".jsonl"):
        (segment,) = (tmp_path / "s").glob(f"segment-*{suffix}")
        shutil.copyfile(segment, tmp_path / f"outside{suffix}")
    fields = manifest_of(tmp_path / "s")
    fields["segments"][0]["name"] = name
    write_manifest(tmp_path / "s", fields)
    with pytest.raises(StoreCorruptError, match="name"):
        open_store(tmp_path / "s")


@pytest.mark.parametrize(
    "change",
    [
        lambda fields: fields["segments"].append(fields["segments"][0]),
        lambda fields: fields.update(next_segment=1),
        lambda fields: fields.update(next_segment=10**30),
        lambda fields: fields.update(next_segment="9"),
        lambda fields: fields.update(segments={"name": 1}),
        lambda fields: fields.update(segments=[1]),
        lambda fields: fields["segments"][0].update(rows=-1),
        lambda fields: fields["segments"][0].update(rows=10**30),
        lambda fields: fields["segments"][0].update(documents=True),
        lambda fields: fields["segments"][0].update(lines_bytes=None),
        lambda fields: fields["segments"][0].update(lines_blake3=[]),
        lambda fields: fields["segments"][0].update(more=1),
    ],
)
def test_manifest_with_impossible_values_is_told(change: Callable[[dict[str, Any]], object], tmp_path: Path) -> None:
    """Also where its digest fits: a writer must not go on from numbers that would make it write over a segment."""
    make_store(tmp_path / "s")
    fields = manifest_of(tmp_path / "s")
    change(fields)
    write_manifest(tmp_path / "s", fields)
    with pytest.raises(StoreCorruptError, match="damaged"):
        open_store(tmp_path / "s")


def test_manifest_without_a_digest_gets_one_at_the_next_write(tmp_path: Path) -> None:
    expected = make_store(tmp_path / "s")
    write_manifest(tmp_path / "s", {**manifest_of(tmp_path / "s"), "version": 1}, seal=False)
    with open_store(tmp_path / "s") as store:
        assert answers_of(store) == expected
        assert store.verify() == expected["count"]
        assert manifest_of(tmp_path / "s")["version"] == 1
        store.put(documents(1, seed=2))
        assert answers_of(store) == expected
    assert manifest_of(tmp_path / "s")["version"] == 2
    flip(tmp_path / "s" / "store.json", 100)
    with pytest.raises(StoreError):
        open_store(tmp_path / "s")


@pytest.mark.parametrize("version", [0, 3, True, None, "2", 10**30, [2]])
def test_other_versions_are_refused(version: Any, tmp_path: Path) -> None:
    make_store(tmp_path / "s")
    write_manifest(tmp_path / "s", {**manifest_of(tmp_path / "s"), "version": version})
    with pytest.raises(StoreError, match="version"):
        open_store(tmp_path / "s")


def test_verify_goes_on_while_another_process_merges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment is merged away between the look at the manifest and the look at its files."""
    from lattice_embed.stores.segment import Segment

    with create_store(tmp_path / "s", SPACE) as store, open_store(tmp_path / "s") as reader:
        for one in documents(FAN_IN - 1):
            store.put([one])
        real, calls = Segment.verify, []

        def merged_meanwhile(segment: Segment) -> None:
            calls.append(segment)
            if len(calls) == 1:
                store.put(documents(FAN_IN)[-1:])
            real(segment)

        monkeypatch.setattr(Segment, "verify", merged_meanwhile)
        assert reader.verify() == FAN_IN


def test_mapped_vector_that_is_no_number_is_no_answer(tmp_path: Path) -> None:
    with create_store(tmp_path / "s", SPACE) as store:
        store.put(documents(3))
    (vectors,) = (tmp_path / "s").glob("segment-*.npy")
    data = bytearray(vectors.read_bytes())
    data[-4:] = b"\0\0\xc0\x7f"
    vectors.write_bytes(data)
    with open_store(tmp_path / "s") as store, pytest.raises(StoreCorruptError, match="document-2"):
        store.query([1.0] * 16, 1)
