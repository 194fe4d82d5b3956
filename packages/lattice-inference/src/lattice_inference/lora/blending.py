"""Combines several adapters into one whose update is the weighted sum of theirs.

Only the product of weight, scale and B is rounded, to float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lattice_inference.argument_checks import as_number
from lattice_inference.errors import InvalidInputError, UnsupportedError
from lattice_inference.lora.adapter import MAX_RANK, LoraAdapter, LoraSite
from lattice_inference.models.adapter_sites import module_stem

__all__ = ["blend"]


def blend(weighted: Sequence[tuple[LoraAdapter, float]]) -> LoraAdapter:
    """Return one adapter whose update is the weighted sum of the updates of others.

    If several adapters have a site, the result stacks their A. It sets their B side by side, each times its weight and
    scale. The rank is the sum of theirs, and no information is lost. A site that only some have is taken from those.

    Args:
        weighted: pairs of an adapter and its weight, which may be negative.

    Raises:
        InvalidInputError: the list is empty, a weight is not finite, shapes differ, or a rank would exceed 4,096.
        UnsupportedError: an adapter has more than pairs of matrices, or bases or orders of rows differ.
    """
    if not isinstance(weighted, (list, tuple)) or not weighted:
        raise InvalidInputError("blend takes a list of one or more pairs (adapter, weight)")
    pairs: list[tuple[LoraAdapter, float]] = []
    for number, pair in enumerate(weighted):
        if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not isinstance(pair[0], LoraAdapter):
            raise InvalidInputError(f"element {number} is no pair (adapter, weight)")
        weight = as_number(pair[1])
        if weight is None or not abs(weight) <= 1e30:
            raise InvalidInputError(
                f"the weight of element {number}, {pair[1]!r:.60}, is not a finite number up to 1e30"
            )
        pairs.append((pair[0], weight))
    _check(pairs)
    names: dict[str, str] = {}
    for adapter, _ in pairs:
        for name in adapter.sites:
            names.setdefault(module_stem(name), name)
    of_stem = [({module_stem(name): site for name, site in adapter.sites.items()}, weight) for adapter, weight in pairs]
    sites = {
        name: _sum(name, [(sites[stem], weight) for sites, weight in of_stem if stem in sites])
        for stem, name in names.items()
    }
    first = pairs[0][0]
    return LoraAdapter(
        sites,
        base_model=next((adapter.base_model for adapter, _ in pairs if adapter.base_model is not None), None),
        architecture=first.architecture,
        row_order=first.row_order,
        source="the blend",
    )


def _check(pairs: list[tuple[LoraAdapter, float]]) -> None:
    first = pairs[0][0]
    bases: dict[str, str] = {}
    for adapter, _ in pairs:
        if not adapter.is_plain:
            raise UnsupportedError(
                f"{adapter.source}: has magnitudes (DoRA), biases or whole modules, which have no sum: merge it first"
            )
        if adapter.row_order != first.row_order:
            raise UnsupportedError(
                f"{adapter.source}: has its rows in another order than {first.source}: use in_row_order"
            )
        if adapter.architecture is not None and first.architecture not in (None, adapter.architecture):
            raise UnsupportedError(
                f"{adapter.source}: is of {adapter.architecture}, and {first.source} of {first.architecture}"
            )
        if adapter.base_model is not None:
            bases[adapter.base_model] = adapter.source
    if len(bases) > 1:
        said = ", ".join(f"{source}: {base!r:.100}" for base, source in bases.items())
        raise UnsupportedError(f"adapters of different bases have no sum: {said}")


def _sum(name: str, parts: list[tuple[LoraSite, float]]) -> LoraSite:
    shapes = {site.shape for site, _ in parts}
    if len(shapes) > 1:
        raise InvalidInputError(
            f"{name}: the adapters have the shapes {', '.join(map(str, sorted(shapes)))} for one linear"
        )
    rank = sum(site.rank for site, _ in parts)
    if not rank <= MAX_RANK:
        raise InvalidInputError(f"{name}: the blend would have the rank {rank:,}; the largest is {MAX_RANK:,}")
    if len(parts) == 1:
        site, weight = parts[0]
        return LoraSite(site.a, site.b, site.scale * weight)
    with np.errstate(over="ignore"):
        b = np.concatenate([site.b * np.float32(site.scale * weight) for site, weight in parts], axis=1)
    return LoraSite(np.concatenate([site.a for site, _ in parts]), b, 1.0)
