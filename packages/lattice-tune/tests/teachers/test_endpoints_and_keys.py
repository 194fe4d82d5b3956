"""Which servers are asked, and where the key is not."""

from __future__ import annotations

import copy
import logging
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from teacher_server import TeacherServer

from lattice_tune import (
    ConfigError,
    EndpointSecurity,
    LabelingTask,
    LabelStore,
    ServedTeacher,
    TeacherApiError,
    TeacherConfig,
    TeacherProvider,
    label_texts,
)

KEY = "sk-THISISSECRET0123456789"
Make = Callable[..., ServedTeacher]


@pytest.mark.parametrize(
    "endpoint",
    [
        "https://api.openai.com:x@other/",
        "https://api.openai.com@other/",
        "https://@api.openai.com/",
        "https://api.openai.com:443@other.host/v1",
        "https://api.openai.com.other/",
        "https://other/api.openai.com",
        "https://api.openai.com\\@other/",
        "https://api.openai.com%2eother/",
        "https://api.openai.com\t.other/",
        "https://api.openai.com /v1",
        "https://xapi.openai.com/v1",
        "https://api.openai.com./v1",
        "https://api.openai.com?x=1",
        "https://api.openai.com/#other",
        "https://аpi.openai.com/v1",  # with a Cyrillic letter
        "http://api.openai.com/v1",
        "ftp://api.openai.com/v1",
        "//api.openai.com/v1",
        "api.openai.com",
        "https://",
        "https:///v1",
        "https://api.openai.com:0/v1",
        "https://api.openai.com:99999/v1",
        "https://[::1/v1",
        "https://" + "a" * 5000,
        "",
    ],
)
def test_endpoints_that_are_not_openai(endpoint: str) -> None:
    with pytest.raises(ConfigError):
        TeacherConfig(TeacherProvider.OPENAI, "m", endpoint, security=EndpointSecurity.default_secure())


def test_userinfo_is_refused_whatever_is_allowed() -> None:
    with pytest.raises(ConfigError, match="before an @"):
        EndpointSecurity(require_tls=False).check("https://api.openai.com:x@other/")


@pytest.mark.parametrize(
    ("endpoint", "host"),
    [
        ("https://API.OpenAI.com/v1/", "api.openai.com"),
        ("https://api.openai.com:8443/v1", "api.openai.com"),
    ],
)
def test_endpoints_that_are(endpoint: str, host: str) -> None:
    assert EndpointSecurity.default_secure().check(endpoint).host == host


def test_plain_http_goes_to_this_machine_alone() -> None:
    check = EndpointSecurity().check
    for endpoint in ("http://localhost:1/v1", "http://127.0.0.1/v1", "http://127.9.9.9/v1", "http://[::1]:8/v1"):
        assert check(endpoint).is_loopback
    for endpoint in (
        "http://127.1/v1",
        "http://0x7f000001/v1",
        "http://localhost.other/v1",
        "http://[::ffff:127.0.0.1]/v1",
    ):
        with pytest.raises(ConfigError, match="unencrypted"):
            check(endpoint)
    assert not EndpointSecurity(require_tls=False).check("http://10.0.0.1/v1").is_encrypted


def test_local_preset_stays_on_this_machine() -> None:
    assert TeacherConfig.local("m", "http://localhost:8000/v1").key_variable is None
    with pytest.raises(ConfigError, match="allowed are localhost"):
        TeacherConfig.local("m", "https://api.openai.com/v1")


@pytest.mark.parametrize("preset", ["claude_sonnet", "claude_haiku", "gpt4", "gemini_pro"])
def test_presets_take_other_models(preset: str) -> None:
    config = getattr(TeacherConfig, preset)("another-model")
    assert config.model_id == "another-model"
    assert config.key_variable in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY")


