"""The command line and a server."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from lattice_embed.cli import main

Capture = pytest.CaptureFixture[str]


def run(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    status = main(list(arguments))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_embed_asks_the_server(server: Any, library: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOUSE_KEY", "sk-house")
    status, out, err = run(
        capsys,
        *("embed", "--base-url", server.url, "--api-key-variable", "HOUSE_KEY", "--model", "house-model"),
        *("--json", "one", "two"),
    )
    assert (status, err) == (0, "")
    report = json.loads(out)
    assert (report["model"], report["dim"]) == ("house-model", 8)
    np.testing.assert_allclose(report["embeddings"][1]["embedding"], server.unit("two"), atol=1e-6)
    assert report["embeddings"][0]["tokens"] is None
    assert server.asked[0].headers["authorization"] == "Bearer sk-house"
    status, out, _ = run(capsys, "embed", "--base-url", server.url, "--model", "house-model", "one", "two")
    assert status == 0
    assert "2 vectors of 8 float32" in out


def test_similarity_asks_the_server(server: Any, library: str, capsys: Capture) -> None:
    status, out, _ = run(capsys, "similarity", "--base-url", server.url, "--model", "m", "one", "two")
    assert status == 0
    assert float(out) == pytest.approx(float(server.unit("one") @ server.unit("two")), abs=1e-5)


def test_model_of_a_provider_needs_its_key(library: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    status, out, err = run(capsys, "embed", "--model", "text-embedding-3-small", "a")
    assert (status, out) == (1, "")
    assert "set OPENAI_API_KEY" in err


def test_server_that_refuses_is_quoted(server: Any, library: str, capsys: Capture) -> None:
    server.usual = server.status(404, {"error": {"message": "model 'm' not found"}})
    status, out, err = run(capsys, "embed", "--base-url", server.url, "--model", "m", "a")
    assert (status, out) == (1, "")
    assert "404: model 'm' not found" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--base-url", "http://localhost:1/v1", "--threads", "2"], "--threads is for models that run here"),
        (["--base-url", "http://localhost:1/v1", "--precision", "float16"], "--precision"),
        (["--base-url", "http://localhost:1/v1", "--truncate", "error"], "--truncate"),
        (["--base-url", "localhost"], "like https://host/v1"),
        (["--api-key-variable", "KEY"], "--api-key-variable goes with"),
    ],
)
def test_options_that_do_not_go_together(library: str, capsys: Capture, arguments: list[str], message: str) -> None:
    status, out, err = run(capsys, "embed", "--model", "minilm", *arguments, "a")
    assert (status, out) == (2, "")
    assert message in err
