"""The longest pair and the activation of a cross-encoder, read from its directory.

sentence-transformers keeps them in ``config.json`` up to version 5, and in ``config_sentence_transformers.json`` from
version 6. A directory from transformers alone has neither; then the defaults of sentence-transformers apply.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lattice_inference.checkpoint.json_file import load_json, load_json_object
from lattice_inference.errors import ModelConfigError, UnsupportedError
from lattice_inference.models.family import TextConfig
from lattice_inference.models.sentence_modules import module_folder, module_kind, read_token_limit

__all__ = ["CrossEncoderConfig", "ScoreActivation", "read_asked_config", "read_cross_encoder_config"]

ScoreActivation = Literal["sigmoid", "identity"]

#: Longest pair in tokens for a language model as a ranker, as on Qwen3-Reranker's model card.
ASKED_TOKENS = 8_192

_ACTIVATIONS: Mapping[str, ScoreActivation] = {
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
    "torch.nn.modules.linear.Identity": "identity",
}


@dataclass(frozen=True)
class CrossEncoderConfig:
    """The settings of a cross-encoder outside its network.

    Attributes:
        activation: the function from logits to scores.
        max_tokens: longest pair in tokens, special tokens included.
        longest: the largest possible ``max_tokens``.
    """

    activation: ScoreActivation
    max_tokens: int
    longest: int


def read_cross_encoder_config(directory: Path, config: TextConfig) -> CrossEncoderConfig:
    """Read the files of the cross-encoder in ``directory``; ``config`` is that of its network.

    Raises:
        ModelConfigError: a file is malformed.
        UnsupportedError: the directory holds another kind of model, or sets an option that is not built.
    """
    if not config.classifies:
        raise UnsupportedError(
            f"{directory} holds a {config.class_name}, which has no classification "
            "head: a cross-encoder is a ...ForSequenceClassification; a text encoder is loaded by load_encoder"
        )
    _check_modules(directory / "modules.json")
    limit = read_token_limit(directory, task="sequence-classification", output="scores", method_output="logits")
    longest = config.longest_input if limit is None else min(limit, config.longest_input)
    return CrossEncoderConfig(_activation(directory, config.label_count), longest, longest)


def read_asked_config(directory: Path, config: TextConfig, *, is_gguf: bool) -> CrossEncoderConfig:
    """Read the files of a language model that ranks, in ``directory`` or a GGUF file.

    Arguments and errors are those of :func:`read_cross_encoder_config`.
    """
    if not is_gguf:
        _check_modules(directory / "modules.json")
    activation = "sigmoid" if is_gguf else _activation(directory, config.label_count)
    return CrossEncoderConfig(activation, min(ASKED_TOKENS, config.longest_input), config.longest_input)


def _check_modules(path: Path) -> None:
    """Refuse a list of modules that has more than the network itself."""
    if not os.path.lexists(path):
        return
    modules = load_json(path)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise ModelConfigError(f"{path}: is not a list of modules")
    listed = [(module_kind(module.get("type")), _folder(module.get("path"))) for module in modules]
    if listed != [("Transformer", "")]:
        names = ", ".join(repr(module.get("type")) for module in modules)
        raise UnsupportedError(f"{path}: the modules are {names:.300}; built for a cross-encoder is one Transformer")


def _folder(path: object) -> str | None:
    return module_folder(path) if isinstance(path, str) else None


def _activation(directory: Path, label_count: int) -> ScoreActivation:
    """Return the stated activation, of the newest place first.

    If no place states it, it depends on the number of labels.
    """
    path = directory / "config_sentence_transformers.json"
    newest = load_json_object(path) if os.path.lexists(path) else {}
    if newest:
        if newest.get("model_type", "CrossEncoder") != "CrossEncoder":
            raise UnsupportedError(f"{path}: model_type is {newest['model_type']!r:.100}; only 'CrossEncoder' is built")
        if newest.get("default_prompt_name") is not None:
            raise UnsupportedError(f"{path}: default_prompt_name is set; prompts of cross-encoders are not built")
    plain = load_json_object(directory / "config.json")
    nested = plain.get("sentence_transformers")
    stated = (
        newest.get("activation_fn"),
        nested.get("activation_fn") if isinstance(nested, dict) else None,
        plain.get("sbert_ce_default_activation_function"),
    )
    name = next((value for value in stated if value is not None), None)
    if name is None:
        return "sigmoid" if label_count == 1 else "identity"
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        raise UnsupportedError(
            f"{directory}: the activation of the scores is {name!r:.100}; built are {', '.join(_ACTIVATIONS)}"
        )
    return _ACTIVATIONS[name]
