"""What a session's penalties count: the whole context, however its tokens came there."""

from __future__ import annotations

import numpy as np
import pytest

from lattice_inference import load_model
from lattice_inference.generate.config import GenerateConfig
from lattice_inference.generate.session import Session, SessionConfig
from tiny_decoders import VOCAB, write_told_model

ONE = GenerateConfig(1, temperature=0, repetition_penalty=1.2)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """After every token it says x, or y where x has a penalty and y has none."""
    table = np.zeros((VOCAB, VOCAB), np.float32)
    table[:, ord("x")], table[:, ord("y")] = 2.0, 1.9
    with load_model(write_told_model(tmp_path_factory.mktemp("models") / "xy", table)) as made:
        yield made


@pytest.mark.parametrize("settings", [{}, {"chunk_tokens": 3}, {"prefix_bytes": 10**7}], ids=str)
@pytest.mark.parametrize("behind", [0, 1, 65, 200])
def test_a_token_of_the_prompt_is_penalized_on_every_way_there(model, settings, behind):
    """Case I3: however far back it stands, run now, held from before, forked or remembered."""
    context = "x" + "a" * behind
    with Session(model, config=SessionConfig(cache_tokens=1024, **settings)) as session:
        assert session.generate("b" + "a" * behind, ONE).text == "x"
        assert session.generate(context, ONE).text == "y"
        assert session.generate(context, ONE).text == "y"
        assert "".join(piece.text for piece in session.stream(context, ONE)) == "y"
        assert [result.text for result in session.generate_batch(["a", context], ONE)] == ["x", "y"]
        session.generate("other", GenerateConfig(0))
        session.extend(context, GenerateConfig(0))
        with session.fork() as fork:
            assert fork.extend("a", ONE).text == "y"
        assert session.extend("a", ONE).text == "y"
        session.rewind(5)
        assert session.extend("a", ONE).text == "x"


def test_a_generated_token_is_penalized_in_what_follows(model):
    with Session(model) as session:
        assert session.generate("a", GenerateConfig(4, temperature=0, repetition_penalty=1.2)).text == "xyxx"
        session.rewind(2)
        assert session.extend("b", ONE).text == "y"
        session.rewind(1)
        assert session.extend("b", ONE).text == "x"


@pytest.mark.parametrize("context", ["xy", "xx" * 30 + "y", "x" + "y" * 60], ids=len)
def test_a_token_is_penalized_once_however_often_it_stands_there(model, context):
    """Case I1: with a penalty for both, x stays ahead; counted by occurrence the rarer one would win."""
    assert Session(model).generate(context, ONE).text == "x"


def test_presence_and_frequency_count_what_was_generated_only(model):
    for penalties in ({"presence_penalty": 0.5}, {"frequency_penalty": 0.5}):
        config = GenerateConfig(3, temperature=0, **penalties)
        assert Session(model).generate("x" * 9, config).text == "xyx"
