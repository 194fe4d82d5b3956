"""The intermediate representation of models: programs of primitive ops over named buffers.

A model is a function from a config to a :class:`~lattice_inference.graph.program.Program`
(:mod:`~lattice_inference.graph.builder`). A backend fuses its ops and plans its memory
(:mod:`~lattice_inference.graph.fusion`, :mod:`~lattice_inference.graph.memory`). Nothing here computes on tensors.
"""
