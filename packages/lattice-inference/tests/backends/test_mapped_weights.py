"""Weights that a device reads in the mapped file: which stay there, how they are cut, and what is copied nevertheless."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from lattice_inference.backends.gpu.device import DeviceDescription
from lattice_inference.backends.gpu.mapped_weights import MAP_VARIABLE, bytes_in_file, follows
from lattice_inference.backends.gpu.weights import GpuWeightForms, GpuWeights
from lattice_inference.checkpoint.rounding import quantize_rows
from lattice_inference.errors import CheckpointError
from lattice_inference.graph.program import Buffer, Op, Program, Rows, View, WeightRef

from .stand_in_device import StandInBuffer, StandInDevice
from .test_blocks import StoredTensors


class MappingDevice(StandInDevice):
    """A stand-in that shares memory: it is given the very bytes of the file. It has none for more than ``most``."""

    def __init__(self, most=1 << 30):
        super().__init__(description=DeviceDescription("metal", "stand-in", "none"))
        self.mapped = []
        self.most = most

    def map_bytes(self, data):
        if data.size > self.most:
            return None
        self.mapped.append(data)
        return StandInBuffer(data)


@pytest.fixture
def file(tmp_path):
    """Puts arrays into a mapped file, each after a gap; returns views of it."""

    def write(*parts, gaps=None):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.bin"
        content, places = b"\0" * 8, []
        for part, gap in zip(parts, gaps or [0] * len(parts), strict=True):
            content += bytes(gap)
            places.append(len(content))
            content += part.tobytes()
        path.write_bytes(content)
        with path.open("rb") as opened:
            mapping = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        flat = [np.frombuffer(mapping, part.dtype, part.size, place) for part, place in zip(parts, places, strict=True)]
        return [view.reshape(part.shape) for view, part in zip(flat, parts, strict=True)]

    return write


def linear_of(names, widths, depth):
    x, y = (Buffer(index, name, Rows.TOKENS, width) for index, name, width in ((0, "x", depth), (1, "y", sum(widths))))
    transform = "concat" if len(names) > 1 else "none"
    ref = WeightRef(tuple(names), (sum(widths), depth), "linear", transform)
    return Op("linear", (View(x, 0, depth),), {"weight": ref}, (View(y, 0, sum(widths)),))


def weights_on(device, tensors, names, *, precision="stored", limit=1 << 30):
    source = StoredTensors(tensors)
    widths = [source.info(name).shape[0] for name in names]
    forms = GpuWeightForms(precision, source, are_mapped=True)
    program = forms.cut(Program((linear_of(names, widths, source.info(names[0]).shape[1]),), {}))
    kept = GpuWeights(program, source, forms, device, limit)
    return program, [kept[op.weights["weight"]] for op in program.ops]


def blocks(rows, depth, kind="Q8_0", seed=0):
    return quantize_rows(np.random.default_rng(seed).standard_normal((rows, depth)).astype(np.float32), kind)


def content(weight):
    return b"".join(part.buffer.content.tobytes() for part in weight.parts)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "F32"])
def test_a_weight_stays_in_the_file(kind, file):
    device = MappingDevice()
    stored = np.ones((5, 64), np.float32) if kind == "F32" else blocks(5, 64, kind)
    (view,) = file(stored)
    tensors = {"w": view if kind == "F32" else (kind, view)}
    _, (weight,) = weights_on(device, tensors, ["w"])
    assert content(weight) == stored.tobytes()
    assert [np.shares_memory(data, view.view(np.uint8)) for data in device.mapped] == [True]
    assert device.uploads == []


def test_a_weight_above_the_limit_is_cut_by_rows_and_not_copied(file):
    device = MappingDevice()
    (view,) = file(blocks(7, 64))
    _, (weight,) = weights_on(device, {"w": ("Q8_0", view)}, ["w"], limit=200)
    assert [(part.first, part.rows) for part in weight.parts] == [(0, 2), (2, 2), (4, 2), (6, 1)]
    assert content(weight) == view.tobytes()
    assert device.uploads == []


def test_tensors_side_by_side_are_one_call_and_others_are_several(file):
    parts = [blocks(rows, 64, seed=rows) for rows in (4, 3, 2)]
    views = file(*parts, gaps=[0, 0, 34])
    tensors = {name: ("Q8_0", view) for name, view in zip("qkv", views, strict=True)}
    device = MappingDevice()
    program, weights = weights_on(device, tensors, list("qkv"))
    assert [op.weights["weight"].sources for op in program.ops] == [("q", "k"), ("v",)]
    assert [(op.outputs[0].column, op.outputs[0].width) for op in program.ops] == [(0, 7), (7, 2)]
    assert [content(weight) for weight in weights] == [parts[0].tobytes() + parts[1].tobytes(), parts[2].tobytes()]
    assert device.uploads == []
    program, _ = weights_on(MappingDevice(), tensors, list("kqv"))  # in another order than in the file
    assert [op.weights["weight"].sources for op in program.ops] == [("k",), ("q",), ("v",)]


def test_tensors_that_are_copied_are_copied_together(file):
    tensors = {name: ("Q8_0", blocks(3, 64)) for name in "qk"}  # in no file
    device = MappingDevice()
    program, _ = weights_on(device, tensors, list("qk"))
    assert len(program.ops) == 1
    assert device.mapped == []
    program, _ = weights_on(device, tensors, list("qk"), precision="float16")
    assert len(program.ops) == 1


@pytest.mark.parametrize(
    ("gap", "dtype", "stays"),
    [(0, np.float32, True), (2, np.float32, False), (1, np.float16, False), (2, np.float16, True), (3, np.int8, True)],
)
def test_bytes_that_kernels_cannot_address_are_copied(gap, dtype, stays, file):
    form = {np.float32: "float32", np.float16: "float16", np.int8: "int8"}[dtype]
    (view,) = file(np.ones((2, 32), dtype), gaps=[gap])
    found = bytes_in_file(StoredTensors({"w": view}), ["w"], form)
    assert (found is not None) == stays


@pytest.mark.parametrize("gap", [1, 2, 33])
def test_blocks_stay_at_even_offsets_only(gap, file):
    (view,) = file(blocks(2, 64), gaps=[gap])
    found = bytes_in_file(StoredTensors({"w": ("Q8_0", view)}), ["w"], "Q8_0")
    assert (found is not None) == (gap % 2 == 0)


def test_what_is_asked_to_be_copied_or_has_no_buffer_is_copied(file, monkeypatch):
    (view,) = file(blocks(4, 64))
    tensors = {"w": ("Q8_0", view)}
    device = MappingDevice(most=10)
    _, (weight,) = weights_on(device, tensors, ["w"])
    assert device.mapped == []
    assert content(weight)[: view.nbytes] == view.tobytes()
    monkeypatch.setenv(MAP_VARIABLE, "0")
    device = MappingDevice()
    weights_on(device, tensors, ["w"])
    assert device.mapped == []
    monkeypatch.delenv(MAP_VARIABLE)
    weights_on(device, tensors, ["w"], precision="float32")
    assert device.mapped == []


def test_a_tensor_of_another_shape_is_refused(file):
    (view,) = file(blocks(4, 64))
    source = StoredTensors({"w": ("Q8_0", view)})
    program = Program((linear_of(["w"], [5], 64),), {})
    with pytest.raises(CheckpointError, match="needs a tensor of shape"):
        GpuWeights(program, source, GpuWeightForms("stored", source, are_mapped=True), MappingDevice(), 1 << 30)


def test_swapped_rows_and_copies_follow_nothing(file):
    first, second = file(np.ones((4, 8), np.float32), np.ones((4, 8), np.float32))
    source = StoredTensors({"a": first, "b": second, "t": second.T, "c": second.copy()})
    assert follows(source, "b", "a")
    assert not follows(source, "a", "b")
    assert not follows(source, "c", "a")
    assert bytes_in_file(source, ["a", "t"], "float32") is None
