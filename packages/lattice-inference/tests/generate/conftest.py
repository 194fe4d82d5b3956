"""Small models that the tests of generation share; each is written and loaded once."""

from __future__ import annotations

import pytest

from lattice_inference import load_model
from tiny_decoders import BOS, END, EOS, chain, write_drawn_model, write_told_model


@pytest.fixture(scope="session")
def drawn_directory(tmp_path_factory):
    return write_drawn_model(tmp_path_factory.mktemp("models") / "drawn", context=128)


@pytest.fixture(scope="session")
def drawn_model(drawn_directory):
    """Its tokens depend on all before them."""
    with load_model(drawn_directory) as model:
        yield model


@pytest.fixture(scope="session")
def told_model(tmp_path_factory):
    """Return a model that says the bytes of a text one after the other, then the given end."""
    loaded = {}

    def told(text, *ends, **settings):
        key = (text, ends, repr(settings))
        if key not in loaded:
            directory = tmp_path_factory.mktemp("models") / "told"
            loaded[key] = load_model(write_told_model(directory, chain(text, *ends), **settings))
        return loaded[key]

    yield told
    for model in loaded.values():
        model.close()


@pytest.fixture(scope="session")
def chatting_model(tmp_path_factory):
    """A model that answers every message with "Yes, 😀." and ends its turn."""
    directory = tmp_path_factory.mktemp("models") / "chatting"
    table = chain("Yes, 😀.", END) | {259: ord("Y"), END: EOS, BOS: ord("Y")}
    with load_model(write_told_model(directory, table)) as model:
        yield model
