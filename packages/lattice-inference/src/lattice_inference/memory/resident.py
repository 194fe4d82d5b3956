"""How much memory this process has in RAM now."""

from __future__ import annotations

import sys

__all__ = ["peak_resident_bytes", "resident_bytes"]

_PLATFORM: str = sys.platform
_TASK_INFO = 18  # PROC_PIDTASKINFO of <sys/proc_info.h>


def resident_bytes() -> int | None:
    """Return the resident set size in bytes, mapped files included.

    ``None`` if the system does not tell.
    """
    if _PLATFORM == "linux":
        return _from_status("VmRSS")
    if _PLATFORM == "darwin":
        return _from_proc_pidinfo()
    return None


def peak_resident_bytes() -> int | None:
    """Return the peak resident set size in bytes; ``None`` if the system does not tell."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if _PLATFORM == "darwin" else 1024 * peak


def _from_status(field: str) -> int | None:
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name == field:
                    return 1024 * int(value.split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return None


def _from_proc_pidinfo() -> int | None:
    """Ask macOS: proc_pidinfo fills a proc_taskinfo, whose second word is the resident size."""
    import ctypes
    import os

    try:
        library = ctypes.CDLL("/usr/lib/libSystem.B.dylib")
        buffer = (ctypes.c_uint64 * 32)()
        filled = library.proc_pidinfo(os.getpid(), _TASK_INFO, ctypes.c_uint64(0), buffer, ctypes.sizeof(buffer))
    except (OSError, AttributeError):
        return None
    return int(buffer[1]) if filled >= 16 else None
