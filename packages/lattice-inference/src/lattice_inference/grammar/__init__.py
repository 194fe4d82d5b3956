"""Constrained generation: answers that obey a JSON Schema, a regex or a grammar."""
