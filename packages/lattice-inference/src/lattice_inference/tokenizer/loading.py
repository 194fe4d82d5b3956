"""Finds and loads a tokenizer's file."""

from __future__ import annotations

import os
from pathlib import Path

from lattice_inference.argument_checks import check_flag, check_path
from lattice_inference.checkpoint.formats import is_gguf
from lattice_inference.errors import InvalidInputError, ModelNotFoundError, UnsupportedError
from lattice_inference.tokenizer.definition import parse_definition
from lattice_inference.tokenizer.gguf_tokenizer import read_gguf_tokenizer
from lattice_inference.tokenizer.merges_file import MERGES_NAME, VOCABULARY_NAME, read_merges_file
from lattice_inference.tokenizer.sentencepiece import SENTENCEPIECE_FILE_NAMES, read_sentencepiece_model
from lattice_inference.tokenizer.tokenizer import Tokenizer
from lattice_inference.tokenizer.tokenizer_file import read_tokenizer_file
from lattice_inference.tokenizer.vocabulary_file import read_vocabulary_file

__all__ = ["load_tokenizer"]

_FILE_NAMES = ("tokenizer.json", "vocab.txt", VOCABULARY_NAME, MERGES_NAME, *SENTENCEPIECE_FILE_NAMES)

_OTHER_FORMATS = {
    "*.tiktoken": "a tiktoken vocabulary",
}


def load_tokenizer(path: str | os.PathLike[str], *, apply_file_limits: bool = False) -> Tokenizer:
    """Load a tokenizer from a directory, a tokenizer.json, a vocab.txt, a vocab.json, a SentencePiece model or a GGUF file.

    A directory's tokenizer.json is taken before its vocab.txt, that before a vocab.json with the merges.txt beside it, that
    before a SentencePiece model, and that before the directory's only GGUF file. A vocab.txt is BERT's, with the settings
    (``do_lower_case`` and so on) of the tokenizer_config.json beside it. The others are read as transformers reads them
    for the class that the tokenizer_config.json or config.json names. Truncation and padding that a tokenizer.json states
    are settings of its training more often than limits of the model, so they are applied only with
    ``apply_file_limits=True``.

    Raises :class:`ModelNotFoundError` if there is no file, :class:`TokenizerError` if it is malformed and
    :class:`UnsupportedError` if it is of another format or uses a component that is not built.
    """
    apply_file_limits = check_flag("apply_file_limits", apply_file_limits)
    file = _tokenizer_file(check_path("path", path))
    if file.name in (VOCABULARY_NAME, MERGES_NAME):
        definition = read_merges_file(file.parent)
    elif file.suffix == ".txt":
        definition = read_vocabulary_file(file)
    elif file.suffix in (".model", ".spm"):
        definition = read_sentencepiece_model(file)
    elif file.suffix == ".json":
        definition = parse_definition(read_tokenizer_file(file))
    elif is_gguf(file):
        definition = read_gguf_tokenizer(file)
    else:
        raise UnsupportedError(
            f"{file} is neither a tokenizer.json, a vocab.txt, a SentencePiece model nor a GGUF file; other formats are not "
            "supported"
        )
    return Tokenizer(definition, apply_file_limits=apply_file_limits)


def _tokenizer_file(path: Path) -> Path:
    if path.is_file():
        return path
    if not path.is_dir():
        raise ModelNotFoundError(f"there is no tokenizer at {path}")
    for name in _FILE_NAMES:
        if (path / name).is_file():
            return path / name
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return files[0]
    if files:
        names = ", ".join(file.name for file in files[:5])
        raise InvalidInputError(
            f"{path} has {len(files)} GGUF files, and each may have a tokenizer: name one of {names}"
        )
    others = [f"{name} ({what})" for name, what in _OTHER_FORMATS.items() if any(path.glob(name))]
    if others:
        raise UnsupportedError(f"{path} has neither {' nor '.join(_FILE_NAMES)}, only {', '.join(others)}")
    raise ModelNotFoundError(f"{path} has neither {' nor '.join(_FILE_NAMES)}")
