"""Finds a model's chat template and special tokens' texts.

They are in a directory's files or in a GGUF file.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lattice_inference.argument_checks import check_path
from lattice_inference.checkpoint.formats import is_gguf, only_gguf
from lattice_inference.errors import TokenizerError
from lattice_inference.tokenizer.chat_template import ChatTemplate
from lattice_inference.tokenizer.fields import read_json_object, read_text_file

if TYPE_CHECKING:
    from lattice_inference.checkpoint.gguf import GgufFile

__all__ = [
    "gguf_special_tokens",
    "gguf_templates",
    "load_chat_template",
    "make_chat_template",
    "read_special_tokens",
]

TEMPLATE_NAME = "chat_template.jinja"
OLD_TEMPLATE_NAME = "chat_template.json"
NAMED_TEMPLATES = "additional_chat_templates"
CONFIG_NAMES = ("special_tokens_map.json", "tokenizer_config.json")  # the later one counts

_OWN_NAMES = (TEMPLATE_NAME, OLD_TEMPLATE_NAME, "config.json", "tokenizer.json")

GGUF_TEMPLATE = "tokenizer.chat_template"
GGUF_ROLES = {
    "bos": "bos_token",
    "eos": "eos_token",
    "eot": "eot_token",
    "eom": "eom_token",
    "unknown": "unk_token",
    "seperator": "sep_token",  # GGUF's spelling
    "padding": "pad_token",
    "mask": "mask_token",
}


def load_chat_template(path: str | os.PathLike[str]) -> ChatTemplate | None:
    """Return the chat template of a model's directory or GGUF file, ``None`` if it has none.

    In a directory a chat_template.jinja counts before a chat_template.json and that before the tokenizer_config.json.

    Raises:
        TokenizerError, CheckpointError: a file is malformed.
        ModelConfigError: the template is.
    """
    check_path("path", path)
    path = _place(Path(path))
    texts = _texts_of_file(path) if os.path.isfile(path) else _texts_of_directory(path)
    return make_chat_template(texts, read_special_tokens(path), path) if texts else None


def make_chat_template(texts: Mapping[str, str], special_tokens: Mapping[str, str], path: Path) -> ChatTemplate | None:
    """Return the template made of its texts by name, or ``None`` without texts.

    ``path`` is for messages.

    Raises:
        TokenizerError: none of them is named ``default``.
        ModelConfigError: the template is malformed.
    """
    if not texts:
        return None
    texts = dict(texts)
    default = texts.pop("default", None)
    if default is None:
        raise TokenizerError(f"{path} has chat templates named {', '.join(sorted(texts))}, but none named 'default'")
    return ChatTemplate(default, special_tokens, named=texts)


def read_special_tokens(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the texts of special tokens by role: ``bos_token``, ``eos_token`` and so on.

    Raises:
        TokenizerError, CheckpointError: a file is malformed.
    """
    path = _place(Path(path))
    if os.path.isfile(path):
        return _special_tokens_of_file(path)
    found: dict[str, str] = {}
    for name in CONFIG_NAMES:
        if (path / name).is_file():
            for role, value in read_json_object(path / name).items():
                content = value.get("content") if isinstance(value, dict) else value
                if role.endswith("_token") and isinstance(content, str):
                    found[role] = content
    return found


def _place(path: Path) -> Path:
    """Return where to search.

    A directory without a tokenizer's files stands for its only GGUF file.
    """
    if not os.path.isdir(path) or any((path / name).is_file() for name in (*_OWN_NAMES, *CONFIG_NAMES)):
        return path
    return only_gguf(path) or path


def _texts_of_directory(directory: Path) -> dict[str, str]:
    texts: dict[str, str] = {}
    config = directory / "tokenizer_config.json"
    for file in (config, directory / OLD_TEMPLATE_NAME):
        if file.is_file():
            texts |= _named(read_json_object(file).get("chat_template"), file)
    if (directory / TEMPLATE_NAME).is_file():
        texts["default"] = read_text_file(directory / TEMPLATE_NAME)
    for file in sorted((directory / NAMED_TEMPLATES).glob("*.jinja")):
        texts[file.stem] = read_text_file(file)
    return texts


def _named(value: object, where: Path) -> dict[str, str]:
    """Return the templates by name of one text, or of a list of names and texts."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    entries = value if isinstance(value, list) else [value]
    texts: dict[str, str] = {}
    for entry in entries:
        name, text = (entry.get("name"), entry.get("template")) if isinstance(entry, Mapping) else (None, None)
        if not isinstance(name, str) or not isinstance(text, str):
            raise TokenizerError(f"{where}: chat_template is neither a text nor a list of names and templates")
        texts[name] = text
    return texts


def _texts_of_file(path: Path) -> dict[str, str]:
    with _open_gguf(path) as file:
        return {} if file is None else gguf_templates(file.metadata)


def gguf_templates(metadata: Mapping[str, object]) -> dict[str, str]:
    """Return the templates that an open GGUF file states, by name."""
    return {
        key[len(GGUF_TEMPLATE) + 1 :] or "default": value
        for key, value in metadata.items()
        if (key == GGUF_TEMPLATE or key.startswith(f"{GGUF_TEMPLATE}.")) and isinstance(value, str)
    }


def _special_tokens_of_file(path: Path) -> dict[str, str]:
    with _open_gguf(path) as file:
        return {} if file is None else gguf_special_tokens(file.metadata)


def gguf_special_tokens(metadata: Mapping[str, object]) -> dict[str, str]:
    """Return the texts of special tokens by their roles that an open GGUF file states."""
    found: dict[str, str] = {}
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, Sequence):
        return found
    texts = list(tokens)
    for name, role in GGUF_ROLES.items():
        token_id = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if isinstance(token_id, int) and 0 <= token_id < len(texts) and isinstance(texts[token_id], str):
            found[role] = texts[token_id]
    return found


@contextlib.contextmanager
def _open_gguf(path: Path) -> Iterator[GgufFile | None]:
    """Open a GGUF file.

    Any other file, such as a tokenizer.json, has neither templates nor roles.
    """
    if not is_gguf(path):
        yield None
        return
    from lattice_inference.checkpoint.gguf import open_gguf_file

    with open_gguf_file(path) as file:
        yield file