@pytest.mark.parametrize(
    ("provider", "header", "written"),
    [
        ("anthropic", "x-api-key", KEY),
        ("openai", "authorization", f"Bearer {KEY}"),
        ("gemini", "x-goog-api-key", KEY),
        ("openai-compatible", "authorization", f"Bearer {KEY}"),
    ],
)
def test_key_is_sent_in_the_providers_header(
    provider: str,
    header: str,
    written: str,
    server: TeacherServer,
    teacher: Make,
    task: LabelingTask,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    label_texts(["a"], teacher(provider, api_key_env="MY_KEY"), task)
    assert server.asked[0].headers[header] == written
    assert str(server.asked[0].headers).count(KEY) == 1
    assert KEY not in server.asked[0].path


def test_usual_key_goes_to_no_other_server(
    server: TeacherServer, teacher: Make, task: LabelingTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.setenv(variable, KEY)
    for provider in ("openai", "anthropic", "gemini", "openai-compatible"):
        label_texts(["a"], teacher(provider), task)
    assert KEY not in str([asked.headers for asked in server.asked])


def test_a_key_that_is_not_set_is_told_before_anything_is_asked(
    server: TeacherServer, teacher: Make, task: LabelingTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    with pytest.raises(TeacherApiError, match="set MY_KEY"):
        label_texts(["a"], teacher(api_key_env="MY_KEY"), task)
    monkeypatch.setenv("MY_KEY", "two words")
    with pytest.raises(TeacherApiError, match="MY_KEY"):
        label_texts(["a"], teacher(api_key_env="MY_KEY"), task)
    assert server.asked == []


def test_key_itself_is_refused_as_a_variable() -> None:
    with pytest.raises(ConfigError) as caught:
        TeacherConfig(TeacherProvider.OPENAI, "m", api_key_env=KEY)
    assert KEY not in str(caught.value)


def test_key_is_in_no_log_repr_error_and_store(
    server: TeacherServer,
    teacher: Make,
    task: LabelingTask,
    store: LabelStore,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    mine = teacher(api_key_env="MY_KEY")
    echo = {"error": {"message": f"wrong key {KEY}"}}
    server.script = [
        server.right,
        server.says(said=f"the key is {KEY}"),
        server.status(400, echo),
        server.status(401, echo),
    ]
    seen: list[object] = [mine, mine.config, mine.parameters, copy.copy(mine), pickle.loads(pickle.dumps(mine)).config]
    try:
        label_texts(["a", "b", "c", "d"], mine, task, store=store)
    except TeacherApiError as error:
        seen += [error, error.report, "".join(traceback.format_exception(error))]
    else:
        pytest.fail("401 is no error")
    assert len(server.asked) == 4
    for thing in seen:
        assert KEY not in repr(thing)
        assert KEY not in str(thing)
    assert KEY not in caplog.text
    folder = Path(store.path).parent
    assert not any(KEY.encode() in path.read_bytes() for path in folder.iterdir())


def test_offline_forbids_other_machines(task: LabelingTask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATTICE_OFFLINE", "1")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with pytest.raises(TeacherApiError, match="LATTICE_OFFLINE"):
        label_texts(["a"], ServedTeacher(TeacherConfig.gpt4()), task)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("provider", "other"),
        ("provider", "local"),
        ("provider", None),
        ("model_id", ""),
        ("model_id", "a\nb"),
        ("model_id", "m" * 1000),
        ("temperature", float("nan")),
        ("temperature", 2.5),
        ("max_tokens", 0),
        ("max_tokens", True),
        ("timeout", 0),
        ("timeout", float("inf")),
        ("max_retries", -1),
        ("retry_delay", "1"),
        ("structured_output", 1),
        ("security", None),
        ("prices", 3),
        ("system_prompt", 3),
        ("endpoint", 3),
    ],
)
def test_fields_that_make_no_sense(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field):
        TeacherConfig(**({"provider": "openai", "model_id": "m"} | {field: value}))  # type: ignore[arg-type]
