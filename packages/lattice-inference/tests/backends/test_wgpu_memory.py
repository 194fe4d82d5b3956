"""WGPU without room: the driver refuses each buffer of a load and of a generation in turn, in another process."""

from __future__ import annotations

import ctypes
import ctypes.util
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from drawn_checkpoints import write_directory

from .bodies import DEVICE, GPU_BODIES

if not GPU_BODIES or DEVICE != "wgpu":
    pytest.skip("no adapter for WGPU, or not its package", allow_module_level=True)

COMPILER = shutil.which("cc")
DATA = Path(__file__).parents[1] / "data"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.system() != "Linux" or COMPILER is None, reason="needs Linux and a C compiler"),
]

START = """
import ctypes, gc, json, sys
vulkan = ctypes.CDLL(sys.argv[1])
vulkan.fault_plan.argtypes = (ctypes.c_int, ctypes.c_long, ctypes.c_int)
for name in ("fault_calls", "fault_buffers", "fault_memories"):
    getattr(vulkan, name).restype = ctypes.c_long
import numpy as np
from lattice_inference import GenerateConfig, Session, load_encoder, load_model
from lattice_inference.backends.wgpu.device import open_device
from lattice_inference.errors import DeviceMemoryError

CREATE_BUFFER, ALLOCATE_MEMORY, NO_DEVICE_MEMORY = 0, 1, -2
device = open_device()


def held():
    gc.collect()
    return vulkan.fault_buffers(), vulkan.fault_memories()


def refuse_each(call):
    want = call()
    at_first, first = held(), vulkan.fault_calls(CREATE_BUFFER)
    call()
    count = vulkan.fault_calls(CREATE_BUFFER) - first
    for index in range(count):
        vulkan.fault_plan(CREATE_BUFFER, index, NO_DEVICE_MEMORY)
        try:
            call()
        except DeviceMemoryError as error:
            assert "has no room for" in str(error), error
        else:
            raise AssertionError(f"{index}: it did without a buffer")
        assert np.array_equal(call(), want), index
        assert held() == at_first, (index, held(), at_first)
    assert not device.is_lost
    print(json.dumps(count))
"""

LOADS = """
def encoded():
    with load_encoder(sys.argv[2], device="wgpu") as encoder:
        encoder.encode(["a"])
        return encoder.encode(["a b c " * 8]).vectors


refuse_each(encoded)
"""

GENERATIONS = """
config = GenerateConfig.greedy(20)
with load_model(sys.argv[2], precision="float32", device="wgpu") as model:

    def generated():
        with Session(model) as session:
            return session.generate([3, 6, 7] * 4, config).token_ids

    refuse_each(generated)

    def turns(are_refused):
        with Session(model) as session:
            tokens = []
            for token in range(3, 9):
                if are_refused:
                    vulkan.fault_plan(CREATE_BUFFER, token % 4, NO_DEVICE_MEMORY)
                    before = session.token_ids
                    try:
                        session.extend([token], GenerateConfig.greedy(4))
                        raise AssertionError("it did without a buffer")
                    except DeviceMemoryError:
                        session.rewind(len(before))
                    assert session.token_ids == before
                tokens += session.extend([token], GenerateConfig.greedy(4)).token_ids
            return tokens

    assert turns(True) == turns(False)  # a session goes on from where it stood
"""

WRITES = """
mebibyte = 1 << 20
data = np.arange(8 * mebibyte, dtype=np.uint32).view(np.uint8)[: 8 * mebibyte]
device.read([])
before, _ = held()
buffers = []
for index in range(24):
    buffers.append(device.buffer(data.size))
    device.upload(buffers[-1], data)
    assert held()[0] - before <= index + 1 + 8, "copies of what was written stay"
from lattice_inference.backends.gpu.device import Span
for buffer in buffers:
    assert device.read([Span(buffer, 0, data.size)]).tobytes() == data.tobytes()
vulkan.fault_plan(ALLOCATE_MEMORY, 0, NO_DEVICE_MEMORY)
try:
    while True:
        buffers.append(device.buffer(data.size))
except DeviceMemoryError as error:
    assert "has no room for 8,388,608 bytes more" in str(error), error
assert device.buffer(data.size).nbytes == data.size
print(json.dumps(len(buffers)))
"""


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """The library that refuses, under the name of the real one, whose path the environment holds."""
    name = ctypes.util.find_library("vulkan")
    assert name is not None
    ctypes.CDLL(name)
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    real = next(line.split()[-1] for line in lines if f"/{name}" in line)
    path = tmp_path_factory.mktemp("vulkan") / name
    source = Path(__file__).parent / "faulty_vulkan.c"
    options = ["-O1", "-Wall", "-Werror", "-shared", "-fPIC", f"-Wl,-soname,{name}"]
    subprocess.run([str(COMPILER), *options, "-o", str(path), str(source)], check=True)
    return path, os.environ | {"REAL_VULKAN": real, "PYTHONPATH": os.pathsep.join(sys.path)}


def ran(faulty, code, *arguments):
    path, environment = faulty
    ended = subprocess.run(
        [sys.executable, "-c", START + code, str(path), *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_each_buffer_of_a_load_and_of_its_texts_can_be_refused(faulty):
    """A typed error, nothing is left, and the same load then works on the same device."""
    assert ran(faulty, LOADS, DATA / "tiny_bert") > 60


def test_each_buffer_of_a_generation_can_be_refused(faulty, tmp_path):
    cases = json.loads((DATA / "decoders" / "cases.json").read_text())["cases"]
    assert ran(faulty, GENERATIONS, write_directory(tmp_path / "llama", cases["llama"])) > 25


def test_copies_of_what_is_written_are_let_go_before_a_step(faulty):
    assert ran(faulty, WRITES) >= 24
