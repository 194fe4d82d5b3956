"""Sessions on real, small decoders: what a text is, where it ends, and that no way to it changes a bit."""

from __future__ import annotations

import asyncio
import gc
import json
import threading

import numpy as np
import pytest

from lattice_inference import load_model
from lattice_inference.errors import InvalidInputError, NonFiniteError, TextTooLongError, UnsupportedError
from lattice_inference.generate.config import GenerateConfig
from lattice_inference.generate.result import FinishReason
from lattice_inference.generate.session import Session, SessionConfig
from tiny_decoders import (
    BOS,
    CUT,
    END,
    EOS,
    SENTENCE,
    THINK,
    USER,
    VOCAB,
    chain,
    write_drawn_model,
    write_told_model,
)

GREEDY = GenerateConfig.greedy(40)
DRAWN = GenerateConfig(max_new_tokens=24, temperature=1.0, seed=11, ignore_stop_tokens=True)


@pytest.fixture
def session(drawn_model):
    with Session(drawn_model, config=SessionConfig(cache_tokens=1024)) as made:
        yield made


class Counting:
    """A model that notes how many tokens and rows of logits each call was about."""

    def __init__(self, model):
        self._model = model
        self.calls = []

    def __getattr__(self, name):
        return getattr(self._model, name)

    def forward(self, extensions):
        logits = self._model.forward(extensions)
        self.calls.append((sum(len(e.token_ids) for e in extensions), len(logits)))
        return logits


class TestText:
    def test_a_text_ends_at_a_stop_token_that_is_not_part_of_it(self, told_model):
        result = Session(told_model("abc", EOS)).generate("a", GREEDY)
        assert (result.text, result.token_ids, result.finish_reason) == ("bc", (98, 99), "stop_token")
        assert result.stop_token_id == EOS

    @pytest.mark.slow
    def test_an_emoji_comes_whole_when_its_last_byte_does(self, told_model):  # D1
        stream = Session(told_model("a😀é!", EOS)).stream("a", GREEDY)
        pieces = [piece.text for piece in stream]
        assert pieces == ["", "", "", "😀", "", "é", "!"]
        assert stream.result.text == "😀é!"

    @pytest.mark.parametrize("reason", ["stop_token", "length", "context_full", "cancelled", "closed"])
    def test_a_text_that_ends_inside_a_character_shows_it(self, told_model, reason):  # D2
        """Whatever ends it, the bytes of a character that has begun are one U+FFFD, in the pieces as in the whole."""
        model = told_model(b"a\xf0\x9f", *([EOS] if reason == "stop_token" else []))
        session = Session(model, config=SessionConfig(max_tokens=3 if reason == "context_full" else None))
        pieces = []
        stream = session.stream(
            "a",
            GenerateConfig.greedy(2 if reason == "length" else 40),
            cancelled=lambda: reason == "cancelled" and len(pieces) == 2,
        )
        for piece in stream:
            pieces.append(piece.text)
            if reason == "closed" and len(pieces) == 2:
                stream.close()
        assert stream.result.text == "\ufffd"
        assert pieces == (["", ""] if reason == "closed" else ["", "", "\ufffd"])
        assert stream.result.finish_reason == {"closed": "cancelled"}.get(reason, reason)

    def test_a_token_that_is_not_special_is_shown(self, told_model):  # D3
        assert Session(told_model("a", THINK, EOS)).generate("a", GREEDY).text == "<think>"

    def test_a_token_of_characters_that_stand_for_no_byte_is_shown(self, told_model):  # D5
        assert Session(told_model(b"a\xf0", SENTENCE, EOS)).generate("a", GREEDY).text == "\ufffd<｜end▁of▁sentence｜>"

    def test_special_tokens_have_no_text(self, tmp_path):
        with load_model(write_told_model(tmp_path, chain("ab", USER, ord("c"), EOS))) as model:
            result = Session(model).generate("a", GREEDY)
            assert (result.text, result.token_ids) == ("bc", (98, USER, 99))

    def test_a_row_of_logits_that_belongs_to_no_token_is_never_chosen(self, tmp_path):
        table = np.zeros((VOCAB, VOCAB), np.float32)
        table[:, VOCAB - 1] = 50
        table[:, ord("x")] = 1
        with load_model(write_told_model(tmp_path, table)) as model:
            assert Session(model).generate("a", GenerateConfig.greedy(3)).text == "xxx"
            assert VOCAB - 1 not in Session(model).generate("a", GenerateConfig(seed=0, max_new_tokens=20)).token_ids

    @pytest.mark.slow
    def test_a_stream_keeps_no_more_than_a_character(self, drawn_model):  # D9
        import tracemalloc

        stream = drawn_model.tokenizer.stream()
        emoji = list("😀".encode())
        tracemalloc.start()
        try:
            for token_id in emoji * 100:
                stream.push(token_id)
            before = tracemalloc.get_traced_memory()[0]
            for token_id in emoji * 20_000:
                stream.push(token_id)
            assert tracemalloc.get_traced_memory()[0] - before < 2000
        finally:
            tracemalloc.stop()


