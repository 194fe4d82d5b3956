"""Reads a model's generation_config.json: sampling defaults and the tokens that end a text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lattice_inference.checkpoint.json_file import load_json_object
from lattice_inference.errors import InvalidInputError, ModelConfigError, UnsupportedError
from lattice_inference.generate.config import GenerateConfig

__all__ = ["GENERATION_CONFIG_NAME", "parse_generation_config", "read_generation_config", "token_ids_of"]

GENERATION_CONFIG_NAME = "generation_config.json"

_NUMBERS = ("temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty", "max_new_tokens")

_UNBUILT = {
    "num_beams": (None, 1),
    "num_beam_groups": (None, 1),
    "penalty_alpha": (None, 0),
    "no_repeat_ngram_size": (None, 0),
    "encoder_no_repeat_ngram_size": (None, 0),
    "encoder_repetition_penalty": (None, 1),
    "bad_words_ids": (None, []),
    "sequence_bias": (None, {}),
    "suppress_tokens": (None, []),
    "begin_suppress_tokens": (None, []),
    "forced_bos_token_id": (None,),
    "forced_eos_token_id": (None,),
    "min_length": (None, 0),
    "min_new_tokens": (None, 0),
    "exponential_decay_length_penalty": (None,),
    "epsilon_cutoff": (None, 0),
    "eta_cutoff": (None, 0),
    "guidance_scale": (None, 1),
}
"""Unsupported fields that would change the text, with the values that change nothing."""


def read_generation_config(directory: Path) -> GenerateConfig:
    """Return the configuration in ``directory``, which is empty without the file.

    Raises:
        ModelConfigError: the file is malformed, or a value is out of range.
        UnsupportedError: a field demands a way of generating that is not supported.
    """
    path = directory / GENERATION_CONFIG_NAME
    return parse_generation_config(load_json_object(path), str(path)) if path.is_file() else GenerateConfig()


def parse_generation_config(values: Mapping[str, object], source: str) -> GenerateConfig:
    """Return the configuration of a file's ``values``; errors name the file ``source``.

    ``do_sample: false`` becomes a temperature of 0. ``eos_token_id`` (an id or a list) becomes stop tokens.
    ``max_length``, which counts the prompt too, is ignored: the end of the context limits the text.
    """
    for name, neutral in _UNBUILT.items():
        if values.get(name) not in neutral:
            raise UnsupportedError(
                f"{source}: {name} is {values[name]!r}, which is not built; pass a configuration of your own with "
                "SessionConfig(use_model_config=False)"
            )
    given = {name: values[name] for name in _NUMBERS if values.get(name) is not None}
    if values.get("do_sample") is False:
        given["temperature"] = 0.0
    if values.get("stop_strings") is not None:
        given["stop"] = values["stop_strings"]
    try:
        return GenerateConfig(**given, stop_token_ids=token_ids_of(values, "eos_token_id", source))  # type: ignore[arg-type]
    except InvalidInputError as error:
        raise ModelConfigError(f"{source}: {error}") from None
    except OverflowError as error:
        raise ModelConfigError(f"{source}: a number is out of range: {error}") from None


def token_ids_of(values: Mapping[str, object], name: str, source: str) -> frozenset[int]:
    """Return the token ids of a field that holds an id, a list of ids, or nothing.

    Raises:
        ModelConfigError: the field holds something else.
    """
    value = values.get(name)
    ids = [] if value is None else value if isinstance(value, list) else [value]
    for token_id in ids:
        if type(token_id) is not int or not 0 <= token_id < 2**31:
            raise ModelConfigError(f"{source}: {name} holds {token_id!r}; expected token ids")
    return frozenset(ids)
