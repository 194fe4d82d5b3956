"""A compiler over single bytes, with which a test can ask whether a text obeys a grammar."""

from __future__ import annotations

import pytest

pytest.importorskip("llguidance")

from lattice_inference import load_tokenizer
from lattice_inference.grammar.compiler import GrammarCompiler
from tiny_decoders import BYTES, write_tokenizer

from ..generate.conftest import chatting_model, drawn_directory, drawn_model, told_model  # noqa: F401, TID252


@pytest.fixture(scope="session")
def byte_compiler(tmp_path_factory):
    """Its tokens are the 256 bytes and some special ones."""
    directory = tmp_path_factory.mktemp("tokenizers") / "bytes"
    directory.mkdir()
    write_tokenizer(directory)
    return GrammarCompiler(load_tokenizer(directory), BYTES)


@pytest.fixture(scope="session")
def obeys(byte_compiler):
    """Say whether a text obeys a grammar; with ``prefix`` whether it begins one that does."""

    def asked(grammar, text: str | bytes, *, prefix: bool = False) -> bool:
        matcher = byte_compiler.matcher(grammar)
        data = text.encode() if isinstance(text, str) else text
        if matcher._engine.validate_tokens(list(data)) < len(data):  # quicker than the error of accept()
            return False
        for byte in data:
            matcher.accept(byte)
        return prefix or matcher.can_end

    return asked
