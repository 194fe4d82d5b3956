"""Backends: each runs a program. ``reference`` is the readable twin in NumPy, ``cpu`` the fast one."""
