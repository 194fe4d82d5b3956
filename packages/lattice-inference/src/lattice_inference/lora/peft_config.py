"""Reads PEFT's ``adapter_config.json``.

Every field is used, known to have no effect here, or refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from lattice_inference.checkpoint.json_file import load_json_object
from lattice_inference.errors import ModelConfigError, UnsupportedError
from lattice_inference.lora.adapter import MAX_RANK
from lattice_inference.lora.module_patterns import (
    checked_pattern,
    ending_is_left_out,
    matching_value,
    module_is_targeted,
)
from lattice_inference.models.config_fields import ConfigFields, shown

__all__ = ["FIELDS_REFUSED", "FIELDS_USED", "FIELDS_WITHOUT_EFFECT", "PeftConfig", "read_peft_config"]

MAX_CONFIG_BYTES = 1 << 24
#: Most names in a list, and most patterns in an object: each is matched with every module.
_MOST_NAMES = 10_000
_MOST_PATTERNS = 4_096

#: Fields that change what an adapter computes; they are applied.
FIELDS_USED = (
    "peft_type base_model_name_or_path r lora_alpha rank_pattern alpha_pattern use_rslora target_modules exclude_modules "
    "layers_to_transform layers_pattern fan_in_fan_out use_dora bias lora_bias modules_to_save init_lora_weights"
).split()

#: Fields that only training reads, or that record how a file was made.
FIELDS_WITHOUT_EFFECT = (
    "task_type auto_mapping peft_version revision inference_mode lora_dropout loftq_config eva_config corda_config "
    "lora_ga_config runtime_config megatron_core qalora_group_size ensure_weight_tying velora_config"
).split()

#: Fields that are refused where they are set, with the reason.
FIELDS_REFUSED = {
    "megatron_config": "layers of Megatron are not built",
    "trainable_token_indices": "rows of the embedding were trained, and adapters of embeddings are not built",
    "alora_invocation_tokens": "it acts from some token on only (aLoRA)",
    "use_qalora": "it sums groups of inputs (QALoRA)",
    "layer_replication": "it repeats layers of the base",
    "target_parameters": "it changes parameters that are not linears, such as experts",
    "use_bdlora": "its matrices are in blocks (BD-LoRA)",
    "arrow_config": "it routes between adapters (Arrow)",
    "monteclora_config": "it draws samples (MonteCLoRA)",
    "kasa_config": "it has singular values besides the two matrices (KaSA)",
}

#: Initializations that change the base's weights: the file alone is then no adapter of the unchanged base.
_CHANGED_BASES = ("pissa", "olora", "corda", "loftq", "lora_ga")
_REMEDY = "write plain LoRA in PEFT: save_pretrained(..., path_initial_model_for_weight_conversion=...)"
_OTHER_REMEDY = "merge it in PEFT with merge_and_unload(), then save_pretrained, and load the result"


@dataclass(frozen=True)
class PeftConfig:
    """The checked fields of an ``adapter_config.json``.

    Attributes:
        source: the file, for messages.
        fields: the whole object.
        base_model: ``base_model_name_or_path``.
        use_dora: whether each site has magnitudes.
        lora_bias: whether each B has a bias.
        bias: ``none``, ``all`` or ``lora_only``.
        modules_to_save: names of the modules whose whole tensors are in the file.
    """

    source: str
    fields: Mapping[str, object]
    base_model: str | None
    use_dora: bool
    lora_bias: bool
    bias: str
    modules_to_save: tuple[str, ...]

    def rank_and_scale(self, module: str) -> tuple[int, float]:
        """Return the rank of a module's site, and the factor of its product."""
        rank, alpha, is_root = self._defaults
        rank = matching_value(self._ranks, module, rank, f"{self.source}: rank_pattern")
        alpha = matching_value(self._alphas, module, alpha, f"{self.source}: alpha_pattern")
        return rank, alpha / (math.sqrt(rank) if is_root else rank)

    @cached_property
    def _defaults(self) -> tuple[int, float, bool]:
        fields = ConfigFields(self.fields, self.source)
        rank = fields.integer("r", 1, MAX_RANK, default=8)
        return rank, _alpha(fields), fields.flag("use_rslora", default=False)

    @cached_property
    def _ranks(self) -> dict[str, int]:
        return _integers(ConfigFields(self.fields, self.source), self.fields, "rank_pattern")

    @cached_property
    def _alphas(self) -> dict[str, float]:
        return _numbers(ConfigFields(self.fields, self.source), self.fields, "alpha_pattern")

    def targets(self, module: str) -> bool:
        """Return whether the fields that choose modules choose this one."""
        return module_is_targeted(module, self.fields, self.source)

    def leaves_out(self, target: str) -> bool:
        """Return whether other fields exclude all modules that an ending in ``target_modules`` has."""
        is_saved = any(name in target.split(".") for name in self.modules_to_save)
        return is_saved or ending_is_left_out(target, self.fields, self.source)

    @property
    def listed_targets(self) -> tuple[str, ...]:
        """The endings in ``target_modules``, if it is a list."""
        listed = self.fields.get("target_modules")
        return tuple(listed) if isinstance(listed, list) else ()


