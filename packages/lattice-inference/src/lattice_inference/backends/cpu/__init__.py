"""The CPU backend: fused programs on C kernels, one table of them an instruction set."""

from lattice_inference.backends.cpu.backend import CpuBackend, CpuProgram
from lattice_inference.backends.cpu.sigmoid import sigmoid
from lattice_inference.backends.cpu.state import CpuState

__all__ = ["CpuBackend", "CpuProgram", "CpuState", "sigmoid"]
