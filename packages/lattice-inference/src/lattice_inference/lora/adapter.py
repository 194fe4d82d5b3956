"""A low-rank adapter (LoRA): two thin matrices for each linear layer that it changes.

Their scaled product is added to the layer's weight.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Literal

import numpy as np
import numpy.typing as npt

from lattice_inference.argument_checks import as_number, check_choice
from lattice_inference.errors import InvalidInputError
from lattice_inference.models.adapter_sites import module_stem

__all__ = ["MAX_RANK", "LoraAdapter", "LoraSite", "listed"]

#: The largest rank of a site.
MAX_RANK = 4096

_MOST_LISTED = 20

Float32Array = npt.NDArray[np.float32]
RowOrder = Literal["half", "interleaved"]


@dataclass(frozen=True, eq=False)
class LoraSite:
    """What an adapter adds to one linear: y + scale * B (A x).

    Attributes:
        a: A, (rank, inputs) float32.
        b: B, (outputs, rank) float32.
        scale: the factor of the product.
        magnitude: DoRA's magnitude vector: the length of each row of the changed weight, (outputs,) float32. None for
            plain LoRA.
        bias: is added to the linear's bias, (outputs,) float32, with the scale applied; None for nothing.
    """

    a: Float32Array
    b: Float32Array
    scale: float
    magnitude: Float32Array | None = None
    bias: Float32Array | None = None

    def __post_init__(self) -> None:
        """Check shapes and numbers, and keep read-only arrays."""
        a, b = _frozen("a", self.a, 2), _frozen("b", self.b, 2)
        object.__setattr__(self, "a", a)
        object.__setattr__(self, "b", b)
        if not 1 <= a.shape[0] <= MAX_RANK:
            raise InvalidInputError(f"a has {a.shape[0]:,} rows; the rank must be from 1 to {MAX_RANK:,}")
        if b.shape[1] != a.shape[0]:
            raise InvalidInputError(
                f"b has the shape {b.shape} and a {a.shape}: the columns of b are not the rows of a, so they are no pair"
            )
        if not a.shape[1] or not b.shape[0]:
            raise InvalidInputError(f"a has the shape {a.shape} and b {b.shape}; a linear has inputs and outputs")
        scale = as_number(self.scale)
        if scale is None or not abs(scale) <= float(np.finfo(np.float32).max):
            raise InvalidInputError(f"scale: {self.scale!r:.60} is not a finite number that float32 holds")
        object.__setattr__(self, "scale", scale)
        for name in ("magnitude", "bias"):
            value = getattr(self, name)
            if value is None:
                continue
            vector = _frozen(name, value, 1)
            if len(vector) != b.shape[0]:
                raise InvalidInputError(f"{name} has {len(vector):,} numbers, and b has {b.shape[0]:,} rows")
            object.__setattr__(self, name, vector)

    @property
    def rank(self) -> int:
        """Rows of A."""
        return int(self.a.shape[0])

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the changed weight: outputs, inputs."""
        return int(self.b.shape[0]), int(self.a.shape[1])

    @property
    def is_plain(self) -> bool:
        """Whether the site is the product of two matrices and nothing else."""
        return self.magnitude is None and self.bias is None


