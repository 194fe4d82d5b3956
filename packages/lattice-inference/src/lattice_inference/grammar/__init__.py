"""Constrained generation: an answer that obeys a JSON Schema, a regular expression or a grammar, token by token."""
