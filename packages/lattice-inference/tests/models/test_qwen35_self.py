"""Drafts of the recurrent layers alone: they change no text, cost no weights, and pay in long texts only."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from drawn_checkpoints import draw_ids
from lattice_inference import Engine, EngineConfig, Extension, GenerateConfig, Session, SessionConfig, load_model
from lattice_inference.generate.decoder_program import DecoderProgram
from test_qwen35_mtp import PROMPTS, SETTINGS, directory_of, foretelling, generated


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A drawn model, and one in which no layer adds anything, so that each token follows from the last one."""
    folder = tmp_path_factory.mktemp("self")
    with load_model(directory_of(folder / "drawn")) as drawn, load_model(foretelling(folder / "told")) as told:
        yield {"drawn": drawn, "told": told}


@pytest.fixture
def cheap(monkeypatch):
    """Count a draft as cheap, as after a very long text."""
    monkeypatch.setattr(DecoderProgram, "guess_share", lambda self, kv_bytes: 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("kind", ["drawn", "told"])
def test_drafts_change_no_text(models, cheap, kind, settings):
    plain = generated(models[kind], PROMPTS, **SETTINGS[settings])
    drafted = generated(models[kind], PROMPTS, speculate="self", **SETTINGS[settings])
    assert [(one.token_ids, one.logprobs) for one in drafted] == [(one.token_ids, one.logprobs) for one in plain]
    assert all(result.drafted_tokens > 0 for result in drafted)
    if kind == "told" and settings == "greedy":
        assert all(result.accepted_tokens == result.drafted_tokens > 30 for result in drafted)


def test_a_batch_and_an_engine_give_the_same_texts(models, cheap):
    config = GenerateConfig(max_new_tokens=40, ignore_stop_tokens=True, temperature=0.0)
    for model in models.values():
        with Session(model, config=SessionConfig(max_tokens=128, cache_tokens=1024)) as session:
            plain = [result.token_ids for result in session.generate_batch(PROMPTS[:8], config)]
            batch = session.generate_batch(PROMPTS[:8], replace(config, speculate="self"))
            used = session._cache.slots.used
        assert [result.token_ids for result in batch] == plain
        assert sum(result.drafted_tokens for result in batch) > 0
        assert used == 0
        settings = EngineConfig(max_tokens=128, cache_tokens=512, page_tokens=16, sequences=3, prefix_bytes=1 << 20)
        with Engine(model, settings) as engine:
            streams = [engine.submit(prompt, replace(config, speculate="self")) for prompt in PROMPTS[:8]]
            assert [stream.finish().token_ids for stream in streams] == plain


def test_turns_rewinds_and_forks_go_on_with_the_same_text(models, cheap):
    config = GenerateConfig(max_new_tokens=25, ignore_stop_tokens=True, temperature=1.0, seed=2)
    found = []
    for speculate in (None, "self"):
        settings = replace(config, speculate=speculate)
        with Session(models["drawn"], config=SessionConfig(max_tokens=300, cache_tokens=900)) as session:
            texts = [session.generate(PROMPTS[10], settings), session.extend(draw_ids("more", 9, 256), settings)]
            with session.fork() as other:
                session.rewind(50)
                texts += [session.extend([5, 6], settings), other.extend([7], settings)]
        found.append([text.token_ids for text in texts])
    assert found[0] == found[1]


def test_guesses_leave_no_trace_in_the_state(models):
    """At every length, over the end of a block, and where an error ends them."""
    model, ids = models["drawn"], np.array(draw_ids("traces", 100, 256), np.int32)
    with model.open_cache(tokens=256) as cache:
        alone = model.forward([Extension(cache.sequence(), ids, "all")])
        sequence = cache.sequence()
        for length in range(100):
            with pytest.raises(KeyError) if length % 7 == 0 else nullcontext(), sequence.slots.trial():
                for count in (1, 1, 13):
                    model._program.guess(sequence.slots, cache.storage, ids[:count])
                if length % 7 == 0:
                    raise KeyError
            assert sequence.slots.length == length
            assert np.array_equal(model.forward([Extension(sequence, ids[length : length + 1])])[0], alone[length])


def test_it_shares_all_weights_with_the_model(tmp_path, models):
    for options in ({}, {"precision": "int8"}, {"precision": "bfloat16"}):
        with load_model(directory_of(tmp_path / "m"), **options) as model:
            assert not model._program._recurrent_layers.weight_sizes


def test_a_draft_costs_less_the_longer_the_text(models, monkeypatch):
    program = models["drawn"]._program
    shares = [program.guess_share(kv_bytes) for kv_bytes in (0, 10**5, 10**7)]
    assert 1 > shares[0] > shares[1] > shares[2] > 0
    for share, drafts in ((0.8, False), (0.3, True)):
        monkeypatch.setattr(DecoderProgram, "guess_share", lambda self, kv_bytes, share=share: share)
        (result,) = generated(models["told"], PROMPTS[:1], temperature=0.0, speculate="self")
        assert (result.drafted_tokens > 0) == drafts
