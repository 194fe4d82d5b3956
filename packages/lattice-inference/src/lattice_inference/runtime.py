"""The process's threads and what its CPU can do."""

from __future__ import annotations

from typing import TypedDict

from lattice_inference.backends.cpu import _cpu

__all__ = ["NUMERICS_VERSION", "CpuInfo", "cpu_info", "get_num_threads", "set_num_threads"]

NUMERICS_VERSION = 1
"""Rises when a release changes a bit of a float32 or int8 result. Part of every fingerprint."""


class CpuInfo(TypedDict):
    """What :func:`cpu_info` returns."""

    isa: str
    available: list[str]
    features: list[str]
    threads: int


def cpu_info() -> CpuInfo:
    """Return the instruction sets in use and available, the CPU's extensions and the threads.

    Available are those that this CPU and build can run.

    Raises:
        ValueError: ``LATTICE_ISA`` names a level that does not exist or cannot run here.
    """
    return {
        "isa": _cpu.select_isa(),
        "available": _cpu.available_isas(),
        "features": _cpu.cpu_features(),
        "threads": _cpu.get_num_threads(),
    }


def get_num_threads() -> int:
    """Return how many threads a computation may use.

    One pool serves all Lattice packages of the process.
    """
    return _cpu.get_num_threads()


def set_num_threads(threads: int) -> None:
    """Set how many threads a computation may use.

    It starts as ``LATTICE_NUM_THREADS``, then ``OMP_NUM_THREADS``, then the processors that this process may use
    (affinity and control-group quota counted). Results do not depend on it.

    Raises:
        InvalidInputError: not an integer from 1 to 256.
    """
    _cpu.set_num_threads(threads)
