"""The module that calls Metal, compiled on Linux over a stand-in device that the emulation of the kernels runs."""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[4] / "tools" / "metal"
MODULE = "lattice_inference.backends.metal._metal"


class FakeMetal:
    """What a test tells the stand-in, and what it counts, named as in fake_metal.h."""

    def __init__(self, library: ctypes.CDLL) -> None:
        text = (TOOLS / "fake" / "fake_metal.h").read_text(encoding="utf-8")
        names = [re.findall(r"\bFAKE_(\w+)", part) for part in re.findall(r"enum fake_\w+ \{(.*?)\}", text, re.DOTALL)]
        self._settings, self._counts = ({name.lower(): number for number, name in enumerate(part)} for part in names)
        self._library = library
        library.fake_metal_count.restype = ctypes.c_int64
        library.fake_metal_source.restype = ctypes.c_char_p

    def set(self, **settings: int) -> None:
        for name, value in settings.items():
            self._library.fake_metal_set(self._settings[name], ctypes.c_int64(value))

    def reset(self) -> None:
        self._library.fake_metal_reset()

    def __getattr__(self, name: str) -> int:
        return int(self._library.fake_metal_count(self._counts[name]))

    @property
    def source(self) -> str:
        return self._library.fake_metal_source().decode()


def needs_host() -> pytest.MarkDecorator:
    """Skip without gcc's Objective-C and Cython; ``LATTICE_REQUIRE_METAL=1`` makes that a failure instead.

    Where the emulation takes the place of the device ``"metal"`` they are skipped too.
    """
    sys.path.insert(0, str(TOOLS))
    from build_host import has_compiler

    is_there = has_compiler() and importlib.util.find_spec("Cython") is not None
    is_there = is_there or os.environ.get("LATTICE_REQUIRE_METAL") == "1"
    is_replaced = os.environ.get("LATTICE_METAL_EMULATED") == "1"
    return pytest.mark.skipif(is_replaced or not is_there, reason="needs gobjc and Cython: nox -s metal")


@contextmanager
def loaded_host() -> Iterator[FakeMetal]:
    """Give the package the module over the stand-in, and take it away again."""
    from build import build_library
    from build_host import build_host

    import lattice_inference.backends.metal as package
    from lattice_inference.backends.metal import device

    path = build_host()
    loader = importlib.machinery.ExtensionFileLoader(MODULE, str(path))
    spec = importlib.util.spec_from_loader(MODULE, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    library = ctypes.CDLL(str(path))
    assert library.fake_metal_load(str(build_library()).encode())
    sys.modules[MODULE] = package._metal = module  # type: ignore[attr-defined]
    try:
        yield FakeMetal(library)
    finally:
        del sys.modules[MODULE], package._metal  # type: ignore[attr-defined]
        device._opened.forget()
