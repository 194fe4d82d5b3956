"""Compiles Metal kernels to a library at build time, on Macs with Apple's own processors.

Apple's compiler is a separate download since Xcode 26. Without it a build warns and ships the kernels' source, which the
system then compiles when a model is loaded. With ``LATTICE_REQUIRE_METALLIB=1``, as for wheels, the build fails instead.

A library is stamped with the oldest macOS that loads it. Some ways to link it put the SDK's version there, so the stamp is
read back.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from metal_stamp import LIBRARY_NAME, read_stamp
from setuptools import Extension
from setuptools.errors import CompileError

__all__ = ["LIBRARY_NAME", "MACOS", "MetalLibrary", "compile_library", "library_is_required", "read_stamp"]

MACOS = (11, 0)
"""The oldest macOS that loads the library: the first one of Apple's own processors."""

_COMPILE = (
    "metal",
    "-std=macos-metal2.3",
    f"-mmacosx-version-min={MACOS[0]}.{MACOS[1]}",
    "-fno-fast-math",  # masks need exp(-inf) = 0
    "-Werror",
    "-c",
)

NO_XCODE = "Apple's Metal compiler is not here, since there is no xcrun: install Xcode"
NO_TOOLCHAIN = (
    "Apple's Metal compiler is not here: install Xcode and, from Xcode 26 on, run "
    "xcodebuild -downloadComponent MetalToolchain"
)


class MetalLibrary(Extension):
    """A library of kernels that is built beside extension modules; a build goes on without it.

    Args:
        name: the package that it lies in, with a last part that is not used.
        source: returns the kernels' source.
        depends: files that the source is made of.
    """

    def __init__(self, name: str, source: Callable[[], str], depends: list[str]) -> None:
        super().__init__(name, [], depends=depends, optional=not library_is_required())
        self.source = source


def library_is_required() -> bool:
    """Whether a build without the library is a failed one."""
    return os.environ.get("LATTICE_REQUIRE_METALLIB") == "1"


def compile_library(source: str, target: Path, folder: Path) -> None:
    """Compile ``source`` to the library ``target``; ``folder`` is for what lies between.

    Raises:
        CompileError: the compiler is missing, refuses the source, or stamps the library with a newer macOS.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)  # a library of an earlier source is none
    text, middle, made = folder / "lattice.metal", folder / "lattice.air", folder / LIBRARY_NAME
    text.write_text(source, encoding="utf-8")
    _run([*_COMPILE, str(text), "-o", str(middle)])
    _run(["metallib", str(middle), "-o", str(made)])
    try:
        stamp = read_stamp(made.read_bytes())
    except (OSError, ValueError) as cause:
        raise CompileError(f"metallib made no library: {cause}") from cause
    if not stamp.is_macos or stamp.version > MACOS:
        system = "macOS" if stamp.is_macos else "another system than macOS, version"
        raise CompileError(
            f"the Metal library is stamped for {system} {stamp.version[0]}.{stamp.version[1]}, and it must load on macOS "
            f"{MACOS[0]}.{MACOS[1]}"
        )
    shutil.copyfile(made, target)


def _run(command: list[str]) -> None:
    if shutil.which("xcrun") is None:
        raise CompileError(NO_XCODE)
    done = subprocess.run(["xcrun", "-sdk", "macosx", *command], capture_output=True, text=True)
    if done.returncode == 0:
        return
    said = (done.stderr + done.stdout).strip()
    if "unable to find utility" in said or "missing Metal Toolchain" in said:
        raise CompileError(f"{NO_TOOLCHAIN}\n{said}")
    raise CompileError(f"xcrun {command[0]} refused Lattice's Metal kernels:\n{said}")
