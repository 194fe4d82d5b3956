"""Finds the sites of an adapter in a model's files.

The rows of queries and keys can have two orders in such files; this converts an adapter from one to the other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_inference.argument_checks import check_choice, check_path
from lattice_inference.checkpoint.checkpoint import Checkpoint
from lattice_inference.checkpoint.formats import only_gguf
from lattice_inference.errors import InvalidInputError, UnsupportedError
from lattice_inference.lora.adapter import LoraAdapter, LoraSite, RowOrder, listed
from lattice_inference.models.adapter_sites import AdapterSites, module_stem
from lattice_inference.models.opened_model import open_model

__all__ = ["Base", "in_row_order", "open_base", "refuse_other_order"]

_PREFIXES = ("model.", "model.language_model.", "bert.", "roberta.", "")


@dataclass(frozen=True)
class Base:
    """The open base model of an adapter.

    Attributes:
        path: the directory, or the GGUF file.
        is_gguf: whether ``path`` is a GGUF file.
        checkpoint: the weights.
        config: the configuration.
        sites: the linears of the model's family.
        is_tied: whether the output matrix is the embedding.
    """

    path: Path
    is_gguf: bool
    checkpoint: Checkpoint
    config: Any
    sites: AdapterSites
    is_tied: bool

    @property
    def architecture(self) -> str:
        """The value of ``general.architecture`` in a GGUF file of this model."""
        return self.sites.architecture(self.config)

    @property
    def row_order(self) -> RowOrder:
        """The order of the rows of queries and keys in the model's files."""
        return "interleaved" if self.is_gguf and self.architecture in self.sites.interleaved else "half"

    def tensor(self, module: str, end: str = "weight") -> str | None:
        """Return the checkpoint's name of a module's tensor; None if it has no such tensor."""
        if self.is_gguf:
            name = self.sites.gguf_name(module)
            found = None if name is None else f"{name}.{end}"
            return found if found is not None and found in self.checkpoint else None
        stem = module_stem(module)
        return next((name for prefix in _PREFIXES if (name := f"{prefix}{stem}.{end}") in self.checkpoint), None)

    def places(self, adapter: LoraAdapter) -> Mapping[str, str]:
        """Return the checkpoint's tensor of each site.

        Raises:
            InvalidInputError: sites are no linears of this model or have other shapes; the message lists them.
            UnsupportedError: a site is the output matrix, which is tied to the embedding.
        """
        if adapter.architecture is not None and adapter.architecture != self.architecture:
            raise InvalidInputError(
                f"{adapter.source}: is an adapter of {adapter.architecture}, and {self.path} is a {self.architecture}"
            )
        refuse_other_order(adapter, self.sites, self.config, self.path, is_gguf=self.is_gguf)
        found: dict[str, str] = {}
        unmatched, misfits = [], []
        for module, site in adapter.sites.items():
            name = self.tensor(module) if self.sites.pattern_of(module) is not None else None
            if name is None and self.is_tied and module_stem(module) == "lm_head":
                name = "lm_head"
            if name is None:
                unmatched.append(module)
                continue
            if self.is_tied and module_stem(module) == "lm_head":
                raise UnsupportedError(
                    f"{adapter.source}: {module} is the embedding in {self.path} (tie_word_embeddings), and adapters of "
                    "embeddings are not built. Remedy: merge it in PEFT with merge_and_unload()"
                )
            shape = self.checkpoint.info(name).shape
            if shape != site.shape:
                misfits.append(f"{module} {site.shape}, the model's is {shape}")
            found[module] = name
        if unmatched:
            known = ", ".join(sorted(self.sites.linears))
            raise InvalidInputError(
                f"{adapter.source}: modules that {self.path} does not have, or that are no linears built for adapters "
                f"({len(unmatched)} of {len(adapter.sites)}): {listed(unmatched)}. Linears of this family: {known}"
            )
        if misfits:
            raise InvalidInputError(
                f"{adapter.source}: is for another base: shapes differ from {self.path} ({len(misfits)} of "
                f"{len(adapter.sites)}): {listed(misfits)}"
            )
        return found


