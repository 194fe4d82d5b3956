"""Tokenizers: texts to token ids and back, identical to Hugging Face ``tokenizers``."""

from lattice_inference.tokenizer.encoding import Encoding, PackedEncoding
from lattice_inference.tokenizer.limits import Truncation
from lattice_inference.tokenizer.loading import load_tokenizer
from lattice_inference.tokenizer.streaming import TokenStream
from lattice_inference.tokenizer.tokenizer import Tokenizer

__all__ = ["Encoding", "PackedEncoding", "TokenStream", "Tokenizer", "Truncation", "load_tokenizer"]
