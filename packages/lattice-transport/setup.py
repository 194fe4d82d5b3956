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

SOURCE = "src/lattice_transport"

setup(
    **setup_arguments(
        [
            NativeExtension(
                "lattice_transport._transport",
                [
                    f"{SOURCE}/_transport.pyx",
                    f"{SOURCE}/kernels/run_sinkhorn.c",
                    f"{SOURCE}/kernels/network_simplex.c",
                ],
                kernels=[f"{SOURCE}/kernels/kernels.c"],
                header_folders=[f"{SOURCE}/kernels"],
            )
        ]
    )
)
