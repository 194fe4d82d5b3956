"""``lattice-tune lora blend`` and ``lora convert``: adapters to adapters."""

from __future__ import annotations

import argparse

from lattice_inference import find_model, load_adapter_file
from lattice_inference.cli.merge_adapter_command import adapter_of
from lattice_inference.lora import in_row_order, save_gguf, save_mlx, save_peft_safetensors
from lattice_tune.cli.options import print_json
from lattice_tune.errors import InvalidInputError

__all__ = ["run_blend", "run_convert"]


def run_blend(options: argparse.Namespace) -> int:
    """Write the weighted sum of adapters."""
    adapter = adapter_of(options.adapters)
    target = save_peft_safetensors(adapter, options.output, overwrite=options.overwrite)
    ranks = sorted({site.rank for site in adapter.sites.values()})
    if options.json:
        print_json({"output": str(target), "sha256": adapter.sha256, "linears": len(adapter.sites), "ranks": ranks})
    else:
        print(f"{target}: {len(adapter.sites)} linears of rank {', '.join(map(str, ranks))}")
    return 0


def run_convert(options: argparse.Namespace) -> int:
    """Write an adapter in another format."""
    adapter = load_adapter_file(options.adapter)
    base = None if options.base is None else find_model(options.base).directory
    if base is None and (options.to == "gguf" or adapter.row_order != "half"):
        raise InvalidInputError("a GGUF adapter has the order of rows of its model: name the model with --base")
    if options.to == "gguf":
        assert base is not None
        target = save_gguf(adapter, options.output, base=base, overwrite=options.overwrite)
    else:
        if adapter.row_order != "half":
            assert base is not None
            adapter = in_row_order(adapter, base, "half")
        save = save_peft_safetensors if options.to == "peft" else save_mlx
        target = save(adapter, options.output, overwrite=options.overwrite)
    if options.json:
        print_json({"output": str(target), "format": options.to, "linears": len(adapter.sites)})
    else:
        print(f"{target}: {len(adapter.sites)} linears, in the format of {options.to}")
    return 0
