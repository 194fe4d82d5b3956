"""What the emulation of the Metal kernels finds: faults planted in copies of the source, each told with its line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lattice_inference.backends.gpu.backend import GpuBackend
from lattice_inference.errors import NonFiniteError
from lattice_inference.graph.builder import GraphBuilder

from .bodies import IS_METAL_EMULATED, TOOLS, emulated_metal
from .programs import Tensors, batch_of, one_op

if not IS_METAL_EMULATED:
    pytest.skip("nox -s metal runs the emulation", allow_module_level=True)

emulated_metal()  # after it, the modules of tools/metal are there
from build import build_library, kernel_source  # noqa: E402
from emulated_device import EmulatedDevice, EmulatedKernelError  # noqa: E402
from translate import opencl_text, threadgroup_bytes  # noqa: E402

pytestmark = pytest.mark.slow

FORMATS = ("float32",)
SOURCE = kernel_source().assembled_source(FORMATS)
FUNCTIONS = kernel_source().function_names(FORMATS)
BARRIER = "    threadgroup_barrier(mem_flags::mem_threadgroup);\n"


def planted(old, new):
    """The source with a fault: ``old``, which it has once, is ``new``."""
    assert SOURCE.count(old) == 1, old
    return SOURCE.replace(old, new)


def line_of(text, file):
    """The number of the first line of a file of kernels that has ``text``."""
    part = SOURCE.split(f'#line 1 "{file}"\n')[1]
    return 1 + part[: part.index(text)].count("\n")


def norms(source, seed):
    """Norms of drawn rows by a backend of ``source``, and what they are."""
    x = np.random.default_rng(0).standard_normal((9, 200)).astype(np.float32)
    program, tensors = one_op({"x": x}, lambda g, v: g.l2_normalize(v["x"]))
    device = EmulatedDevice(build_library(source, functions=FUNCTIONS), seed)
    got = GpuBackend(device).compile(program, Tensors(tensors)).run(batch_of([9]))["y"]
    return got, x / np.linalg.norm(x, axis=1, keepdims=True)


def test_a_missing_barrier_is_seen_as_nan():
    source = planted("        parts[simdgroup] = sum;\n    }\n" + BARRIER, "        parts[simdgroup] = sum;\n    }\n\n")
    for seed in range(4):
        got, want = norms(SOURCE, seed)
        assert np.abs(got - want).max() <= 1e-6
    for seed in range(4):
        with pytest.raises(NonFiniteError, match="NaN"):
            norms(source, seed)


def test_a_sum_that_some_threads_do_not_reach_is_an_error_with_its_line():
    fault = "    const float sum = simd_sum(own);\n"
    source = planted(fault, "    const float sum = simd_lane < 20u ? simd_sum(own) : own;\n")
    with pytest.raises(EmulatedKernelError) as caught:
        norms(source, 0)
    assert f"prelude.metal:{line_of(fault, 'prelude.metal')} (simd_sum)" in str(caught.value)
    assert "24 threads wait" in str(caught.value)  # twelve of each simdgroup


def test_a_barrier_that_some_threads_do_not_reach_is_an_error_with_its_line():
    fault = "        parts[simdgroup] = sum;\n    }\n" + BARRIER
    source = planted(fault, fault.replace(BARRIER, "    if (simdgroup == 0u) {" + BARRIER.strip() + "}\n"))
    with pytest.raises(EmulatedKernelError, match=r"prelude\.metal:\d+ \(threadgroup_barrier\)"):
        norms(source, 0)


def test_products_of_matrices_that_some_threads_leave_out_are_an_error():
    store = "            simdgroup_store(sums.part[i][j], y_tile"
    source = planted(store, "            if (fault++ % 7u != 3u)\n" + store)
    source = source.replace("// The sums of a tile to threadgroup memory, for all threads.\n", "static uint fault;\n")
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal((40, 40)).astype(np.float32) for _ in range(2))
    program, tensors = one_op({"x": x}, lambda g, v: g.linear(v["x"], GraphBuilder.weight("w", w.shape)))
    device = EmulatedDevice(build_library(source, functions=FUNCTIONS))
    ready = GpuBackend(device).compile(program, Tensors(tensors | {"w": w}))
    with pytest.raises(EmulatedKernelError, match=r"tiles\.metal:\d+ \(threadgroup_barrier\) by different"):
        ready.run(batch_of([40]))


def test_a_constant_that_is_not_set_is_an_error():
    device = EmulatedDevice(build_library(SOURCE, functions=FUNCTIONS))
    arena, words, records = device.buffer(4096), device.buffer(256), device.buffer(256)
    records.content[:] = 0
    records.content.view(np.uint32)[:2] = 1  # a row of a column
    with pytest.raises(EmulatedKernelError, match="KIND is used and not set"):
        device.submit((arena, words, records), ((device.kernel("elementwise", ()), None, 0, 1),), [])


def sanitized(code, *arguments):
    """Run Python code beside AddressSanitizer's library."""
    library = subprocess.run(["gcc", "-print-file-name=libasan.so"], check=True, capture_output=True, text=True)
    environment = os.environ | {"LD_PRELOAD": library.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0"}
    environment["PYTHONPATH"] = os.pathsep.join([str(TOOLS), *sys.path])
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


EXACT = Path(__file__).with_name("exact_weights.py")


def test_a_read_past_the_end_is_found_at_the_shaders_line(tmp_path):
    fault = "            v[i] = k + i < w.depth ? at[i] : 0.0f;\n"
    source = tmp_path / "fault.metal"
    source.write_text(planted(fault, "            v[i] = at[i];\n"))
    done = sanitized(EXACT.read_text(), "float32", str(source))
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr
    line = line_of(fault, "weights/float32.metal")
    assert f"weights/float32.metal:{line}" in done.stderr, done.stderr


def test_nothing_is_read_after_a_weight_that_lies_at_an_odd_place():
    done = sanitized(EXACT.read_text(), *kernel_source().FORMATS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == list(kernel_source().FORMATS)


def test_threadgroup_memory_is_below_the_least_that_a_device_has():
    sizes = threadgroup_bytes(kernel_source().assembled_source())
    assert max(sizes.values()) <= 32_000
    assert sizes["LINEAR_TILED"] == 2 * 32 * 36 * 4  # so the count counts


def refused_by_clang(text, tmp_path):
    """What clang says of Metal source as OpenCL C++; empty if it takes it."""
    file = tmp_path / "kernels.clcpp"
    file.write_text(opencl_text(text))
    warnings = "-Wall -Wextra -Wshadow -Wconversion -Wno-unused-parameter -Werror"
    options = f"-x clcpp -cl-std=clc++ -Xclang -finclude-default-header -fsyntax-only {warnings}"
    command = ["clang", *options.split(), f"-I{TOOLS / 'opencl'}", str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


@pytest.mark.skipif(
    shutil.which("clang") is None and os.environ.get("LATTICE_REQUIRE_METAL") != "1", reason="clang is not installed"
)
def test_clang_takes_the_address_spaces_and_refuses_mixed_ones(tmp_path):
    assert refused_by_clang(kernel_source().assembled_source(), tmp_path) == ""
    mixed = SOURCE.replace("threadgroup float *w_tile,", "device float *w_tile,")
    assert "address space" in refused_by_clang(mixed, tmp_path)


@pytest.mark.parametrize("text", ["if constexpr (true) {}", "float x = 0x1p-3f;", "auto [a, b] = pair;"])
def test_newer_languages_than_metals_are_refused(text):
    source = planted("    float mean = 0.0f;\n", f"    float mean = 0.0f;\n    {text}\n")
    with pytest.raises(subprocess.CalledProcessError) as caught:
        build_library(source, functions=FUNCTIONS)
    assert "norm.metal:" in caught.value.stderr
