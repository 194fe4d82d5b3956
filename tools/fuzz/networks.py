"""Tiny networks in every format, training states, and tables for training and prediction."""

from __future__ import annotations

import random
import shutil
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
from commands import run_command
from mutation import damage_file, mutated_bytes, mutated_document
from target import Target, add_tests

from lattice_fann import Activation, BackpropTrainer, FannError, Network, NetworkBuilder, TrainingConfig, TrainingState
from lattice_fann.cli import main

__all__ = ["TARGETS"]

DATA = add_tests("fann", "data") / "fann"


def sample() -> Network:
    """Return a network with everything that a format can hold."""
    network = (
        NetworkBuilder()
        .input(3)
        .hidden(4, Activation.GELU)
        .hidden(5, Activation.leaky_relu(0.2))
        .output(2, Activation.SOFTMAX)
        .build(seed=1)
    )
    network.input_scaling = (np.arange(3) / 3, np.ones(3) * 0.5)
    network.metadata = {"labels": '["ä", "b"]', "columns": '["a", "b", "c"]', "target": "y"}
    return network


def make_networks(folder: Path) -> None:
    """Write one in each format, and those of the C library."""
    plain = NetworkBuilder().input(3).hidden(4, Activation.TANH).output(2).build(seed=0)
    for name, network, weights in (
        ("v1.fann", plain, "float32"),
        ("v2.fann", sample(), "float32"),
        ("half.fann", sample(), "float16"),
        ("brain.fann", sample(), "bfloat16"),
        ("whole.safetensors", sample(), "float32"),
        ("text.net", plain, "float32"),
    ):
        made = folder / name.replace(".", "-")
        made.mkdir()
        try:
            network.save(made / f"network{Path(name).suffix}", weights=weights)  # type: ignore[arg-type]
        except FannError:
            made.rmdir()
    for path in sorted(DATA.glob("*.net")):
        (folder / path.stem).mkdir()
        shutil.copyfile(path, folder / path.stem / "network.net")


def only(folder: Path) -> Path:
    """Return the network's file."""
    (path,) = folder.glob("network.*")
    return path


def damage_network(folder: Path, draw: random.Random) -> None:
    """Damage a file; where it ends in a checksum, that fits in half of all cases."""
    path = only(folder)
    content = path.read_bytes()
    if path.suffix != ".fann" or draw.random() < 0.4:
        damage_file(path, draw)
        return
    start, end = content.find(b"{"), content.rfind(b"}") + 1
    if draw.random() < 0.5 and 0 <= start < end:
        header = mutated_document(content[start:end], draw)
        old = struct.pack("<I", end - start)
        place = content.find(old, 0, start)
        if place >= 0:
            content = content[:place] + struct.pack("<I", len(header) % 2**32) + content[place + 4 :]
        content = content[:start] + header + content[end:]
    else:
        content = mutated_bytes(content[:-4], draw) + content[-4:]
    path.write_bytes(content[:-4] + struct.pack("<I", zlib.crc32(content[:-4])))


def use_network(folder: Path) -> None:
    """Load a network, run it, train it and store it again."""
    path = only(folder)
    network = Network.load(path)
    inputs = np.linspace(-1, 1, 2 * network.num_inputs, dtype=np.float32).reshape(2, -1)
    try:
        network.forward_batch(inputs)
        network.forward(inputs[0])
        Network.from_bytes(network.to_bytes())
    except FannError:
        pass
    run_command(main, "info", str(path))
    table = folder / "x.csv"
    table.write_text("\n".join(",".join("1" for _ in range(min(network.num_inputs, 99))) for _ in range(3)))
    run_command(main, "predict", str(path), str(table), "--json")


