"""Which linears of a model an adapter changes."""

from __future__ import annotations

import re
from pathlib import Path

from lattice_inference.graph.adapting import linear_sites
from lattice_inference.lora.attaching import adapter_places
from lattice_inference.models.opened_model import open_model
from lattice_tune.errors import InvalidInputError
from lattice_tune.lora.config import LoraConfig

__all__ = ["chosen_sites", "linears_of"]

_ATTENTION = re.compile(r"(?:^|\.)(?:self_attn|attention|attn)(?:\.|$)")
_LAYER = re.compile(r"(?<=\.)[0-9]{1,9}(?=\.)")


def linears_of(path: Path, *, causal: bool) -> tuple[str, ...]:
    """Return the paths of the linears of a model's layers; no weights are read.

    Raises:
        LatticeError: a file of the model is missing or malformed, or its family is not built.
        InvalidInputError: adapters are not built for the family.
    """
    with open_model(path, causal=causal) as model:
        sites = model.family.adapter_sites
        if sites is None:
            raise InvalidInputError(f"{path}: adapters are not built for models of {model.family.name}")
        places = adapter_places(sites, linear_sites(model.program(model.whole_head())))
    return tuple(place.module for place in places.values() if _LAYER.search(place.module))


def chosen_sites(path: Path, config: LoraConfig, linears: tuple[str, ...]) -> tuple[str, ...]:
    """Return the linears that a configuration chooses, of those that the model has.

    Args:
        path: the model, for messages.
        config: targets and layers.
        linears: paths of the linears of the layers.

    Raises:
        InvalidInputError: an ending, or the layers, choose none.
    """
    if config.targets == "all":
        chosen = list(linears)
    elif config.targets == "attention":
        chosen = [name for name in linears if _ATTENTION.search(name)]
    else:
        chosen = []
        for ending in config.targets:
            found = [name for name in linears if name == ending or name.endswith(f".{ending}")]
            if not found:
                kinds = sorted({_LAYER.sub("N", name) for name in linears})
                raise InvalidInputError(
                    f"{path}: no linear's path ends in {ending!r:.100}. Its linears: {', '.join(kinds)}"
                )
            chosen += found
    if config.layers is not None:
        first, last = config.layers
        chosen = [name for name in chosen if (number := _LAYER.search(name)) and first <= int(number[0]) <= last]
    if not chosen:
        raise InvalidInputError(f"{path}: targets and layers choose no linear")
    return tuple(dict.fromkeys(chosen))
