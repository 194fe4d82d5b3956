"""What GPU backends do around kernels: memory that grows and ends, devices that are lost, options that are refused."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from lattice_inference import load_encoder, load_model
from lattice_inference.backends.gpu.backend import GpuBackend
from lattice_inference.backends.gpu.process_device import OpenedOnce
from lattice_inference.backends.gpu.record import RECORD, RECORD_STRIDE, wgsl_struct
from lattice_inference.backends.wgpu import device as wgpu_device
from lattice_inference.errors import (
    DeviceLostError,
    DeviceMemoryError,
    DeviceUnavailableError,
    InvalidInputError,
    UnsupportedError,
)
from lattice_inference.graph.batch import Batch
from lattice_inference.graph.program import KvSpec, Op, Program

from .programs import Tensors, random_batch, random_bert
from .stand_in_device import StandInDevice
from .test_paged_ops import paged_program

Int32 = np.int32


def paged(device, rows=40):
    """A program over pages on ``device``, compiled, and its tensors' rows."""
    rng = np.random.default_rng(0)
    inputs = {name: rng.standard_normal((rows, 32)).astype(np.float32) for name in "qkv"}
    program = paged_program(inputs, heads=2, kv_heads=2, head_dim=16, window=0)
    return GpuBackend(device).compile(program, Tensors(inputs)), program


def batch_in(pages, tokens, context=0):
    return Batch(
        np.arange(tokens, dtype=Int32),
        np.array([0, tokens], Int32),
        context_lengths=np.array([context], Int32),
        block_table=(np.array(pages, Int32),),
    )


def test_pages_take_memory_as_they_come_into_use():
    device = StandInDevice()
    specs = [KvSpec(layer, 2, 16, "float16") for layer in range(3)]
    state = GpuBackend(device).open_state(specs, page_tokens=16, pages=10_000)
    assert state.allocated_pages == 0
    content = np.random.default_rng(0).bytes(state.page_bytes)
    state.import_(3, content)
    assert state.allocated_pages == 16
    state.copy_page(3, 20)
    assert state.allocated_pages == 32  # doubled, and what was there was copied
    assert state.export(20) == content
    assert state.export(3) == content
    with pytest.raises(InvalidInputError, match="a page has"):
        state.import_(3, content[:-1])
    state.close()
    with pytest.raises(InvalidInputError, match="closed"):
        state.export(3)


