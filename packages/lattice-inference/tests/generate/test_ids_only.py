"""A model without a tokenizer: token ids go in and come out."""

from __future__ import annotations

import pytest

from lattice_inference import Chat, GenerateConfig, Session, SessionConfig, load_model, load_tokenizer, perplexity
from lattice_inference.errors import InvalidInputError, UnsupportedError
from test_decoder_gguf import write
from tiny_decoders import write_tokenizer

PROMPT = [5, 17, 40, 3]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    with load_model(write(tmp_path_factory.mktemp("ids") / "model.gguf", "llama")) as loaded:
        yield loaded


def test_a_session_generates_streams_batches_forks_and_rewinds_by_ids(model):
    assert not model.has_tokenizer
    with Session(model, config=SessionConfig(max_tokens=200, cache_tokens=400)) as session:
        assert session.tokenizer is None
        result = session.generate(PROMPT, GenerateConfig.greedy(8))
        assert len(result.token_ids) == 8
        assert result.text == ""
        assert session.token_ids == (*PROMPT, *result.token_ids)
        assert [piece.token_id for piece in session.stream(PROMPT, GenerateConfig.greedy(8)) if piece.token_id] == list(
            result.token_ids
        )
        assert session.generate_batch([PROMPT, [9]], GenerateConfig.greedy(8))[0].token_ids == result.token_ids
        more = session.extend([7], GenerateConfig.greedy(3)).token_ids
        session.rewind(len(PROMPT) + 8)
        with session.fork() as fork:
            assert fork.extend([7], GenerateConfig.greedy(3)).token_ids == more
        drawn = session.generate(PROMPT, GenerateConfig(max_new_tokens=5, seed=3, logprobs=2))
        assert len(drawn.logprobs) == 5


def test_stop_tokens_are_the_models(model):
    with Session(model, config=SessionConfig(max_tokens=200)) as session:
        assert session.stop_token_ids == frozenset(model.eos_token_ids)
        free = session.generate(PROMPT, GenerateConfig.greedy(8)).token_ids
        stopped = session.generate(PROMPT, GenerateConfig(max_new_tokens=8, temperature=0, stop_token_ids=[free[0]]))
        assert stopped.stop_token_id == free[0]
        assert stopped.token_ids == ()


def test_what_needs_text_is_refused(model):
    with Session(model, config=SessionConfig(max_tokens=200)) as session:
        for attempt in (lambda: session.generate("a text"), lambda: session.extend("a text")):
            with pytest.raises(InvalidInputError, match="no tokenizer: pass token ids"):
                attempt()
        with pytest.raises(InvalidInputError, match="leave stop out"):
            session.generate(PROMPT, GenerateConfig(stop="."))
        with pytest.raises(UnsupportedError, match="no chat template"):
            Chat(session)
    assert perplexity(model, list(range(40)), window=16, stride=8).tokens == 39


def test_a_tokenizer_may_be_passed(model, tmp_path):
    write_tokenizer(tmp_path)
    with Session(model, load_tokenizer(tmp_path), SessionConfig(max_tokens=200)) as session:
        result = session.generate("ab", GenerateConfig.greedy(4))
        assert session.token_ids[:2] == (97, 98)
        assert result.text == session.tokenizer.decode(result.token_ids)
