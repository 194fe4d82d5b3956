"""Puts the text of a kernel together: the record, constants, and the kernel's files."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

from lattice_inference.backends.gpu.device import Constants
from lattice_inference.backends.gpu.record import wgsl_struct
from lattice_inference.backends.gpu.step_inputs import HEADER

__all__ = ["KERNELS", "KernelSource", "shader"]


@dataclass(frozen=True)
class KernelSource:
    """What a kernel is made of.

    Attributes:
        parts: files that stand before its own, in order; ``"FORMAT"`` is that of the weights' format.
        bindings: its own buffers beside those of the step: weights, pages, slots, or none.
    """

    parts: tuple[str, ...] = ()
    bindings: Literal["weights", "pages", "slots"] | None = None


_WEIGHTS = ("weights", "FORMAT")
_LINEAR = ("vector_math", *_WEIGHTS, "linear_end")

KERNELS = {
    "embed_rows": KernelSource(_WEIGHTS, "weights"),
    "copy_rows": KernelSource(),
    "elementwise": KernelSource(("vector_math",)),
    "norm": KernelSource((), "weights"),
    "rope": KernelSource(("rotation",)),
    "pool": KernelSource(),
    "kv_write": KernelSource(("rotation", "kv"), "pages"),
    "linear_few": KernelSource(_LINEAR, "weights"),
    "linear_tiled": KernelSource(_LINEAR, "weights"),
    "moe_route": KernelSource(("vector_math",)),
    "moe_group": KernelSource(),
    "linear_grouped_few": KernelSource((*_WEIGHTS, "expert_pairs"), "weights"),
    "linear_grouped_tiled": KernelSource((*_WEIGHTS, "expert_pairs"), "weights"),
    "moe_add": KernelSource(("vector_math",)),
    "low_rank_down": KernelSource(("weights", "adapters"), "weights"),
    "low_rank_up": KernelSource(("weights", "adapters"), "weights"),
    "short_conv": KernelSource(("recurrent",), "slots"),
    "gated_delta_rule": KernelSource(("vector_math", "recurrent"), "slots"),
    "attention_few": KernelSource(("vector_math", "kv", "attention_keys"), "pages"),
    "attention_merge": KernelSource(("vector_math",)),
    "attention_tiled": KernelSource(("vector_math", "kv", "attention_keys"), "pages"),
}
"""Every kernel by name; a file of that name holds its entry point ``main``."""

_NEEDS_SCALES_OF_K = ("Q4_K", "Q5_K")

# What linear_few's text names where WGSL has no way to leave a parameter out: with and without subgroups.
_SUBGROUP_BUILTINS = {
    0: "",
    1: ", @builtin(subgroup_id) subgroup: u32, @builtin(num_subgroups) parts: u32, "
    "@builtin(subgroup_invocation_id) within: u32",
}
_SUM_SUBGROUPS = {
    0: """let parts = PARTS;
    for (var t = 0u; t < ROWS; t++) {
        sums[lane * ROWS + t] = own[t];
    }""",
    1: """for (var t = 0u; t < ROWS; t++) {
        let sum = subgroupAdd(own[t]);
        if within == 0u {
            sums[subgroup * ROWS + t] = sum;
        }
    }""",
}


def shader(name: str, constants: Constants) -> str:
    """Return the WGSL of the kernel ``name`` for ``constants``."""
    known = dict(constants)
    format = known.pop("FORMAT", None)
    subgroups = int(known.get("SUBGROUPS", 0))
    if "ROWS" in known and "SUBGROUPS" in known:
        known["PARTS"] = 64  # subgroups have at least one invocation
    lines = [f"const {key} = {value}u;\n" for key, value in known.items()]
    lines += [f"const STEP_{key} = {index}u;\n" for key, index in HEADER.items()]
    texts = [_text("prelude")]
    for part in KERNELS[name].parts:
        if part != "FORMAT":
            texts.append(_text(part))
            continue
        if format in _NEEDS_SCALES_OF_K:
            texts.append(_text("weights/scales_of_k"))
        texts.append(_text(f"weights/{str(format).lower()}"))
    own = _text(name).replace("SUBGROUP_BUILTINS", _SUBGROUP_BUILTINS[subgroups])
    texts.append(own.replace("SUM_SUBGROUPS", _SUM_SUBGROUPS[subgroups]))
    return wgsl_struct() + "".join(lines) + "\n".join(texts)


@cache
def _text(name: str) -> str:
    return (files(__package__) / "kernels" / f"{name}.wgsl").read_text(encoding="utf-8")
