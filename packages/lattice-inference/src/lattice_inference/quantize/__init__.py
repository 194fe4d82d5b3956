"""Makes quantized checkpoints."""

from lattice_inference.quantize.gguf_quantizer import QuantizeReport, quantize_gguf
from lattice_inference.quantize.rounding import QUANTIZERS, QuantizedType, quantize_rows

__all__ = ["QUANTIZERS", "QuantizeReport", "QuantizedType", "quantize_gguf", "quantize_rows"]
