"""Backends run programs: ``cpu``, ``wgpu``, ``metal``, and ``reference`` in plain NumPy."""