class TestStopping:
    @pytest.mark.parametrize("source", ["config", "generation_config", "tokenizer", "chat template", "caller"])
    def test_every_source_of_stop_tokens_counts(self, tmp_path, source):  # D7
        ends = {"config": 249, "generation_config": 250, "tokenizer": EOS, "chat template": END, "caller": 251}
        directory = write_told_model(
            tmp_path, chain("ab", ends[source]), generation_config={"eos_token_id": ends["generation_config"]}
        )
        config = json.loads((directory / "config.json").read_text()) | {"eos_token_id": ends["config"]}
        (directory / "config.json").write_text(json.dumps(config))
        with load_model(directory) as model:
            session = Session(model)
            assert session.stop_token_ids == set(ends.values()) - {ends["caller"]}
            result = session.generate("a", GenerateConfig(9, temperature=0, stop_token_ids=[ends["caller"]]))
            assert (result.text, result.stop_token_id) == ("b", ends[source])

    def test_a_stop_text_may_begin_in_one_token_and_end_in_another(self, told_model):
        session = Session(told_model("abcdefg", EOS))
        config = GenerateConfig(temperature=0, stop=["de", "zz"])
        result = session.generate("a", config)
        assert (result.text, result.stop, result.finish_reason) == ("bc", "de", "stop_text")
        assert bytes(result.token_ids) == b"bcde"
        assert "".join(piece.text for piece in session.stream("a", config)) == "bc"

    def test_nothing_follows_a_stop_text(self, told_model):  # D2
        """Nor what the same token brings behind it: a letter, or the beginning of a character."""
        for stop, shown in (("c", "b"), ("bc", "")):
            stream = Session(told_model(b"ab", CUT, EOS)).stream("a", GenerateConfig(temperature=0, stop=stop))
            assert "".join(piece.text for piece in stream) == stream.result.text == shown
            assert stream.result.finish_reason == "stop_text"
        result = Session(told_model(b"a", THINK, EOS)).generate("a", GenerateConfig(temperature=0, stop="hi"))
        assert result.text == "<t"

    def test_what_began_a_stop_text_and_was_none_comes_at_the_end(self, told_model):
        stream = Session(told_model("abcd", EOS)).stream("a", GenerateConfig(temperature=0, stop="cdX"))
        assert [piece.text for piece in stream] == ["b", "", "", "cd"]

    @pytest.mark.parametrize("settings", [{"temperature": 0}, {"seed": 1, "stop": "x", "logprobs": 2}], ids=str)
    def test_no_new_tokens_is_no_text(self, session, settings):  # I7
        config = GenerateConfig(0, **settings)
        stream = session.stream("hello", config)
        assert list(stream) == []
        results = [stream.result, session.generate("hello", config), *session.generate_batch(["hello"] * 2, config)]
        for result in [*results, session.extend("", config), session.extend([], config)]:
            assert (result.text, result.token_ids, result.finish_reason) == ("", (), "length")
            assert result.prompt_tokens == 5
        assert session.extend(" you", config).prompt_tokens == 9

    def test_a_text_ends_with_the_context(self, drawn_model):
        result = Session(drawn_model, config=SessionConfig(max_tokens=20)).generate("hello", GenerateConfig.greedy(99))
        assert (result.finish_reason, len(result.token_ids)) in {
            ("context_full", 15),
            ("stop_token", len(result.token_ids)),
        }
        full = Session(drawn_model).generate(
            "x" * 120, GenerateConfig(temperature=0, ignore_stop_tokens=True, max_new_tokens=99)
        )
        assert (full.finish_reason, len(full.token_ids)) == (FinishReason.CONTEXT_FULL, 8)

    def test_cancelling_ends_it_between_two_tokens(self, session):
        event = threading.Event()
        stream = session.stream("hello", DRAWN, cancelled=event)
        first = next(stream)
        event.set()
        assert first.token_id is not None
        rest = list(stream)
        assert stream.result.finish_reason == "cancelled"
        assert stream.result.token_ids == (first.token_id,)
        assert first.text + "".join(piece.text for piece in rest) == stream.result.text

    def test_cancelling_ends_a_long_prompt_between_two_chunks(self, drawn_model):
        model = Counting(drawn_model)
        session = Session(model, config=SessionConfig(chunk_tokens=10))
        result = session.generate("x" * 100, DRAWN, cancelled=lambda: len(model.calls) == 3)
        assert (result.finish_reason, result.token_ids, len(model.calls)) == ("cancelled", (), 3)
        resumed = session.generate("x" * 100, DRAWN)
        assert resumed.reused_tokens == 30
        assert resumed.token_ids == Session(drawn_model).generate("x" * 100, DRAWN).token_ids


