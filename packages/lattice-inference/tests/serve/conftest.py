"""A server over tiny models: one that is drawn, one that says what it is told, an encoder and a scorer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("starlette")

from starlette.testclient import TestClient

from drawn_checkpoints import write_directory
from lattice_inference import Engine, EngineConfig, LoraAdapter, load_cross_encoder, load_encoder, load_model
from lattice_inference.lora import LoraSite
from lattice_inference.serve import create_app
from tiny_decoders import BOS, END, EOS, chain, write_drawn_model, write_told_model

DATA = Path(__file__).parents[1] / "data"
CASES = json.loads((DATA / "architectures" / "cases.json").read_text())["cases"]
THINKING = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% else %}"
    "<|{{ m.role }}|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% if enable_thinking is defined %}<think>{% endif %}{% endif %}"
    "{# </think> #}"
)
HERMES = (DATA / "chat" / "tools" / "hermes.jinja").read_text(encoding="utf-8")


class Models:
    """What the tests serve, and compare with."""

    def __init__(self, folder: Path) -> None:
        self.drawn = load_model(write_drawn_model(folder / "drawn", context=128, template=THINKING))
        rng = np.random.default_rng(5)
        sites = {
            name: LoraSite(rng.normal(size=(3, inputs)), 0.3 * rng.normal(size=(outputs, 3)), 0.5)
            for name, (outputs, inputs) in self.drawn.adapter_sites.items()
        }
        self.drawn.attach_adapter(LoraAdapter(sites), "other")
        table = chain("Yes, 😀.", END) | {259: ord("Y"), END: EOS, BOS: ord("Y")}
        self.told = load_model(write_told_model(folder / "told", table))
        self.calling = load_model(write_drawn_model(folder / "calling", context=1024, template=HERMES))
        self.encoder = load_encoder(DATA / "tiny_bert")
        self.scorer = load_cross_encoder(write_directory(folder / "scorer", CASES["cross-encoder-bert"]))
        self.engines = {
            "drawn": Engine(self.drawn, EngineConfig(page_tokens=16)),
            "told": Engine(self.told, EngineConfig(page_tokens=16)),
            "calling": Engine(self.calling, EngineConfig(page_tokens=16)),
        }

    def app(self, config=None, **changes):
        given = {"models": self.engines, "embeddings": {"vectors": self.encoder}, "rerankers": {"scores": self.scorer}}
        return create_app(**(given | {"adapters": {"tuned": ("drawn", "other")}} | changes), config=config)

    def close(self) -> None:
        for engine in self.engines.values():
            engine.close()
        for model in (self.drawn, self.told, self.calling, self.encoder, self.scorer):
            model.close()


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    made = Models(tmp_path_factory.mktemp("served"))
    yield made
    made.close()


def client_of(app) -> TestClient:
    return TestClient(app, base_url="http://127.0.0.1:8080")


@pytest.fixture(scope="session")
def client(models):
    with client_of(models.app()) as made:
        yield made


@contextlib.contextmanager
def served_at(app):
    """Serve on a port, and yield the server and the address."""
    uvicorn = pytest.importorskip("uvicorn")
    from lattice_inference.serve.server import listen, server_config

    listener = listen("127.0.0.1", 0, has_keys=True)
    server = uvicorn.Server(server_config(app))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    try:
        yield server, f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)


def events_of(text: str) -> list[dict]:
    """Return the events of a stream, which has to end with [DONE]."""
    blocks = text.split("\n\n")
    assert blocks[-2:] == ["data: [DONE]", ""]
    return [json.loads(block.removeprefix("data: ")) for block in blocks[:-2]]
