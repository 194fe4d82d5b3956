"""The WGPU backend: WebGPU's kernels (WGSL) on Vulkan.

It uses the package ``wgpu``, which the extra ``[wgpu]`` brings.
"""

from lattice_inference.backends.wgpu.backend import WgpuBackend

__all__ = ["WgpuBackend"]
