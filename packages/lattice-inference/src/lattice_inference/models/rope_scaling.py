"""Rotary position embeddings: the frequency of each pair of dimensions, and its scalings.

Su et al. 2021 (https://arxiv.org/abs/2104.09864): pair i of n is rotated by position * base^(-i / n). The scalings are
those of transformers' ``rope_parameters`` (``rope_scaling`` in older files) and of GGUF:

==========  ====================================================================================================
default     as above
linear      every frequency divided by ``factor``
ntk         base * factor^(2n / (2n - 2)) instead of base: high frequencies stay, low ones stretch
dynamic     as default: it differs only beyond ``max_position_embeddings``, which is the limit here
llama3      low frequencies divided by ``factor``, high ones kept, a ramp between them
yarn        the same by number of rotations, and cosine and sine scaled (Peng et al. 2023, arXiv 2309.00071)
==========  ====================================================================================================

Frequencies are float32. They are computed in the steps of transformers and have the same rounding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from lattice_inference.errors import UnsupportedError
from lattice_inference.models.config_fields import ConfigFields

__all__ = ["RopeKind", "RopeScaling", "read_rope_scaling"]

RopeKind = Literal["default", "linear", "ntk", "dynamic", "llama3", "yarn"]
Float32Array = npt.NDArray[np.float32]

_LARGEST_FACTOR = 1e6


@dataclass(frozen=True)
class RopeScaling:
    """How positions become angles.

    Attributes:
        base: the base of the geometric sequence of frequencies, ``rope_theta``.
        kind: the kind of scaling; see the module.
        factor: the factor by which the context is stretched.
        original_context: positions that the model was trained on before stretching (llama3 and yarn).
        low_frequency_factor, high_frequency_factor: llama3's ramp.
        beta_fast, beta_slow: yarn's ramp, in rotations over the original context.
        truncate: whether yarn's ramp begins and ends at whole pairs.
        attention_factor: the factor of cosine and sine; None for yarn's rule.
    """

    base: float
    kind: RopeKind = "default"
    factor: float = 1.0
    original_context: int = 0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None

    @property
    def scale(self) -> float:
        """The factor of cosines and sines."""
        if self.attention_factor is not None:
            return self.attention_factor
        return 0.1 * math.log(self.factor) + 1.0 if self.kind == "yarn" and self.factor > 1 else 1.0

    def frequencies(self, dimensions: int) -> Float32Array:
        """Return the angle per position, in radians, of each of ``dimensions / 2`` pairs."""
        base = self.base
        if self.kind == "ntk" and dimensions > 2:
            base *= self.factor ** (dimensions / (dimensions - 2))
        exponents = np.arange(0, dimensions, 2).astype(np.float32) / np.float32(dimensions)
        wavelengths = np.power(np.float64(base), exponents.astype(np.float64)).astype(np.float32)
        plain = np.float32(1) / wavelengths
        if self.kind == "linear":
            return np.asarray(plain / np.float32(self.factor))
        if self.kind == "llama3":
            return self._llama3(plain)
        if self.kind == "yarn":
            return self._yarn(wavelengths, dimensions)
        return plain

    def _llama3(self, plain: Float32Array) -> Float32Array:
        wavelength = np.float32(2 * math.pi) / plain
        longest_kept = self.original_context / self.high_frequency_factor
        shortest_stretched = self.original_context / self.low_frequency_factor
        stretched = plain / np.float32(self.factor)
        smooth = (np.float32(self.original_context) / wavelength - np.float32(self.low_frequency_factor)) / np.float32(
            self.high_frequency_factor - self.low_frequency_factor
        )
        between = (np.float32(1) - smooth) * stretched + smooth * plain
        return np.where(
            wavelength > shortest_stretched, stretched, np.where(wavelength < longest_kept, plain, between)
        ).astype(np.float32)

    def _yarn(self, wavelengths: Float32Array, dimensions: int) -> Float32Array:
        def pair_with(rotations: float) -> float:
            """Return the (fractional) pair that rotates ``rotations`` times over the original context."""
            return dimensions * math.log(self.original_context / (rotations * 2 * math.pi)) / (2 * math.log(self.base))

        low, high = pair_with(self.beta_fast), pair_with(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dimensions - 1)
        if low == high:
            high += 0.001
        ramp = (np.arange(dimensions // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low)
        kept = np.float32(1) - np.clip(ramp, np.float32(0), np.float32(1))
        stretched = np.float32(1) / (np.float32(self.factor) * wavelengths)
        return np.asarray(stretched * (np.float32(1) - kept) + np.float32(1) / wavelengths * kept, np.float32)


def read_rope_scaling(
    fields: ConfigFields, mapping: Mapping[str, object], *, share: float = 1.0
) -> tuple[RopeScaling, float]:
    """Return the scaling in a ``config.json``, and the share of a head's rotated dimensions.

    ``share`` is that share if the file does not state it.

    Versions of transformers have written the values in ``rope_parameters``, in ``rope_scaling`` or beside them. Both
    objects may be there if they say the same. The kind is ``rope_type`` or ``type``.

    Raises:
        ModelConfigError: a value is missing, of the wrong type or out of range.
        UnsupportedError: the kind is not built.
    """
    found: list[tuple[RopeScaling, float]] = []
    for name in ("rope_parameters", "rope_scaling"):
        value = mapping.get(name)
        if value is not None and not isinstance(value, dict):
            raise fields.error(name, "is not an object")
        for key, entry in (value or {}).items():
            if isinstance(entry, dict):
                raise UnsupportedError(
                    f"{fields.source}: {name} has parameters for {key!r:.100} by itself; built are those that hold for "
                    "all layers"
                )
        if value:
            found.append(_read(fields, mapping, value, share))
    if len(found) == 2 and found[0] != found[1]:
        raise fields.error("rope_scaling", "says another scaling than rope_parameters")
    return found[0] if found else _read(fields, mapping, {}, share)


def _read(
    fields: ConfigFields, mapping: Mapping[str, object], nested: Mapping[str, object], share: float
) -> tuple[RopeScaling, float]:
    """Return what ``nested`` and the fields beside it say."""
    beside = {name: mapping[name] for name in ("rope_theta", "partial_rotary_factor") if fields.has(name)}
    values = beside | {name: value for name, value in nested.items() if value is not None}
    inner = ConfigFields(values, fields.source)
    kind = inner.text("rope_type", default=inner.text("type", default="default"))
    if inner.has("partial_rotary_factor"):
        share = inner.real("partial_rotary_factor", above=0, at_most=1)
    base = inner.real("rope_theta", above=1, at_most=1e12) if inner.has("rope_theta") else 10_000.0
    context = fields.integer("max_position_embeddings", 1, 2**31 - 1)

    def number(name: str, default: float | None = None) -> float:
        if default is not None and not inner.has(name):
            return default
        return inner.real(name, above=0, at_most=_LARGEST_FACTOR)

    def original() -> int:
        # Phi and DeepSeek write it beside the other fields
        home = inner if inner.has("original_max_position_embeddings") else fields
        return home.integer("original_max_position_embeddings", 1, 2**31 - 1)

    match kind:
        case "default":
            return RopeScaling(base), share
        case "linear" | "ntk" | "dynamic":
            return RopeScaling(base, kind, number("factor")), share
        case "llama3":
            low, high = number("low_freq_factor"), number("high_freq_factor")
            if not high > low:
                raise fields.error("high_freq_factor", f"{high} is not above low_freq_factor {low}")
            return (
                RopeScaling(
                    base,
                    kind,
                    number("factor"),
                    original(),
                    low_frequency_factor=low,
                    high_frequency_factor=high,
                ),
                share,
            )
        case "yarn":
            trained = original()
            factor = number("factor", context / trained)
            return (
                RopeScaling(
                    base,
                    kind,
                    factor,
                    trained,
                    beta_fast=number("beta_fast", 32.0),
                    beta_slow=number("beta_slow", 1.0),
                    truncate=inner.flag("truncate", default=True),
                    attention_factor=_yarn_attention_factor(inner, factor),
                ),
                share,
            )
    raise UnsupportedError(
        f"{fields.source}: the rope_type is {kind!r:.100}; built are default, linear, ntk, dynamic, llama3 and yarn"
    )


def _yarn_attention_factor(inner: ConfigFields, factor: float) -> float | None:
    if inner.has("attention_factor"):
        return inner.real("attention_factor", above=0, at_most=_LARGEST_FACTOR)
    if not (inner.has("mscale") and inner.has("mscale_all_dim")):
        return None
    stretch = math.log(factor) if factor > 1 else 0.0
    over, under = (
        0.1 * inner.real(name, above=0, at_most=_LARGEST_FACTOR) * stretch + 1.0
        for name in ("mscale", "mscale_all_dim")
    )
    return over / under
