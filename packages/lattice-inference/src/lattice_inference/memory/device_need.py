"""What a model takes on a device that is not the CPU, told before anything of it is loaded."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from lattice_inference.backends.opening import open_backend
from lattice_inference.device_name import DeviceName
from lattice_inference.errors import UnsupportedError
from lattice_inference.memory.fit import MemoryNeed
from lattice_inference.memory.precisions import PrecisionNeed

__all__ = ["DeviceNeed", "device_need"]


@dataclass(frozen=True)
class DeviceNeed:
    """A model on a device.

    Attributes:
        name: device and driver; it says "software" of one that a CPU computes.
        binding_bytes: the most bytes of a buffer that a kernel is given.
        largest_weight_bytes: the largest weight as stored; above ``binding_bytes`` it is cut by rows.
        largest_keys_bytes: a layer's keys for the context in float16; above ``binding_bytes`` they do not fit.
        precisions: what the weights take, in each precision that the device has.
        problem: why the model does not run there; None if it does.
        working_set_bytes: what the system recommends to use at most; None where it does not say.
    """

    name: str
    binding_bytes: int
    largest_weight_bytes: int
    largest_keys_bytes: int
    precisions: tuple[PrecisionNeed, ...]
    problem: str | None
    working_set_bytes: int | None = None

    def fits_with(self, needed_bytes: int) -> bool | None:
        """Return whether so many bytes fit; None where the system does not say, as with Vulkan."""
        if self.largest_keys_bytes > self.binding_bytes:
            return False
        return None if self.working_set_bytes is None else needed_bytes <= self.working_set_bytes


def device_need(need: MemoryNeed, device: DeviceName) -> DeviceNeed | None:
    """Work out what the model of ``need`` takes on ``device``; None if that is the CPU.

    Raises:
        DeviceUnavailableError: the device cannot be used here; the error names the remedy.
        ModelNotFoundError, CheckpointError, ModelConfigError: the files are missing or malformed.
        UnsupportedError: the model is of a kind that is not built.
    """
    from lattice_inference.backends.gpu.backend import GpuBackend
    from lattice_inference.quantize.model_program import open_model_program

    backends = {
        precision: open_backend(device=device, precision=precision) for precision in ("stored", "float32", "bfloat16")
    }
    stored = backends["stored"]
    if not isinstance(stored, GpuBackend):
        return None
    with ExitStack() as stack:
        model = open_model_program(Path(need.path), stack)
        sizes = {name: backend.weight_sizes(model.program, model.tensors) for name, backend in backends.items()}
        try:
            stored.check(model.program)
            problem = None
        except UnsupportedError as error:
            problem = str(error)
    return DeviceNeed(
        stored.device.description.identity,
        stored.device.max_binding_bytes,
        max([weight.nbytes for weight in sizes["stored"]], default=0),
        max(need.kv_layer_bytes, default=0) // 2,
        tuple(PrecisionNeed.of(name, weights) for name, weights in sizes.items()),
        problem,
        getattr(stored.device, "working_set_bytes", None),
    )
