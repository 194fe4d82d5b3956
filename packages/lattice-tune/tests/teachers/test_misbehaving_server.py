"""Servers that fail, stall, lie and redirect: nothing is labelled wrongly, and the next text is asked for."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from teacher_server import TeacherServer, label_of

from lattice_tune import (
    CallableTeacher,
    LabelingTask,
    LabelStore,
    Outcome,
    RequestLimits,
    ServedTeacher,
    TeacherApiError,
    label_texts,
)

Make = Callable[..., ServedTeacher]
ONE = RequestLimits(concurrency=1)


@pytest.mark.parametrize("headers", [{}, {"Retry_After": "0"}, {"retry_after_ms": "1"}])
def test_429_is_waited_for(headers: dict[str, str], server: TeacherServer, teacher: Make, task: LabelingTask) -> None:
    server.script = [server.status(429, {"error": {"message": "slow down"}}, **headers)]
    report = label_texts(["a", "b"], teacher(), task, limits=ONE)
    assert report.is_complete
    assert server.texts() == ["a", "a", "b"]
    assert report.unknown_cost == 0  # what is refused is not billed


def test_retry_after_holds_all_requests_back(server: TeacherServer, teacher: Make, task: LabelingTask) -> None:
    server.script = [server.status(429, b"", retry_after_ms="300")]
    assert label_texts(["a", "b", "c"], teacher(), task, limits=ONE).is_complete
    assert server.asked[1].time - server.asked[0].time >= 0.3


def test_a_used_up_quota_ends_the_labelling(server: TeacherServer, teacher: Make, task: LabelingTask) -> None:
    server.usual = server.status(429, {"error": {"code": "insufficient_quota", "message": "pay"}})
    with pytest.raises(TeacherApiError, match="insufficient_quota"):
        label_texts(["a", "b", "c"], teacher(), task, limits=ONE)
    assert len(server.asked) == 1


@pytest.mark.parametrize("code", [500, 502, 503, 529])
def test_server_errors_are_tried_again(code: int, server: TeacherServer, teacher: Make, task: LabelingTask) -> None:
    server.script = [server.status(code), server.status(code)]
    report = label_texts(["a"], teacher(), task)
    assert report.is_complete
    assert (report.requests, len(server.asked)) == (3, 3)
    assert report.unknown_cost > 0  # what a broken server has billed is not known


def test_a_text_that_fails_for_good_is_no_label(
    server: TeacherServer, teacher: Make, task: LabelingTask, store: LabelStore
) -> None:
    server.script = [server.status(500)] * 3
    report = label_texts(["a", "b"], teacher(), task, limits=ONE, store=store)
    assert [result.outcome for result in report.results] == [Outcome.FAILED, Outcome.LABELLED]
    assert "500" in report.results[0].detail
    assert len(store) == 1
    again = label_texts(["a", "b"], teacher(), task, limits=ONE, store=store)  # failures are not kept
    assert again.is_complete
    assert server.texts() == ["a", "a", "a", "b", "a"]


def test_a_server_that_always_fails_ends_the_labelling(
    server: TeacherServer, teacher: Make, task: LabelingTask
) -> None:
    server.usual = server.status(500)
    with pytest.raises(TeacherApiError, match="5 texts failed one after another"):
        label_texts(
            [str(number) for number in range(100)],
            teacher(max_retries=0),
            task,
            limits=RequestLimits(1, max_failures=5),
        )
    assert len(server.asked) == 5


@pytest.mark.parametrize("code", [401, 403, 404])
def test_what_every_text_would_get_ends_the_labelling(
    code: int, server: TeacherServer, teacher: Make, task: LabelingTask
) -> None:
    server.usual = server.status(code, {"error": {"message": "no such thing"}})
    with pytest.raises(TeacherApiError, match="no such thing") as caught:
        label_texts(["a", "b", "c"], teacher(), task, limits=ONE)
    assert caught.value.status == code
    assert len(server.asked) == 1


def test_400_is_about_one_text(server: TeacherServer, teacher: Make, task: LabelingTask) -> None:
    server.script = [server.status(400, {"error": {"message": "too long"}})]
    report = label_texts(["a", "b"], teacher(), task, limits=ONE)
    assert [result.outcome for result in report.results] == [Outcome.FAILED, Outcome.LABELLED]
    assert server.texts() == ["a", "b"]


def test_slow_drip_ends_at_the_timeout(server: TeacherServer, teacher: Make, task: LabelingTask) -> None:
    over = threading.Event()
    server.usual = server.drip(over)
    began = time.monotonic()
    (result,) = label_texts(["a"], teacher(timeout=0.2, max_retries=1), task).results
    over.set()
    assert result.outcome is Outcome.FAILED
    assert "within" in result.detail
    assert len(server.asked) == 2
    assert time.monotonic() - began < 8  # two timeouts, on a machine that is as loaded as it likes


def test_cut_body_is_asked_for_again_and_counts_as_paid(
    server: TeacherServer, teacher: Make, task: LabelingTask
) -> None:
    server.script = [server.cut_body()]
    report = label_texts(["a"], teacher(), task)
    assert report.results[0].label == label_of("a")
    assert report.cost + report.unknown_cost >= (3 * server.billed_input + 15 * server.billed_output) / 1e6


@pytest.mark.parametrize(
    "body", [b"<html><body>Please sign in</body></html>", b"", b"\x00\xff", b"[1, 2", b"[1, 2]", b"NaN", b"[" * 100_000]
)
def test_html_and_other_bodies_are_failures(
    body: bytes, server: TeacherServer, teacher: Make, task: LabelingTask, store: LabelStore
) -> None:
    server.script = [server.status(200, body)]
    report = label_texts(["a", "b"], teacher(), task, limits=ONE, store=store)
    assert [result.outcome for result in report.results] == [Outcome.FAILED, Outcome.LABELLED]
    assert len(store) == 1


@pytest.mark.slow
def test_body_of_200_mb_is_not_read(server: TeacherServer, teacher: Make, task: LabelingTask) -> None:
    import tracemalloc

    server.script = [server.huge(200 << 20)]
    tracemalloc.start()
    report = label_texts(["a", "b"], teacher(), task, limits=ONE)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [result.outcome for result in report.results] == [Outcome.FAILED, Outcome.LABELLED]
    assert "more than" in report.results[0].detail
    assert peak < 20 << 20


@pytest.mark.parametrize("code", [301, 302, 307, 308])
def test_redirects_are_not_followed(code: int, server: TeacherServer, teacher: Make, task: LabelingTask) -> None:
    other = TeacherServer()
    try:
        server.usual = server.status(code, b"", Location=f"{other.url}/chat/completions")
        with pytest.raises(TeacherApiError, match="redirect"):
            label_texts(["a"], teacher(), task)
        assert other.asked == []
    finally:
        other.close()


def test_tls_to_a_server_without_it_is_refused(server: TeacherServer, teacher: Make, task: LabelingTask) -> None:
    with pytest.raises(TeacherApiError):
        label_texts(["a"], teacher(endpoint=server.url.replace("http://", "https://")), task)
    assert server.asked == []


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_an_unknown_certificate_ends_the_labelling(
    server: TeacherServer, teacher: Make, task: LabelingTask, tmp_path: Path
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(certificate), "-days", "1", "-subj", "/CN=localhost"]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    with pytest.raises(TeacherApiError, match="CERTIFICATE_VERIFY_FAILED"):
        label_texts(["a", "b"], teacher(endpoint=server.url.replace("http://", "https://")), task, limits=ONE)
    assert server.asked == []


def test_words_of_a_server_cannot_steer_a_terminal(server: TeacherServer, teacher: Make, task: LabelingTask) -> None:
    escape = "\x1b]0;owned\x07\x1b[2J\u202e"
    server.script = [
        server.says(said=escape),
        server.status(200, escape.encode()),
        server.status(400, {"error": escape}),
    ]
    report = label_texts(["a", "b", "c"], teacher("openai-compatible"), task, limits=ONE)
    for result in report.results:
        assert result.label is None
        assert result.detail.isprintable()
        assert "owned" in result.detail


def test_a_port_without_a_server(teacher: Make, task: LabelingTask) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and no server listens
        lonely = teacher(endpoint=f"http://127.0.0.1:{taken.getsockname()[1]}/v1")
        (result,) = label_texts(["a"], lonely, task).results
    assert result.outcome is Outcome.FAILED


def test_an_answer_delivered_twice_labels_no_other_text(
    server: TeacherServer, teacher: Make, task: LabelingTask
) -> None:
    texts = [f"text {number}" for number in range(20)]
    server.script = [server.twice() if number % 2 else server.right for number in range(40)]
    report = label_texts(texts, teacher(), task, limits=ONE)
    assert [result.label for result in report.results] == [label_of(text) for text in texts]


def test_answers_beside_a_failed_one_are_kept(teacher: Make, task: LabelingTask, store: LabelStore) -> None:
    """Other libraries keep whole batches only, so that one bad text loses its neighbours (distilabel #588, #1065)."""
    asked: list[str] = []

    def fails_on_five(text: str) -> str:
        asked.append(text)
        if text == "5" and len(asked) < 10:
            raise ValueError("five")
        return "alpha"

    texts = [str(number) for number in range(8)]
    rule = CallableTeacher(fails_on_five, name="rule")
    report = label_texts(texts, rule, task, store=store)
    assert report.outcomes == {Outcome.LABELLED: 7, Outcome.FAILED: 1}
    asked += ["", ""]
    assert label_texts(texts, rule, task, store=store).is_complete
    assert asked == [*texts, "", "", "5"]


@pytest.mark.parametrize("said", ["I'd rather not.", '{"label": "delta"}', ""])
def test_failed_answers_are_not_kept_as_answers(
    said: str, server: TeacherServer, teacher: Make, task: LabelingTask, store: LabelStore
) -> None:
    """Other libraries keep a failure in the cache and give it back for ever (docetl #50)."""
    server.script = [server.says(said=said)]
    plain = teacher("openai-compatible")
    assert not label_texts(["a"], plain, task, store=store).is_complete
    assert len(store) == 0
    assert label_texts(["a"], plain, task, store=store).results[0].label == label_of("a")
    assert label_texts(["a"], plain, task, store=store).from_store == 1
    assert len(server.asked) == 2
