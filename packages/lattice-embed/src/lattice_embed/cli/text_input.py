"""Texts from the command line, a file or standard input: as the command line of lattice_inference takes them."""

from lattice_inference.cli.text_input import read_lines, read_texts

__all__ = ["read_lines", "read_texts"]
