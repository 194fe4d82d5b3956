"""OpenAI's own client against a server on a port; ``nox -s clients`` runs it with the client installed."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from lattice_inference.serve import ServeConfig

from .conftest import served_at
from .test_answers import ASKED, SETTINGS, alone

openai = pytest.importorskip("openai")

DRAWN = {"model": "drawn", "messages": ASKED, "max_tokens": 12, "temperature": 1.0, "seed": 3}
MORE = {"extra_body": {"ignore_eos": True}}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def url(models):
    with served_at(models.app(ServeConfig(api_keys=["key"]))) as (_, address):
        yield f"{address}/v1"


@pytest.fixture
def client(url):
    with openai.OpenAI(base_url=url, api_key="key", max_retries=0, _strict_response_validation=True) as made:
        yield made


def test_chat_at_once_and_by_events(client, models):
    expected = alone(models.drawn, SETTINGS)
    answer = client.chat.completions.create(**DRAWN, **MORE)
    assert answer.choices[0].message.content == expected.text
    events = list(client.chat.completions.create(**DRAWN, **MORE, stream=True, stream_options={"include_usage": True}))
    assert "".join(event.choices[0].delta.content or "" for event in events if event.choices) == expected.text
    assert events[-1].usage.completion_tokens == answer.usage.completion_tokens == 12


def test_the_asynchronous_client(url, models):
    async def ask():
        async with openai.AsyncOpenAI(base_url=url, api_key="key", max_retries=0) as client:
            return await asyncio.gather(*(client.chat.completions.create(**DRAWN, **MORE) for _ in range(4)))

    expected = alone(models.drawn, SETTINGS).text
    assert [answer.choices[0].message.content for answer in asyncio.run(ask())] == [expected] * 4


def test_completions_and_models(client):
    answer = client.completions.create(model="told", prompt="Y", max_tokens=3, temperature=0, logprobs=2)
    assert answer.choices[0].text == "es,"
    assert len(answer.choices[0].logprobs.tokens) == 3
    assert [model.id for model in client.models.list()][:2] == ["drawn", "told"]


def test_embeddings(client, url, models):
    texts = ["the cat sat", "a zebra"]
    answers = [client.embeddings.create(model="vectors", input=texts, encoding_format="float")]
    with openai.OpenAI(base_url=url, api_key="key", max_retries=0) as other:
        answers.append(other.embeddings.create(model="vectors", input=texts))  # the client asks for base64 by itself
    for answer in answers:
        told = np.array([entry.embedding for entry in answer.data], np.float32)
        assert told.tobytes() == models.encoder.encode(texts).vectors.tobytes()


def test_errors_are_those_of_the_client(client, url):
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(**{**DRAWN, "model": "x"})
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(**DRAWN, n=99)
    assert wrong.value.param == "n"
    with openai.OpenAI(base_url=url, api_key="no", max_retries=0) as other, pytest.raises(openai.AuthenticationError):
        other.models.list()
