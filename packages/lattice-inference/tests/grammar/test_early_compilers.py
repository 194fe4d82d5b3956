"""The table of a vocabulary is made beforehand by a server, and one tokenizer's does not hold up another's."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from lattice_inference import Engine, EngineConfig, GrammarError, load_model, load_tokenizer
from lattice_inference.grammar import compiler
from lattice_inference.grammar.compiler import begin_compiler, compiler_of
from tiny_decoders import BYTES, write_drawn_model, write_tokenizer


def made_of(tokenizer) -> bool:
    """Wait until the tokenizer has a compiler, ten seconds at most."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if tokenizer in compiler._COMPILERS and compiler._COMPILERS[tokenizer].made:
            return True
        time.sleep(0.002)
    return False


@pytest.fixture
def tokenizer(tmp_path):
    write_tokenizer(tmp_path)
    return load_tokenizer(tmp_path)


def test_a_server_makes_it_when_it_starts(tmp_path):
    pytest.importorskip("starlette")
    from starlette.testclient import TestClient

    from lattice_inference.serve import create_app

    with load_model(write_drawn_model(tmp_path)) as model, Engine(model, EngineConfig(page_tokens=16)) as engine:
        assert model.tokenizer not in compiler._COMPILERS
        with TestClient(create_app(models={"drawn": engine}), base_url="http://127.0.0.1"):
            assert made_of(model.tokenizer)
        (size,) = compiler._COMPILERS[model.tokenizer].made
        assert (
            compiler_of(model.tokenizer, engine._prepare.vocab_size) is compiler._COMPILERS[model.tokenizer].made[size]
        )


def test_what_cannot_be_made_is_told_by_the_first_grammar(tokenizer):
    begin_compiler(tokenizer, 60)  # has no letters
    with pytest.raises(GrammarError, match="has no token for the character"):
        compiler_of(tokenizer, 60)


def test_tokenizers_do_not_wait_for_each_other(tokenizer, tmp_path, monkeypatch):
    """A compiler is made while another tokenizer's takes long; threads that want the same one share it."""
    started, goes_on = threading.Event(), threading.Event()
    make = compiler.GrammarCompiler

    def slow(given, size):
        if given is tokenizer:
            started.set()
            goes_on.wait(10)
        return make(given, size)

    monkeypatch.setattr(compiler, "GrammarCompiler", slow)
    begin_compiler(tokenizer, BYTES)
    assert started.wait(10)
    other = load_tokenizer(tmp_path)
    assert compiler_of(other, BYTES) is compiler_of(other, BYTES)
    assert not compiler._COMPILERS[tokenizer].made
    goes_on.set()
    assert compiler_of(tokenizer, BYTES) is compiler_of(tokenizer, BYTES)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_that_is_forked_meanwhile_makes_one_too(tokenizer, monkeypatch):
    """The thread that makes the table in the parent is not there in the child, which waited for it for ever."""
    begun, release, made = threading.Event(), threading.Event(), compiler.GrammarCompiler

    def slowly(*arguments):
        begun.set()
        release.wait(20)
        return made(*arguments)

    monkeypatch.setattr(compiler, "GrammarCompiler", slowly)
    begin_compiler(tokenizer, BYTES)
    assert begun.wait(10)
    child = os.fork()
    if not child:
        signal.alarm(10)
        compiler.GrammarCompiler = made
        compiler_of(tokenizer, BYTES)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    release.set()
    assert made_of(tokenizer)
    assert status == 0
