"""Makes quantized checkpoints."""

from lattice_inference.calibration import Calibration
from lattice_inference.checkpoint.rounding import QUANTIZERS, QuantizedType, quantize_rows
from lattice_inference.quantize.bert_export import export_bert_gguf
from lattice_inference.quantize.calibrator import Calibrator
from lattice_inference.quantize.gguf_quantizer import quantize_gguf
from lattice_inference.quantize.int8_directory import quantize_int8
from lattice_inference.quantize.observers import CalibrationMethod
from lattice_inference.quantize.report import QuantizeReport

__all__ = [
    "QUANTIZERS",
    "Calibration",
    "CalibrationMethod",
    "Calibrator",
    "QuantizeReport",
    "QuantizedType",
    "export_bert_gguf",
    "quantize_gguf",
    "quantize_int8",
    "quantize_rows",
]
