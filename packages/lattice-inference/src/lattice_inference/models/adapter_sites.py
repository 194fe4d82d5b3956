"""Where a family's linears are, by the names that PEFT has for them: what an adapter of low rank is attached to."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["AdapterBase", "AdapterSites", "module_stem"]

_PREFIX = re.compile(r"(?:model\.|bert\.|roberta\.)+(?=[a-z])")
_LAYER_NUMBER = re.compile(r"(?<=\.)[0-9]{1,9}(?=\.)")


def module_stem(module: str) -> str:
    """Return a module's path without the names of the classes around it: ``layers.0.mlp.up_proj``."""
    return _PREFIX.sub("", module, count=1) if _PREFIX.match(module) else module


@dataclass(frozen=True)
class AdapterSites:
    """The linears of a family that adapters may change.

    Attributes:
        linears: for each linear, the stem of PEFT's path with ``{layer}`` for the number, and the name in a GGUF file
            without ``.weight``, or None where such files do not have it.
        prefix: what a causal model's, or an encoder's, paths have before the stem.
        head_counts: for stems whose rows may be paired in another order, the field of the configuration that counts the
            heads that these rows belong to.
        architecture: gives ``general.architecture`` for a configuration.
        interleaved: the architectures whose GGUF files have these rows interleaved.
    """

    linears: Mapping[str, str | None]
    prefix: str
    architecture: Callable[[Any], str]
    head_counts: Mapping[str, str] = field(default_factory=dict)
    interleaved: frozenset[str] = frozenset()

    def pattern_of(self, module: str) -> str | None:
        """Return the key of ``linears`` that a module's path belongs to; None if it is not one."""
        pattern = _LAYER_NUMBER.sub("{layer}", module_stem(module), count=1)
        return pattern if pattern in self.linears else None

    def gguf_name(self, module: str) -> str | None:
        """Return the name in a GGUF file, without ``.weight``; None where such files do not have the module."""
        pattern = self.pattern_of(module)
        name = None if pattern is None else self.linears[pattern]
        number = _LAYER_NUMBER.search(module_stem(module))
        return name if name is None or number is None else name.replace("{layer}", str(int(number[0])))

    def module_of(self, name: str) -> str | None:
        """Return the path of the module that a GGUF file calls ``name``; None if there is none."""
        number = _LAYER_NUMBER.search(name)
        wanted = name if number is None else _LAYER_NUMBER.sub("{layer}", name, count=1)
        for stem, theirs in self.linears.items():
            if theirs == wanted:
                at = self.prefix if "{layer}" in stem else ""
                return at + (stem if number is None else stem.replace("{layer}", str(int(number[0]))))
        return None

    def head_count(self, module: str, config: object) -> int | None:
        """Return how many heads the module's rows belong to, where their order differs between files."""
        pattern = self.pattern_of(module)
        name = None if pattern is None else self.head_counts.get(pattern)
        return None if name is None else int(getattr(config, name))


@dataclass(frozen=True)
class AdapterBase:
    """What a loaded model knows of itself for adapters.

    Attributes:
        path: its directory, or its GGUF file.
        is_gguf: whether it is one.
        family: the name of its family.
        sites: the linears that adapters may change; None where adapters are not built for the family.
        config: its configuration.
        tied: whether the output matrix is the embedding.
    """

    path: Path
    is_gguf: bool
    family: str
    sites: AdapterSites | None
    config: Any
    tied: bool