class TestWork:
    def test_nothing_runs_after_the_last_token_and_no_logits_that_are_not_wanted(self, drawn_model):
        model = Counting(drawn_model)
        Session(model, config=SessionConfig(chunk_tokens=8)).generate("x" * 20, GenerateConfig.greedy(3))
        assert model.calls == [(8, 0), (8, 0), (4, 1), (1, 1), (1, 1)]

    def test_what_two_prompts_share_runs_once(self, drawn_model):
        model = Counting(drawn_model)
        session = Session(model)
        session.generate("The same beginning, then one", GenerateConfig.greedy(1))
        result = session.generate("The same beginning, then other", GenerateConfig.greedy(1))
        assert model.calls[1] == (4, 1)
        assert result.reused_tokens == 26

    def test_a_remembered_prompt_is_found_again(self, drawn_model):
        session = Session(drawn_model, config=SessionConfig(prefix_bytes=10**6))
        first = session.generate("A long instruction. Question one", DRAWN)
        session.generate("Something else", DRAWN)
        again = session.generate("A long instruction. Question one", DRAWN)
        assert (first.reused_tokens, again.reused_tokens) == (0, 31)
        assert again.token_ids == first.token_ids


class TestTheSameBits:
    @pytest.mark.parametrize("chunk", [1, 2, 7, 512])
    def test_chunks_change_nothing(self, drawn_model, session, chunk):
        expected = session.generate("Any chunks at all", DRAWN)
        with Session(drawn_model, config=SessionConfig(chunk_tokens=chunk)) as other:
            assert other.generate("Any chunks at all", DRAWN).token_ids == expected.token_ids

    def test_a_batch_gives_each_what_it_gets_alone(self, session):
        prompts = ["one", "a longer prompt than the others", [5, 6, 7], "x", "one"]
        configs = [DRAWN, GenerateConfig(max_new_tokens=7, seed=3), GREEDY, GenerateConfig(max_new_tokens=0), DRAWN]
        alone = [session.generate(prompt, config) for prompt, config in zip(prompts, configs, strict=True)]
        together = session.generate_batch(prompts, configs)
        for one, other in zip(alone, together, strict=True):
            assert (one.token_ids, one.text, one.finish_reason) == (other.token_ids, other.text, other.finish_reason)

    @pytest.mark.slow
    def test_a_batch_larger_than_the_cache_waits_for_room(self, drawn_model):
        config = GenerateConfig(max_new_tokens=40, seed=1, ignore_stop_tokens=True)
        prompts = [f"prompt {index}" for index in range(7)]
        with Session(drawn_model) as small, Session(drawn_model, config=SessionConfig(cache_tokens=4096)) as large:
            expected = [result.token_ids for result in large.generate_batch(prompts, config)]
            assert [result.token_ids for result in small.generate_batch(prompts, config)] == expected
            assert small.cache_bytes == 0

    def test_extending_is_generating_from_the_whole(self, session, drawn_model):
        first = session.generate("begin", DRAWN)
        assert len(session.token_ids) == 5 + len(first.token_ids)
        more = session.extend(" and on", DRAWN)
        whole = [*b"begin", *first.token_ids, *b" and on"]
        assert more.token_ids == Session(drawn_model).generate(whole, DRAWN).token_ids
        assert more.prompt_tokens == len(whole)
        assert more.reused_tokens == len(whole) - 8  # the new ones, and the last one generated

    def test_a_rewound_session_draws_the_same_again(self, session):
        session.generate("begin", GenerateConfig(max_new_tokens=0))
        one = session.extend("!", DRAWN)
        session.rewind(5)
        assert session.token_ids == tuple(b"begin")
        assert session.extend("!", DRAWN).token_ids == one.token_ids
        session.rewind(8)
        assert session.token_ids == (*b"begin!", *one.token_ids[:2])
        rest = session.extend([], GenerateConfig(max_new_tokens=22, temperature=1.0, seed=11, ignore_stop_tokens=True))
        assert len(rest.token_ids) == 22

    def test_a_fork_goes_its_own_way(self, session):
        session.generate("begin", DRAWN)
        before = session.token_ids
        fork = session.fork()
        one, other = fork.extend(" left", DRAWN), session.extend(" left", DRAWN)
        assert one.token_ids == other.token_ids
        fork.reset()
        assert (fork.token_ids, session.token_ids[: len(before)]) == ((), before)
        fork.close()
        assert session.extend(" right", DRAWN).token_ids

    def test_a_seed_decides_the_text_and_is_told(self, session):
        loose = GenerateConfig(max_new_tokens=24, temperature=1.0)
        first = session.generate("x", loose)
        again = session.generate("x", GenerateConfig(max_new_tokens=24, temperature=1.0, seed=first.seed))
        assert again.token_ids == first.token_ids
        assert len({session.generate("x", loose).token_ids for _ in range(5)}) > 1