def make_states(folder: Path) -> None:
    """Write what trainings leave, with and without a best epoch."""
    for name, config in (
        ("best", TrainingConfig(max_epochs=2, patience=5, seed=1)),
        ("plain", TrainingConfig(max_epochs=1, seed=1)),
    ):
        network = NetworkBuilder().input(3).hidden(4, Activation.TANH).output(2).build(seed=0)
        (folder / name).mkdir()
        result = BackpropTrainer(network, config).train(
            np.eye(3), np.ones((3, 2)), validation=(np.eye(3), np.ones((3, 2)))
        )
        result.state.save(folder / name / "state.npz")


PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)


def damage_archive(path: Path, draw: random.Random, packed: tuple[int, ...] = PACKED) -> None:
    """Damage a member of an archive of arrays, whose checksum then fits, or the archive itself."""
    if draw.random() < 0.3:
        damage_file(path, draw)
        return
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = draw.choice(sorted(members))
    kind = draw.randrange(12)
    if kind == 0:
        del members[name]
    elif kind == 1:
        members[name] = members[draw.choice(sorted(members))]
    elif kind == 2:
        members[draw.choice(("x", "a.npy", "../x.npy", "é.npy", "x" * 300 + ".npy"))] = members[name]
    elif kind == 3:
        members[name] = members[name] * draw.choice((2, 50, 500))
    else:
        head = draw.choice((40, 128, len(members[name])))
        members[name] = mutated_bytes(members[name][:head], draw) + members[name][head:]
    if draw.random() < 0.003:  # what inflates: a small file of a large array
        head = b"{'descr': '<f8', 'fortran_order': False, 'shape': (25000000,), }".ljust(117) + b"\n"
        members[name] = b"\x93NUMPY\x01\x00v\x00" + head + bytes(200_000_000)
        packed = (zipfile.ZIP_DEFLATED,)
    with zipfile.ZipFile(path, "w", draw.choice(packed), compresslevel=1) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def use_state(folder: Path) -> None:
    """Load a state and go on from it."""
    state = TrainingState.load(folder / "state.npz")
    network = NetworkBuilder().input(3).hidden(4, Activation.TANH).output(2).build(seed=0)
    config = TrainingConfig(max_epochs=min(state.epoch, 2**40) + 1, patience=5, seed=1)
    trainer = BackpropTrainer(network, config)
    trainer.train(np.eye(3), np.ones((3, 2)), resume_from=state)


def make_tables(folder: Path) -> None:
    """Write a table as text and as arrays, of numbers and of labels."""
    draw = np.random.default_rng(0)
    for name, target in (("numbers", ["1", "2.5", "-3e2", "4"]), ("labels", ["red", "blue", "red", "naïve"])):
        made = folder / name
        made.mkdir()
        rows = [f"{a:.3f},{b:.3f},{label}" for (a, b), label in zip(draw.normal(size=(4, 2)), target, strict=True)]
        (made / "table.csv").write_text("a,b,y\n" + "\n".join(rows) + "\n", encoding="utf-8")
    (folder / "arrays").mkdir()
    np.savez(folder / "arrays" / "table.npz", x=draw.normal(size=(4, 2)), y=np.array(["a", "b", "a", "b"]))
    (folder / "floats").mkdir()
    np.savez(folder / "floats" / "table.npz", x=draw.normal(size=(4, 2)).astype(">f4"), y=draw.normal(size=(4, 3)))


def damage_table(folder: Path, draw: random.Random) -> None:
    """Damage the table by its kind."""
    (path,) = folder.iterdir()
    if path.suffix == ".npz":
        damage_archive(path, draw)
    else:
        damage_file(path, draw)


def use_table(folder: Path) -> None:
    """Train on a table."""
    (path,) = folder.iterdir()
    run_command(main, "train", str(path), "--target", "y", "--epochs", "1", "--validation", "0", "--json")


ERRORS = (FannError,)

TARGETS = [
    Target("networks", make_networks, damage_network, use_network, ERRORS),
    Target(
        "training-states",
        make_states,
        lambda folder, draw: damage_archive(folder / "state.npz", draw),
        use_state,
        ERRORS,
    ),
    Target("tables", make_tables, damage_table, use_table, ERRORS),
]
