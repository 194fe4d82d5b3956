"""WGPU on this machine's Vulkan adapter, which may be a CPU: subgroups, its package, a device that is lost."""

from __future__ import annotations

import os

import numpy as np
import pytest

from lattice_inference import load_encoder
from lattice_inference.errors import DeviceLostError, DeviceUnavailableError

from .bodies import DEVICE, GPU_BODIES
from .programs import Tensors, random_batch, random_bert

if not GPU_BODIES or DEVICE != "wgpu":
    pytest.skip("no adapter for WGPU, or not its package", allow_module_level=True)

from lattice_inference.backends.wgpu import WgpuBackend
from lattice_inference.backends.wgpu.device import open_device
from lattice_inference.backends.wgpu.encoding import PreparedDispatches

from .test_gpu_programs import ROWS, decoder_linear

pytestmark = pytest.mark.slow


def test_few_rows_with_and_without_subgroups():
    weight = (np.random.default_rng(1).standard_normal((45, 512)) * 0.1).astype(np.float32)
    for rows in ROWS[:3]:
        for subgroups in (False, True):
            got, want, bound = decoder_linear(weight, rows, subgroups=subgroups)
            assert (np.abs(got - want) <= bound).all(), (rows, subgroups)


def test_an_encoder_says_whether_its_device_is_software(data_directory):
    with load_encoder(data_directory / "tiny_bert", device="wgpu") as encoder:
        assert ("software" in encoder.device_name) == open_device().description.is_software


def test_the_packages_own_methods_give_the_same_bytes(monkeypatch):
    """A step is encoded by its C functions; a release without them is still served."""
    rng = np.random.default_rng(0)
    program, tensors = random_bert(rng)
    batch = random_batch(rng, [3, 17])
    assert open_device().prepare([]).is_direct
    want = WgpuBackend().compile(program, Tensors(tensors)).run(batch)["pooled"]
    made = []

    def prepare(self, dispatches):
        made.append(PreparedDispatches(dispatches, is_plain=True))
        return made[-1]

    monkeypatch.setattr(type(open_device()), "prepare", prepare)
    got = WgpuBackend().compile(program, Tensors(tensors)).run(batch)["pooled"]
    assert [each.is_direct for each in made] == [False]
    assert got.tobytes() == want.tobytes()


def test_a_forked_child_is_refused():
    open_device()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            open_device()
            os.write(writer, b"opened")
        except DeviceUnavailableError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    assert b"forked" in os.read(reader, 1000)
    os.close(reader)


def step_after(pending, ready, batch):
    """Wait for a step that may have ended before the device was lost, then run another."""
    pending.wait()
    ready.run(batch)


def test_a_device_that_is_lost_says_so_and_loading_again_works():
    rng = np.random.default_rng(0)
    program, tensors = random_bert(rng)
    backend = WgpuBackend()
    ready, batch = backend.compile(program, Tensors(tensors)), random_batch(rng, [3])
    want = ready.run(batch)["pooled"]
    pending = ready.submit(batch)
    backend.device.destroy()
    with pytest.raises(DeviceLostError, match="load the model again"):
        step_after(pending, ready, batch)
    for _ in range(2):
        with pytest.raises(DeviceLostError):
            ready.run(batch)
    again = WgpuBackend()
    assert again.device is not backend.device
    assert again.compile(program, Tensors(tensors)).run(batch)["pooled"].tobytes() == want.tobytes()
