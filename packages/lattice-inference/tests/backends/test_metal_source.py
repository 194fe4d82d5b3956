"""The source text of the Metal kernels: the lowering's record and names, and nothing that is not assembled."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lattice_inference.backends.gpu.kernel_call import WORKGROUP
from lattice_inference.backends.gpu.record import RECORD
from lattice_inference.backends.gpu.step_inputs import HEADER
from lattice_inference.backends.gpu.weights import BLOCKS_AS_STORED
from lattice_inference.backends.metal import kernel_source
from lattice_inference.backends.metal.kernel_source import (
    CONSTANTS,
    FORMATS,
    KERNELS,
    MOST_CHOSEN,
    THREADS,
    assembled_source,
    function_names,
    function_of,
)
from lattice_inference.backends.wgpu.shaders import KERNELS as SHADERS

FOLDER = Path(kernel_source.__file__).with_name("kernels")


def test_the_record_is_the_lowerings():
    struct = re.search(r"struct Record \{\n(.*?)\};", assembled_source(), re.DOTALL)
    assert struct is not None
    fields = re.findall(r"(\w+) (\w+);", struct[1])
    kinds = {"u": "uint", "f": "float"}
    assert RECORD.fields is not None
    assert fields == [(kinds[RECORD.fields[name][0].kind], name) for name in RECORD.names or ()]


def test_the_header_of_a_step_is_the_lowerings():
    found = re.findall(r"STEP_(\w+) = (\d+)u,", assembled_source())
    assert {name: int(index) for name, index in found} == HEADER


def test_numbers_stand_in_both_languages():
    numbers = dict(re.findall(r"constexpr uint (\w+) = (\d+)u;", assembled_source()))
    assert int(numbers["THREADS"]) == THREADS == WORKGROUP
    assert int(numbers["MOST_CHOSEN"]) == MOST_CHOSEN
    assert int(numbers["TILE_FLOATS"]) == int(numbers["TILE"]) * int(numbers["TILE_STRIDE"])


def test_there_is_a_kernel_for_each_shader_with_the_same_buffers():
    assert {name: shape.bindings for name, shape in KERNELS.items()} == {
        name: shader.bindings for name, shader in SHADERS.items()
    }
    assert set(FORMATS) == {"float32", "float16", "bfloat16", "int8", *BLOCKS_AS_STORED}


def test_every_file_and_every_function_is_in_the_source_once():
    source = assembled_source()
    files = [str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.metal")]
    assert sorted(re.findall(r'#line 1 "(.*\.metal)"', source)) == sorted(files)
    assert [path for path in FOLDER.rglob("*") if path.is_file() and path.suffix != ".metal"] == []
    for name in function_names():
        assert len(re.findall(rf"(kernel void {name}\(|^[A-Z_]+\({name}, )", source, re.MULTILINE)) == 1, name
    assert source.count("#include") == 1
    assert source.isascii()


def test_a_function_has_the_constants_of_its_kernel():
    given = (("BIAS", 1), ("FORMAT", "Q4_0"), ("GATED", 0), ("ROWS", 4), ("SUBGROUPS", 1))
    found = function_of("linear_few", given)
    assert found.function == "linear_few_q4_0_4"
    assert found.function in function_names()
    assert [(CONSTANTS[index], value) for index, value in found.values] == [("BIAS", 1), ("GATED", 0)]
    assert function_of("rope", (("ROTATION", 2),)).function == "rope"


@pytest.mark.parametrize(
    ("name", "constants", "message"),
    [
        ("convolve", (), "no kernel 'convolve'"),
        ("linear_tiled", (("FORMAT", "Q2_K"),), "no weights in Q2_K"),
        ("linear_few", (("FORMAT", "Q8_0"), ("ROWS", 3)), "not 3"),
        ("moe_route", (("EACH", 513),), "at most 512 experts here, not 513"),
        ("rope", (("SPIN", 1),), "no constant SPIN"),
    ],
)
def test_what_no_function_computes_is_refused(name, constants, message):
    with pytest.raises(ValueError, match=message):
        function_of(name, constants)
