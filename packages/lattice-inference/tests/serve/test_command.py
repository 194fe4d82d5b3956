"""``lattice serve`` up to the point where it would serve: names, keys, the file of options, and what is refused."""

from __future__ import annotations

import argparse
import json

import pytest

from lattice_inference import Engine, load_model
from lattice_inference.cli import main, serve_options
from lattice_inference.cli.serve_options import add_server_options
from tiny_decoders import write_drawn_model

from .conftest import client_of
from .test_refusals import refused

pytest.importorskip("uvicorn")

from lattice_inference.serve.server import listen


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_drawn_model(tmp_path_factory.mktemp("models") / "drawn", context=64)


def checked(words, capsys):
    assert main(["serve", *words, "--port", "0", "--check"]) == 0
    return json.loads(capsys.readouterr().out)


def test_it_says_what_it_would_serve(model, capsys):
    told = checked(["--model", f"a={model}", "--model", f"b={model}"], capsys)
    assert told["models"] == ["a", "b"]
    assert told["url"].startswith("http://127.0.0.1:")
    assert told["url"].endswith("/v1")


def test_options_may_stand_in_a_file(model, capsys, tmp_path):
    file = tmp_path / "lattice.toml"
    file.write_text(f'[serve]\nmodel = ["a={model}", "b={model}"]\nmax-requests = 5\nheader-seconds = 2.5\n')
    assert checked(["--config", str(file)], capsys)["models"] == ["a", "b"]


@pytest.mark.parametrize(
    ("variable", "lines", "keys"),
    [
        ("one, two,", None, {"one", "two"}),
        (None, "three\n\n four \n", {"three", "four"}),
        (None, "\ufeffthree\r\n# of the team\r\nfour\r\n", {"three", "four"}),
        ("one", "two", {"one", "two"}),
    ],
)
def test_keys_come_from_a_file_and_from_the_environment(variable, lines, keys, tmp_path, monkeypatch):
    words = []
    if variable is not None:
        monkeypatch.setenv("LATTICE_API_KEYS", variable)
    if lines is not None:
        (tmp_path / "keys").write_bytes(lines.encode())
        words = ["--api-key-file", str(tmp_path / "keys")]
    parser = argparse.ArgumentParser()
    add_server_options(parser)
    assert set(serve_options._config(parser.parse_args(words)).api_keys) == keys


def test_keys_let_it_listen_for_other_machines(model, capsys, monkeypatch):
    words = ["--model", f"a={model}", "--host", "0.0.0.0"]
    assert main(["serve", *words, "--port", "0", "--check"]) == 2
    assert "can be reached from other machines" in capsys.readouterr().err
    monkeypatch.setenv("LATTICE_API_KEYS", "one")
    assert checked(words, capsys)["models"] == ["a"]


def test_a_port_in_use_is_an_error(model, capsys):
    with listen("127.0.0.1", 0, has_keys=False) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", "--model", f"a={model}", "--port", port, "--check"]) == 1
        assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err


def test_a_template_that_raises_is_the_conversations_fault(models, tmp_path):
    path = write_drawn_model(tmp_path / "strict", context=64, template="{{ raise_exception('roles must alternate') }}")
    with load_model(path) as strict, Engine(strict) as engine:
        app = models.app(models={"strict": engine}, adapters={})
        with client_of(app) as client:
            body = {"model": "strict", "messages": [{"role": "user", "content": "a"}]}
            answer = client.post("/v1/chat/completions", json=body)
            assert "roles must alternate" in refused(answer, 400, "invalid_value", "messages")
        assert engine.stats().running == engine.stats().waiting == 0
