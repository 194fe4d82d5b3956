"""Builds the native modules. Shared headers and build code are copied in from the workspace, so an sdist is whole."""

import glob
import importlib.util
import shutil
import sys
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).resolve().parent
SHARED = HERE.parent.parent / "tools" / "native"
if HERE.parent.name == "packages" and SHARED.is_dir():
    # copy2 keeps the time stamps, so that an unchanged header rebuilds nothing
    shutil.copytree(SHARED, HERE / "native", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "tests"))
sys.path.insert(0, str(HERE / "native"))

from metal_library import MetalLibrary  # noqa: E402
from native_build import MetalExtension, NativeExtension, builds_metal, setup_arguments  # noqa: E402

CPU = "src/lattice_inference/backends/cpu"
METAL = "src/lattice_inference/backends/metal"
GENERATE = "src/lattice_inference/generate"
TOKENIZER = "src/lattice_inference/tokenizer"
VECTOR_CACHE = "src/lattice_inference/vector_cache"


def metal_source() -> str:
    """Return the source of the Metal kernels, by the module that puts it together at run time too."""
    spec = importlib.util.spec_from_file_location("kernel_source", HERE / METAL / "kernel_source.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return str(module.assembled_source())


METAL_EXTENSIONS: list[NativeExtension] = []
METAL_LIBRARIES: list[MetalLibrary] = []
if builds_metal():
    METAL_EXTENSIONS.append(
        MetalExtension(
            "lattice_inference.backends.metal._metal",
            [f"{METAL}/_metal.pyx", f"{METAL}/metal_device.m"],
            header_folders=[METAL],
        )
    )
    parts = sorted(glob.glob(f"{METAL}/kernels/**/*.metal", recursive=True))
    METAL_LIBRARIES.append(MetalLibrary("lattice_inference.backends.metal.library", metal_source, parts))

setup(
    **setup_arguments(
        [
            NativeExtension(
                "lattice_inference.backends.cpu._cpu",
                [
                    f"{CPU}/_cpu.pyx",
                    f"{CPU}/kernels/run_step.c",
                    f"{CPU}/kernels/names.c",
                    f"{CPU}/kernels/linear/block_pack.c",
                ],
                kernels=[
                    f"{CPU}/kernels/kernels.c",
                    f"{CPU}/kernels/linear/int8_linear.c",
                    f"{CPU}/kernels/linear/bfloat16_linear.c",
                    f"{CPU}/kernels/amx/amx_attention.c",
                    f"{CPU}/kernels/linear/block_linear.c",
                    f"{CPU}/kernels/attention/paged_attention.c",
                    f"{CPU}/kernels/reverse/input_grad.c",
                    f"{CPU}/kernels/reverse/factors.c",
                    f"{CPU}/kernels/reverse/attention_grad.c",
                    f"{CPU}/kernels/reverse/row_grads.c",
                    f"{CPU}/kernels/reverse/cross_entropy.c",
                ],
                header_folders=[f"{CPU}/kernels"],
            ),
            NativeExtension(
                "lattice_inference.generate._sampling",
                [f"{GENERATE}/_sampling.pyx", f"{GENERATE}/kernels/run_sampling.c"],
                kernels=[f"{GENERATE}/kernels/sample_row.c"],
                header_folders=[f"{GENERATE}/kernels"],
            ),
            NativeExtension(
                "lattice_inference.tokenizer._tokenizer",
                [f"{TOKENIZER}/_tokenizer.pyx", *sorted(glob.glob(f"{TOKENIZER}/native/kernels/*.c"))],
                header_folders=[f"{TOKENIZER}/native"],
            ),
            NativeExtension(
                "lattice_inference.vector_cache._journal",
                [f"{VECTOR_CACHE}/_journal.pyx"],
                header_folders=[f"{VECTOR_CACHE}/native"],
            ),
            *METAL_EXTENSIONS,
        ],
        METAL_LIBRARIES,
    )
)
