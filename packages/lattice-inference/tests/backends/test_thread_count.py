"""A number of threads is checked wherever one is given, before anything else is done."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from lattice_inference import get_num_threads, load_cross_encoder, load_encoder, load_model, set_num_threads
from lattice_inference.backends.cpu import CpuBackend
from lattice_inference.cli import main
from lattice_inference.errors import InvalidInputError
from lattice_inference.quantize import Calibrator
from lattice_inference.thread_count import check_thread_count
from lattice_inference.tokenizer import load_tokenizer

WRONG = [
    -1,
    0,
    257,
    1.5,
    2.0,
    float("nan"),
    "x",
    "2",
    b"2",
    True,
    np.True_,
    np.float32(2),
    np.array([2]),
    [1],
    -(10**400),
    10**400,
    10**5000,
]
NAMES = [f"{type(value).__name__}-{index}" for index, value in enumerate(WRONG)]
RIGHT = [1, 2, 256, np.int64(2), np.uint8(3)]


@pytest.fixture
def tokenizer(tmp_path):
    (tmp_path / "vocab.txt").write_text("[UNK]\n[CLS]\n[SEP]\n[PAD]\n[MASK]\na\n", encoding="utf-8")
    return load_tokenizer(tmp_path / "vocab.txt")


ENTRIES = {
    "set_num_threads": lambda value, _: set_num_threads(value),
    "CpuBackend": lambda value, _: CpuBackend(threads=value),
    "encode_packed": lambda value, tokenizer: tokenizer.encode_packed(["a"], threads=value),
    "load_encoder": lambda value, _: load_encoder("/no/such/model", threads=value),
    "load_cross_encoder": lambda value, _: load_cross_encoder("/no/such/model", threads=value),
    "load_model": lambda value, _: load_model("/no/such/model", threads=value),
    "Calibrator": lambda value, _: Calibrator("/no/such/model", threads=value),
}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("value", WRONG, ids=NAMES)
def test_what_is_no_number_of_threads_is_refused(entry, value, tokenizer):
    with pytest.raises(InvalidInputError, match=r"^threads is .*; it must be an integer from 1 to 256$") as caught:
        ENTRIES[entry](value, tokenizer)
    assert len(str(caught.value)) < 200


def test_nothing_is_no_number_of_threads_for_the_pool():
    with pytest.raises(InvalidInputError, match="threads is None; it must be an integer from 1 to 256"):
        set_num_threads(None)


@pytest.mark.parametrize("value", RIGHT, ids=repr)
def test_integers_of_python_and_numpy_are_taken(value, tokenizer):
    before = get_num_threads()
    try:
        set_num_threads(value)
        assert get_num_threads() == int(value)
    finally:
        set_num_threads(before)
    assert type(CpuBackend(threads=value).threads) is int
    assert tokenizer.encode_packed(["a"], threads=value).token_ids.tolist() == [1, 5, 2]
    assert check_thread_count(value) == int(value)


@pytest.mark.parametrize("text", ["0", "-1", "257", "1.5", "x", "", "9" * 30, "9" * 5000])
def test_the_command_line_refuses_it_before_it_looks_for_the_model(text, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["bench", "--model", "/no/such/model", f"--threads={text}"])
    assert ended.value.code == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert "--threads" in message
    assert message.endswith("it must be an integer from 1 to 256")
    assert len(message) < 250


def test_so_it_does_from_the_environment_and_a_file(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("LATTICE_THREADS", "0")
    with pytest.raises(SystemExit) as ended:
        main(["bench", "--model", "/no/such/model"])
    assert ended.value.code == 2
    assert "LATTICE_THREADS is '0': the number of threads is 0; it must be" in capsys.readouterr().err
    monkeypatch.delenv("LATTICE_THREADS")
    (tmp_path / "options.toml").write_text("threads = 257\n", encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        main(["bench", "--model", "/no/such/model", "--config", str(tmp_path / "options.toml")])
    assert ended.value.code == 2
    assert "threads is 257: the number of threads is 257; it must be" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("text", ["0", "-1", "257", "1.5", "x", "1,2"])
def test_the_environment_variable_is_refused_without_a_traceback(text):
    ended = subprocess.run(
        [sys.executable, "-m", "lattice_inference", "doctor"],
        env=os.environ | {"LATTICE_NUM_THREADS": text},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"lattice: error: LATTICE_NUM_THREADS must be an integer from 1 to 256, not '{text}'\n"
