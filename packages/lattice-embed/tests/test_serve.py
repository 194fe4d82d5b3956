"""The services of this package over HTTP: roles, caches, fingerprints, and the command that serves them."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("starlette")

from starlette.testclient import TestClient

from drawn_checkpoints import write_directory
from lattice_embed import CrossEncoder, NativeEmbeddingService, RemoteEmbeddingService, Role
from lattice_embed.cli import main
from lattice_embed.errors import InvalidInputError
from lattice_embed.served_embeddings import ServedEmbeddings
from lattice_inference.serve import ServeConfig, create_app
from lattice_inference.serve.server import listen

DATA = Path(__file__).parents[2] / "lattice-inference" / "tests" / "data"
CASES = json.loads((DATA / "architectures" / "cases.json").read_text())["cases"]
TEXTS = ["a cat", "the dog sat", "a cat"]
ROLES = {None: Role.GENERIC, "query": Role.QUERY, "passage": Role.PASSAGE, "document": Role.PASSAGE}


@pytest.fixture(scope="module")
def prompted(tmp_path_factory):
    """A model whose files have prompts."""
    folder = tmp_path_factory.mktemp("models") / "prompted"
    folder.mkdir()
    for file in (DATA / "tiny_bert").rglob("*"):
        target = folder / file.relative_to(DATA / "tiny_bert")
        if file.is_dir():
            target.mkdir(exist_ok=True)
        else:
            target.write_bytes(file.read_bytes())
    config = folder / "config_sentence_transformers.json"
    told = json.loads(config.read_text()) if config.exists() else {}
    config.write_text(json.dumps({**told, "prompts": {"query": "the ", "passage": "a dog "}}))
    return folder


@pytest.fixture(scope="module")
def services(prompted, tmp_path_factory):
    ranker = write_directory(tmp_path_factory.mktemp("rankers") / "ranker", CASES["cross-encoder-bert"])
    with NativeEmbeddingService(prompted, max_batch_size=2) as service, CrossEncoder(ranker) as scorer:
        yield SimpleNamespace(service=service, scorer=scorer)


@pytest.fixture(scope="module")
def app(services):
    served = ServedEmbeddings(services.service, memory=100)
    return create_app(embeddings={"prompted": served}, rerankers={"ranker": services.scorer})


@pytest.fixture(scope="module")
def client(app):
    with TestClient(app, base_url="http://127.0.0.1:8080") as made:
        yield made


def embedded(client, **body):
    answer = client.post("/v1/embeddings", json={"model": "prompted", **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("name", ROLES)
def test_a_role_puts_its_prompt_before_the_texts(client, services, name):
    answer = embedded(client, input=TEXTS, **({} if name is None else {"input_type": name}))
    told = np.array([entry["embedding"] for entry in answer["data"]], np.float32)
    assert told.tobytes() == services.service.encode(TEXTS, role=ROLES[name]).tobytes()
    assert answer["usage"]["prompt_tokens"] == sum(
        int(services.service.count_tokens([text], role=ROLES[name])[0]) for text in TEXTS
    )
    assert answer["fingerprint"] == services.service.provenance(role=ROLES[name]).fingerprint


def test_the_fingerprint_is_of_the_vectors_that_are_told(client):
    assert len({embedded(client, input="a", input_type=name)["fingerprint"] for name in ("query", "passage")}) == 2
    assert "fingerprint" not in embedded(client, input="a", dimensions=3)  # those are not the service's


def test_texts_that_are_known_cost_no_work(services):
    calls = []

    class Counted(NativeEmbeddingService):
        def embed(self, texts, *args, **kwargs):
            calls.append(list(texts))
            return super().embed(texts, *args, **kwargs)

    with Counted(services.service.directory) as service:
        served = ServedEmbeddings(service, memory=10)
        first, again = served.encode(TEXTS), served.encode(TEXTS)
        assert first.vectors.tobytes() == again.vectors.tobytes()
        assert sorted(text for call in calls for text in call) == ["a cat", "the dog sat"]
        ServedEmbeddings(service).encode(TEXTS)
        assert len(calls) > 1


def test_documents_are_ranked_by_the_cross_encoder(client, services):
    answer = client.post("/v1/rerank", json={"model": "ranker", "query": "a cat", "documents": TEXTS}).json()
    expected = services.scorer.rank("a cat", TEXTS)
    assert [(one["index"], one["relevance_score"]) for one in answer["results"]] == [
        (one.index, one.score) for one in expected
    ]


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"input": "a", "input_type": "poem"}, "invalid_value", "input_type"),
        ({"input": "a " * 2000}, "context_length_exceeded", "input"),
        ({"input": "a" * 40_000}, "context_length_exceeded", "input"),
        ({"input": "\ud800"}, "invalid_value", "input"),
        ({"input": [1, 2]}, "unsupported", "input"),
    ],
)
def test_a_wrong_request_names_its_field(client, body, code, param):
    content = json.dumps({"model": "prompted", **body})
    answer = client.post("/v1/embeddings", content=content, headers={"content-type": "application/json"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, code, param), error


def test_models_tell_their_roles(client):
    listed = {entry["id"]: entry for entry in client.get("/v1/models").json()["data"]}
    assert listed["prompted"]["input_types"] == ["query", "passage", "document", "generic"]
    assert listed["ranker"]["kind"] == "reranker"


def test_wrong_arguments(services):
    with pytest.raises(InvalidInputError, match="memory"):
        ServedEmbeddings(services.service, memory=-1)
    with pytest.raises(InvalidInputError, match="service"):
        ServedEmbeddings("all-minilm-l6-v2")
    with pytest.raises(InvalidInputError, match="role is 'poem'"):
        ServedEmbeddings(services.service).encode(["a"], role="poem")


class TestCommand:
    def test_it_says_what_it_would_serve(self, prompted, services, capsys):
        ranker = str(services.scorer._source.location)
        words = ["serve", "--model", f"mine={prompted}", "--model", str(prompted), "--reranker", ranker]
        assert main([*words, "--port", "0", "--check"]) == 0
        assert json.loads(capsys.readouterr().out)["models"] == ["mine", "prompted", "ranker"]

    @pytest.mark.parametrize("words", [["--model", "="], ["--memory-cache", "-1"], ["--host", "0.0.0.0"]])
    def test_what_makes_no_sense_is_refused(self, prompted, words, capsys):
        assert main(["serve", "--model", f"a={prompted}", *words, "--port", "0", "--check"]) == 2

    def test_two_models_of_one_name(self, prompted, capsys):
        assert main(["serve", "--model", f"a={prompted}", "--model", f"a={prompted}", "--port", "0", "--check"]) == 2
        assert "two models have the name 'a'" in capsys.readouterr().err


@pytest.mark.slow
def test_the_remote_service_reads_what_is_served(services):
    uvicorn = pytest.importorskip("uvicorn")
    pytest.importorskip("httpx2")
    served = ServedEmbeddings(services.service)
    app = create_app(embeddings={"prompted": served}, config=ServeConfig(api_keys=["key"]))
    listener = listen("127.0.0.1", 0, has_keys=True)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="on"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    try:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        with RemoteEmbeddingService("prompted", base_url=url, api_key="key") as remote:
            texts = [f"a cat {index}" for index in range(50)]
            result = remote.embed(texts)
            np.testing.assert_allclose(result.vectors, services.service.encode(texts), atol=1e-6)
            assert remote.usage.prompt_tokens > 0
            raw = remote.embed(texts, normalize=False)
            assert raw.vectors.tobytes() == services.service.encode(texts).tobytes()
    finally:
        server.should_exit = True
        thread.join(30)
