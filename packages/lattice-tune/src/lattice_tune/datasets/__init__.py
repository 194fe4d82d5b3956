"""Labelled texts and vectors: read, checked, split, counted."""