@dataclass(frozen=True, eq=False)
class LoraAdapter:
    """An adapter, independent of any model. Immutable; any number of threads may read it.

    Attributes:
        sites: what is added to each linear, by the linear's path in transformers: ``model.layers.0.self_attn.q_proj``.
        replaced: whole tensors of the base that the adapter replaces: trained biases or heads. The keys are their names
            without the class around them: ``classifier.weight``.
        base_model: the model that the adapter was trained on, if its file names one; else None.
        architecture: ``general.architecture`` of a GGUF adapter; None for other formats.
        row_order: the order of the rows of queries and keys. A GGUF adapter of ``llama`` has them interleaved.
        source: the file or directory that it was read from, for messages.
    """

    sites: Mapping[str, LoraSite]
    replaced: Mapping[str, Float32Array] = field(default_factory=dict)
    base_model: str | None = None
    architecture: str | None = None
    row_order: RowOrder = "half"
    source: str = "the adapter"

    def __post_init__(self) -> None:
        """Check that there is a site, and that no linear is named twice."""
        if not isinstance(self.sites, Mapping) or not isinstance(self.replaced, Mapping):
            raise InvalidInputError("sites and replaced must map names to sites and to arrays")
        if not self.sites:
            raise InvalidInputError(f"{self.source!s:.300}: an adapter without sites changes nothing")
        stems: dict[str, str] = {}
        for name, site in self.sites.items():
            if not isinstance(name, str) or not isinstance(site, LoraSite):
                raise InvalidInputError(f"sites: {name!r:.200} is no path, or its value is no LoraSite")
            other = stems.setdefault(module_stem(name), name)
            if other != name:
                raise InvalidInputError(f"sites: {name!r:.200} and {other!r:.200} are the same linear")
        check_choice("row_order", self.row_order, ("half", "interleaved"))
        for name in ("base_model", "architecture"):
            if getattr(self, name) is not None and not isinstance(getattr(self, name), str):
                raise InvalidInputError(f"{name}: {getattr(self, name)!r:.60} is not a text")
        arrays = {str(name): _frozen(str(name), array, None) for name, array in self.replaced.items()}
        object.__setattr__(self, "sites", MappingProxyType(dict(sorted(self.sites.items()))))
        object.__setattr__(self, "replaced", MappingProxyType(dict(sorted(arrays.items()))))

    def __repr__(self) -> str:
        """Return source, sites and ranks."""
        ranks = sorted({site.rank for site in self.sites.values()})
        return f"LoraAdapter({self.source!r:.200}, {len(self.sites)} sites of rank {', '.join(map(str, ranks))})"

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the fields; read-only views of mappings cannot be pickled."""
        fields = (
            dict(self.sites),
            dict(self.replaced),
            self.base_model,
            self.architecture,
            self.row_order,
            self.source,
        )
        return LoraAdapter, fields

    @staticmethod
    def load(path: str | os.PathLike[str]) -> LoraAdapter:
        """Read an adapter; see :func:`~lattice_inference.lora.loading.load_adapter_file`."""
        from lattice_inference.lora.loading import load_adapter_file

        return load_adapter_file(path)

    def factors(self, site: str) -> LoraSite:
        """Return A, B and scale of one of :attr:`sites`.

        Raises:
            InvalidInputError: the adapter has no such site.
        """
        found = self.sites.get(site) if isinstance(site, str) else None
        if found is None:
            raise InvalidInputError(f"site is {site!r:.200}; the adapter has {len(self.sites)} others")
        return found

    def validate_against(self, linears: Mapping[str, tuple[int, int]]) -> None:
        """Check that every site is one of a model's linears.

        Args:
            linears: outputs and inputs of each linear by its path; ``model.adapter_sites``.

        Raises:
            InvalidInputError: sites are no linears of the model or have other shapes; the message lists them.
        """
        if not isinstance(linears, Mapping):
            raise InvalidInputError(f"linears: a mapping of paths to shapes is needed, not {type(linears).__name__}")
        shapes = {module_stem(name): shape for name, shape in linears.items() if isinstance(name, str)}
        if len(shapes) < len(linears) or not all(isinstance(shape, tuple) for shape in shapes.values()):
            raise InvalidInputError("linears: each path must have a shape, (outputs, inputs)")
        unmatched = [name for name in self.sites if module_stem(name) not in shapes]
        if unmatched:
            kinds = sorted({name.rpartition(".")[2] for name in linears})
            raise InvalidInputError(
                f"{self.source}: modules that the model does not have as it is loaded, or that are no linears built for "
                f"adapters ({len(unmatched)} of {len(self.sites)}): {listed(unmatched)}. Its linears: {', '.join(kinds)}"
            )
        misfits = [
            f"{name} {site.shape}, the model's is {shapes[module_stem(name)]}"
            for name, site in self.sites.items()
            if site.shape != shapes[module_stem(name)]
        ]
        if misfits:
            raise InvalidInputError(
                f"{self.source}: is for another base: shapes differ ({len(misfits)} of {len(self.sites)}): {listed(misfits)}"
            )

    @property
    def is_plain(self) -> bool:
        """Whether the adapter has pairs of matrices only: no DoRA, no biases, no replaced tensors."""
        return not self.replaced and all(site.is_plain for site in self.sites.values())

    @property
    def parameter_count(self) -> int:
        """How many numbers the matrices hold."""
        return sum(site.a.size + site.b.size for site in self.sites.values())

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of the content, in hexadecimal; equal for adapters that change a model alike.

        It covers names without the classes around them, shapes, scales and numbers. It does not cover the source.
        """
        digest = hashlib.sha256(f"lattice-lora-1 {self.row_order}\n".encode())
        for stem, site in sorted((module_stem(name), site) for name, site in self.sites.items()):
            digest.update(f"{stem!r} {site.a.shape} {site.b.shape} {site.scale.hex()}\n".encode())
            for part, array in (("a", site.a), ("b", site.b), ("m", site.magnitude), ("bias", site.bias)):
                if array is not None:
                    _digest(digest.update, part, array)
        for name, array in self.replaced.items():
            _digest(digest.update, f"{name!r} {array.shape}", array)
        return digest.hexdigest()


def listed(names: list[str]) -> str:
    """Return at most 20 of the names, joined for a message."""
    more = f" and {len(names) - _MOST_LISTED:,} more" if len(names) > _MOST_LISTED else ""
    return ", ".join(f"{name:.200}" for name in names[:_MOST_LISTED]) + more


def _digest(update: object, part: str, array: Float32Array) -> None:
    assert callable(update)
    update(f"{part}\n".encode())
    update(np.ascontiguousarray(array, "<f4").data)


def _frozen(name: str, value: object, dimensions: int | None) -> Float32Array:
    """Return the array as finite, read-only float32, without a copy where it is that already."""
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f" or isinstance(value, np.ma.MaskedArray):
        raise InvalidInputError(f"{name}: an array of floats is needed, not {type(value).__name__}")
    if dimensions is not None and value.ndim != dimensions:
        raise InvalidInputError(f"{name} has {value.ndim} dimensions, and {dimensions} are needed")
    with np.errstate(over="ignore"):
        array = np.ascontiguousarray(value, np.float32)
    if not np.isfinite(array).all():
        raise InvalidInputError(f"{name} holds NaN, infinity, or a number that float32 does not hold")
    if array.flags.writeable:
        array = array.copy() if np.may_share_memory(array, value) else array
        array.flags.writeable = False
    return array
