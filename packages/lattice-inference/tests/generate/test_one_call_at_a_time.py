"""A session, a conversation and a stream do one call at a time; a call beside it is refused and changes nothing."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from lattice_inference.errors import BusyError, InvalidInputError, LatticeError
from lattice_inference.generate.chat import Chat
from lattice_inference.generate.config import GenerateConfig
from lattice_inference.generate.session import Session, SessionConfig
from lattice_inference.tokenizer.streaming import TokenStream
from tiny_decoders import EOS

DRAWN = GenerateConfig(max_new_tokens=12, temperature=1.0, seed=11, ignore_stop_tokens=True)

CALLS = {
    "generate": lambda session: session.generate("other", DRAWN),
    "extend": lambda session: session.extend("other", DRAWN),
    "stream": lambda session: session.stream("other", DRAWN),
    "generate_batch": lambda session: session.generate_batch(["other"], DRAWN),
    "rewind": lambda session: session.rewind(1),
    "reset": lambda session: session.reset(),
    "fork": lambda session: session.fork(),
    "settle": lambda session: session.settle(),
    "Chat.send": lambda session: Chat(session).send("other"),
    "Chat.stream": lambda session: Chat(session).stream("other"),
    "Chat.reset": lambda session: Chat(session).reset(),
}


@pytest.fixture
def session(chatting_model):
    with Session(chatting_model, config=SessionConfig(cache_tokens=1024)) as made:
        yield made


@pytest.fixture
def expected(chatting_model):
    with Session(chatting_model) as alone:
        return alone.generate("hello", DRAWN)


class Once:
    """A ``cancelled`` that makes a call in another thread, at the given asking, and notes how it ended."""

    def __init__(self, call, *, at):
        self.call, self.left, self.ends = call, at, []

    def __call__(self):
        self.left -= 1
        if self.left == 0:
            thread = threading.Thread(target=self.work)
            thread.start()
            thread.join()
        return False

    def work(self):
        try:
            self.ends.append(self.call())
        except LatticeError as error:
            self.ends.append(error)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("at", [1, 2, 5], ids=["first", "prompt", "later"])
def test_a_call_beside_a_running_one_is_refused(session, expected, name, at):
    beside = Once(lambda: CALLS[name](session), at=at)
    result = session.generate("hello", DRAWN, cancelled=beside)
    assert [type(end) for end in beside.ends] == [BusyError]
    assert "fork" in str(beside.ends[0])
    assert (result.text, result.token_ids, result.finish_reason) == (expected.text, expected.token_ids, "length")
    assert session.token_ids == (*b"hello", *expected.token_ids)


def test_a_call_beside_a_batch_is_refused(session, expected):
    beside = Once(lambda: session.generate("other", DRAWN), at=6)
    results = session.generate_batch(["hello", "hello"], DRAWN, cancelled=beside)
    assert [type(end) for end in beside.ends] == [BusyError]
    assert [result.token_ids for result in results] == [expected.token_ids] * 2


@pytest.mark.parametrize("name", CALLS)
def test_an_open_stream_is_not_ended_by_another_call(session, expected, name):
    stream = session.stream("hello", DRAWN)
    pieces = [next(stream), next(stream)]
    with pytest.raises(BusyError, match=r"a stream of this session is open: .*close\(\).*fork.*another Session"):
        CALLS[name](session)
    assert session.token_ids == (*b"hello", *expected.token_ids[:2])
    pieces += stream
    assert "".join(piece.text for piece in pieces) == expected.text
    assert stream.result.finish_reason == "length"
    CALLS[name](session)


def test_pieces_that_wait_to_be_read_keep_a_stream_open(told_model):
    """The generation has ended; its last text has not been read."""
    session = Session(told_model("abcX", EOS))
    stream = session.stream("a", GenerateConfig(max_new_tokens=2, temperature=0, stop="bcd"))
    assert next(stream).text == ""
    assert next(stream).text == ""
    with pytest.raises(BusyError):
        session.generate("a")
    assert [piece.text for piece in stream] == ["bc"]


def test_a_stream_that_nothing_holds_ends(session, expected):
    for piece in session.stream("hello", DRAWN):
        assert piece.token_id == expected.token_ids[0]
        break
    assert session.generate("hello", DRAWN).token_ids == expected.token_ids
    with session.stream("hello", DRAWN) as stream:
        next(stream)
    assert session.generate("hello", DRAWN).token_ids == expected.token_ids
    assert stream.result.finish_reason == "cancelled"


def test_two_tasks_do_not_mix(session, expected):
    async def read():
        return [piece async for piece in session.stream("hello", DRAWN)]

    async def both():
        return await asyncio.gather(read(), read(), return_exceptions=True)

    first, second = asyncio.run(both())
    assert "".join(piece.text for piece in first) == expected.text
    assert isinstance(second, BusyError)


def test_one_reader_of_a_stream_at_a_time(session, expected):
    beside = Once(lambda: next(stream), at=3)
    stream = session.stream("hello", DRAWN, cancelled=beside)
    assert "".join(piece.text for piece in stream) == expected.text
    assert [type(end) for end in beside.ends] == [BusyError]

    async def together():
        stream = session.stream("hello", DRAWN)
        ends = await asyncio.gather(anext(stream), anext(stream), return_exceptions=True)
        return ends, [piece async for piece in stream]

    (first, second), rest = asyncio.run(together())
    assert isinstance(second, BusyError)
    assert "".join(piece.text for piece in [first, *rest]) == expected.text


class Waiting:
    """A model whose next step waits until it may end."""

    def __init__(self, model):
        self._model = model
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.steps = 0

    def __getattr__(self, name):
        return getattr(self._model, name)

    def forward(self, extensions):
        self.steps += 1
        self.begun.set()
        assert self.may_end.wait(60)
        return self._model.forward(extensions)


def test_a_piece_whose_asking_was_cancelled_comes_next(chatting_model, expected):
    model = Waiting(chatting_model)
    session = Session(model)

    async def impatient():
        stream = session.stream("hello", DRAWN)
        asking = asyncio.ensure_future(anext(stream))
        await asyncio.to_thread(model.begun.wait, 60)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        model.may_end.set()
        return [piece async for piece in stream]

    assert "".join(piece.text for piece in asyncio.run(impatient())) == expected.text


def test_a_long_prompt_ends_at_its_next_chunk_and_goes_on_where_it_was(chatting_model, expected):
    model = Waiting(chatting_model)
    session = Session(model, config=SessionConfig(chunk_tokens=1))

    async def impatient():
        stream = session.stream("hello", DRAWN)
        asking = asyncio.ensure_future(anext(stream))
        await asyncio.to_thread(model.begun.wait, 60)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        model.may_end.set()
        await asyncio.get_running_loop().shutdown_default_executor()
        return stream

    stream = asyncio.run(impatient())
    assert model.steps == 1
    assert stream.finish().token_ids == expected.token_ids
    assert model.steps == len("hello") + len(expected.token_ids) - 1


def test_a_dropped_stream_ends_with_the_step_that_runs(chatting_model, expected):
    model = Waiting(chatting_model)
    session = Session(model)

    async def read():
        async for _ in session.stream("hello", DRAWN):
            pass

    async def cut_short():
        reading = asyncio.ensure_future(read())
        await asyncio.to_thread(model.begun.wait, 60)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        model.may_end.set()

    asyncio.run(cut_short())
    assert model.steps == 1
    assert session.generate("hello", DRAWN).token_ids == expected.token_ids


def test_closing_ends_what_runs_with_an_error(chatting_model):
    session = Session(chatting_model)
    stream = session.stream("hello", DRAWN)
    next(stream)
    session.close()
    with pytest.raises(InvalidInputError, match="this session is closed"):
        next(stream)
    assert stream.result.finish_reason == "cancelled"
    for call in CALLS.values():
        with pytest.raises(InvalidInputError, match="closed"):
            call(session)
    session.close()


def test_closing_ends_a_batch_at_its_next_step(chatting_model):
    session = Session(chatting_model)
    closing = threading.Thread(target=session.close)
    asked = 0

    def close_at_the_fourth():
        nonlocal asked
        asked += 1
        if asked == 4:
            closing.start()
            while not session._is_closed:
                os.sched_yield()
        return False

    with pytest.raises(InvalidInputError, match="this session is closed"):
        session.generate_batch(["hello"], DRAWN, cancelled=close_at_the_fourth)
    closing.join()
    assert asked == 4


@pytest.mark.parametrize("name", ["Session.close", "GenerationStream.close"])
def test_closing_from_within_a_step_is_refused_and_does_not_wait_for_ever(session, name):
    asked, streams = [], []

    def close():
        asked.append(0)
        if len(asked) == 3:
            (session if name == "Session.close" else streams[0]).close()
        return False

    streams.append(session.stream("hello", DRAWN, cancelled=close))
    with pytest.raises(BusyError, match="the call that this one is made from"):
        streams[0].finish()


def test_forks_and_sessions_run_side_by_side(session, expected):
    fork = session.fork()
    beside = Once(lambda: fork.generate("hello", DRAWN), at=4)
    assert session.generate("hello", DRAWN, cancelled=beside).token_ids == expected.token_ids
    assert [end.token_ids for end in beside.ends] == [expected.token_ids]


class TestChat:
    def test_a_message_beside_an_answer_is_refused_and_leaves_no_trace(self, session):
        chat = Chat(session, config=GenerateConfig.greedy(40))
        beside = Once(lambda: chat.send("And you?"), at=3)
        assert chat.send("Hello?", cancelled=beside).text == "Yes, 😀."
        assert [type(end) for end in beside.ends] == [BusyError]
        wanted = [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Yes, 😀."}]
        assert chat.messages == wanted

    def test_neither_does_one_while_the_answer_is_read(self, session):
        chat = Chat(session, config=GenerateConfig.greedy(40))
        stream = chat.stream("Hello?")
        first = next(stream)
        for call in (chat.send, chat.stream, lambda _: chat.reset()):
            with pytest.raises(BusyError):
                call("And you?")
        assert first.text + "".join(piece.text for piece in stream) == "Yes, 😀."
        assert [message["role"] for message in chat.messages] == ["user", "assistant"]

    def test_an_answer_that_was_left_is_there_before_the_next_question(self, session):
        chat = Chat(session, config=GenerateConfig.greedy(40))
        for piece in chat.stream("Hello?"):
            assert piece.text == "Y"
            break
        assert chat.messages[-1] == {"role": "assistant", "content": "Y"}
        chat.send("And you?")
        assert [message["role"] for message in chat.messages] == ["user", "assistant"] * 2


def test_a_stream_of_tokens_takes_one_at_a_time(chatting_model):
    class Nested:
        def push(self, text, ends):
            return [(stream.push(ord("b")), ends)]

        def finish(self):
            return [(stream.finish(), True)]

    stream = chatting_model.tokenizer.stream()
    stream._stage = Nested()
    for call in (lambda: stream.push(ord("a")), stream.finish):
        with pytest.raises(BusyError, match="make a stream for each text"):
            call()


def test_an_interrupt_within_the_decoder_of_the_text_is_no_busy_error(drawn_model, monkeypatch):
    """It comes after the decoder's turn was taken, and before it can be given back."""
    with Session(drawn_model) as session:
        expected = session.generate("hello", DRAWN)
        push, pushed = TokenStream.push, []

        def interrupted(stream, token_id):
            pushed.append(token_id)
            if len(pushed) == 6:
                stream._turn.__enter__()
                raise KeyboardInterrupt
            return push(stream, token_id)

        monkeypatch.setattr(TokenStream, "push", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.generate("hello", DRAWN)
        monkeypatch.undo()
        assert session.generate("hello", DRAWN).token_ids == expected.token_ids
