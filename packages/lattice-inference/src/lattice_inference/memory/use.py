"""A loaded model's memory: weights by layer and type, keys and values, work memory, process."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lattice_inference.argument_checks import check_integer, check_provides
from lattice_inference.memory.resident import peak_resident_bytes, resident_bytes

if TYPE_CHECKING:
    from lattice_inference.backends.protocol import WeightSize
    from lattice_inference.generate.causal_language_model import CausalLanguageModel

__all__ = ["OUTSIDE", "MemoryReport", "layer_of", "memory_report", "sizes_by_dtype", "sizes_by_layer"]

_LAYER = re.compile(r"(?:^|\.)(?:layers|blk|layer)\.(\d+)\.")

OUTSIDE = "outside of layers"


@dataclass(frozen=True)
class MemoryReport:
    """Bytes by what they are for.

    Attributes:
        weights: each weight.
        cache_bytes: keys and values, and the state of recurrent layers.
        cache_token_bytes: keys and values of one token; ``None`` where that was not told.
        arena_bytes: kept for the activations of steps.
        resident_bytes: what the process has in RAM now, mapped files included; ``None`` where the system does not tell.
        peak_resident_bytes: the most that it ever had.
    """

    weights: Sequence[WeightSize]
    cache_bytes: int
    cache_token_bytes: int | None
    arena_bytes: int
    resident_bytes: int | None
    peak_resident_bytes: int | None

    @property
    def mapped_bytes(self) -> int:
        """Weights that lie in mapped files."""
        return sum(weight.nbytes for weight in self.weights if weight.mapped)

    @property
    def packed_bytes(self) -> int:
        """Weights that were packed into separate memory."""
        return sum(weight.nbytes for weight in self.weights if not weight.mapped)

    def by_dtype(self, weights: Iterable[WeightSize] | None = None) -> dict[str, int]:
        """Return the bytes of all weights, or of these, by their type."""
        return sizes_by_dtype(self.weights if weights is None else weights)

    def by_layer(self) -> dict[int | None, dict[str, int]]:
        """Return the bytes by type of each layer, those outside of layers under ``None`` and first."""
        return sizes_by_layer(self.weights)

    def as_json(self) -> dict[str, object]:
        """Return it as JSON has it."""
        return {
            "weights_mapped": self.mapped_bytes,
            "weights_packed": self.packed_bytes,
            "weights_by_dtype": self.by_dtype(),
            "cache": self.cache_bytes,
            "cache_per_token": self.cache_token_bytes,
            "arena": self.arena_bytes,
            "resident": self.resident_bytes,
            "peak_resident": self.peak_resident_bytes,
            "layers": [{"layer": layer, **sizes} for layer, sizes in self.by_layer().items()],
        }

    def as_text(self, *, layers: bool = False) -> str:
        """Return it as lines, with ``layers`` a table by layer and type too."""
        a_token = f"  ({self.cache_token_bytes:,} bytes a token)" if self.cache_token_bytes else ""
        kinds = ", ".join(f"{dtype} {_mib(size).strip()}" for dtype, size in self.by_dtype().items())
        lines = [
            f"weights mapped  {_mib(self.mapped_bytes)}",
            f"weights packed  {_mib(self.packed_bytes)}  ({kinds})",
            f"keys, values    {_mib(self.cache_bytes)}{a_token}",
            f"arena           {_mib(self.arena_bytes)}",
            f"resident        {_mib(self.resident_bytes)}  (at most {_mib(self.peak_resident_bytes).strip()})",
        ]
        if layers:
            types = list(self.by_dtype())
            lines += ["", f"{'layer':<18}" + "".join(f"{dtype:>14}" for dtype in types)]
            for layer, sizes in self.by_layer().items():
                name = OUTSIDE if layer is None else str(layer)
                lines.append(f"{name:<18}" + "".join(_mib(sizes.get(dtype, 0)).rjust(14) for dtype in types))
        return "\n".join(lines)


def memory_report(
    model: CausalLanguageModel, *, cache_bytes: int = 0, cache_token_bytes: int | None = None
) -> MemoryReport:
    """Return what ``model`` takes, and the process with it.

    Args:
        model: the model.
        cache_bytes: keys, values and recurrent state that its caches hold, such as :attr:`Session.cache_bytes`.
        cache_token_bytes: keys and values of one token, such as :attr:`Session.cache_token_bytes`; by default the report
            says nothing of it.
    """
    check_provides("model", model, "weight_sizes", "a language model, as load_model() gives it")
    for name, nbytes in (("cache_bytes", cache_bytes), ("cache_token_bytes", cache_token_bytes)):
        check_integer(name, nbytes, 0, 2**63)
    return MemoryReport(
        weights=model.weight_sizes,
        cache_bytes=cache_bytes or 0,
        cache_token_bytes=cache_token_bytes,
        arena_bytes=model.arena_bytes,
        resident_bytes=resident_bytes(),
        peak_resident_bytes=peak_resident_bytes(),
    )


def sizes_by_dtype(weights: Iterable[WeightSize]) -> dict[str, int]:
    """Return the bytes of weights by their type."""
    sums: dict[str, int] = {}
    for weight in weights:
        sums[weight.dtype] = sums.get(weight.dtype, 0) + weight.nbytes
    return dict(sorted(sums.items()))


def sizes_by_layer(weights: Iterable[WeightSize]) -> dict[int | None, dict[str, int]]:
    """Return the bytes by type of each layer, those outside of layers under ``None`` and first."""
    layers: dict[int | None, list[WeightSize]] = {}
    for weight in weights:
        layers.setdefault(layer_of(weight.name), []).append(weight)
    ordered = sorted(layers, key=lambda layer: -1 if layer is None else layer)
    return {layer: sizes_by_dtype(layers[layer]) for layer in ordered}


def layer_of(name: str) -> int | None:
    """Return the layer that a tensor of this name belongs to, or None."""
    found = _LAYER.search(name)
    return int(found[1]) if found else None


def _mib(nbytes: int | None) -> str:
    return "      unknown" if nbytes is None else f"{nbytes / 2**20:9,.1f} MiB"
