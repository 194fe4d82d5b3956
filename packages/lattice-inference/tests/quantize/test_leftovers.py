"""Quantizing that is killed leaves the old model, and nothing that the next run does not remove."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from lattice_inference.checkpoint.gguf import open_gguf
from lattice_inference.quantize import export_bert_gguf, quantize_gguf, quantize_int8

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="locks of files and kills are those of Unix"),
]

KILLED = """
import os, signal, sys
from lattice_inference import quantize
work, source, target = sys.argv[1:]
def die(name): os.kill(os.getpid(), signal.SIGKILL)
{
    "int8": lambda: quantize.quantize_int8(source, target, overwrite=True, on_tensor=die),
    "gguf": lambda: quantize.quantize_gguf(source, target, "Q8_0", overwrite=True, on_tensor=die),
    "bert": lambda: quantize.export_bert_gguf(source, target, overwrite=True, on_tensor=die),
}[work]()
"""


def kill(work, source, target):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", KILLED, work, str(source), str(target)], env=environment, timeout=60)
    assert done.returncode == -9


@pytest.mark.parametrize("there_before", [False, True])
def test_killed_int8_directory(there_before, data_directory, tmp_path):
    source, target = data_directory / "tiny_bert", tmp_path / "int8"
    if there_before:
        shutil.copytree(source, target)
        before = sorted(os.listdir(target))
    for _ in range(2):
        kill("int8", source, target)
        assert len(os.listdir(tmp_path)) == 1 + there_before
    if there_before:
        assert sorted(os.listdir(target)) == before
    quantize_int8(source, target, overwrite=True)
    assert os.listdir(tmp_path) == ["int8"]


@pytest.mark.parametrize("work", ["bert", "gguf"])
def test_killed_gguf_file(work, data_directory, tmp_path):
    source = data_directory / "tiny_bert"
    (tmp_path / "out").mkdir()
    target = tmp_path / "out" / "model.gguf"
    if work == "gguf":
        source = tmp_path / "source.gguf"
        export_bert_gguf(data_directory / "tiny_bert", source)
    for _ in range(2):
        kill(work, source, target)
        assert len(os.listdir(tmp_path / "out")) == 1
        assert not target.exists()
    if work == "gguf":
        quantize_gguf(source, target, "Q8_0")
    else:
        export_bert_gguf(source, target)
    assert os.listdir(tmp_path / "out") == ["model.gguf"]
    open_gguf(target).close()
