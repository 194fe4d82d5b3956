"""The adapters of one loaded model: placed, checked, and swapped by name between steps."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from lattice_inference.argument_checks import check_path, checked_flag
from lattice_inference.backends.protocol import AdaptingProgram
from lattice_inference.checkpoint.tensor_rows import parse_rows
from lattice_inference.errors import InvalidInputError, UnsupportedError
from lattice_inference.lora.adapter import LoraAdapter, LoraSite, RowOrder
from lattice_inference.lora.attached_adapter import AttachedAdapter
from lattice_inference.lora.base_sites import refuse_other_order, turned
from lattice_inference.lora.hook import LoraHook
from lattice_inference.lora.loading import load_adapter_file
from lattice_inference.models.adapter_sites import AdapterBase, AdapterSites, module_stem
from lattice_inference.value_text import value_text

__all__ = ["AdapterPlace", "ModelAdapters", "adapter_places"]


@dataclass(frozen=True)
class AdapterPlace:
    """Where a linear is in the program that runs.

    ``parts`` names runs of its rows, if these are sites.
    """

    module: str
    tensor: str
    shape: tuple[int, int]
    parts: tuple[str, ...] = ()


class ModelAdapters:
    """The adapters of a model by name. Thread-safe: who reads a name gets one whole adapter.

    Args:
        base: what the model's files say of it.
        program: what runs it.

    Raises:
        UnsupportedError: adapters are not built for its family.
    """

    def __init__(self, base: AdapterBase, program: AdaptingProgram) -> None:
        if base.sites is None:
            raise UnsupportedError(f"{base.path}: adapters are not built for models of {base.family}")
        self._base = base
        self._sites: AdapterSites = base.sites
        self._program = program
        self._places = adapter_places(base.sites, program.adapter_sites)
        self._lock = threading.Lock()
        self._attached: Mapping[str, AttachedAdapter] = {}

    @property
    def attached(self) -> Mapping[str, AttachedAdapter]:
        """The adapters by name, as they are now."""
        return MappingProxyType(dict(self._attached))

    @property
    def linears(self) -> Mapping[str, tuple[int, int]]:
        """Outputs and inputs of each linear that adapters may change, by its path."""
        return MappingProxyType({place.module: place.shape for place in self._places.values()})

    def load(self, path: str | os.PathLike[str], name: str | None, *, replace: bool) -> AttachedAdapter:
        """Read an adapter and attach it; see ``CausalLanguageModel.load_adapter``."""
        check_path("path", path)
        if name is None:
            place = Path(os.path.abspath(path))
            name = place.stem if place.suffix == ".gguf" else place.name
        self._check_name(name, checked_flag("replace", replace))
        return self.attach(load_adapter_file(path), name, replace=replace)

    def attach(self, hook: LoraHook, name: str, *, replace: bool) -> AttachedAdapter:
        """Attach an adapter; see ``CausalLanguageModel.attach_adapter``."""
        replace = checked_flag("replace", replace)
        self._check_name(name, replace)
        adapter = self._snapshot(hook, name)
        factors = self._factors(adapter)
        attached = AttachedAdapter(
            name,
            adapter.sha256,
            adapter.source,
            len(adapter.sites),
            tuple(sorted({site.rank for site in adapter.sites.values()})),
            (prepared := self._program.prepare_adapter(factors)).nbytes,
            prepared,
            self._program,
        )
        with self._lock:  # readers have no lock: they see the mapping before or after
            self._check_name(name, replace)
            self._attached = {**self._attached, name: attached}
        return attached

    def remove(self, name: str) -> None:
        """Forget a name; see ``CausalLanguageModel.remove_adapter``."""
        with self._lock:
            attached = self.named(name)
            self._attached = {key: value for key, value in self._attached.items() if value is not attached}

    def named(self, adapter: str | AttachedAdapter) -> AttachedAdapter:
        """Return the adapter of a name, or one that this model attached as it is.

        Raises:
            InvalidInputError: there is none.
        """
        if isinstance(adapter, AttachedAdapter):
            if adapter.program is not self._program:
                raise InvalidInputError(f"the adapter {adapter.name!r:.100} was attached to another model")
            return adapter
        if not isinstance(adapter, str):
            raise InvalidInputError(f"adapter is {value_text(adapter)}; expected the name of an adapter, or None")
        found = self._attached.get(adapter)
        if found is None:
            known = ", ".join(f"{name!r:.100}" for name in sorted(self._attached)) or "none"
            raise InvalidInputError(
                f"no adapter {adapter!r:.100} is attached (attached are: {known}): call load_adapter before"
            )
        return found

    def _check_name(self, name: object, replace: bool) -> None:
        if not isinstance(name, str) or not name:
            raise InvalidInputError(f"name is {value_text(name)}; expected a text, the name of the adapter")
        if name in self._attached and not replace:
            raise InvalidInputError(f"an adapter {name!r:.100} is attached already: pass another name, or replace=True")

    def _snapshot(self, hook: LoraHook, name: str) -> LoraAdapter:
        """Return what a hook has now, in arrays that nothing changes."""
        if not isinstance(hook, LoraHook):
            raise InvalidInputError(
                f"adapter is {value_text(hook)}; expected a LoraAdapter, or an object with sites, factors and "
                "validate_against (LoraHook)"
            )
        source = hook.source if isinstance(hook, LoraAdapter) else f"the adapter {name!r:.100}"
        self._refuse_tied_head(hook, source)
        hook.validate_against(self.linears)
        if isinstance(hook, LoraAdapter):
            return hook
        sites: dict[str, LoraSite] = {}
        for path in hook.sites:
            if not isinstance(path, str):
                raise InvalidInputError(f"sites holds {value_text(path)}; expected paths of linears")
            site = hook.factors(path)
            if not isinstance(site, LoraSite):
                raise InvalidInputError(f"factors({value_text(path)}) gave {value_text(site)}; expected a LoraSite")
            sites[path] = LoraSite(_copy(site.a), _copy(site.b), site.scale, site.magnitude, site.bias)
        adapter = LoraAdapter(sites, source=source)
        adapter.validate_against(self.linears)
        return adapter

    def _factors(self, adapter: LoraAdapter) -> dict[str, LoraSite]:
        """Return the sites by tensor names of the program, in its order of rows.

        Raises:
            InvalidInputError: the adapter is for another base.
            UnsupportedError: it has parts that are only merged.
        """
        if not adapter.is_plain:
            raise UnsupportedError(
                f"{adapter.source}: holds DoRA magnitudes, biases or whole modules (modules_to_save), which are not run "
                "beside a model. Remedy: merge it (merge_adapter, lattice merge-adapter) and load the result"
            )
        architecture = self._sites.architecture(self._base.config)
        if adapter.architecture not in (None, architecture):
            raise InvalidInputError(
                f"{adapter.source}: is an adapter of {adapter.architecture}, and {self._base.path} is a {architecture}"
            )
        refuse_other_order(adapter, self._sites, self._base.config, self._base.path, is_gguf=self._base.is_gguf)
        interleaved = self._base.is_gguf and architecture in self._sites.interleaved
        order: RowOrder = "interleaved" if interleaved else "half"
        ordered = turned(adapter, self._sites, self._base.config, order)
        factors: dict[str, LoraSite] = {}
        for module, site in ordered.sites.items():
            place = self._places[module_stem(module)]
            if not place.parts:
                factors[place.tensor] = site
            for part in place.parts:
                rows = parse_rows(part)
                assert rows is not None  # parts are runs of rows
                factors[part] = LoraSite(site.a, site.b[rows.first : rows.end], site.scale)
        return factors

    def _refuse_tied_head(self, adapter: LoraHook, source: str) -> None:
        for module in adapter.sites:
            if self._base.tied and isinstance(module, str) and module_stem(module) == "lm_head":
                raise UnsupportedError(
                    f"{source}: {module} is the embedding in {self._base.path} (tie_word_embeddings), and adapters of "
                    "embeddings are not built. Remedy: merge it in PEFT with merge_and_unload()"
                )


def adapter_places(sites: AdapterSites, tensors: Mapping[str, tuple[int, int]]) -> dict[str, AdapterPlace]:
    """Return the linears of a program that adapters may change, by the stems of their paths."""
    places: dict[str, AdapterPlace] = {}
    for tensor, shape in tensors.items():
        rows = parse_rows(tensor)
        whole = tensor if rows is None else rows.tensor
        name = whole.removesuffix(".weight")
        module = sites.module_of(name) if sites.pattern_of(name) is None else name
        if module is None:
            continue
        stem = module_stem(module)
        if rows is None:
            places[stem] = AdapterPlace(module, whole, shape)
        else:
            parts = (*(places[stem].parts if stem in places else ()), tensor)
            height = shape[0] + (places[stem].shape[0] if stem in places else 0)
            places[stem] = AdapterPlace(module, whole, (height, shape[1]), parts)
    return places


def _copy(array: object) -> npt.NDArray[np.float32]:
    """Return a copy that a trainer's next step does not write to."""
    return np.array(array, np.float32)
