"""The walk-through of docs/add-an-op.md.

Its patches fit, its Python runs, and its kernel gives the reference's values.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lattice_inference
from lattice_inference.backends.cpu import _cpu

from .conftest import ROOT
from .snippets import blocks_of
from .test_native import COMPILER, NATIVE, needs_compiler

sys.path.insert(0, str(NATIVE))

import native_build

SECTION = (ROOT / "docs" / "add-an-op.md").read_text(encoding="utf-8").partition("## A made-up op, step by step")[2]
KERNELS = Path("backends", "cpu", "kernels")
CALL = """
#include "kernel_functions.h"
#include "rows/elementwise.h"

__attribute__((visibility("default"))) void softsign(float *x, float *y, int64_t rows, int64_t n)
{
    const lattice_op op = {.kernel = LATTICE_KERNEL_SOFTSIGN, .rows = LATTICE_ROWS_TOKENS, .each = 1, .n = n,
                           .input = {{0, (int32_t)n, 0}}, .output = {1, (int32_t)n, 0}, .rounded = {.slot = -1}};
    float *slots[] = {x, y};
    lattice_step step = {.tokens = rows, .slots = slots};
    for (int64_t task = 0; task < 3; task++)
        LATTICE_FN(softsign_run)(&op, &step, task, 3, 0);
}
"""


def apply_patches(folder: Path) -> list[str]:
    """Apply the section's patches to a copy of the package and return the files.

    Each hunk fits one place.
    """
    changed = []
    for block in blocks_of(SECTION):
        if block.info != "diff":
            continue
        for name, patch in re.findall(r"^--- a/(\S+)\n\+\+\+ b/\1\n(.*?)(?=^---|\Z)", block.code, re.M | re.S):
            text = (folder / name).read_text(encoding="utf-8")
            for hunk in patch.split("@@\n")[1:]:
                lines = hunk.splitlines(keepends=True)
                old = "".join(line[1:] for line in lines if line[0] == " ")
                assert text.count(old) == 1, f"{name} has {text.count(old)} times {old!r}"
                text = text.replace(old, "".join(line[1:] for line in lines))
            (folder / name).write_text(text, encoding="utf-8")
            changed.append(name)
    return changed


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with the op."""
    folder = tmp_path_factory.mktemp("added") / "lattice_inference"
    shutil.copytree(
        Path(lattice_inference.__file__).parent, folder, ignore=shutil.ignore_patterns("__pycache__", "*.c")
    )
    sources = ROOT / "packages" / "lattice-inference" / "src" / "lattice_inference" / KERNELS
    shutil.copytree(sources, folder / KERNELS, dirs_exist_ok=True)
    assert len(apply_patches(folder)) == 5
    return folder


@pytest.mark.slow
def test_the_reference_runs_the_op_and_the_cpu_refuses_it_by_name(package: Path) -> None:
    (code,) = [block.code for block in blocks_of(SECTION) if block.is_python]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"{code}\nimport lattice_inference as p\nprint(p.__path__[0])"],
        env={**os.environ, "PYTHONPATH": str(package.parent)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["the CPU backend has no kernel for the op 'softsign'", str(package)]


@pytest.mark.slow
@needs_compiler
def test_the_kernel_gives_the_values_on_every_level(package: Path, tmp_path: Path) -> None:
    kernels = package / KERNELS
    (tmp_path / "call.c").write_text(CALL, encoding="utf-8")
    includes = [f"-I{native_build.INCLUDE}", f"-I{kernels}"]
    x = np.random.default_rng(0).standard_normal((7, 33)).astype(np.float32) * 4
    found = {}
    for level in native_build.instruction_sets():
        if level.name not in _cpu.available_isas():
            continue
        flags = [
            *native_build.KERNEL_FLAGS,
            "-Werror",
            "-Wno-unused-function",
            *level.flags,
            f"-DLATTICE_ISA_{level.name.upper()}=1",
            *includes,
        ]
        # -O1 in place of -O3: the values are the same and the compiler is done sooner
        command = [str(COMPILER), *flags, "-O1", "-shared", "-fPIC", str(tmp_path / "call.c"), "-lm"]
        library = tmp_path / f"{level.name}.so"
        done = subprocess.run([*command, "-o", str(library)], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        y = np.full_like(x, np.nan)
        pointers = (array.ctypes.data_as(ctypes.c_void_p) for array in (x, y))
        ctypes.CDLL(str(library)).softsign(*pointers, ctypes.c_int64(7), ctypes.c_int64(33))
        assert np.abs(y - x / (1 + np.abs(x.astype(np.float64)))).max() < 1e-6
        found[level.name] = y.tobytes()
    assert len(set(found.values())) == 1


@pytest.mark.slow
@needs_compiler
def test_the_list_gives_the_kernel_its_name_and_its_place_in_the_table(package: Path) -> None:
    kernels = package / KERNELS
    for source, expected in (
        ("names.c", '"add", "softsign"'),
        ("kernels.c", "[LATTICE_KERNEL_SOFTSIGN] = {row_tasks_"),
    ):
        command = [str(COMPILER), "-E", "-P", "-DLATTICE_ISA_BASELINE=1", f"-I{NATIVE / 'include'}", f"-I{kernels}"]
        done = subprocess.run([*command, str(kernels / source)], capture_output=True, text=True, timeout=60, check=True)
        assert expected in done.stdout
