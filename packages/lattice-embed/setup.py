"""Builds the native modules. Shared headers and build code are copied in from the workspace: an sdist is whole."""

import shutil
import sys
from pathlib import Path

import numpy
from setuptools import setup

HERE = Path(__file__).resolve().parent
SHARED = HERE.parent.parent / "tools" / "native"
if HERE.parent.name == "packages" and SHARED.is_dir():
    # copy2 keeps the time stamps, so that an unchanged header rebuilds nothing
    shutil.copytree(SHARED, HERE / "native", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "tests"))
sys.path.insert(0, str(HERE / "native"))

from native_build import NativeExtension, setup_arguments  # noqa: E402

VECTORS = "src/lattice_embed/vectors"

KERNELS = f"{VECTORS}/kernels"

vectors = NativeExtension(
    "lattice_embed.vectors._vectors",
    [
        f"{VECTORS}/_vectors.pyx",
        f"{KERNELS}/choose_kernels.c",
        f"{KERNELS}/nearest.c",
        f"{KERNELS}/parallel_scores.c",
        f"{KERNELS}/prepare_query.c",
    ],
    kernels=[
        f"{KERNELS}/vector_kernels.c",
        f"{KERNELS}/row_kernels.c",
        f"{KERNELS}/matrix_product.c",
        f"{KERNELS}/integer_kernels.c",
        f"{KERNELS}/integer_kernels_dot.c",
        f"{KERNELS}/binary_kernels.c",
        f"{KERNELS}/binary_kernels_popcount.c",
        f"{KERNELS}/storing_kernels.c",
    ],
    header_folders=[KERNELS],
)
vectors.include_dirs.append(numpy.get_include())

PACKAGE = "src/lattice_embed"

text_cache = NativeExtension("lattice_embed._text_cache", [f"{PACKAGE}/_text_cache.pyx"])

setup(**setup_arguments([vectors, text_cache]))
