"""What the command line says of files that are not what they should be, and when it looks."""

import io
import os
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

from lattice_transport import OutOfMemoryError, cli
from lattice_transport.atomic_file import check_writable, write_atomically
from lattice_transport.cli import barycenter_command, distance_command, drift_command


@pytest.fixture
def vectors(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", np.random.default_rng(0).normal(size=(20, 3)))
    return "a.npy"


def run(capsys, *arguments):
    try:
        status = cli.main([*arguments])
    except SystemExit as ended:  # the parser refuses an argument
        status = ended.code
    out, err = capsys.readouterr()
    return status, out, err


def header_of(shape, descr="<f8"):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.getvalue()


FILES = {
    "csv": (b"1.0,2.0\n3.0,4.0\n", "CSV"),
    "json": (b"[[1, 2], [3, 4]]", "text"),
    "empty": (b"", "empty"),
    "pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "git lfs pull"),
    "pickle": (pickle.dumps([1, 2]), "pickle"),
    "zip": (b"PK\x03\x04rest", "archive"),
    "noise": (bytes(range(128, 200)), "np.save"),
    "short": (b"\x93NUMPY\x01", "not a NumPy file"),
    "claims": (header_of((10**12, 3)), "claims"),
    "overflow": (header_of((10**30, 10**30)), "not a NumPy file"),
    "negative": (header_of((-3, 3)) + bytes(100), "not a NumPy file"),
    "objects": (header_of((2, 2), "|O") + pickle.dumps([1]), "Python objects"),
    "header": (b"\x93NUMPY\x01\x00\x10\x00{'descr': [[[[[[\n", "not a NumPy file"),
    "text": (header_of((2, 2), "<U3") + bytes(48), "matrix"),
    "complex": (header_of((2, 2), "<c16") + bytes(64), "matrix"),
}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("command", ["distance", "drift", "barycenter"])
def test_wrong_file_is_said_in_one_line_with_what_to_do(capsys, vectors, kind, command):
    data, words = FILES[kind]
    with open("wrong.npy", "wb") as file:
        file.write(data)
    extra = ["--points", "2", "--output", "out.npy"] if command == "barycenter" else []
    status, out, err = run(capsys, command, vectors, "wrong.npy", *extra)
    assert status == 2
    assert out == ""
    assert err.startswith("lattice-transport: error: wrong.npy")
    assert err.count("\n") == 1
    assert words in err
    assert "allow_pickle" not in err
    assert "mmap" not in err


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["distance", "A", "."], 1),
        (["distance", "A", "none.npy"], 1),
        (["distance", "A", ""], 2),
        (["distance", "A", "x\0y"], 2),
        (["distance", "A", "A", "--seed", "-1", "--method", "sliced"], 2),
        (["distance", "A", "A", "--projections", "0", "--method", "sliced"], 2),
        (["distance", "A", "A", "--max-iterations", str(10**400)], 2),
        (["distance", "A", "A", "--epsilon", "nan"], 2),
        (["distance", "A", "A", "--threads", str(10**400)], 2),
        (["drift", "A", "A", "--permutations", str(10**30)], 2),
        (["drift", "A", "A", "--seed", "-5"], 2),
        (["drift", "A", "A", "--worst", "-1"], 2),
        (["drift", "A", "A", "--max-samples", "3"], 2),
        (["barycenter", "A", "--points", "2", "--seed", "-1", "--output", "o.npy"], 2),
        (["barycenter", "A", "--points", str(10**30), "--output", "o.npy"], 2),
        (["barycenter", "A", "--points", "2", "--lambdas", "nan", "--output", "o.npy"], 2),
        (["barycenter", "A", "--points", "2", "--output", "x" * 300 + ".npy"], 1),
    ],
)
def test_mistakes_have_the_status_of_the_docs_and_no_traceback(capsys, vectors, arguments, status):
    got, _, err = run(capsys, *(vectors if argument == "A" else argument for argument in arguments))
    assert got == status
    usage, _, message = err.rpartition("lattice-transport")
    assert usage == "" or (status == 2 and usage.startswith("usage: "))
    assert re.fullmatch(r"( [a-z]+)?: error: [^\n]+\n", message)


