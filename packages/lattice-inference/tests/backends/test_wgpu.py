"""WGPU on this machine's Vulkan adapter, which may be a CPU: subgroups, its package, a device that is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

from drawn_checkpoints import write_directory
from lattice_inference import (
    GenerateConfig,
    Session,
    load_encoder,
    load_model,
)
from lattice_inference.errors import (
    DeviceLostError,
    DeviceMemoryError,
    DeviceUnavailableError,
)

from .bodies import DEVICE, GPU_BODIES
from .programs import Tensors, random_batch, random_bert

if not GPU_BODIES or DEVICE != "wgpu":
    pytest.skip("no adapter for WGPU, or not its package", allow_module_level=True)

from lattice_inference.backends.wgpu import WgpuBackend
from lattice_inference.backends.wgpu.device import open_device
from lattice_inference.backends.wgpu.encoding import PreparedDispatches

from .test_gpu_programs import DECODERS, ROWS, decoder_linear

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


def answer_of_a_child(call):
    """What ``call`` raises in a forked child."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            call()
            os.write(writer, b"did it")
        except DeviceUnavailableError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    try:
        return os.read(reader, 1000).decode()
    finally:
        os.close(reader)


def test_a_forked_child_is_refused():
    """It is refused by its process id: a wait for the device would never end there."""
    rng = np.random.default_rng(0)
    program, tensors = random_bert(rng)
    ready, batch = WgpuBackend().compile(program, Tensors(tensors)), random_batch(rng, [3])
    pending = ready.submit(batch)
    for call in (open_device, lambda: ready.run(batch), pending.wait):
        assert "forked" in answer_of_a_child(call)
    assert pending.wait()["pooled"].tobytes() == ready.run(batch)["pooled"].tobytes()


def test_a_child_that_is_forked_during_a_step_is_refused():
    """The thread that runs the step holds locks, and is not there in the child to release them."""
    rng = np.random.default_rng(0)
    program, tensors = random_bert(rng)
    ready, batch = WgpuBackend().compile(program, Tensors(tensors)), random_batch(rng, [3])
    held, release = threading.Event(), threading.Event()

    def hold():
        with ready._lock, ready._device._lock:
            held.set()
            release.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        for call in (open_device, lambda: ready.run(batch)):
            assert "forked" in answer_of_a_child(call)
        assert answer_of_a_child(ready.close) == "did it"
    finally:
        release.set()
        thread.join()
    assert ready.run(batch)["pooled"].shape == (1, 48)


def test_an_interrupt_ends_a_wait_and_the_step_is_still_there(request):
    rng = np.random.default_rng(0)
    program, tensors = random_bert(rng)
    ready, batch = WgpuBackend().compile(program, Tensors(tensors)), random_batch(rng, [200, 300])
    want = ready.run(batch)["pooled"]
    request.addfinalizer(partial(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT)))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupted = False
    for _ in range(20):  # until one comes while the device computes
        pending, done = ready.submit(batch), threading.Event()
        timer = threading.Timer(0.02, lambda done=done: done.is_set() or os.kill(os.getpid(), signal.SIGINT))
        try:
            timer.start()
            pending.wait()
            done.set()
            timer.join()
        except KeyboardInterrupt:
            interrupted = True
            timer.join()
        assert pending.wait()["pooled"].tobytes() == want.tobytes()
        if interrupted:
            break
    assert interrupted
    assert ready.run(batch)["pooled"].tobytes() == want.tobytes()


def test_eight_threads_generate_with_one_model(tmp_path):
    directory = write_directory(tmp_path / "llama", DECODERS["llama"])
    with load_model(directory, precision="float32", device="wgpu") as model:

        def generated(first):
            with Session(model) as session:
                return session.generate([first, 6, 7], GenerateConfig.greedy(6)).token_ids

        want = [generated(first) for first in range(3, 11)]
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(generated, range(3, 11))) == want


def test_a_buffer_above_the_devices_limit_is_told_in_bytes_and_the_device_goes_on():
    device = open_device()
    with pytest.raises(DeviceMemoryError, match="no buffers of 1,125,899,906,842,624 bytes: open a smaller cache"):
        device.buffer(1 << 50)
    assert not device.is_lost
    assert device.buffer(64).nbytes == 64


def test_a_device_takes_at_most_150_mb_of_this_process():
    code = """
from lattice_inference import load_model
from lattice_inference.memory.resident import resident_bytes
before = resident_bytes()
from lattice_inference.backends.wgpu.device import open_device
open_device()
print(resident_bytes() - before)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert 0 < int(run.stdout) <= 150e6


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
