"""Writes a step's dispatches into a command encoder by the package's C functions.

The package's own methods catch the errors of each call, which takes most of a dispatch's time on the host. The functions
are what these methods call. WebGPU keeps errors of encoding until the encoder is finished, and that is the package's method.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lattice_inference.backends.gpu.device import Dispatch
from lattice_inference.backends.gpu.record import RECORD_STRIDE

__all__ = ["MOST_GROUPS", "PreparedDispatches"]

MOST_GROUPS = 65_535
"""The most workgroups of a dimension of a grid."""


class PreparedDispatches:
    """Dispatches as the C functions take them; made once for all steps that run them.

    Args:
        dispatches: in order. Their kernels and bindings live as long as this does.
        is_plain: use the package's methods only. So it does if a release of it has no such functions or handles.
    """

    def __init__(self, dispatches: Sequence[Dispatch], *, is_plain: bool = False) -> None:
        self._dispatches = tuple(dispatches)
        self._rows: list[tuple[Any, Any, Any, int, int]] | None = None
        if is_plain:
            return
        try:
            from wgpu.backends.wgpu_native import ffi, lib

            self._set_pipeline = lib.wgpuComputePassEncoderSetPipeline
            self._set_group = lib.wgpuComputePassEncoderSetBindGroup
            self._dispatch = lib.wgpuComputePassEncoderDispatchWorkgroups
            self._none = ffi.NULL
            most = max([dispatch.record for dispatch in self._dispatches], default=0)
            self._offsets = ffi.new("uint32_t[]", [index * RECORD_STRIDE for index in range(most + 1)])
            self._rows = [
                (
                    _handle(kernel),
                    None if bindings is None else _handle(bindings),
                    self._offsets + record,
                    *_grid(groups),
                )
                for kernel, bindings, record, groups in self._dispatches
            ]
        except (ImportError, AttributeError):
            self._rows = None

    @property
    def is_direct(self) -> bool:
        """Whether the C functions are called."""
        return self._rows is not None

    def __bool__(self) -> bool:
        return bool(self._dispatches)

    def encode(self, compute: Any, step: Any) -> None:
        """Write the dispatches into the pass ``compute``, each with ``step`` at its record."""
        if self._rows is None:
            self._encode_plainly(compute, step)
            return
        set_pipeline, set_group, dispatch, none = self._set_pipeline, self._set_group, self._dispatch, self._none
        encoder, bound = _handle(compute), _handle(step)
        last = None
        for pipeline, bindings, offset, width, height in self._rows:
            if pipeline is not last:
                set_pipeline(encoder, pipeline)
                last = pipeline
            set_group(encoder, 0, bound, 1, offset)
            if bindings is not None:
                set_group(encoder, 1, bindings, 0, none)
            dispatch(encoder, width, height, 1)

    def _encode_plainly(self, compute: Any, step: Any) -> None:
        for kernel, bindings, record, groups in self._dispatches:
            compute.set_pipeline(kernel)
            compute.set_bind_group(0, step, (record * RECORD_STRIDE,))
            if bindings is not None:
                compute.set_bind_group(1, bindings)
            compute.dispatch_workgroups(*_grid(groups))


def _grid(groups: int) -> tuple[int, int]:
    width = min(groups, MOST_GROUPS)
    return width, -(-groups // width)


def _handle(thing: Any) -> Any:
    return thing._internal
