"""Special and added tokens in a tokenizer_config.json, for files with a vocabulary only."""

from __future__ import annotations

from pathlib import Path

from lattice_inference.errors import TokenizerError
from lattice_inference.tokenizer.added_tokens import AddedToken
from lattice_inference.tokenizer.fields import Fields, read_json_object

__all__ = ["CONFIG_NAME", "ROBERTA_SPECIAL_TOKENS", "config_added_tokens", "special_token", "tokenizer_family"]

CONFIG_NAME = "tokenizer_config.json"

ROBERTA_SPECIAL_TOKENS = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "sep_token": "</s>",
    "cls_token": "<s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "mask_token": "<mask>",
}
"""The special tokens of RoBERTa and XLM-R by role, where their file names no others."""


def special_token(config: Fields, name: str, default: str | None) -> AddedToken:
    """Return a special token, stated as a string or as an object with flags."""
    value = config.raw(name, default)
    if isinstance(value, str):
        return AddedToken(value, normalized=False, special=True)
    fields = Fields(value, f"{config.where}.{name}")
    fields.raw("__type", None)
    fields.raw("id", None)
    fields.raw("special", None)
    token = AddedToken(
        fields.string("content"),
        single_word=fields.boolean("single_word", False),
        lstrip=fields.boolean("lstrip", False),
        rstrip=fields.boolean("rstrip", False),
        normalized=fields.boolean("normalized", False),
        special=True,
    )
    fields.finish()
    return token


def config_added_tokens(config: Fields, special: list[AddedToken]) -> list[AddedToken]:
    """Return all added tokens: special ones, and those listed by name or id.

    The flags of the entry by id count.
    """
    tokens = {token.content: token for token in special}
    for name in ("additional_special_tokens", "extra_special_tokens"):
        for i, item in enumerate(_listed(config, name)):
            listed = Fields({"token": item}, f"{config.where}.{name}[{i}]")
            token = special_token(listed, "token", None)
            tokens.setdefault(token.content, token)
    by_id = config.raw("added_tokens_decoder", None) or {}
    if not isinstance(by_id, dict):
        raise TokenizerError(f"{config.where}.added_tokens_decoder is a {type(by_id).__name__}; expected an object")
    for token_id, body in by_id.items():
        fields = Fields(body, f"{config.where}.added_tokens_decoder[{token_id!r}]")
        token = AddedToken(
            fields.string("content"),
            single_word=fields.boolean("single_word", False),
            lstrip=fields.boolean("lstrip", False),
            rstrip=fields.boolean("rstrip", False),
            normalized=fields.boolean("normalized", False),
            special=fields.boolean("special", False),
        )
        fields.finish()
        tokens[token.content] = token
    return list(tokens.values())


def _listed(config: Fields, name: str) -> list[object]:
    value = config.raw(name, None) or []
    if isinstance(value, dict):
        return list(value.values())
    if not isinstance(value, list):
        raise TokenizerError(f"{config.where}.{name} is a {type(value).__name__}; expected an array")
    return value


def tokenizer_family(directory: Path, config: Fields) -> str:
    """Return the tokenizer's family: its class without ``Tokenizer`` and ``Fast``.

    Without a class the model's type, or ``""``.
    """
    if config.raw("tokenizer_class", None) is not None:
        return config.string("tokenizer_class").removesuffix("Fast").removesuffix("Tokenizer")
    model_path = directory / "config.json"
    if model_path.exists():
        model = Fields(read_json_object(model_path), "config.json")
        if model.raw("model_type", None) is not None:
            return model.string("model_type")
    return ""
