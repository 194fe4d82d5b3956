"""Saved drift detectors, and the vector files of lattice-transport's command line."""

from __future__ import annotations

import io
import random
import zipfile
import zlib
from pathlib import Path

import numpy as np
from commands import run_command
from mutation import damage_file, mutated_bytes, mutated_document
from networks import damage_archive
from target import Target

from lattice_transport import OnlineDriftDetector, TransportError
from lattice_transport.cli import main

__all__ = ["TARGETS"]


def make_states(folder: Path) -> None:
    """Save three detectors: in the middle of the reference, with a full window, and reset."""
    vectors = np.random.default_rng(0).normal(size=(60, 3))
    for name, count in (("begun", 5), ("full", 40), ("long", 60)):
        detector = OnlineDriftDetector(16, permutations=99)
        for vector in vectors[:count]:
            detector.observe(vector)
        (folder / name).mkdir()
        detector.save(folder / name / "state.npz")


def damage_state(folder: Path, draw: random.Random) -> None:
    """Damage the numbers of a state, or its arrays, or the archive."""
    path = folder / "state.npz"
    if draw.random() < 0.5:
        damage_archive(path, draw, (zipfile.ZIP_STORED,))
        return
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    state = np.load(io.BytesIO(members["state.npy"])).tobytes()
    changed = io.BytesIO()
    np.save(changed, np.frombuffer(mutated_document(state, draw), np.uint8))
    members["state.npy"] = changed.getvalue()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


MOST_PERMUTATIONS = 5_000
"""Of a detector that observes here: calibrating with so many takes a second."""


def use_state(folder: Path) -> None:
    """Restore a detector and let it observe."""
    detector = OnlineDriftDetector.restore(folder / "state.npz")
    if detector.permutations > MOST_PERMUTATIONS:
        return  # it is as slow as its settings ask for: the state is bounded, and not wrong
    window = detector.window()
    length = window.shape[1] if window.ndim == 2 and window.shape[1] else 3
    for vector in np.random.default_rng(1).normal(size=(40, length)):
        detector.observe(vector)
    detector.save(folder / "again.npz")


def make_vectors(folder: Path) -> None:
    """Write matrices of several types."""
    draw = np.random.default_rng(0)
    for kind in ("float64", "float32", "float16", "int8", ">f8"):
        made = folder / kind.replace(">", "big-")
        made.mkdir()
        np.save(made / "a.npy", (4 * draw.normal(size=(20, 3))).astype(kind))
        np.save(made / "b.npy", np.asfortranarray(4 * draw.normal(size=(15, 3))).astype(kind))


SHAPES = ("(-1, 3)", "(99999999999999999999, 3)", "()", "(20,)", "'x'", "(3, 20)", "(20, 3, 1)", "(0, 3)", "(60, 1)")
KINDS = ("'|O'", "[('a', '<f8')]", "'<f2'", "7", "'<U9'", "'<c16'", "'<M8[s]'", "'|b1'", "'<i8'", "'>f4'", "'|V8'")


def damage_vectors(folder: Path, draw: random.Random) -> None:
    """Damage one of the two files, more often its header.

    Or set numbers at the edges of its type.
    """
    path = draw.choice(sorted(folder.glob("*.npy")))
    data = path.read_bytes()
    kind = draw.randrange(4)
    if kind == 0:
        head = f"{{'descr': {draw.choice(KINDS)}, 'fortran_order': {draw.choice(('True', 'False', '('))}, "
        head += f"'shape': {draw.choice(SHAPES)}, }}"
        path.write_bytes(data[:10] + head.encode().ljust(117)[:117] + b"\n" + data[128:])
    elif kind == 1:
        array = np.load(path)
        value = draw.choice((np.nan, np.inf, -np.inf, 1e300, 1e-320, 65504.0, -0.0, 1e39, 1e20))
        with np.errstate(all="ignore"):
            array[draw.randrange(len(array)) :: draw.choice((1, 7))] = np.array(value).astype(array.dtype)
        np.save(path, array)
    elif kind == 2:
        path.write_bytes(mutated_bytes(data[:128], draw) + data[128:])
    else:
        damage_file(path, draw)


def use_vectors(folder: Path) -> None:
    """Measure, test or average: what, follows from the files."""
    a, b = str(folder / "a.npy"), str(folder / "b.npy")
    kind = zlib.crc32((folder / "a.npy").read_bytes() + (folder / "b.npy").read_bytes()) % 6
    if kind < 4:
        method = ("divergence", "emd", "sliced", "gaussian")[kind]
        run_command(main, "distance", a, b, "--method", method, "--max-iterations", "50", "--json")
    elif kind == 4:
        run_command(main, "drift", a, b, "--permutations", "19", "--json")
    else:
        run_command(main, "barycenter", a, b, "--points", "2", "--output", str(folder / "out.npy"))


ERRORS = (TransportError,)

TARGETS = [
    Target("drift-states", make_states, damage_state, use_state, ERRORS),
    Target("vector-files", make_vectors, damage_vectors, use_vectors, ERRORS),
]