def read_peft_config(path: Path) -> PeftConfig:
    """Read and check the file.

    Raises:
        ModelNotFoundError: it does not exist.
        ModelConfigError: it is no JSON object, or a field has a value of a wrong type or out of range.
        UnsupportedError: it needs a feature that is not built; the message says what to do instead.
    """
    source = str(path)
    content = load_json_object(path, max_bytes=MAX_CONFIG_BYTES)
    # every field that may be null has the default null
    mapping = {name: value for name, value in content.items() if value is not None}
    fields = ConfigFields(mapping, source)
    kind = fields.text("peft_type")
    if kind != "LORA":
        raise UnsupportedError(f"{source}: peft_type is {shown(kind)}; built is 'LORA'. Remedy: {_OTHER_REMEDY}")
    _refuse(mapping, source)
    _refuse_unknown(mapping, source)
    for name in ("target_modules", "exclude_modules", "layers_pattern"):
        _check_names(fields, mapping, name)
    _check_layers(fields, mapping)
    bias = fields.text("bias", default="none")
    if bias not in ("none", "all", "lora_only"):
        raise fields.error("bias", f"{shown(bias)} is none of 'none', 'all' and 'lora_only'")
    fields.flag("fan_in_fan_out", default=False)  # PEFT transposes the base only: A and B are stored alike
    config = PeftConfig(
        source,
        mapping,
        fields.text("base_model_name_or_path", default="") or None,
        fields.flag("use_dora", default=False),
        fields.flag("lora_bias", default=False),
        bias,
        _names(fields, mapping, "modules_to_save"),
    )
    config.rank_and_scale("")  # raises for fields that are wrong
    for name in ("rank_pattern", "alpha_pattern"):
        for pattern in _object(fields, mapping, name):
            checked_pattern(rf"(.*\.)?({pattern})", f"{source}: {name}")
    return config


def _refuse(mapping: Mapping[str, object], source: str) -> None:
    for name, reason in FIELDS_REFUSED.items():
        if mapping.get(name):
            raise UnsupportedError(f"{source}: {name} is set: {reason}, which is not built. Remedy: {_OTHER_REMEDY}")
    begun = mapping.get("init_lora_weights", True)
    if not isinstance(begun, (bool, str)):
        raise ModelConfigError(f"{source}: init_lora_weights: {shown(begun)} is neither true, false nor a name")
    if isinstance(begun, str) and begun.lower().startswith(_CHANGED_BASES):
        raise UnsupportedError(
            f"{source}: init_lora_weights is {shown(begun)}: training began by changing the base's weights, so the file is "
            f"no adapter of the base as it is. Remedy: {_REMEDY}"
        )


def _refuse_unknown(mapping: Mapping[str, object], source: str) -> None:
    known = {*FIELDS_USED, *FIELDS_WITHOUT_EFFECT, *FIELDS_REFUSED}
    unknown = sorted(
        f"{name:.80}" for name, value in mapping.items() if name not in known and value not in (False, {}, [], "")
    )
    if unknown:
        raise UnsupportedError(
            f"{source}: fields that PEFT 0.21's LoraConfig does not have, so their effect is not known: "
            f"{', '.join(unknown[:20])}. Remedy: set them to null if they have none"
        )


def _alpha(fields: ConfigFields) -> float:
    if not fields.has("lora_alpha"):
        return 8.0
    return fields.real("lora_alpha", above=-1e30, at_most=1e30)


def _object(fields: ConfigFields, mapping: Mapping[str, object], name: str) -> Mapping[str, object]:
    value = mapping.get(name, {})
    if not isinstance(value, dict) or len(value) > _MOST_PATTERNS:
        raise fields.error(name, f"{shown(value)} is not an object of at most {_MOST_PATTERNS:,} names")
    return value


def _integers(fields: ConfigFields, mapping: Mapping[str, object], name: str) -> dict[str, int]:
    inner = _object(fields, mapping, name)
    entries = ConfigFields(inner, f"{fields.source}: {name}")
    return {pattern: entries.integer(pattern, 1, MAX_RANK) for pattern in inner}


def _numbers(fields: ConfigFields, mapping: Mapping[str, object], name: str) -> dict[str, float]:
    inner = _object(fields, mapping, name)
    entries = ConfigFields(inner, f"{fields.source}: {name}")
    return {pattern: entries.real(pattern, above=-1e30, at_most=1e30) for pattern in inner}


def _names(fields: ConfigFields, mapping: Mapping[str, object], name: str) -> tuple[str, ...]:
    value = mapping.get(name, [])
    if (
        not isinstance(value, list)
        or len(value) > _MOST_NAMES
        or not all(isinstance(item, str) and item for item in value)
    ):
        raise fields.error(name, f"{shown(value)} is not a list of at most {_MOST_NAMES:,} names")
    return tuple(value)


def _check_names(fields: ConfigFields, mapping: Mapping[str, object], name: str) -> None:
    value = mapping.get(name)
    if isinstance(value, str):
        if name != "layers_pattern" and value != "all-linear":
            checked_pattern(value, f"{fields.source}: {name}")
        return
    names = _names(fields, mapping, name)
    if name == "target_modules" and value is not None and not names:
        raise fields.error(name, "is an empty list, so the adapter changes nothing")


def _check_layers(fields: ConfigFields, mapping: Mapping[str, object]) -> None:
    value = mapping.get("layers_to_transform", [])
    numbers = value if isinstance(value, list) else [value]
    if not all(type(number) is int and 0 <= number < 2**31 for number in numbers):
        raise fields.error("layers_to_transform", f"{shown(value)} is no number of a layer or list of them")
