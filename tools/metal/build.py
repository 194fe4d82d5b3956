"""Compiles the Metal kernels for the CPU, for tests.

``python tools/metal/build.py`` prints the path of the library.

The source is translated to C++ (:mod:`translate`) and compiled by g++ as C++14, the language level of Metal 2.3. Libraries
are kept in ``build/metal`` by a digest of all that they are made of.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

__all__ = ["ROOT", "build_library", "kernel_source"]

ROOT = Path(__file__).resolve().parents[2]
_HERE = Path(__file__).resolve().parent
_SOURCE = ROOT / "packages/lattice-inference/src/lattice_inference/backends/metal/kernel_source.py"
_OPTIONS = [
    "-std=c++14",
    "-fsigned-char",
    "-fno-fast-math",
    "-ffp-contract=off",
    "-fPIC",
    "-shared",
    "-g1",
    "-Wall",
    "-Werror",
]
_OPTIONS += ["-fvisibility=hidden", "-fno-gnu-unique"]  # libraries of several sources are in one process
# what the translation leaves, and what a kernel of one shape does not use
_OPTIONS += [
    "-Wno-unused-function",
    "-Wno-unused-variable",
    "-Wno-unused-but-set-variable",
    "-Wno-unused-local-typedefs",
]


def kernel_source() -> ModuleType:
    """Return the module ``backends/metal/kernel_source.py``, loaded by its path."""
    spec = importlib.util.spec_from_file_location("lattice_metal_kernel_source", _SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def build_library(
    source: str | None = None, *, functions: tuple[str, ...] | None = None, sanitize: bool = False
) -> Path:
    """Return the library that runs ``source``, compiled unless it is there.

    Args:
        source: Metal source text; by default that of all kernels.
        functions: its functions; by default all that the kernels have.
        sanitize: compile for AddressSanitizer.

    Raises:
        subprocess.CalledProcessError: g++ refuses the text; its message is in ``stderr``.
    """
    sys.path.insert(0, str(_HERE))
    try:
        from translate import runnable_text
    finally:
        sys.path.pop(0)
    kernels = kernel_source()
    text = runnable_text(source or kernels.assembled_source(), functions or kernels.function_names())
    options = [*_OPTIONS, "-O1" if sanitize else "-O2", *_machine()]
    if sanitize:
        # checks as calls: the compiler is done in a third of the time
        options += [
            "-fsanitize=address",
            "--param=asan-instrumentation-with-call-threshold=0",
            "-fno-omit-frame-pointer",
            "-g",
        ]
    digest = hashlib.sha256("\0".join([text, *options, *_parts()]).encode()).hexdigest()[:24]
    library = ROOT / "build" / "metal" / f"emulated-{digest}.so"
    if library.exists():
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        unit = Path(folder) / "kernels.cpp"
        unit.write_text(text, encoding="utf-8")
        made = Path(folder) / "emulated.so"
        command = ["g++", *options, f"-I{_HERE / 'cpp'}", f"-I{_HERE}", str(unit), "-o", str(made)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        os.replace(made, library)
    return library


def _machine() -> list[str]:
    """Return options for fused multiply-adds in one instruction, where the CPU has them."""
    return ["-march=native"] if platform.machine() in {"x86_64", "aarch64", "arm64"} else []


def _parts() -> list[str]:
    return [path.read_text(encoding="utf-8") for path in sorted([*(_HERE / "cpp").iterdir(), _HERE / "emulated.h"])]


def main() -> None:
    """Build a library and print where it is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--source", type=Path, help="Metal source text instead of the kernels'")
    parser.add_argument("--sanitize", action="store_true", help="compile for AddressSanitizer")
    given = parser.parse_args()
    source = None if given.source is None else given.source.read_text(encoding="utf-8")
    try:
        print(build_library(source, sanitize=given.sanitize))
    except subprocess.CalledProcessError as error:
        sys.exit(error.stderr)


if __name__ == "__main__":
    main()
