"""The GPU backend on this Mac's Metal device."""

from __future__ import annotations

from lattice_inference.backends.gpu.backend import GpuBackend
from lattice_inference.backends.gpu.program import GpuProgram
from lattice_inference.backends.metal.device import MetalDevice, open_device
from lattice_inference.backends.protocol import BackendProgram
from lattice_inference.backends.tensor_source import TensorSource
from lattice_inference.errors import DeviceMemoryError
from lattice_inference.graph.program import Program
from lattice_inference.precision import Activations, Precision

__all__ = ["MetalBackend"]


class MetalBackend(GpuBackend):
    """Runs programs on this Mac's GPU. Weights that are kept as stored stay in the mapped file.

    See :class:`~lattice_inference.backends.gpu.backend.GpuBackend`.

    Raises:
        DeviceUnavailableError: there is none; the error names the remedy.
        UnsupportedError, InvalidInputError: as for every GPU.
    """

    def __init__(
        self,
        *,
        fused: bool = True,
        threads: int | None = None,
        precision: Precision = "float32",
        activations: Activations | None = None,
        max_binding_bytes: int | None = None,
    ) -> None:
        self._metal: MetalDevice = open_device()
        super().__init__(
            self._metal,
            fused=fused,
            threads=threads,
            precision=precision,
            activations=activations,
            max_binding_bytes=max_binding_bytes,
        )

    def compile(self, program: Program, source: TensorSource, *, beside: BackendProgram | None = None) -> GpuProgram:
        """Return ``program`` ready to run; see the base class.

        Raises:
            DeviceMemoryError: the weights are above the memory that the system recommends to use, told before any is read.
        """
        self.check(program)
        needed = sum(weight.nbytes for weight in self.weight_sizes(program, source))
        most = self._metal.working_set_bytes
        if needed > most:
            raise DeviceMemoryError(
                f"the weights take {needed:,} bytes, and macOS recommends to use at most {most:,} of "
                f"{self._metal.description.name}: load a smaller model, or with device='cpu'"
            )
        return super().compile(program, source, beside=beside)
