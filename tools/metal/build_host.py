"""Builds the module that calls Metal over a stand-in device, on Linux.

``python tools/metal/build_host.py`` prints its path.

gcc compiles the very Objective-C that a Mac's compiler does, against the headers in ``fake/``. It needs gobjc. The device
that the module finds is named EMULATED; only tests load it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
METAL = ROOT / "packages" / "lattice-inference" / "src" / "lattice_inference" / "backends" / "metal"
FAKE = Path(__file__).resolve().parent / "fake"
SOURCES = (METAL / "_metal.pyx", METAL / "metal_device.m", METAL / "metal_device.h")

FLAGS = ("-std=gnu11", "-O1", "-g", "-fPIC", "-Wall", "-Wextra", "-Werror")

__all__ = ["build_host", "has_compiler"]


def has_compiler() -> bool:
    """Whether gcc compiles Objective-C here."""
    if sys.platform != "linux" or shutil.which("gcc") is None:  # a Mac has the real ones
        return False
    command = ["gcc", "-x", "objective-c", "-include", "objc/runtime.h", "-fsyntax-only", "-"]
    return subprocess.run(command, input=b"", capture_output=True).returncode == 0


def build_host() -> Path:
    """Return the module, built unless it is there; its name tells what it was built from.

    Raises:
        RuntimeError: a compiler refuses a source; the error has its message.
    """
    watched = [Path(__file__), *SOURCES, *sorted(FAKE.rglob("*.[hm]")), FAKE.parent / "emulated.h"]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in watched)).hexdigest()[:16]
    suffix = str(sysconfig.get_config_var("EXT_SUFFIX"))
    folder = ROOT / "build" / "metal" / f"host-{digest}"
    target = folder / f"_metal{suffix}"
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / f"{os.getpid()}.part"
    made.mkdir(exist_ok=True)
    name = "lattice_inference.backends.metal._metal"
    directives = ["-X", "boundscheck=False", "-X", "wraparound=False", "-X", "freethreading_compatible=True"]
    shutil.copy(METAL / "_metal.pyx", made)
    _run([sys.executable, "-m", "cython", "-3", *directives, "--module-name", name, "_metal.pyx"], made)
    _run(
        ["gcc", "-std=gnu11", "-O1", "-fPIC", f"-I{METAL}", f"-I{sysconfig.get_path('include')}", "-c", "_metal.c"],
        made,
    )
    for source, more in ((METAL / "metal_device.m", ()), (FAKE / "fake_metal.m", ("-Wno-unused-parameter",))):
        _run(["gcc", "-x", "objective-c", *FLAGS, *more, f"-I{FAKE}", f"-I{METAL}", "-c", str(source)], made)
    objects = ["_metal.o", "metal_device.o", "fake_metal.o"]
    _run(["gcc", "-shared", "-Wl,-Bsymbolic", "-o", target.name, *objects, "-lobjc", "-ldl", "-lpthread"], made)
    (made / target.name).replace(target)
    shutil.rmtree(made)
    return target


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")


if __name__ == "__main__":
    print(build_host())
