"""What kinds of devices do alike.

A process opens one device of a kind, a lost one stays lost, and a forked child is refused.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from lattice_inference.backends.gpu.device import DeviceDescription
from lattice_inference.errors import DeviceLostError, DeviceUnavailableError

__all__ = ["OpenedOnce", "ProcessDevice"]

DeviceT = TypeVar("DeviceT", bound="ProcessDevice")


class ProcessDevice:
    """The part of a device that knows its process, and whether it was lost.

    Args:
        description: what the device is.
    """

    def __init__(self, description: DeviceDescription) -> None:
        self.description = description
        self._process = os.getpid()
        self._lost: str | None = None

    def check(self) -> None:
        """Raise DeviceUnavailableError in a forked child, and DeviceLostError if the device is lost."""
        _refuse_forked(self._process)
        if self._lost is not None:
            raise DeviceLostError(f"{self.description.name} was lost ({self._lost}): load the model again")

    @property
    def is_lost(self) -> bool:
        """Whether the device is lost."""
        return self._lost is not None

    def lose(self, reason: str) -> None:
        """Take the device for lost, in every later call too."""
        self._lost = reason.splitlines()[0][:200]


class OpenedOnce(Generic[DeviceT]):
    """This process's device of a kind: opened once, and anew after it was lost. Thread-safe.

    Args:
        opening: opens a device.
    """

    def __init__(self, opening: Callable[[], DeviceT]) -> None:
        self._opening = opening
        self._lock = threading.Lock()
        self._device: DeviceT | None = None
        self._process: int | None = None  # the process that opens the device, or has opened it

    def get(self) -> DeviceT:
        """Return the device.

        Raises:
            DeviceUnavailableError: there is none, or this process was forked from one that has opened it.
        """
        if self._process is not None:  # also a lost device: what the driver made in the parent does not work here
            _refuse_forked(self._process)
        with self._lock:
            if self._device is None or self._device.is_lost:
                former, self._process = self._process, os.getpid()
                try:
                    self._device = self._opening()
                except BaseException:
                    self._process = former
                    raise
            return self._device

    def forget(self) -> None:
        """Let go of the device: the next call opens another."""
        self._device = self._process = None


def _refuse_forked(process: int) -> None:
    if os.getpid() != process:
        raise DeviceUnavailableError(
            "this process was forked from one that uses the GPU, and its device does not work here: start processes "
            "with multiprocessing's method 'spawn', and load models in them"
        )