@pytest.mark.parametrize(
    ("module", "step", "arguments", "remedy"),
    [
        (distance_command, "emd", ["distance", "A", "A", "--method", "emd"], "fewer vectors, or another --method"),
        (drift_command, "detect_drift", ["drift", "A", "A"], "fewer vectors, or a smaller --max-samples"),
        (
            barycenter_command,
            "free_support_barycenter",
            ["barycenter", "A", "--points", "2", "--output", "o.npy"],
            "fewer vectors, or fewer --points",
        ),
    ],
)
@pytest.mark.parametrize("error", [MemoryError(), OutOfMemoryError("a cost matrix", 9, 9)])
def test_a_command_without_memory_says_what_to_give_instead(
    capsys, monkeypatch, vectors, module, step, arguments, remedy, error
):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(module, step, fail)
    status, out, err = run(capsys, *(vectors if argument == "A" else argument for argument in arguments))
    assert (status, out) == (1, "")
    assert err.endswith(f"; give {remedy}\n")
    assert err.count("\n") == 1


def test_values_that_overflow_are_one_line_without_warnings(capsys, vectors):
    np.save("big.npy", np.full((3, 3), 1e200))
    for method in ("divergence", "sinkhorn", "emd", "gaussian"):
        status, _, err = run(capsys, "distance", vectors, "big.npy", "--method", method)
        assert status in (1, 2)
        assert err.count("\n") == 1, method


@pytest.mark.parametrize(
    ("module", "work", "arguments"),
    [
        (distance_command, "read_vectors", ["distance", "a.npy", "a.npy", "--method", "emd", "--plan", "FILE.npy"]),
        (drift_command, "read_vectors", ["drift", "a.npy", "a.npy", "--plot", "FILE.png"]),
        (barycenter_command, "read_vectors", ["barycenter", "a.npy", "--points", "2", "--output", "FILE.npy"]),
    ],
)
def test_output_that_cannot_be_written_is_noticed_before_any_work(
    capsys, vectors, monkeypatch, module, work, arguments
):
    monkeypatch.setattr(module, work, lambda name: pytest.fail("worked first"))
    for folder in ("/proc", "/sys"):  # nobody can make a file there
        status, out, err = run(capsys, *(argument.replace("FILE", f"{folder}/file") for argument in arguments))
        assert status == 1
        assert out == ""
        assert err.count("\n") == 1
        assert f"{folder}/file" in err
        assert ".tmp" not in err


@pytest.mark.parametrize(("suffix", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_plot_has_the_format_of_its_suffix(capsys, vectors, suffix, start):
    pytest.importorskip("matplotlib")
    arguments = ("drift", vectors, vectors, "--permutations", "19", "--plot", f"x.{suffix}")
    assert run(capsys, *arguments)[0] == 0
    assert Path(f"x.{suffix}").read_bytes().startswith(start)


def test_missing_matplotlib_is_noticed_before_any_work(capsys, vectors, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    monkeypatch.setattr(drift_command, "read_vectors", lambda name: pytest.fail("worked first"))
    status, _, err = run(capsys, "drift", vectors, vectors, "--plot", "x.png")
    assert status == 1
    assert "lattice-transport[plot]" in err


def test_output_replaces_a_file_and_leaves_nothing_else(capsys, vectors, tmp_path):
    for _ in range(2):
        status, _, _ = run(capsys, "distance", vectors, vectors, "--method", "emd", "--plan", "plan.npy")
        assert status == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npy", "plan.npy"]


def test_a_device_or_pipe_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe.npy")
    (tmp_path / "stdout.npy").symlink_to("/proc/self/fd/1")
    before = sorted(tmp_path.iterdir())
    for path in before:
        with pytest.raises(PermissionError, match="device, pipe or socket"):
            write_atomically(path, lambda file: None)
        with pytest.raises(PermissionError, match="device, pipe or socket"):
            check_writable(path)
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "pipe.npy").is_fifo()
