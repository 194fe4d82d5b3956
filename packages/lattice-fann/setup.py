"""Builds the native module. Shared headers and build code are copied in from the workspace, so an sdist is whole."""

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

from native_build import NativeExtension, setup_arguments  # noqa: E402

FANN = "src/lattice_fann"

setup(
    **setup_arguments(
        [
            NativeExtension(
                "lattice_fann._engine",
                [f"{FANN}/_engine.pyx", f"{FANN}/kernels/run.c"],
                kernels=[f"{FANN}/kernels/kernels.c"],
                header_folders=[f"{FANN}/kernels"],
            ),
        ]
    )
)