class TestLogprobs:
    def test_they_are_the_models_own(self, session):
        result = session.generate("hello", GenerateConfig(max_new_tokens=4, seed=5, logprobs=3, top_k=2))
        assert [entry.token_id for entry in result.logprobs] == list(result.token_ids)
        for entry in result.logprobs:
            assert len(entry.top) == 3
            assert entry.logprob <= 0
            assert dict(entry.top).get(entry.token_id, entry.logprob) == entry.logprob
        assert session.generate("hello", GREEDY).logprobs is None


class TestAsynchronous:
    def test_the_pieces_are_the_same(self, session):
        async def gather():
            return [piece async for piece in session.stream("hello", DRAWN)]

        assert asyncio.run(gather()) == list(session.stream("hello", DRAWN))

    def test_the_event_loop_runs_meanwhile(self, session):
        async def both():
            ticks = 0

            async def tick():
                nonlocal ticks
                while True:
                    ticks += 1
                    await asyncio.sleep(0)

            ticking = asyncio.create_task(tick())
            pieces = [piece async for piece in session.stream("hello", DRAWN)]
            ticking.cancel()
            return ticks, pieces

        ticks, pieces = asyncio.run(both())
        assert ticks > len(pieces)

    def test_a_cancelled_task_leaves_the_session_whole(self, session):
        async def cut_short():
            pieces = []

            async def consume():
                async for piece in session.stream("hello", DRAWN):
                    pieces.append(piece)

            task = asyncio.create_task(consume())
            while not pieces and not task.done():
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        expected = session.generate("hello", DRAWN).token_ids
        asyncio.run(cut_short())
        assert session.generate("hello", DRAWN).token_ids == expected


