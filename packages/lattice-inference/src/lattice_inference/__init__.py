"""Transformer inference as a light library."""
