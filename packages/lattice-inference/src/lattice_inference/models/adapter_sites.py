"""The linears of a family that low-rank adapters may change, by PEFT's names for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["AdapterBase", "AdapterSites", "module_stem"]

_PREFIX = re.compile(r"(?:model\.|language_model\.|bert\.|roberta\.)+(?=[a-z])")
_LAYER_NUMBER = re.compile(r"(?<=\.)[0-9]{1,9}(?=\.)")


def module_stem(module: str) -> str:
    """Return a module's path without its class prefixes: ``layers.0.mlp.up_proj``."""
    return _PREFIX.sub("", module, count=1) if _PREFIX.match(module) else module


@dataclass(frozen=True)
class AdapterSites:
    """The linears of a family that adapters may change.

    Attributes:
        linears: maps the stem of PEFT's path, with ``{layer}`` for the number, to the name in a GGUF file without
            ``.weight``. None if such files do not have the linear.
        prefix: the text before the stem in PEFT's paths.
        head_counts: the rows of these stems may have another order in some files. Each value is the field of the
            configuration that holds the number of their heads.
        architecture: returns ``general.architecture`` for a configuration.
        interleaved: the architectures whose GGUF files interleave these rows.
        reordered: returns, for a configuration, the stems whose heads have another order in GGUF files, in a way that is
            not converted; None if there are none.
    """

    linears: Mapping[str, str | None]
    prefix: str
    architecture: Callable[[Any], str]
    head_counts: Mapping[str, str] = field(default_factory=dict)
    interleaved: frozenset[str] = frozenset()
    reordered: Callable[[Any], frozenset[str]] | None = None

    def pattern_of(self, module: str) -> str | None:
        """Return the key of ``linears`` that a module's path belongs to; None if it is not one."""
        pattern = _LAYER_NUMBER.sub("{layer}", module_stem(module), count=1)
        return pattern if pattern in self.linears else None

    def gguf_name(self, module: str) -> str | None:
        """Return the name in a GGUF file, without ``.weight``; None if such files lack the module."""
        pattern = self.pattern_of(module)
        name = None if pattern is None else self.linears[pattern]
        number = _LAYER_NUMBER.search(module_stem(module))
        return name if name is None or number is None else name.replace("{layer}", str(int(number[0])))

    def module_of(self, name: str) -> str | None:
        """Return the path of the module with ``name`` in a GGUF file; None if there is none."""
        number = _LAYER_NUMBER.search(name)
        wanted = name if number is None else _LAYER_NUMBER.sub("{layer}", name, count=1)
        for stem, theirs in self.linears.items():
            if theirs == wanted:
                at = self.prefix if "{layer}" in stem else ""
                return at + (stem if number is None else stem.replace("{layer}", str(int(number[0]))))
        return None

    def head_count(self, module: str, config: object) -> int | None:
        """Return the number of heads of a module's rows; None if all files order them alike."""
        pattern = self.pattern_of(module)
        name = None if pattern is None else self.head_counts.get(pattern)
        return None if name is None else int(getattr(config, name))


@dataclass(frozen=True)
class AdapterBase:
    """The facts of a loaded model that adapters need.

    Attributes:
        path: the model's directory or GGUF file.
        is_gguf: whether ``path`` is a GGUF file.
        family: the name of the model's family.
        sites: the linears that adapters may change; None if adapters of the family are not built.
        config: the model's configuration.
        tied: whether the output matrix is the embedding.
    """

    path: Path
    is_gguf: bool
    family: str
    sites: AdapterSites | None
    config: Any
    tied: bool
