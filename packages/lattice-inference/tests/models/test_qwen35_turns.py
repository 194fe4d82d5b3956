"""Qwen3.5 in conversations: its template drops earlier thoughts, and only what differs is run."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import qwen3_files
import qwen35_files as files
from drawn_checkpoints import draw_ids
from lattice_inference import Chat, ChatTemplate, GenerateConfig, Session, SessionConfig, load_model
from lattice_inference.graph.recurrent_ops import DELTA_BLOCK
from lattice_inference.state.recurrent_slots import MARK_TOKENS
from test_qwen35_state import rows_run

TEMPLATE = ChatTemplate((Path(__file__).parents[1] / "data" / "chat" / "qwen3.5.jinja").read_text(encoding="utf-8"))
CONFIG = GenerateConfig(max_new_tokens=40, temperature=1.0, seed=3, ignore_stop_tokens=True, repetition_penalty=1.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    changes = files.CASES["double"] | {"vocab_size": qwen3_files.SMALL_VOCAB}
    with load_model(files.write(tmp_path_factory.mktemp("turns") / "m", changes)) as loaded:
        yield loaded


def common(one, other):
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@pytest.mark.slow
@pytest.mark.parametrize("prefix_bytes", [0, 1 << 24])
def test_twenty_turns_with_thoughts_run_only_what_differs(model, prefix_bytes):
    """The model says letters, and now and then the mark that ends a thought."""
    said = [
        *(model.tokenizer.encode(letter).ids[0] for letter in "abcdefghijk "),
        model.tokenizer.token_to_id("</think>"),
    ]
    config = replace(CONFIG, logit_bias=dict.fromkeys(map(int, said), 40.0), max_new_tokens=60)
    dropped = 0
    with (
        Session(model, config=SessionConfig(max_tokens=4000, prefix_bytes=prefix_bytes)) as session,
        Session(model, config=SessionConfig(max_tokens=4000)) as fresh,
    ):
        chat = Chat(session, template=TEMPLATE, system="Answer in letters.", config=config)
        for turn in range(20):
            held = session.token_ids
            turn_config = replace(config, seed=turn)
            result, rows = rows_run(model, partial(chat.send, "ask " * (1 + 7 * turn % 23), turn_config))
            prompt = session.token_ids[: result.prompt_tokens]
            decoded = len(result.token_ids) - 1
            assert rows - decoded <= len(prompt) - common(held, prompt) + DELTA_BLOCK
            dropped += "</think>" in result.text
            fresh.reset()
            assert fresh.generate(prompt, turn_config).token_ids == result.token_ids
    assert dropped > 10


def drawn(name, length):
    return [int(token) for token in draw_ids(f"qwen3.5 turns {name}", length, files.VOCAB)]


def test_a_prompt_is_remembered_before_its_first_token(model):
    prompt = drawn("prompt", 100)
    with Session(model, config=SessionConfig(max_tokens=400, cache_tokens=1200, prefix_bytes=1 << 22)) as session:
        stream = session.stream(prompt, CONFIG)
        next(stream)
        with session._cache.start([*prompt, 1]) as found:
            assert found.length == 96
        for _ in stream:  # goes on in pages and slots that are shared now
            pass
        with Session(model, config=SessionConfig(max_tokens=400)) as fresh:
            assert fresh.generate(prompt, CONFIG).token_ids == stream.result.token_ids


def test_a_long_prompt_that_is_cancelled_goes_on_from_a_state_within_it(model):
    prompt, other = drawn("long", 3 * MARK_TOKENS + 70), drawn("other", 50)
    event = threading.Event()
    settings = SessionConfig(max_tokens=4000, cache_tokens=9000, prefix_bytes=1 << 24, chunk_tokens=512)
    with Session(model, config=settings) as session:
        result = session.generate([*prompt, *other], replace(CONFIG, max_new_tokens=4), cancelled=event)
        again = session.generate([*prompt[: 2 * MARK_TOKENS + 300], *other], replace(CONFIG, max_new_tokens=4))
        assert again.reused_tokens >= MARK_TOKENS
        session.reset()
        assert session.generate([*prompt, *other], replace(CONFIG, max_new_tokens=4)).token_ids == result.token_ids


def test_prompts_of_a_batch_that_wait_begin_where_an_earlier_prompt_ended(model):
    beginning = drawn("beginning", 130)
    prompts = [[*beginning, *drawn(f"rest {number}", 9)] for number in range(10)]
    with Session(model, config=SessionConfig(max_tokens=300, cache_tokens=4000, prefix_bytes=1 << 22)) as session:
        together = session.generate_batch(prompts, [replace(CONFIG, max_new_tokens=5 + 20 * n) for n in range(10)])
        assert [result.reused_tokens for result in together[8:]] == [128, 128]
        for number, result in enumerate(together):
            session.reset()
            alone = session.generate(prompts[number], replace(CONFIG, max_new_tokens=5 + 20 * number))
            assert alone.token_ids == result.token_ids
