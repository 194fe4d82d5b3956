"""Backends run programs: ``cpu``, ``wgpu`` and ``metal`` on GPUs, and ``reference`` in plain NumPy."""
