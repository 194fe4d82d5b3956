"""Kernels that read weights, on buffers of exactly a weight's bytes, at an odd place as a mapped file may have it.

A program for AddressSanitizer (test_metal_emulation.py): its arguments are formats, or a format and a file of Metal source.
"""

import sys
from pathlib import Path

import numpy as np
from build import build_library, kernel_source
from emulated_device import EmulatedDevice

from lattice_inference.backends.gpu.device import Span
from lattice_inference.backends.gpu.record import RECORD, RECORD_STRIDE
from lattice_inference.backends.gpu.step_inputs import HEADER
from lattice_inference.checkpoint.blocks import BLOCK_FORMATS, dequantize_blocks

ROWS = 3  # of x
COLUMNS = 5  # rows of the weight


def drawn(form):
    """The bytes of a drawn weight, its scales, and its values."""
    rng = np.random.default_rng(0)
    depth = 256 if form.startswith("Q") else 13
    values = rng.standard_normal((COLUMNS, depth)).astype(np.float32)
    scales = np.ones(COLUMNS, np.float32)
    if form == "float32":
        return values.view(np.uint8), scales, values
    if form == "float16":
        halves = values.astype(np.float16)
        return halves.view(np.uint8), scales, halves.astype(np.float32)
    if form == "bfloat16":
        bits = (values.view(np.uint32) >> 16).astype(np.uint16)
        return bits.view(np.uint8), scales, (bits.astype(np.uint32) << 16).view(np.float32)
    if form == "int8":
        integers = rng.integers(-127, 128, values.shape).astype(np.int8)
        scales = rng.random(COLUMNS).astype(np.float32)
        return integers.view(np.uint8), scales, integers * scales[:, None]
    format = BLOCK_FORMATS[form]
    blocks = rng.integers(0, 256, (COLUMNS * depth // format.elements, format.nbytes)).astype(np.uint8)
    whole = blocks.view(format.layout)[:, 0]
    for field in {"scale", "offset", "minimum"} & set(format.layout.names or ()):
        whole[field] = rng.random(len(whole)).astype(np.float16) * np.float16(0.01)
    return blocks, scales, dequantize_blocks(whole, format).reshape(COLUMNS, -1)


def check(device, form):
    """Compare what each kernel gives with NumPy's product."""
    data, scales, values = drawn(form)
    depth = values.shape[1]
    offset = {"float32": 4, "int8": 1}.get(form, 2)
    weight = device.exact_buffer(offset + data.size)
    weight.content[offset:] = data.reshape(-1)
    weight.content = weight.content[offset:]
    of_rows = device.exact_buffer(scales.nbytes)
    of_rows.content[:] = scales.view(np.uint8)
    x = np.random.default_rng(1).standard_normal((ROWS, depth)).astype(np.float32)
    arena = device.exact_buffer(4 * (x.size + ROWS * COLUMNS))
    arena.content[: x.nbytes] = x.reshape(-1).view(np.uint8)
    words = device.exact_buffer(64)
    records = device.exact_buffer(RECORD_STRIDE)
    record = np.zeros(1, RECORD)
    record["rows"], record["n"], record["k"] = ROWS, COLUMNS, depth
    record["x_stride"], record["y"], record["y_stride"] = depth, x.size, COLUMNS
    records.content[: record.nbytes] = record.view(np.uint8)
    bound = (weight, of_rows, device.exact_buffer(4))
    known = [("ACTIVATION", 0), ("BIAS", 0), ("FORMAT", form), ("GATED", 0), ("RESIDUAL", 0)]
    for name, more in (("linear_few", [("ROWS", 4)]), ("linear_tiled", [])):
        kernel = device.kernel(name, (*known, *more))
        span = Span(arena, x.nbytes, 4 * ROWS * COLUMNS)
        got = device.submit((arena, words, records), ((kernel, bound, 0, 1),), [span]).wait()
        error = np.abs(got.view(np.float32).reshape(ROWS, COLUMNS) - x.astype(np.float64) @ values.T)
        assert error.max() <= 1e-4, (form, name, error.max())
    ids = np.zeros(len(HEADER) + COLUMNS, np.uint32)
    ids[HEADER["TOKEN_IDS"]], ids[len(HEADER) :] = len(HEADER), np.arange(COLUMNS)
    words = device.exact_buffer(ids.nbytes)
    words.content[:] = ids.view(np.uint8)
    record["rows"], record["y"], record["y_stride"], record["section"] = COLUMNS, 0, depth, HEADER["TOKEN_IDS"]
    records.content[: record.nbytes] = record.view(np.uint8)
    table = device.exact_buffer(values.nbytes)
    kernel = device.kernel("embed_rows", (("ADD", 0), ("FORMAT", form)))
    got = device.submit((table, words, records), ((kernel, bound, 0, -(-COLUMNS * -(-depth // 4) // 64)),), [])
    error = np.abs(table.content.view(np.float32).reshape(values.shape) - values)
    assert error.max() <= 1e-5, (form, "embed_rows", error.max())


given = sys.argv[1:]
source = Path(given.pop()).read_text() if given[-1].endswith(".metal") else None
functions = kernel_source().function_names(given) if source else None
device = EmulatedDevice(build_library(source, functions=functions, sanitize=True))
for form in given:
    check(device, form)
    print(form)