def test_no_room_for_pages_changes_nothing():
    device = StandInDevice()
    state = GpuBackend(device).open_state([KvSpec(0, 2, 16, "float32")], page_tokens=16, pages=1000)
    content = bytes(range(256)) * (state.page_bytes // 256)
    state.import_(0, content)
    device.room = 100
    with pytest.raises(DeviceMemoryError, match="no room for"):
        state.import_(100, content)
    assert state.allocated_pages == 16
    assert state.export(0) == content
    device.room, device.max_binding_bytes = 1 << 40, 20 * state.page_bytes
    with pytest.raises(DeviceMemoryError, match="binds at most"):
        state.import_(500, content)


def test_no_room_for_weights_or_a_step_is_told_and_the_program_goes_on():
    rng = np.random.default_rng(0)
    program, tensors = random_bert(rng)
    with pytest.raises(DeviceMemoryError, match="no room for"):
        GpuBackend(StandInDevice(room=10_000)).compile(program, Tensors(tensors))
    device = StandInDevice()
    ready = GpuBackend(device).compile(program, Tensors(tensors))
    batch = random_batch(rng, [5, 9])
    assert ready.run(batch)["pooled"].shape == (2, 48)
    device.room = 0
    with pytest.raises(DeviceMemoryError, match="no room for"):
        ready.run(random_batch(rng, [500]))
    assert ready.run(batch)["pooled"].shape == (2, 48)
    device.max_binding_bytes = 1000
    with pytest.raises(DeviceMemoryError, match="binds at most 1000"):
        ready.run(random_batch(rng, [500]))


def test_a_lost_device_says_so_at_every_later_call():
    device = StandInDevice()
    ready, program = paged(device)
    state = GpuBackend(device).open_state(program.kv_specs, page_tokens=16, pages=8)
    pending = ready.submit(batch_in([0, 1], 20), state=state)
    device.is_lost = True
    for call in (
        pending.wait,
        lambda: ready.run(batch_in([0, 1], 20), state=state),
        lambda: state.copy_page(0, 1),
        lambda: state.export(0),
        lambda: GpuBackend(device).open_state(program.kv_specs, page_tokens=16, pages=8),
    ):
        with pytest.raises(DeviceLostError, match="load the model again"):
            call()


def test_steps_in_flight_end_after_the_program_is_closed():
    device = StandInDevice()
    rng = np.random.default_rng(0)
    program, tensors = random_bert(rng)
    ready = GpuBackend(device).compile(program, Tensors(tensors))
    steps = [ready.submit(random_batch(rng, [3])) for _ in range(2)]
    ready.close()
    for pending in steps:
        assert pending.wait()["pooled"].shape == (1, 48)
        assert pending.wait() is pending.wait()
    with pytest.raises(InvalidInputError, match="closed"):
        ready.submit(random_batch(rng, [3]))


def test_a_step_of_the_same_shape_writes_its_inputs_only():
    """Records and dispatches are kept; of a decoder's token only ids, positions and pages are written."""
    device = StandInDevice()
    ready, program = paged(device)
    state = GpuBackend(device).open_state(program.kv_specs, page_tokens=16, pages=8)
    ready.run(batch_in([2], 1), state=state)
    device.uploads.clear()
    ready.run(batch_in([2], 1, context=1), state=state)
    assert len(device.uploads) == 1
    assert device.uploads[0] < 300
    assert device.submitted[0] == device.submitted[1]


def test_kernels_of_few_rows_are_for_decoders():
    """An encoder's text has the same bits alone and in company, so it is given the kernels of many rows."""
    device = StandInDevice()
    rng = np.random.default_rng(0)
    program, tensors = random_bert(rng)
    GpuBackend(device).compile(program, Tensors(tensors)).run(random_batch(rng, [1]))
    kernels = {kernel for kernel, _ in device.submitted[-1]}
    assert "linear_tiled" in kernels
    assert "linear_few" not in kernels
    ready, program = paged(device)
    state = GpuBackend(device).open_state(program.kv_specs, page_tokens=16, pages=8)
    ready.run(batch_in([0, 1], 8), state=state)
    assert device.submitted[-1][-1][0] == "attention_few"
    ready.run(batch_in([0, 1], 9), state=state)
    assert device.submitted[-1][-1][0] == "attention_tiled"


def test_weights_above_a_binding_are_cut_by_rows():
    rng = np.random.default_rng(0)
    program, tensors = random_bert(rng)
    whole, cut = StandInDevice(), StandInDevice()
    GpuBackend(whole).compile(program, Tensors(tensors)).run(random_batch(rng, [4]))
    backend = GpuBackend(cut, max_binding_bytes=2048)
    backend.compile(program, Tensors(tensors)).run(random_batch(rng, [4]))
    assert len(cut.submitted[0]) > len(whole.submitted[0])
    with pytest.raises(UnsupportedError, match="has rows of 192 bytes, and this device binds 100"):
        GpuBackend(cut, max_binding_bytes=100).compile(program, Tensors(tensors))


def test_what_a_gpu_does_not_do_is_refused_by_name():
    device = StandInDevice()
    for options, message in (
        ({"precision": "int8"}, "precision='int8' is not built"),
        ({"activations": "int8"}, "rounds no rows to integers"),
    ):
        with pytest.raises(UnsupportedError, match=message):
            GpuBackend(device, **options)
    with pytest.raises(InvalidInputError, match="max_binding_bytes"):
        GpuBackend(device, max_binding_bytes=0)
    program = Program((Op("low_rank_grad", (), {}, ()),), {})
    with pytest.raises(UnsupportedError, match="no kernel for the op 'low_rank_grad'"):
        GpuBackend(device).compile(program, Tensors({}))


@pytest.mark.parametrize("load", [load_encoder, load_model])
def test_devices_that_are_not_there_are_refused(load, data_directory, monkeypatch):
    path = data_directory / "tiny_bert"
    with pytest.raises(UnsupportedError, match="device must be one of cpu, wgpu, metal, auto, not 'cuda'"):
        load(path, device="cuda")
    with pytest.raises(UnsupportedError, match="leave out device='wgpu'"):
        load(path, device="wgpu", backend="reference")
    if load is load_encoder:
        with pytest.raises(DeviceUnavailableError, match="'metal' needs a Mac with one of Apple's own processors"):
            load(path, device="metal")
        monkeypatch.setattr(wgpu_device, "_opened", OpenedOnce(wgpu_device._open))  # other tests may have opened it
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(DeviceUnavailableError, match=r"pip install 'lattice-inference\[wgpu\]'"):
            load(path, device="wgpu")


def test_auto_is_the_cpu_where_there_is_no_gpu(data_directory, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with load_encoder(data_directory / "tiny_bert", device="auto") as encoder:
        assert encoder.device == "cpu"
        assert encoder.device_name is None
        assert encoder.space == encoder.fingerprint


def test_the_record_is_the_same_in_numpy_and_in_wgsl():
    lines = wgsl_struct().splitlines()[1:-1]
    assert [line.split(":")[0].strip() for line in lines] == list(RECORD.names)
    assert [RECORD.fields[name][1] for name in RECORD.names] == [4 * index for index in range(len(lines))]
    assert RECORD.itemsize <= RECORD_STRIDE


def test_the_memory_of_a_state_is_given_back_when_it_is_closed():
    """A program keeps what its last step ran, but not the pages that the step was given."""
    device = StandInDevice()
    ready, program = paged(device)
    state = GpuBackend(device).open_state(program.kv_specs, page_tokens=16, pages=8)
    ready.run(batch_in([2], 1), state=state)
    other = GpuBackend(device).open_state(program.kv_specs, page_tokens=16, pages=8)
    ready.run(batch_in([2], 1), state=other)
    ready.run(batch_in([2], 1), state=state)
    buffers = [weakref.ref(buffer) for buffer in state.bindings(0)[0][1]]
    assert all(buffer() is not None for buffer in buffers)
    state.close()
    gc.collect()
    assert all(buffer() is None for buffer in buffers)
    ready.run(batch_in([2], 1), state=other)
    plan = weakref.ref(ready._plan)
    ready.close()
    assert plan() is None  # an open state keeps no weights
