"""The small language that models are written in: primitive ops over named buffers, and what makes them runnable.

A model is a function from a config to a :class:`~lattice_inference.graph.program.Program`
(:mod:`~lattice_inference.graph.builder`); a backend fuses it and plans its memory
(:mod:`~lattice_inference.graph.fusion`, :mod:`~lattice_inference.graph.memory`). Nothing here computes on tensors.
"""
