"""What may compute, by name."""

from __future__ import annotations

from typing import Literal

__all__ = ["DeviceName"]

DeviceName = Literal["cpu", "wgpu", "metal", "auto"]
"""What computes: ``"auto"`` is a GPU that can be used and computes what the caller wants, else the CPU."""
