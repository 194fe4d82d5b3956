"""What all GPU backends share: weights, pages, records of kernels, and one lowering of ops.

A device offers buffers and kernels (:mod:`~lattice_inference.backends.gpu.device`); nothing here knows a shading language
beyond the names of its types.
"""