class TestRefused:
    @pytest.mark.parametrize("empty", ["", [], (), np.empty(0, np.int64)], ids=repr)
    def test_an_empty_prompt_without_a_beginning_token(self, session, empty):  # I7
        for call in (session.generate, session.stream, session.extend, lambda ids: session.generate_batch(["a", ids])):
            with pytest.raises(InvalidInputError, match="no tokens"):
                call(empty)
        assert session.generate("hello", GREEDY).prompt_tokens == 5

    def test_an_empty_prompt_with_one_is_that_token(self, tmp_path):
        with load_model(write_drawn_model(tmp_path, adds_bos=True)) as model:
            session = Session(model)
            assert session.generate("", GenerateConfig.greedy(1)).prompt_tokens == 1
            assert session.token_ids[0] == BOS
            session.extend("x", GenerateConfig.greedy(0))
            assert list(session.token_ids).count(BOS) == 1

    def test_a_prompt_longer_than_the_context(self, session):  # H10
        assert session.generate("x" * 128, GREEDY).finish_reason == "context_full"
        with pytest.raises(TextTooLongError, match="129"):
            session.generate("x" * 129)

    @pytest.mark.parametrize("prompt", [5, None, ["a"], [1.5]], ids=str)
    def test_what_is_no_prompt(self, session, prompt):
        with pytest.raises(InvalidInputError, match="expected a str or token ids"):
            session.generate(prompt)

    @pytest.mark.parametrize("token_id", [-1, VOCAB, 2**31, 2**80])
    def test_an_id_outside_of_the_vocabulary_is_named_wherever_it_comes_in(self, session, token_id):  # I11
        session.generate("hello", GenerateConfig.greedy(1))
        for call in (session.generate, session.extend, lambda ids: session.generate_batch(["a", ids])):
            with pytest.raises(InvalidInputError, match=f"holds (the token id )?{token_id:,}"):
                call([7, token_id])
        assert session.extend("!", GREEDY).prompt_tokens == 7

    @pytest.mark.parametrize("penalty", [1.0, 1.1])
    def test_an_id_that_no_token_has_is_a_row_like_any_other(self, session, penalty):
        """The model has an embedding for it, so it may stand in a prompt; its logits are never chosen."""
        config = GenerateConfig(20, temperature=5.0, top_k=0, top_p=1.0, seed=2, repetition_penalty=penalty)
        assert max(session.generate([VOCAB - 1, 5], config).token_ids) <= CUT

    def test_a_tokenizer_with_more_tokens_than_the_model(self, tmp_path, monkeypatch):  # I11
        import tiny_decoders

        monkeypatch.setattr(tiny_decoders, "VOCAB", THINK)
        with load_model(write_drawn_model(tmp_path)) as model, Session(model) as session:
            with pytest.raises(
                InvalidInputError, match=f"holds the token id {THINK}; the model's ids go to {THINK - 1}"
            ):
                session.generate("a<think>")
            assert max(session.generate("a", GenerateConfig(40, temperature=5.0, seed=0)).token_ids) < THINK

    def test_a_session_longer_than_the_models_context(self, drawn_model):
        with pytest.raises(InvalidInputError, match="129"):
            Session(drawn_model, config=SessionConfig(max_tokens=129))

    @pytest.mark.parametrize("values", [{"chunk_tokens": 0}, {"max_tokens": -1}, {"cache_tokens": 1.5}], ids=str)
    def test_a_configuration_out_of_range(self, values):
        with pytest.raises(InvalidInputError, match=next(iter(values))):
            SessionConfig(**values)

    @pytest.mark.parametrize("length", [-1, 6, 1.0])
    def test_rewinding_to_where_it_never_was(self, session, length):
        session.generate("hello", GenerateConfig(max_new_tokens=0))
        with pytest.raises(InvalidInputError, match="rewound"):
            session.rewind(length)

    def test_a_way_of_generating_that_is_not_built(self, tmp_path):
        settings = {"generation_config": {"num_beams": 5}}
        with load_model(write_drawn_model(tmp_path, **settings)) as model:
            with pytest.raises(UnsupportedError, match="num_beams"):
                Session(model)
            assert Session(model, config=SessionConfig(use_model_config=False)).generate("x", GREEDY).token_ids

    def test_one_text_for_a_batch(self, session):
        with pytest.raises(InvalidInputError, match="list of prompts"):
            session.generate_batch("hello")
        with pytest.raises(InvalidInputError, match="2 prompts and 1"):
            session.generate_batch(["a", "b"], [GREEDY])

    def test_the_result_of_a_stream_that_has_not_ended(self, session):
        stream = session.stream("hello", DRAWN)
        next(stream)
        with pytest.raises(InvalidInputError, match="has not ended"):
            _ = stream.result
        stream.close()
        assert stream.result.finish_reason == "cancelled"
        assert list(stream) == []

    def test_logits_that_are_no_numbers(self, tmp_path):
        table = np.zeros((VOCAB, VOCAB))
        table[ord("b")] = 1e39
        with load_model(write_told_model(tmp_path, table)) as model, Session(model) as session:
            with pytest.raises(NonFiniteError):
                session.generate("b", GREEDY)
            assert session.generate("a", GREEDY).token_ids


def test_the_models_generation_config_fills_what_is_left_out(tmp_path):
    settings = {"generation_config": {"do_sample": False, "max_new_tokens": 3, "eos_token_id": EOS}}
    with load_model(write_drawn_model(tmp_path, **settings)) as model:
        session = Session(model)
        assert session.generate("hello").token_ids == session.generate("hello", GenerateConfig.greedy(3)).token_ids


@pytest.mark.slow
def test_sessions_of_one_model_run_in_several_threads(drawn_model):
    prompts = [f"thread {index}" for index in range(4)]
    expected = [Session(drawn_model).generate(prompt, DRAWN).token_ids for prompt in prompts]
    got = [None] * 4

    def run(index):
        got[index] = Session(drawn_model).generate(prompts[index], DRAWN).token_ids

    threads = [threading.Thread(target=run, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == expected


@pytest.mark.slow
def test_a_closed_session_gives_its_memory_back(drawn_model):
    session = Session(drawn_model)
    session.generate("hello", GREEDY)
    session.close()
    session.close()
    gc.collect()
    with pytest.raises(InvalidInputError, match="closed"):
        session.generate("hello", GREEDY)
