"""Saved detectors that are damaged or hostile, and writers that were killed."""

import io
import json
import os
import resource
import signal
import stat
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from lattice_transport import InvalidInputError, OnlineDriftDetector
from lattice_transport.atomic_file import write_atomically
from lattice_transport.drift import state as state_file


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    detector = OnlineDriftDetector(16, permutations=99)
    for vector in np.random.default_rng(0).normal(size=(40, 3)):
        detector.observe(vector)
    path = tmp_path_factory.mktemp("state") / "state.npz"
    detector.save(path)
    return path.read_bytes()


def parts_of(data):
    with np.load(io.BytesIO(data)) as file:
        return json.loads(file["state"].tobytes()), {name: file[name] for name in file.files if name != "state"}


def written(path, state, arrays, save=np.savez):
    save(path, state=np.frombuffer(json.dumps(state).encode(), np.uint8), **arrays)
    return path


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[
            (name, value)
            for name in ("window_size", "check_interval", "permutations", "samples_seen", "position", "dimension")
            for value in (-1, 2**31 + 99, 10**400, 1.5, True, "3", [], None)
            if (name, value) not in (("dimension", None), ("samples_seen", 2**31 + 99), ("check_interval", 2**31 + 99))
        ],
        *[(name, value) for name in ("since_check", "cooling", "cooldown", "seed") for value in (-1, 2**129, 0.5, "x")],
        *[
            (name, value)
            for name in ("false_alarm_rate", "reindex_effect", "epsilon", "chosen_epsilon")
            for value in (-1.0, 0.0, float("nan"), 1e400, 10**400, "x", [])
        ],
        ("false_alarm_rate", 5e-324),
        ("metric", "x"),
        ("metric", 3),
        ("fingerprint", 5),
        ("fingerprint", "x" * 5000),
        ("reference_fingerprint", []),
        ("format", 2),
        ("permutations", 100),
    ],
)
def test_every_number_of_a_state_has_bounds(tmp_path, saved, name, value):
    state, arrays = parts_of(saved)
    state[name] = value
    with pytest.raises(InvalidInputError):
        OnlineDriftDetector.restore(written(tmp_path / "x.npz", state, arrays))


def test_uncalibrated_state_cannot_ask_for_endless_permutations(tmp_path):
    detector = OnlineDriftDetector(16, permutations=99)
    detector.observe(np.zeros(3))
    detector.save(tmp_path / "x.npz")
    state, arrays = parts_of((tmp_path / "x.npz").read_bytes())
    for window, permutations in ((16, 2147483747), (4096, 100_000)):
        state |= {"permutations": permutations, "window_size": window}
        with pytest.raises(InvalidInputError, match="permutations"):
            OnlineDriftDetector.restore(written(tmp_path / "x.npz", state, arrays))


@pytest.mark.parametrize(
    "change",
    [
        lambda s, a: a.pop("null"),
        lambda s, a: a.pop("own_v"),
        lambda s, a: a.update(own_v=a["own_v"][:3]),
        lambda s, a: a.update(reference=a["reference"][:, :2]),
        lambda s, a: a.update(window=np.zeros((17, 3))),
        lambda s, a: a.update(pending=np.zeros((3, 3))),
        lambda s, a: a.update(pending=np.zeros(3)),
        lambda s, a: a.update(null=a["null"].astype(np.float32)),
        lambda s, a: a.update(null=np.full(99, np.inf)),
        lambda s, a: a.update(reference=np.full((16, 3), 1e300)),
        lambda s, a: a.update(window=np.full((16, 3), 1e300)),
        lambda s, a: a.update(other=np.zeros(3)),
        lambda s, a: s.pop("seed"),
        lambda s, a: s.clear(),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(tmp_path, saved, change):
    state, arrays = parts_of(saved)
    change(state, arrays)
    with pytest.raises(InvalidInputError):
        OnlineDriftDetector.restore(written(tmp_path / "x.npz", state, arrays))


def test_every_part_of_a_state_must_be_there(tmp_path, saved):
    state, arrays = parts_of(saved)
    for name in state:
        rest = {key: value for key, value in state.items() if key != name}
        with pytest.raises(InvalidInputError, match="format" if name == "format" else f"lacks {name}$"):
            OnlineDriftDetector.restore(written(tmp_path / "x.npz", rest, arrays))
    for name in arrays:
        rest = {key: value for key, value in arrays.items() if key != name}
        with pytest.raises(InvalidInputError, match=name):
            OnlineDriftDetector.restore(written(tmp_path / "x.npz", state, rest))


def test_sizes_are_looked_at_before_anything_is_unpacked(tmp_path, saved):
    state, arrays = parts_of(saved)
    bomb = written(tmp_path / "bomb.npz", state, arrays | {"window": np.zeros((2_000_000, 3))}, np.savez_compressed)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InvalidInputError, match="compressed"):
        OnlineDriftDetector.restore(bomb)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # kB
    # a header that claims more than its member holds
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**12,)})
    with zipfile.ZipFile(io.BytesIO(saved)) as old, zipfile.ZipFile(tmp_path / "claim.npz", "w") as new:
        for name in old.namelist():
            new.writestr(name, header.getvalue() if name == "null.npy" else old.read(name))
    with pytest.raises(InvalidInputError, match="does not fit"):
        OnlineDriftDetector.restore(tmp_path / "claim.npz")
    long_state = written(tmp_path / "long.npz", state | {"fingerprint": "x" * 100_000}, arrays)
    with pytest.raises(InvalidInputError, match="most"):
        OnlineDriftDetector.restore(long_state)
    deep = "[" * 60_000
    np.savez(tmp_path / "deep.npz", state=np.frombuffer(deep.encode(), np.uint8), **arrays)
    with pytest.raises(InvalidInputError):
        OnlineDriftDetector.restore(tmp_path / "deep.npz")


