"""The Metal backend: Apple's GPUs, with kernels that are compiled when the package is built.

The module that calls Metal is built on macOS for Apple's own processors only.
"""

from lattice_inference.backends.metal.backend import MetalBackend

__all__ = ["MetalBackend"]
