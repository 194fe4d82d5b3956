"""Reads and writes adapters in llama.cpp's format.

An adapter is a GGUF file whose ``general.type`` is adapter. It has the tensor names and the order of rows of the
base's GGUF file.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import numpy as np

from lattice_inference.argument_checks import check_path
from lattice_inference.checkpoint.gguf import open_gguf_file
from lattice_inference.checkpoint.gguf_writer import TensorToWrite, write_gguf
from lattice_inference.errors import CheckpointError, InvalidInputError, UnsupportedError
from lattice_inference.lora.adapter import Float32Array, LoraAdapter, RowOrder, listed
from lattice_inference.lora.base_sites import in_row_order, open_base, refuse_other_order
from lattice_inference.lora.peft_files import built_site
from lattice_inference.models.adapter_sites import AdapterSites
from lattice_inference.models.config_fields import ConfigFields, shown
from lattice_inference.models.families import FAMILIES
from lattice_inference.quantize.destination import check_destination

__all__ = ["load_gguf_adapter", "save_gguf"]

_ENDS = {".weight.lora_a": "a", ".weight.lora_b": "b"}


def load_gguf_adapter(path: Path) -> LoraAdapter:
    """Read a GGUF adapter.

    For ``llama``, the rows of queries and keys stay interleaved, and ``row_order`` says so.

    Raises:
        ModelNotFoundError: there is no such file.
        CheckpointError, ModelConfigError: it is malformed, is no adapter, or holds other tensors. The message lists them.
        UnsupportedError: adapters of its kind or architecture are not built.
    """
    with open_gguf_file(path) as file:
        fields = ConfigFields(file.metadata, str(path))
        kind = fields.text("general.type", default="model")
        if kind != "adapter":
            raise CheckpointError(f"{path}: general.type is {shown(kind)}: it is no adapter")
        if (kind := fields.text("adapter.type")) != "lora":
            raise UnsupportedError(f"{path}: adapter.type is {shown(kind)}; built is 'lora'")
        if "adapter.alora.invocation_tokens" in file.metadata:
            raise UnsupportedError(f"{path}: it acts from some token on only (aLoRA), which is not built")
        architecture = fields.text("general.architecture")
        known = _sites_of(architecture, str(path))
        alpha = fields.real("adapter.lora.alpha", above=-1e30, at_most=1e30)
        parts: dict[str, dict[str, str]] = {}
        unknown = []
        for key in file.names():
            end = key[-len(".weight.lora_a") :]
            module = known.module_of(key.removesuffix(end)) if end in _ENDS else None
            if module is None:
                unknown.append(key)
            else:
                parts.setdefault(module, {})[_ENDS[end]] = key
        if unknown:
            raise CheckpointError(
                f"{path}: tensors that no linear of {architecture} has ({len(unknown)}): {listed(unknown)}. Adapters of "
                "embeddings and of experts are not built"
            )
        if not parts:
            raise CheckpointError(f"{path}: holds no pair lora_a, lora_b, so it changes nothing")
        sites = {}
        for module, found in parts.items():
            rank = file.info(found["b"]).shape[-1] if "b" in found and file.info(found["b"]).shape else 1
            # llama.cpp takes an alpha of 0 for "no alpha"
            sites[module] = built_site(file, module, found, alpha / rank if alpha else 1.0)
        base = file.metadata.get("general.base_model.0.name")
    return LoraAdapter(
        sites,
        base_model=base if isinstance(base, str) else None,
        architecture=architecture,
        row_order="interleaved" if architecture in known.interleaved else "half",
        source=str(path),
    )


def save_gguf(
    adapter: LoraAdapter, path: str | os.PathLike[str], *, base: str | os.PathLike[str], overwrite: bool = False
) -> Path:
    """Write an adapter as llama.cpp reads it, in F32. The file appears when it is complete.

    A GGUF adapter has one alpha. If the alpha of a site differs, B is multiplied by the ratio.

    Args:
        adapter: the adapter: pairs of matrices only.
        path: the file.
        base: its base model, a directory or a GGUF file. It states the architecture and the number of heads, for the
            order of the rows of queries and keys. Its weights are not read.
        overwrite: replace ``path`` if it exists.

    Returns:
        The file.

    Raises:
        InvalidInputError: ``path`` exists or its folder does not, or the adapter is for another base.
        UnsupportedError: the adapter has more than pairs of matrices, or a site that such files do not have.
        CheckpointError, ModelConfigError, ModelNotFoundError: ``base`` is no model.
        WriteError: the file cannot be written; an older file stays as it was.
    """
    if not isinstance(adapter, LoraAdapter):
        raise InvalidInputError(f"adapter: a LoraAdapter is needed, not {type(adapter).__name__}")
    check_path("path", path)
    if not adapter.is_plain:
        raise UnsupportedError(
            f"{adapter.source}: a GGUF adapter holds pairs of matrices only; DoRA, biases and whole modules: merge_adapter"
        )
    check_path("base", base)
    target = Path(path)
    sources = [place for place in (Path(adapter.source), Path(base)) if os.path.isfile(place)]
    check_destination(target, sources, overwrite=overwrite)
    with open_base(base) as model:
        architecture = model.architecture
        order: RowOrder = "interleaved" if architecture in model.sites.interleaved else "half"
        refuse_other_order(adapter, model.sites, model.config, model.path, is_gguf=True)
        names = {module: model.sites.gguf_name(module) for module in adapter.sites}
        if model.is_gguf:  # the one in a directory
            check_destination(target, [model.path], overwrite=overwrite)
    turned = in_row_order(adapter, base, order)
    nameless = [module for module, name in names.items() if name is None]
    if nameless:
        raise UnsupportedError(
            f"{adapter.source}: GGUF files of {architecture} do not have these modules ({len(nameless)}): {listed(nameless)}"
        )
    alphas = {site.scale * site.rank for site in turned.sites.values()}
    alpha = alphas.pop() if len(alphas) == 1 else 0.0
    alpha = float(np.float32(alpha)) or 1.0
    tensors = []
    for module, site in turned.sites.items():
        factor = np.float32(site.scale * site.rank / alpha)
        for part, array in (("lora_a", site.a), ("lora_b", site.b if factor == 1 else site.b * factor)):
            tensors.append(
                TensorToWrite(f"{names[module]}.weight.{part}", array.shape, "F32", partial(_content, array))
            )
    metadata: dict[str, object] = {
        "general.architecture": architecture,
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": alpha,
    }
    if adapter.base_model is not None:
        metadata |= {"general.base_model.count": 1, "general.base_model.0.name": adapter.base_model}
    write_gguf(target, metadata, tensors)
    return target


def _content(array: Float32Array) -> list[bytes]:
    return [np.ascontiguousarray(array, "<f4").tobytes()]


def _sites_of(architecture: str, source: str) -> AdapterSites:
    for family in FAMILIES:
        if family.adapter_sites is not None and architecture in family.gguf_architectures:
            return family.adapter_sites
    known = ", ".join(
        name for family in FAMILIES if family.adapter_sites is not None for name in family.gguf_architectures
    )
    raise UnsupportedError(f"{source}: general.architecture is {shown(architecture)}; adapters are built for {known}")
