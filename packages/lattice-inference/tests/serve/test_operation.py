"""What goes on around requests: clients that leave, a full queue, deadlines, draining, the log and the metrics."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading

import httpx2
import numpy as np
import pytest

from lattice_inference import Engine, EngineConfig
from lattice_inference.generate import step_runner as engine_module
from lattice_inference.serve import ServeConfig
from lattice_inference.serve.metrics import ServeMetrics
from lattice_inference.serve.reasoning_split import ReasoningSplit
from lattice_inference.serve.server import listen
from lattice_inference.serve.token_batches import TokenBatches
from tiny_decoders import write_drawn_model

from .conftest import client_of, events_of
from .test_answers import ASKED
from .test_refusals import refused

LONG = {"model": "drawn", "messages": ASKED, "seed": 1, "ignore_eos": True}


def called(app, body, path="/v1/chat/completions", *, leaves_after=None, ends_after=None):
    """Call an application as a server does, and return what it sends.

    The client leaves after so many parts of the answer's body, or the server ends its tasks after so many.
    """

    async def call():
        parts, left = [], asyncio.Event()
        whole = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

        async def receive():
            if whole:
                return whole.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            parts.append(message)
            if leaves_after is not None and len(parts) > leaves_after:
                left.set()
            if ends_after is not None and len(parts) == ends_after + 1:
                asyncio.get_running_loop().call_soon(task.cancel)

        if leaves_after == 0:
            asyncio.get_running_loop().call_later(0.05, left.set)
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "root_path": ""}
        scope |= {"headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]}
        task = asyncio.ensure_future(app({**scope, "http_version": "1.1", "scheme": "http"}, receive, send))
        if ends_after == 0:
            asyncio.get_running_loop().call_later(0.05, task.cancel)
        await asyncio.wait_for(task, 60)
        return parts

    return asyncio.run(call())


@pytest.mark.parametrize("streams", [True, False])
def test_a_request_that_the_server_ends_is_told_so(models, streams, caplog):
    with (
        Engine(models.drawn, EngineConfig(page_tokens=16, prefix_bytes=0)) as engine,
        caplog.at_level(logging.INFO, "lattice_inference.serve"),
    ):
        app = models.app(models={"drawn": engine}, adapters={})
        parts = called(app, {**LONG, "n": 16, "stream": streams}, ends_after=3 if streams else 0)
        error = json.loads(parts[-1]["body"].removeprefix(b"data: "))["error"]
        assert (error["type"], error["code"]) == ("server_error", "cancelled")
        assert not parts[-1].get("more_body", False)
        line = json.loads(caplog.records[-1].getMessage())
        assert (line["status"], line["code"]) == (503, "cancelled")
        assert ended(engine).used_pages == 0
        assert 'status="503",code="cancelled"} 1\n' in app.state.lattice.metrics.text()


def ended(engine):
    """Wait until an engine has nothing to do, and return its statistics."""
    while (stats := engine.stats()).waiting + stats.running:
        threading.Event().wait(0.005)
    return stats


class TestLeaving:
    @pytest.mark.parametrize("streams", [True, False])
    def test_a_client_that_leaves_frees_its_row(self, models, streams):
        with Engine(models.drawn, EngineConfig(page_tokens=16, prefix_bytes=0)) as engine:
            app = models.app(models={"drawn": engine}, adapters={})
            called(app, {**LONG, "n": 16, "stream": streams}, leaves_after=2 if streams else 0)
            stats = ended(engine)
            assert stats.cancelled > 0
            assert stats.used_pages == 0
            assert stats.new_tokens < 16 * 100
            assert app.state.lattice.in_flight == 0

    def test_texts_of_a_client_that_has_left_are_dropped(self):
        began, may_go, seen = threading.Event(), threading.Event(), []

        def run(items, adapter):
            began.set()
            may_go.wait(30)
            seen.extend(items)
            return np.zeros((len(items), 1), np.float32)

        async def ask():
            batches = TokenBatches(run, 4)
            first = batches.submit(["a"], [4], None)
            await asyncio.to_thread(began.wait, 30)
            left, last = batches.submit(["b"], [4], None), batches.submit(["c"], [4], None)
            left.cancel()
            may_go.set()
            assert (await first).shape == (await last).shape == (1, 1)
            batches.close()

        asyncio.run(ask())
        assert seen == ["a", "c"]


class TestBatches:
    def test_they_take_turns_with_the_steps_of_an_engine(self, models):
        threads = []

        class Watched:
            dimension, max_tokens = models.encoder.dimension, models.encoder.max_tokens

            def count_tokens(self, texts):
                return models.encoder.count_tokens(texts)

            def encode(self, texts):
                threads.append(threading.current_thread().name)
                return models.encoder.encode(texts)

        texts = ["the cat sat"] * 200
        expected = models.encoder.encode(texts[:1]).vectors[0].tolist()
        for served, thread in (({}, "lattice-engine"), ({"models": {}, "adapters": {}}, "lattice-batches_0")):
            with client_of(models.app(embeddings={"vectors": Watched()}, **served)) as client:
                answer = client.post("/v1/embeddings", json={"model": "vectors", "input": texts}).json()
            assert all(entry["embedding"] == expected for entry in answer["data"])
            assert set(threads) == {thread}
            assert len(threads) == 1 or served == {}  # 800 tokens are more than the first turn takes
            threads.clear()

    @pytest.mark.parametrize(("document", "is_short"), [("a", True), ("a " * 1500, False)])
    def test_long_pairs_are_not_counted_on_the_event_loop(self, models, document, is_short):
        loop, counted = [], []

        class Watched:
            max_tokens, label_count = 10**6, 1

            def count_tokens(self, pairs):
                counted.append(threading.get_ident())
                return np.ones(len(pairs), np.int32)

            def score_pairs(self, pairs):
                return np.ones(len(pairs), np.float32)

        app = models.app(rerankers={"scores": Watched()}, models={}, adapters={})

        async def watched(scope, receive, send):
            loop.append(threading.get_ident())
            await app(scope, receive, send)

        body = {"model": "scores", "query": "a", "documents": [document]}
        with client_of(watched) as client:
            assert client.post("/v1/rerank", json=body).status_code == 200
        assert (counted[0] in loop) == is_short

    def test_a_closed_engine_fails_its_requests_alone(self, models):
        with Engine(models.drawn) as engine:
            app = models.app(models={"drawn": engine}, adapters={})
        with client_of(app) as client:
            answer = client.post("/v1/embeddings", json={"model": "vectors", "input": "a"})
            assert "closed" in refused(answer, 500, "generation_failed")

    def test_they_hold_as_many_tokens_as_fit_and_take_turns(self):
        began, may_go, calls = threading.Event(), threading.Event(), []

        def run(items, adapter):
            began.set()
            may_go.wait(30)
            calls.append((list(items), adapter))
            return np.array([[int(item)] for item in items], np.float32)

        async def ask():
            batches = TokenBatches(run, 10)
            jobs = [batches.submit(["0"], [99], None)]
            await asyncio.to_thread(began.wait, 30)
            jobs += [batches.submit(["1", "2", "3", "4", "5"], [4] * 5, None), batches.submit(["6"], [2], None)]
            jobs.append(batches.submit(["7"], [1], "other"))
            may_go.set()
            results = [(await job)[:, 0].tolist() for job in jobs]
            batches.close()
            return results

        results = asyncio.run(ask())
        assert results == [[0], [1, 2, 3, 4, 5], [6], [7]]
        assert calls[:2] == [(["0"], None), (["1", "2", "6"], None)]
        assert (["7"], "other") in calls
        assert all(adapter is None or items == ["7"] for items, adapter in calls)

    def test_one_that_fails_fails_alone(self):
        began, may_go = threading.Event(), threading.Event()

        def run(items, adapter):
            began.set()
            may_go.wait(30)
            if "bad" in items:
                raise ValueError("bad")
            return np.ones((len(items), 1), np.float32)

        async def ask():
            batches = TokenBatches(run, 10)
            jobs = [batches.submit([item], [1], None) for item in ("first", "good", "bad", "good")]
            await asyncio.to_thread(began.wait, 30)
            may_go.set()
            results = await asyncio.gather(*jobs, return_exceptions=True)
            batches.close()
            assert batches.submit(["a"], [1], None).cancelled()
            return results

        results = asyncio.run(ask())
        assert isinstance(results[2], ValueError)
        assert all(results[i].shape == (1, 1) for i in (0, 1, 3))

    def test_what_waits_is_cancelled_at_the_end_and_the_call_is_finished(self):
        began, may_go = threading.Event(), threading.Event()

        def run(items, adapter):
            began.set()
            may_go.wait(30)
            return np.ones((len(items), 1), np.float32)

        async def ask():
            batches = TokenBatches(run, 10)
            first = batches.submit(["a"], [1], None)
            await asyncio.to_thread(began.wait, 30)
            second = batches.submit(["b"], [1], None)
            closing = asyncio.ensure_future(asyncio.to_thread(batches.close))
            await asyncio.wait([second])
            may_go.set()
            await closing
            return (await first).shape, second.cancelled()

        assert asyncio.run(ask()) == ((1, 1), True)


def test_small_packets_are_not_delayed():
    """Two small writes would otherwise wait for an acknowledgement, which clients delay by 40 ms."""
    listener = listen("127.0.0.1", 0, has_keys=False)
    port = listener.getsockname()[1]
    found = []

    async def note(_, writer):
        found.append(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    async def ask():
        server = await asyncio.start_server(note, sock=listener)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await reader.read()
        writer.close()
        server.close()

    asyncio.run(ask())
    assert len(found) == 1
    assert found[0]


@pytest.mark.parametrize("size", [1, 2, 3, 50])
@pytest.mark.parametrize(
    ("text", "state", "expected"),
    [
        ("<think>\nwhy\n\nso\n</think>\n\nYes", "possible", ("why\n\nso", "Yes")),
        ("why</think>Yes</think>", "open", ("why", "Yes</think>")),
        ("why </thin", "open", ("why </thin", "")),
        ("<thirst", "possible", ("", "<thirst")),
        ("<thi", "possible", ("", "<thi")),
        ("<think>no</think>", "none", ("", "<think>no</think>")),
        ("<think>\n\n</think>\n\nYes\n", "possible", ("", "Yes\n")),
    ],
)
def test_reasoning_is_told_from_the_answer(text, state, expected, size):
    split = ReasoningSplit(state)
    parts = [split.push(text[start : start + size]) for start in range(0, len(text), size)] + [split.finish()]
    assert ("".join(part[0] for part in parts), "".join(part[1] for part in parts)) == expected


def test_an_error_after_some_tokens_is_an_error_event(models, monkeypatch):
    with Engine(models.drawn, EngineConfig(page_tokens=16)) as engine:
        app = models.app(models={"drawn": engine}, adapters={})
        calls, run_step = [], engine_module.run_step

        def failing(model, takers):
            calls.append(1)
            if len(calls) > 3:
                raise RuntimeError("secret")
            return run_step(model, takers)

        monkeypatch.setattr(engine_module, "run_step", failing)
        with client_of(app) as client:
            answer = client.post("/v1/chat/completions", json={**LONG, "stream": True})
            blocks = answer.text.strip().split("\n\n")
            error = json.loads(blocks[-1].removeprefix("data: "))["error"]
            assert (error["type"], error["code"]) == ("server_error", "internal_error")
            assert "secret" not in answer.text
            assert '"finish_reason": "stop"' not in answer.text
            calls[:] = [1, 1, 1]
            refused(client.post("/v1/chat/completions", json=LONG), 500, "internal_error")


def test_a_request_that_takes_too_long_is_an_error(models):
    with client_of(models.app(ServeConfig(request_seconds=1e-4))) as client:
        refused(client.post("/v1/chat/completions", json={**LONG, "n": 16}), 504, "deadline_exceeded")


def test_one_request_too_many_is_told_to_come_again(models):
    app = models.app(ServeConfig(max_requests=3))
    with client_of(app) as client:
        app.state.lattice.in_flight = 3
        answer = client.post("/v1/embeddings", json={"model": "vectors", "input": "a"})
        refused(answer, 429, "server_busy")
        assert answer.headers["retry-after"] == "1"
        assert client.get("/health").status_code == 200
        app.state.lattice.in_flight = 2
        assert client.post("/v1/embeddings", json={"model": "vectors", "input": "a"}).status_code == 200


def test_the_log_has_no_text_and_the_metrics_count(models, caplog):
    with client_of(models.app()) as client, caplog.at_level(logging.INFO, "lattice_inference.serve"):
        body = {"model": "told", "messages": [{"role": "user", "content": "a secret"}], "temperature": 0}
        answer = client.post("/v1/chat/completions", json=body, headers={"traceparent": "00-ab-cd-01"})
        client.post("/v1/chat/completions", json={**body, "n": 0})
        events_of(client.post("/v1/chat/completions", json={**body, "stream": True}).text)
        lines = [json.loads(record.getMessage()) for record in caplog.records if record.name.endswith(".serve")]
        assert "secret" not in caplog.text
        assert [(line["status"], line["code"]) for line in lines] == [(200, None), (400, "invalid_value"), (200, None)]
        assert lines[0]["traceparent"] == "00-ab-cd-01"
        assert lines[0]["id"] == answer.headers["x-request-id"]
        tokens = answer.json()["usage"]["completion_tokens"]
        assert lines[0]["new_tokens"] == lines[2]["new_tokens"] == tokens
        text = client.get("/metrics").text
    assert f'lattice_tokens_total{{model="told",kind="completion"}} {2 * tokens}\n' in text
    assert 'lattice_requests_total{route="/v1/chat/completions",status="400",code="invalid_value"} 1\n' in text
    assert 'lattice_first_token_seconds_count{model="told"} 2\n' in text
    assert 'lattice_engine_running{model="told"} 0\n' in text
    assert 'lattice_first_token_seconds_bucket{model="told",le="+Inf"} 2\n' in text
    for name in ("steps", "rows", "step_seconds", "preemptions"):
        assert f'lattice_engine_{name}_total{{model="told"}} ' in text
    assert 'lattice_tokens_total{model="told",kind="cached"} ' in text
    for line in text.splitlines():
        assert line.startswith("# ") or float(line.rpartition(" ")[2]) >= 0


def test_a_counter_keeps_all_digits():
    metrics = ServeMetrics()
    for amount in (12_345_678, 1):
        metrics.add("lattice_tokens_total", amount, model='a"\n', kind="prompt")
    assert 'lattice_tokens_total{model="a\\"\\n",kind="prompt"} 12345679\n' in metrics.text()


def test_names_of_models_are_labels_as_they_are(models):
    name = 'modèle "é\\'
    app = models.app(models={}, adapters={}, embeddings={name: models.encoder})
    with client_of(app) as client:
        assert client.post("/v1/embeddings", json={"model": name, "input": "a"}).status_code == 200
        text = client.get("/metrics").text
    label = 'model="modèle \\"é\\\\"'
    assert f"lattice_text_requests_waiting{{{label}}} 0\n" in text
    assert f'lattice_tokens_total{{{label},kind="prompt"}} 3\n' in text


def test_paths_of_strangers_are_no_labels(models):
    app = models.app()
    with client_of(app) as client:
        app.state.lattice.is_draining = True
        for path in ("/v1/embeddings", "/a", "/b"):
            assert client.post(path, json={}).status_code == 503
        text = client.get("/metrics").text
    assert 'lattice_requests_total{route="/v1/embeddings",status="503",code="draining"} 1\n' in text
    assert 'lattice_requests_total{route="(refused)",status="503",code="draining"} 2\n' in text


def test_a_histogram_counts_up_to_each_bound():
    metrics = ServeMetrics()
    for seconds in (0.005, 0.02, 0.3, 100):
        metrics.observe("lattice_request_seconds", seconds, route="/a")
    lines = [line.rpartition(" ") for line in metrics.text().splitlines() if "_bucket" in line]
    counts = {name.partition('le="')[2].removesuffix('"}'): int(count) for name, _, count in lines}
    assert (counts["0.005"], counts["0.01"], counts["0.025"], counts["0.5"], counts["60"]) == (1, 1, 2, 3, 3)
    assert counts["+Inf"] == 4
    assert 'lattice_request_seconds_count{route="/a"} 4\n' in metrics.text()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="SIGTERM")
def test_sigterm_lets_running_requests_end(tmp_path):
    pytest.importorskip("uvicorn")
    model = write_drawn_model(tmp_path / "drawn", context=4096)
    command = [sys.executable, "-m", "lattice_inference", "serve", "--model", f"drawn={model}", "--port", "0"]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, "LATTICE_NUM_THREADS": "1"}
    )
    try:
        url = process.stderr.readline().split(" at ")[1].strip().removesuffix("/v1")
        body = {"model": "drawn", "prompt": "abc", "max_tokens": 1500, "ignore_eos": True, "stream": True, "seed": 1}
        with (
            httpx2.Client(base_url=url, timeout=60) as client,
            client.stream("POST", "/v1/completions", json=body) as stream,
        ):
            lines = stream.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            with httpx2.Client(base_url=url, timeout=60) as other:
                while other.get("/health/ready").status_code == 200:
                    threading.Event().wait(0.01)
                assert other.get("/health/live").status_code == 200
                refused(other.post("/v1/completions", json=body), 503, "draining")
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
        assert process.wait(60) == 0
    finally:
        process.kill()
        log = process.stderr.read()
        process.stderr.close()
    assert '"status": 200' in log
    assert "Traceback" not in log
