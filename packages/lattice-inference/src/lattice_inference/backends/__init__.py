"""Backends run programs: ``cpu``, ``wgpu`` on a GPU, and ``reference`` in plain NumPy."""
