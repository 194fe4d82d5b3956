"""Options of ``SentenceTransformer`` that :class:`SentenceEncoder` refuses, with reasons."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from lattice_embed.argument_checks import shown
from lattice_embed.errors import InvalidInputError
from lattice_embed.native_service import NativeEmbeddingService

__all__ = ["MISSING_METHODS", "REFUSED_OPTIONS", "check_device", "check_service_options", "refuse_options"]

_KEYWORDS = "these are keywords of PyTorch's loaders; weights are kept in precision=, tokens limited by max_tokens="

REFUSED_OPTIONS: Mapping[str, str] = {
    "modules": "models are not made of torch modules here: pass a model's name, or use LatticeModule",
    "model_kwargs": _KEYWORDS,
    "processor_kwargs": _KEYWORDS,
    "tokenizer_kwargs": _KEYWORDS,
    "config_kwargs": _KEYWORDS,
    "model_card_data": "no models are saved, so no cards are written",
    "backend": "the backend is our own kernels",
    "processing_kwargs": "these are keywords of another tokenizer: set max_seq_length",
    "output_value": "'sentence_embedding' and 'token_embeddings' are given",
}
"""Options that lack values here, and why."""

_MISSING: Mapping[str, tuple[str, ...]] = {
    "nothing is trained here": (
        "fit",
        "old_fit",
        "smart_batching_collate",
        "get_sentence_features",
        "gradient_checkpointing_enable",
    ),
    "nothing is saved: the model's files are where service.directory says": (
        "save",
        "save_pretrained",
        "save_to_hub",
        "push_to_hub",
        "model_card_data_class",
    ),
    "weights are not PyTorch's": (
        "forward",
        "parameters",
        "named_parameters",
        "state_dict",
        "load_state_dict",
        "compile",
        "transformers_model",
        "processor",
        "config",
        "get_backend",
        "clear_placement_cache",
    ),
    "models are not merged and take no adapters here": (
        "merge",
        "add_adapter",
        "load_adapter",
        "delete_adapter",
        "set_adapter",
        "enable_adapters",
        "disable_adapters",
        "active_adapter",
        "active_adapters",
        "get_adapter_state_dict",
        "check_peft_compatible_model",
        "has_peft_compatible_model",
    ),
    "pass the vectors of encode to the metric": ("evaluate",),
    "pass precision= when the encoder is made; service.precision says it": ("half", "bfloat16", "dtype"),
    "models run on the CPU": ("cuda",),
    "pass the model's name when the encoder is made": ("load", "default_huggingface_organization"),
    "pooling is what the model's files say": ("set_pooling_include_prompt",),
    "there are texts alone, and encode takes no further options": (
        "modalities",
        "supports",
        "is_singular_input",
        "get_model_kwargs",
        "model_type",
    ),
    "Similarity lists them": ("SUPPORTED_SIMILARITY_FN_NAMES",),
}

MISSING_METHODS: Mapping[str, str] = {name: reason for reason, names in _MISSING.items() for name in names}
"""Methods and attributes that there are not, and why."""


def refuse_options(given: Mapping[str, Any], allowed: tuple[Any, ...] = (None,)) -> None:
    """Refuse options of :data:`REFUSED_OPTIONS` that have another value than an allowed one.

    Raises InvalidInputError for the first one.
    """
    for name, value in given.items():
        if not any(value is each or (type(value) is type(each) and value == each) for each in allowed):
            raise InvalidInputError(f"{name}={shown(value)} does not exist here: {REFUSED_OPTIONS[name]}")


def check_device(device: Any, *, or_none: bool = True) -> None:
    """Raise InvalidInputError unless ``device`` is None or the CPU.

    It may be a str or PyTorch's ``torch.device``.
    """
    is_name = isinstance(device, str) or type(device).__module__.partition(".")[0] == "torch"
    if not (or_none and device is None) and not (is_name and str(device) in ("cpu", "cpu:0")):
        raise InvalidInputError(f"device={shown(device)} does not exist here: models run on the CPU")


def check_service_options(options: Mapping[str, Any]) -> None:
    """Refuse options that neither SentenceEncoder nor NativeEmbeddingService has.

    Raises InvalidInputError.
    """
    known = [name for name in inspect.signature(NativeEmbeddingService).parameters if name != "model"]
    unknown = [name for name in options if name not in known]
    if unknown:
        raise InvalidInputError(
            f"SentenceEncoder has no option {', '.join(unknown)}; those of the service are {', '.join(known)}"
        )
