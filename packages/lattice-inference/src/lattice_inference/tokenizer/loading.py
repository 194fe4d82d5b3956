"""Finds and loads a tokenizer's file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from lattice_inference.argument_checks import check_path, checked_flag
from lattice_inference.checkpoint.formats import gguf_files, is_gguf, only_gguf
from lattice_inference.checkpoint.model_file import content_of
from lattice_inference.errors import InvalidInputError, ModelNotFoundError, UnsupportedError
from lattice_inference.tokenizer.definition import parse_definition
from lattice_inference.tokenizer.gguf_tokenizer import gguf_tokenizer_definition, read_gguf_tokenizer
from lattice_inference.tokenizer.merges_file import MERGES_NAME, VOCABULARY_NAME, read_merges_file
from lattice_inference.tokenizer.sentencepiece import SENTENCEPIECE_FILE_NAMES, read_sentencepiece_model
from lattice_inference.tokenizer.tokenizer import Tokenizer
from lattice_inference.tokenizer.tokenizer_file import read_tokenizer_file
from lattice_inference.tokenizer.vocabulary_file import read_vocabulary_file

__all__ = ["gguf_tokenizer", "load_tokenizer"]

_FILE_NAMES = ("tokenizer.json", "vocab.txt", VOCABULARY_NAME, MERGES_NAME, *SENTENCEPIECE_FILE_NAMES)

_OTHER_FORMATS = {
    "*.tiktoken": "a tiktoken vocabulary",
}


def load_tokenizer(path: str | os.PathLike[str], *, apply_file_limits: bool = False) -> Tokenizer:
    """Load a tokenizer from a directory or file.

    Files are a tokenizer.json, a vocab.txt, a vocab.json, a SentencePiece model or a GGUF file. Of a directory the
    first of these is taken: tokenizer.json, vocab.txt, vocab.json with merges.txt, a SentencePiece model, the only
    GGUF file. A vocab.txt is BERT's, with the settings (``do_lower_case`` and so on) of the tokenizer_config.json
    beside it. The others are read as transformers reads them for the class that the tokenizer_config.json or
    config.json names. Truncation and padding in a tokenizer.json are more often settings of its training than limits
    of the model. So they are applied only with ``apply_file_limits=True``; other files state none and refuse it.

    Raises :class:`ModelNotFoundError` if there is no file, :class:`TokenizerError` if it is malformed and
    :class:`UnsupportedError` if it is of another format or uses a component that is not built.
    """
    check_path("path", path)
    checked_flag("apply_file_limits", apply_file_limits)
    file = _tokenizer_file(Path(path))
    if apply_file_limits and (is_gguf(file) or file.suffix != ".json" or file.name == VOCABULARY_NAME):
        raise InvalidInputError(
            f"{file}: apply_file_limits is for a tokenizer.json, and this file states neither truncation nor padding: leave "
            "it out"
        )
    if is_gguf(file):
        definition = read_gguf_tokenizer(file)
    elif file.name in (VOCABULARY_NAME, MERGES_NAME):
        definition = read_merges_file(file.parent)
    elif file.suffix == ".txt":
        definition = read_vocabulary_file(file)
    elif file.suffix in (".model", ".spm"):
        definition = read_sentencepiece_model(file)
    elif file.suffix == ".json":
        definition = parse_definition(read_tokenizer_file(file))
    else:
        raise UnsupportedError(
            f"{file} is {content_of(file)}: it is neither a tokenizer.json, a vocab.txt, a SentencePiece model nor a GGUF "
            "file; other formats are not supported"
        )
    return Tokenizer(definition, apply_file_limits=apply_file_limits)


def gguf_tokenizer(metadata: Mapping[str, object], path: Path) -> Tokenizer:
    """Return the tokenizer of an open GGUF file.

    ``metadata`` are its keys, and ``path`` is for messages.

    Raises:
        TokenizerError: a part of it is missing or malformed.
        UnsupportedError: it is of a kind that is not built.
    """
    return Tokenizer(gguf_tokenizer_definition(metadata, path))


def _tokenizer_file(path: Path) -> Path:
    if os.path.isfile(path):  # unlike Path.is_file, false for names that cannot be
        return path
    if not os.path.isdir(path):
        raise ModelNotFoundError(f"there is no tokenizer at {path}")
    for name in _FILE_NAMES:
        if os.path.isfile(path / name):
            return path / name
    only = only_gguf(path)
    if only is not None:
        return only
    files = gguf_files(path)
    if files:
        names = ", ".join(file.name for file in files[:5])
        raise InvalidInputError(
            f"{path} has {len(files)} GGUF files, and each may have a tokenizer: name one of {names}"
        )
    others = [f"{name} ({what})" for name, what in _OTHER_FORMATS.items() if any(path.glob(name))]
    if others:
        raise UnsupportedError(f"{path} has neither {' nor '.join(_FILE_NAMES)}, only {', '.join(others)}")
    raise ModelNotFoundError(f"{path} has neither {' nor '.join(_FILE_NAMES)}")
