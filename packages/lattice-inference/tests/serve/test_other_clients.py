"""Clients of other libraries against a server on a port; ``nox -s clients`` runs them with these libraries installed."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from lattice_inference import Session
from lattice_inference.serve import ServeConfig

from .conftest import served_at
from .test_answers import ASKED, SETTINGS, alone

pytestmark = pytest.mark.slow

MESSAGES = [(message["role"], message["content"]) for message in ASKED]
TEXTS = ["the cat sat", "a zebra"]


@pytest.fixture(scope="module")
def url(models):
    with served_at(models.app(ServeConfig(api_keys=["key"]))) as (_, address):
        yield f"{address}/v1"


@pytest.fixture(scope="module")
def expected(models):
    return alone(models.drawn, SETTINGS).text


@pytest.fixture(scope="module")
def vectors(models):
    return models.encoder.encode(TEXTS).vectors


class TestLangChain:
    @pytest.fixture
    def chat(self, url):
        library = pytest.importorskip("langchain_openai")
        settings = {"temperature": 1.0, "seed": 3, "max_tokens": 12, "extra_body": {"ignore_eos": True}}
        return library.ChatOpenAI(model="drawn", base_url=url, api_key="key", max_retries=0, **settings)

    def test_chat(self, chat, expected):
        assert chat.invoke(MESSAGES).content == expected
        assert "".join(str(piece.content) for piece in chat.stream(MESSAGES)) == expected
        assert asyncio.run(chat.ainvoke(MESSAGES)).content == expected

    def test_tools_are_called(self, url):
        pytest.importorskip("llguidance")
        library = pytest.importorskip("langchain_openai")
        tool = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
        chat = library.ChatOpenAI(model="calling", base_url=url, api_key="key", seed=2, max_retries=0)
        bound = chat.bind_tools([tool], tool_choice="required", parallel_tool_calls=False)
        assert [(call["name"], call["args"]) for call in bound.invoke(MESSAGES).tool_calls] == [("now", {})]

    def test_embeddings(self, url, vectors):
        library = pytest.importorskip("langchain_openai")
        # with the check it would send the ids of a tokenizer of OpenAI's
        given = {"model": "vectors", "base_url": url, "api_key": "key", "check_embedding_ctx_length": False}
        told = library.OpenAIEmbeddings(**given).embed_documents(TEXTS)
        assert np.array(told, np.float32).tobytes() == vectors.tobytes()


class TestLlamaIndex:
    def test_chat_and_completion(self, url, models, expected):
        library = pytest.importorskip("llama_index.llms.openai_like")
        messages = pytest.importorskip("llama_index.core.llms").ChatMessage
        more = {"seed": 3, "extra_body": {"ignore_eos": True}}
        given = {"api_base": url, "api_key": "key", "max_tokens": 12, "temperature": 1.0, "max_retries": 0}
        chat = library.OpenAILike(model="drawn", is_chat_model=True, additional_kwargs=more, **given)
        asked = [messages(role=role, content=content) for role, content in MESSAGES]
        assert chat.chat(asked).message.content == expected
        assert "".join(piece.delta or "" for piece in chat.stream_chat(asked)) == expected
        plain = library.OpenAILike(model="drawn", is_chat_model=False, additional_kwargs=more, **given)
        with Session(models.drawn) as session:
            assert plain.complete("abc").text == session.generate("abc", SETTINGS).text

    def test_embeddings(self, url, vectors):
        library = pytest.importorskip("llama_index.embeddings.openai_like")
        given = {"model_name": "vectors", "api_base": url, "api_key": "key", "max_retries": 0}
        told = library.OpenAILikeEmbedding(**given).get_text_embedding_batch(TEXTS)
        assert np.array(told, np.float32).tobytes() == vectors.tobytes()


@pytest.mark.filterwarnings("ignore")  # that library warns at its import, and leaves sockets open
class TestLiteLlm:
    @pytest.fixture
    def litellm(self, monkeypatch):
        monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else the import loads a list of prices
        return pytest.importorskip("litellm")

    def test_chat(self, litellm, url, expected):
        given = {"model": "openai/drawn", "api_base": url, "api_key": "key", "messages": ASKED, "num_retries": 0}
        given |= {"temperature": 1.0, "seed": 3, "max_tokens": 12, "extra_body": {"ignore_eos": True}}
        assert litellm.completion(**given).choices[0].message.content == expected
        events = list(litellm.completion(**given, stream=True))
        assert "".join(event.choices[0].delta.content or "" for event in events) == expected

    def test_embeddings(self, litellm, url, vectors):
        answer = litellm.embedding(model="openai/vectors", input=TEXTS, api_base=url, api_key="key")
        told = np.array([entry["embedding"] for entry in answer.data], np.float32)
        assert told.tobytes() == vectors.tobytes()

    def test_rankings(self, litellm, url, models):
        given = {"api_base": url, "api_key": "key", "query": "the cat", "documents": TEXTS}
        answer = litellm.rerank(model="hosted_vllm/scores", **given)
        expected = models.scorer.score("the cat", TEXTS)
        assert {one["index"]: np.float32(one["relevance_score"]) for one in answer.results} == dict(enumerate(expected))
