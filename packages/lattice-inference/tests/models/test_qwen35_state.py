"""Qwen3.5 in sessions: conversations, batches and saved states that run little again and change no token."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import qwen35_files as files
from drawn_checkpoints import draw_ids
from lattice_inference import Extension, GenerateConfig, Session, SessionConfig, load_model
from lattice_inference.errors import CacheFullError, InvalidInputError
from lattice_inference.graph.recurrent_ops import DELTA_BLOCK
from lattice_inference.memory.fit import estimate_memory

CONFIG = GenerateConfig(max_new_tokens=40, temperature=1.0, seed=3, ignore_stop_tokens=True, repetition_penalty=1.1)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    with load_model(files.write(tmp_path_factory.mktemp("qwen35") / "m", files.CASES["double"])) as loaded:
        yield loaded


def drawn(name, length):
    return [int(token) for token in draw_ids(f"qwen3.5 state {name}", length, files.VOCAB)]


def rows_run(model, call):
    """The rows that reach the backend in ``call``, and its result."""
    program, counts = model._program._program, []
    submit = program.submit
    program.submit = lambda batch, **options: counts.append(batch.tokens) or submit(batch, **options)
    try:
        return call(), sum(counts)
    finally:
        del program.submit


def test_memory_counts_the_states_of_a_generation(model):
    need = estimate_memory(model.directory, context=64)
    with model.open_cache(tokens=64) as cache:
        assert need.state_bytes == 3 * cache.storage.recurrent.slot_bytes > 0
        assert need.needed_bytes == need.weights_bytes + need.kv_bytes + need.state_bytes
        with cache.sequence() as sequence:
            model.forward([Extension(sequence, [1, 2])])
            assert cache.used_bytes == cache.storage.page_bytes + cache.storage.recurrent.slot_bytes


def test_more_prompts_than_states_wait_for_one_another(model):
    prompts = [drawn(f"prompt {number}", 30 + 7 * number) for number in range(12)]
    configs = [replace(CONFIG, max_new_tokens=3 + 4 * number) for number in range(12)]
    with Session(model, config=SessionConfig(max_tokens=200, cache_tokens=4000)) as session:
        session.generate(drawn("own", 50), CONFIG)
        together = session.generate_batch(prompts, configs)
        alone = [session.generate(prompt, config) for prompt, config in zip(prompts, configs, strict=True)]
    assert [result.token_ids for result in together] == [result.token_ids for result in alone]


@pytest.mark.slow
@pytest.mark.parametrize("prefix_bytes", [0, 1 << 24])
def test_a_conversation_of_twenty_turns_runs_only_what_differs(model, prefix_bytes):
    """Each turn's template drops what was thought before, and the header of the answer."""
    with Session(model, config=SessionConfig(max_tokens=2000, prefix_bytes=prefix_bytes)) as session:
        history = []
        for turn in range(20):
            prompt = [*history, *drawn(f"turn {turn}", 5 + 7 * turn % 40), 1, 1, 1, 0, 0]
            held = session.token_ids
            common = next((i for i, (a, b) in enumerate(zip(held, prompt, strict=False)) if a != b), len(held))
            config = replace(CONFIG, max_new_tokens=20 + turn)
            result, rows = rows_run(model, lambda prompt=prompt, config=config: session.generate(prompt, config))
            decoded = len(result.token_ids) - 1
            assert rows - decoded <= len(prompt) - common + DELTA_BLOCK
            with Session(model, config=SessionConfig(max_tokens=2000)) as fresh:
                assert fresh.generate(prompt, config).token_ids == result.token_ids
            history = [*prompt[:-2], *result.token_ids[10:]]


def test_forks_of_a_session_and_rewinds_give_what_a_fresh_one_gives(model):
    prompt = drawn("forked", 75)
    with Session(model, config=SessionConfig(max_tokens=300, cache_tokens=900)) as session:
        first = session.generate(prompt, CONFIG).token_ids
        with session.fork() as other:
            assert (
                other.extend(drawn("more", 9), CONFIG).token_ids == session.extend(drawn("more", 9), CONFIG).token_ids
            )
            other.rewind(40)
            again = other.extend(prompt[40:], CONFIG)
        session.rewind(0)
        assert session.generate(prompt, CONFIG).token_ids == first == again.token_ids


def test_a_saved_sequence_goes_on_with_the_same_bits(model, tmp_path):
    ids = drawn("saved", 90)
    with model.open_cache(tokens=400) as cache:
        sequence, other = cache.sequence(), cache.sequence()
        model.forward([Extension(sequence, ids[:77])])
        cache.save(tmp_path / "saved", sequence)
        want = model.forward([Extension(sequence, ids[77:], "all")])
        assert np.array_equal(model.forward([Extension(other, ids, "all")])[77:], want)
    with model.open_cache(tokens=400) as cache, cache.restore(tmp_path / "saved") as restored:
        assert restored.length == 77
        assert np.array_equal(model.forward([Extension(restored, ids[77:], "all")]), want)


def test_too_many_sequences_are_refused_and_their_number_is_checked(model):
    with model.open_cache(tokens=4000, sequences=1) as cache:
        sequences = [cache.sequence() for _ in range(11)]
        with pytest.raises(CacheFullError, match="10 slots of recurrent state are in use"):
            model.forward([Extension(sequence, [1]) for sequence in sequences])
        assert cache.used_bytes == 0
    with pytest.raises(InvalidInputError, match="sequences must be from 1"):
        model.open_cache(sequences=0)
