"""Merges an adapter into a model's files, and removes it from them again, in float32."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lattice_inference.argument_checks import check_callable, check_choice, check_path, checked_flag
from lattice_inference.checkpoint.atomic_file import atomic_directory
from lattice_inference.checkpoint.blocks import BLOCK_FORMATS, dequantize_blocks
from lattice_inference.checkpoint.checkpoint import Checkpoint
from lattice_inference.checkpoint.dtypes import DTYPES, to_float32
from lattice_inference.checkpoint.gguf_writer import TensorToWrite, write_gguf
from lattice_inference.checkpoint.rounding import QuantizedType, quantize_rows
from lattice_inference.checkpoint.safetensors import SINGLE_FILE
from lattice_inference.checkpoint.safetensors_writer import StoredTensor, write_safetensors
from lattice_inference.errors import CheckpointError, InvalidInputError, UnsupportedError
from lattice_inference.lora.adapter import Float32Array, LoraAdapter, LoraSite, listed
from lattice_inference.lora.base_sites import Base, open_base, turned
from lattice_inference.lora.destination import check_new_directory
from lattice_inference.quantize.destination import check_destination, check_type, copy_model_files
from lattice_inference.quantize.gguf_quantizer import kept_metadata

__all__ = ["MergeReport", "merge_adapter", "unmerge"]

_FLOATS = ("F32", "F16", "BF16")
_PIECE_BYTES = 1 << 22


@dataclass(frozen=True)
class MergeReport:
    """The result of a merge.

    Attributes:
        path: the written directory or file.
        merged: number of linears that were changed.
        replaced: number of biases and whole tensors that were changed or replaced.
        tensors: number of changed tensors of each type.
        kept: the share of the update that is in the written weights: the written change projected on the update. 1 is
            all of it. Near 0, the weights' type is too coarse for the update.
        rounding_error: the norm of the rounding error, relative to the norm of the update.
        kept_by_site: ``kept`` for each linear.
    """

    path: Path
    merged: int
    replaced: int
    tensors: Mapping[str, int]
    kept: float
    rounding_error: float
    kept_by_site: Mapping[str, float]


@dataclass
class _Sums:
    """Sums over the numbers of updates, in float64."""

    update: float = 0.0
    along: float = 0.0
    error: float = 0.0

    def add(self, other: _Sums) -> None:
        self.update += other.update
        self.along += other.along
        self.error += other.error

    @property
    def kept(self) -> float:
        return self.along / self.update if self.update else 1.0


@dataclass
class _Merge:
    """What to do with each tensor of the base's checkpoint.

    Attributes:
        checkpoint: the base's weights.
        sites: the sites, with the base's order of rows, by the checkpoint's names of their weights.
        modules: the modules of the sites, by the same names.
        biases: updates of biases.
        whole: tensors that replace those of the base.
        sign: 1 to merge, -1 to remove.
        types: the type of each tensor in the result.
        sums: the sums of each site that was written, by its module.
    """

    checkpoint: Checkpoint
    sites: Mapping[str, LoraSite]
    modules: Mapping[str, str]
    biases: Mapping[str, Float32Array]
    whole: Mapping[str, Float32Array]
    sign: int
    types: Mapping[str, str]
    sums: dict[str, _Sums] = field(default_factory=dict)

    def changes(self, name: str) -> bool:
        return name in self.sites or name in self.biases or name in self.whole

    def stored(self, name: str) -> npt.NDArray[np.generic]:
        """Return a changed tensor in the type of the result."""
        weight = self.whole[name].copy() if name in self.whole else self.checkpoint.float32(name)
        site = self.sites.get(name)
        with np.errstate(over="ignore", invalid="ignore"):
            before = weight
            if site is not None:
                weight = _changed(weight, site, self.sign)
            if name in self.biases:
                weight = weight + np.float32(self.sign) * self.biases[name]
        if not np.isfinite(weight).all():
            raise CheckpointError(
                f"{self.checkpoint.directory}: {name}: the sum with the adapter is not finite in float32"
            )
        try:
            rounded = quantize_rows(weight, self.types[name])
        except InvalidInputError as cause:
            raise CheckpointError(f"{self.checkpoint.directory}: tensor {name!r}: {cause}") from cause
        if site is not None:
            self.sums[self.modules[name]] = _measure(before, weight, _as_float32(rounded, self.types[name]))
        self.checkpoint.drop_pages(name)
        return rounded

    def report(self, path: Path) -> MergeReport:
        total = _Sums()
        for sums in self.sums.values():
            total.add(sums)
        changed = [name for name in self.types if self.changes(name)]
        return MergeReport(
            path,
            len(self.sites),
            len({*self.biases, *self.whole}),
            dict(Counter(self.types[name] for name in changed)),
            total.kept,
            float(np.sqrt(total.error / total.update)) if total.update else 0.0,
            {module: sums.kept for module, sums in sorted(self.sums.items())},
        )


def merge_adapter(
    base: str | os.PathLike[str],
    adapter: LoraAdapter,
    output: str | os.PathLike[str],
    *,
    dtype: QuantizedType | None = None,
    overwrite: bool = False,
    on_tensor: Callable[[str], object] | None = None,
) -> MergeReport:
    """Write a model with an adapter merged into its weights: W + scale * B A for each site.

    The sum is in float32. DoRA, biases and whole heads in the adapter are merged as PEFT merges them. Other tensors are
    copied.

    Args:
        base: the model: a directory with safetensors weights, or a GGUF file.
        adapter: the adapter.
        output: the directory to write, or, for a GGUF base, the file. It appears when it is complete.
        dtype: the type of changed matrices. By default it is their type in the base, but F16 for quantized ones: most
            updates are too small for those types.
        overwrite: replace ``output`` if it is a model.
        on_tensor: called with the name of each tensor that was written.

    Raises:
        InvalidInputError: the adapter is for another base (the message lists the differences), ``output`` exists, or
            there is no such type.
        UnsupportedError: adapters of the base's family are not built, or its weights are int8.
        CheckpointError, ModelConfigError, ModelNotFoundError: a file of the base is malformed or missing.
        WriteError: ``output`` cannot be written; an older one stays as it was.
    """
    return _write(base, adapter, output, dtype, overwrite, on_tensor, 1)


def unmerge(
    merged: str | os.PathLike[str],
    adapter: LoraAdapter,
    output: str | os.PathLike[str],
    *,
    dtype: QuantizedType | None = None,
    overwrite: bool = False,
    on_tensor: Callable[[str], object] | None = None,
) -> MergeReport:
    """Write a model with an adapter removed from its weights: W - scale * B A.

    The result is the base up to the rounding of both steps. Arguments and errors are those of :func:`merge_adapter`.
    DoRA and adapters that replace tensors cannot be removed, which is an UnsupportedError.
    """
    if isinstance(adapter, LoraAdapter) and (
        adapter.replaced or any(site.magnitude is not None for site in adapter.sites.values())
    ):
        raise UnsupportedError(
            f"{adapter.source}: DoRA, biases and heads that replace the base's cannot be taken out: keep the base's files"
        )
    return _write(merged, adapter, output, dtype, overwrite, on_tensor, -1)


def _write(
    base: str | os.PathLike[str],
    adapter: LoraAdapter,
    output: str | os.PathLike[str],
    dtype: QuantizedType | None,
    overwrite: bool,
    on_tensor: Callable[[str], object] | None,
    sign: int,
) -> MergeReport:
    if not isinstance(adapter, LoraAdapter):
        raise InvalidInputError(f"adapter: a LoraAdapter is needed, not {type(adapter).__name__}")
    check_path("output", output)
    overwrite = checked_flag("overwrite", overwrite)
    check_callable("on_tensor", on_tensor)
    if dtype is not None:
        check_type(dtype)
    tell = on_tensor or (lambda name: None)
    target = Path(output)
    with open_base(base) as model:
        if model.is_gguf:
            sources = [file.path for file in model.checkpoint.files]
            if os.path.isfile(adapter.source):
                sources.append(Path(adapter.source))
            check_destination(target, sources, overwrite=overwrite)
        else:
            check_choice("dtype, for safetensors,", dtype or "F32", _FLOATS)
            check_new_directory(target, "config.json", overwrite=overwrite, sources=(model.path,))
        merge = _plan(model, adapter, dtype, sign)
        if model.is_gguf:
            tensors = [
                TensorToWrite(name, model.checkpoint.info(name).shape, kind, partial(_chunks, merge, name))
                for name, kind in merge.types.items()
            ]
            write_gguf(target, kept_metadata(model.checkpoint), tensors, on_tensor=tell)
        else:
            stored = [StoredTensor(name, kind, model.checkpoint.info(name).shape) for name, kind in merge.types.items()]
            metadata = {key: value for key, value in model.checkpoint.metadata.items() if isinstance(value, str)}
            with atomic_directory(target) as work:
                copy_model_files(model.path, work)
                with open(work / SINGLE_FILE, "wb") as file:
                    write_safetensors(file, stored, _arrays(merge, tell), {"format": "pt"} | metadata)
        return merge.report(target)


def _plan(base: Base, adapter: LoraAdapter, dtype: QuantizedType | None, sign: int) -> _Merge:
    """Match the adapter's parts to the base's tensors, and choose the types in the result."""
    checkpoint = base.checkpoint
    places = base.places(adapter)
    ordered = turned(adapter, base.sites, base.config, base.row_order)
    biases: dict[str, Float32Array] = {}
    whole: dict[str, Float32Array] = {}
    missing: list[str] = []
    for module, site in ordered.sites.items():
        if site.bias is not None:
            _place(base, module, "bias", site.bias, biases, missing)
    for name, array in ordered.replaced.items():
        module, _, end = name.rpartition(".")
        _place(base, module, end, array, whole, missing)
    if missing:
        raise InvalidInputError(
            f"{adapter.source}: biases or whole modules that {base.path} does not have, or has in another shape "
            f"({len(missing)}): {listed(missing)}. Remedy: merge into the model with the same head and biases"
        )
    sites = {checkpoint.stored_name(places[module]): site for module, site in ordered.sites.items()}
    modules = {checkpoint.stored_name(places[module]): module for module in ordered.sites}
    types: dict[str, str] = {}
    for name in checkpoint.names():
        kind = checkpoint.info(name).dtype
        if name in sites:
            types[name] = _type_of(checkpoint, name, dtype)
        elif name in biases or name in whole:
            types[name] = kind if kind in _FLOATS else "F32"
        else:
            types[name] = kind
    return _Merge(checkpoint, sites, modules, biases, whole, sign, types)


def _place(
    base: Base, module: str, end: str, array: Float32Array, places: dict[str, Float32Array], missing: list[str]
) -> None:
    name = base.tensor(module, end)
    if name is None or base.checkpoint.info(name).shape != array.shape:
        missing.append(f"{module}.{end}")
    else:
        places[base.checkpoint.stored_name(name)] = array


def _type_of(checkpoint: Checkpoint, name: str, dtype: QuantizedType | None) -> str:
    """Return the type of a changed matrix."""
    info = checkpoint.info(name)
    if info.dtype not in BLOCK_FORMATS and not (info.dtype in DTYPES and DTYPES[info.dtype].widens):
        raise UnsupportedError(
            f"{info.file}: tensor {name!r} is {info.dtype}, which nothing is merged into. Remedy: merge into the model in "
            "floats, and quantize the result"
        )
    if dtype is None:
        return info.dtype if info.dtype in _FLOATS else "F32" if info.dtype == "F64" else "F16"
    if dtype in BLOCK_FORMATS and info.shape[-1] % BLOCK_FORMATS[dtype].elements:
        return "F16"
    return dtype


def _changed(weight: Float32Array, site: LoraSite, sign: int) -> Float32Array:
    changed: Float32Array = weight + (site.b @ site.a) * np.float32(sign * site.scale)
    if site.magnitude is not None:
        lengths = np.sqrt(np.square(changed, dtype=np.float64).sum(axis=1)).astype(np.float32)
        with np.errstate(divide="ignore"):  # a row of zeros has no direction; the check of the sum refuses it
            changed = (site.magnitude / lengths)[:, None] * changed
    return changed


def _measure(before: Float32Array, exact: Float32Array, written: Float32Array) -> _Sums:
    sums = _Sums()
    rows = max(1, (1 << 20) // before.shape[1])
    for start in range(0, len(before), rows):
        old, new, stored = (array[start : start + rows].astype(np.float64) for array in (before, exact, written))
        update = new - old
        sums.add(
            _Sums(
                float(np.vdot(update, update)),
                float(np.vdot(update, stored - old)),
                float(np.vdot(stored - new, stored - new)),
            )
        )
    return sums


def _as_float32(stored: npt.NDArray[np.generic], kind: str) -> Float32Array:
    if kind in BLOCK_FORMATS:
        blocks = np.asarray(stored, BLOCK_FORMATS[kind].layout)
        return dequantize_blocks(blocks.reshape(-1), BLOCK_FORMATS[kind]).reshape(len(stored), -1)
    values = np.empty(stored.shape, np.float32)
    to_float32(stored.reshape(-1), DTYPES[kind], values.reshape(-1))
    return values


def _arrays(merge: _Merge, tell: Callable[[str], object]) -> Iterator[npt.NDArray[np.generic]]:
    for name in merge.types:
        yield merge.stored(name) if merge.changes(name) else merge.checkpoint.array(name)
        merge.checkpoint.drop_pages(name)
        tell(name)


def _chunks(merge: _Merge, name: str) -> Iterable[bytes]:
    if merge.changes(name):
        yield merge.stored(name).tobytes()
        return
    pieces = 1 + merge.checkpoint.info(name).nbytes // _PIECE_BYTES
    for piece in np.array_split(merge.checkpoint.array(name).reshape(-1), pieces):
        yield piece.tobytes()
    merge.checkpoint.drop_pages(name)
