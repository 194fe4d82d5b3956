"""A compiler over single bytes, with which a test can ask whether a text obeys a grammar."""

from __future__ import annotations

import pytest

pytest.importorskip("llguidance")

from lattice_inference import GrammarError, load_tokenizer
from lattice_inference.grammar.compiler import GrammarCompiler
from tiny_decoders import BYTES, write_tokenizer


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
        try:
            for byte in text.encode() if isinstance(text, str) else text:
                matcher.accept(byte)
        except GrammarError:
            return False
        return prefix or matcher.can_end

    return asked