def test_flipped_bytes_are_refused_or_harmless(tmp_path, saved):
    rng = np.random.default_rng(0)
    path = tmp_path / "x.npz"
    whole = OnlineDriftDetector.restore(_put(path, saved))
    for place in rng.integers(0, len(saved), 60):
        damaged = bytearray(saved)
        damaged[place] ^= 1 << int(rng.integers(8))
        _put(path, bytes(damaged))
        try:
            other = OnlineDriftDetector.restore(path)
        except InvalidInputError:
            continue
        np.testing.assert_array_equal(other.window(), whole.window())
        assert repr(other) == repr(whole)


def _put(path, data):
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("path", [None, 3, 1.5, [], b"x", "", "a\0b", True])
def test_names_that_are_none_are_refused(path):
    with pytest.raises(InvalidInputError):
        OnlineDriftDetector.restore(path)
    with pytest.raises(InvalidInputError):
        OnlineDriftDetector(16).save(path)


KILLED = """
import os, sys
from lattice_transport.atomic_file import write_atomically
def write(file):
    file.write(b"half")
    file.flush()
    print("writing", flush=True)
    sys.stdin.read()
write_atomically(sys.argv[1], write)
"""


def test_leftovers_of_killed_writers_are_removed_and_those_of_live_ones_kept(tmp_path):
    target = tmp_path / "state.npz"
    other = tmp_path / ".other.0123.tmp"
    other.write_bytes(b"somebody else's")
    writers = []
    for _ in range(2):
        writer = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(target)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdout.readline() == "writing\n"
        writers.append(writer)
    killed, live = writers
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert len(list(tmp_path.glob(".state.npz.*.tmp"))) == 2
    OnlineDriftDetector(16).save(target)
    assert len(list(tmp_path.glob(".state.npz.*.tmp"))) == 1
    live.communicate("")
    assert live.returncode == 0
    assert target.read_bytes() == b"half"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other.0123.tmp", "state.npz"]
    killed.stdout.close()
    killed.stdin.close()


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_failing_disk_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, step):
    target = tmp_path / "state.npz"
    target.write_bytes(b"old")

    def fail(*_, **__):
        raise OSError(28, "No space left on device", ".state.npz.123.tmp")

    if step == "write":
        monkeypatch.setattr(state_file.np, "savez", fail)
    else:
        monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="No space left") as caught:
        OnlineDriftDetector(16).save(target)
    assert caught.value.filename == str(target)
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["state.npz"]


def test_a_file_is_on_the_disk_whole_before_it_has_its_name(tmp_path, monkeypatch):
    """Else a power failure may leave an empty file in the place of the former one, or undo the rename."""
    steps = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(descriptor):
        fsync(descriptor)
        status = os.fstat(descriptor)
        steps.append(status.st_ino if stat.S_ISDIR(status.st_mode) else status.st_size)

    def note_replace(source, target):
        steps.append(os.path.basename(target))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    OnlineDriftDetector(16).save(tmp_path / "state.npz")
    assert steps == [(tmp_path / "state.npz").stat().st_size, "state.npz", tmp_path.stat().st_ino]


def test_saved_file_follows_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "x", lambda file: file.write(b"x"))
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o640