def refuse_other_order(adapter: LoraAdapter, sites: AdapterSites, config: object, path: Path, *, is_gguf: bool) -> None:
    """Refuse sites whose heads have another order in the adapter's file than in its base.

    Raises:
        UnsupportedError: there are such sites; they are not converted.
    """
    if sites.reordered is None or (adapter.architecture is not None) == is_gguf:
        return
    stems = sites.reordered(config)
    found = [module for module in adapter.sites if sites.pattern_of(module) in stems]
    if found:
        raise UnsupportedError(
            f"{adapter.source}: value heads have another order in GGUF files than in checkpoints of transformers, and "
            f"{'the adapter is of the latter' if is_gguf else 'only the adapter is of the former'} ({path}): {listed(found)}"
        )


@contextmanager
def open_base(path: str | os.PathLike[str]) -> Iterator[Base]:
    """Open a model, and check that its files are complete.

    Raises:
        ModelNotFoundError, CheckpointError, ModelConfigError: a file is missing or malformed.
        UnsupportedError: adapters of this family are not built.
    """
    check_path("base", path)
    place = Path(path)
    if os.path.isdir(place) and not (place / "config.json").exists():
        place = only_gguf(place) or place
    with open_model(place) as model:
        family = model.family
        if family.adapter_sites is None:
            raise UnsupportedError(f"{place}: adapters are not built for models of {family.name}")
        model.check(model.whole_head())
        tied = bool(getattr(model.config, "tied", False)) and family.is_causal
        yield Base(place, model.is_gguf, model.checkpoint, model.config, family.adapter_sites, tied)


def row_permutation(rows: int, heads: int, *, interleaved: bool) -> npt.NDArray[np.intp]:
    """Return the permutation of rows that interleaves the pairs of each head, or the inverse.

    Element i is the index, in the other order, of row i.
    """
    numbers = np.arange(rows).reshape(heads, 2, -1) if interleaved else np.arange(rows).reshape(heads, -1, 2)
    return numbers.swapaxes(1, 2).reshape(-1)


def in_row_order(adapter: LoraAdapter, base: str | os.PathLike[str], order: RowOrder) -> LoraAdapter:
    """Return an adapter whose rows of queries and keys are in another order.

    GGUF files of ``llama`` interleave these rows (``"interleaved"``). All others have the order of transformers
    (``"half"``).

    Args:
        adapter: the adapter.
        base: its base model, which states the number of heads.
        order: the order.

    Raises:
        InvalidInputError: there is no such order, or the adapter is for another base.
        CheckpointError, ModelConfigError, ModelNotFoundError, UnsupportedError: ``base`` cannot be read as a model.
    """
    if not isinstance(adapter, LoraAdapter):
        raise InvalidInputError(f"adapter: a LoraAdapter is needed, not {type(adapter).__name__}")
    check_choice("order", order, ("half", "interleaved"))
    with open_base(base) as opened:
        opened.places(adapter)
        return turned(adapter, opened.sites, opened.config, order)


def turned(adapter: LoraAdapter, linears: AdapterSites, config: object, order: RowOrder) -> LoraAdapter:
    """Return the adapter in ``order``.

    Its sites must fit the model with ``linears`` and ``config``.
    """
    if adapter.row_order == order:
        return adapter
    sites = {}
    for module, site in adapter.sites.items():
        heads = linears.head_count(module, config)
        sites[module] = site if heads is None else _permuted(site, heads, interleaved=order == "interleaved")
    whole = {}
    for name, array in adapter.replaced.items():
        module, _, _ = name.rpartition(".")
        heads = linears.head_count(module, config)
        rows = None if heads is None else row_permutation(len(array), heads, interleaved=order == "interleaved")
        whole[name] = array if rows is None else array[rows]
    return replace(adapter, sites=sites, replaced=whole, row_order=order, architecture=None)


def _permuted(site: LoraSite, heads: int, *, interleaved: bool) -> LoraSite:
    rows = row_permutation(site.shape[0], heads, interleaved=interleaved)
    return LoraSite(
        site.a,
        site.b[rows],
        site.scale,
        None if site.magnitude is None else site.magnitude[rows],
        None if site.bias is None else site.bias[rows],
    )
