"""The real SmolLM2-135M-Instruct at four bits, against what transformers makes of the same file."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from lattice_inference import Chat, GenerateConfig, Session, SessionConfig, load_model, perplexity

pytestmark = pytest.mark.model

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "generate" / "smollm2.json").read_text(encoding="utf-8"))
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
PROMPT = "The capital of France is"
GREEDY_IDS = (7042, 30, 198, 198, 504, 2988)


@pytest.fixture(scope="module")
def file(smollm2):
    assert hashlib.sha256(smollm2.read_bytes()).hexdigest() == SHA256
    return smollm2


@pytest.fixture(scope="module")
def model(file):
    with load_model(file, precision="float32") as loaded:
        yield loaded


@pytest.fixture
def session(model):
    with Session(model, config=SessionConfig(max_tokens=512)) as made:
        yield made


@pytest.mark.slow
def test_greedy_ids_are_those_of_transformers(session):
    result = session.generate(PROMPT, GenerateConfig.greedy(len(GOLDEN["greedy"])))
    assert list(result.token_ids) == GOLDEN["greedy"]
    assert result.token_ids[:6] == GREEDY_IDS
    assert result.text.startswith(" Paris.\n\n")


def test_a_batch_gives_the_same_ids(session):
    prompts = ["Once upon a time", PROMPT, "2 + 2 ="]
    assert session.generate_batch(prompts, GenerateConfig.greedy(6))[1].token_ids == GREEDY_IDS


@pytest.mark.slow
def test_a_turn_of_a_conversation_answers_the_question(session):
    chat = Chat(session, config=GenerateConfig.greedy(40))
    result = chat.send("What is the capital of France?")
    assert "Paris" in result.text
    assert result.finish_reason == "stop_token"
    assert list(session.token_ids[:3]) == [
        1,
        9690,
        198,
    ]  # the template's system message, and no other beginning before it


def test_an_emoji_survives_the_way_through_the_model(session):
    text = "A: 😀\nB: 😀\nA: 😀\nB:"
    stream = session.stream(text, GenerateConfig.greedy(5))
    assert "".join(piece.text for piece in stream) == stream.result.text == " 😀\nA:"
    assert session.tokenizer.decode(session.token_ids) == f"{text} 😀\nA:"


@pytest.mark.slow
def test_a_text_is_predicted_as_well_as_by_transformers(model):
    """All of the 2,048 tokens that the perplexity of 25.24 is about take a minute: tools/goldens/smollm2.py has them."""
    result = perplexity(model, GOLDEN["text"], window=GOLDEN["window"], stride=GOLDEN["stride"])
    assert result.tokens == GOLDEN["tokens"]
    assert result.nll == pytest.approx(GOLDEN["nll"], abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("activations", ["int8", "float32"])
def test_as_stored_it_goes_on_alike_by_integers_and_by_floats(file, activations):
    with (
        load_model(file, activations=activations) as stored,
        Session(stored, config=SessionConfig(max_tokens=64)) as session,
    ):
        assert session.generate(PROMPT, GenerateConfig.greedy(6)).token_ids == GREEDY_IDS
