"""Adapters of low rank (LoRA): read, written, blended, run, and merged into a model's files."""

from lattice_inference.lora.adapter import MAX_RANK, LoraAdapter, LoraSite
from lattice_inference.lora.attached_adapter import AttachedAdapter
from lattice_inference.lora.base_sites import in_row_order
from lattice_inference.lora.blending import blend
from lattice_inference.lora.gguf_files import save_gguf
from lattice_inference.lora.hook import LoraHook
from lattice_inference.lora.loading import load_adapter_file
from lattice_inference.lora.merging import MergeReport, merge_adapter, unmerge
from lattice_inference.lora.mlx_files import save_mlx
from lattice_inference.lora.peft_files import save_peft_safetensors

__all__ = [
    "MAX_RANK",
    "AttachedAdapter",
    "LoraAdapter",
    "LoraHook",
    "LoraSite",
    "MergeReport",
    "blend",
    "in_row_order",
    "load_adapter_file",
    "merge_adapter",
    "save_gguf",
    "save_mlx",
    "save_peft_safetensors",
    "unmerge",
]
