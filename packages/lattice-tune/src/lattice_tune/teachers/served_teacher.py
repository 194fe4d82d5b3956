"""A model at a server, asked by lattice-embed's HTTP client (extra ``teachers``)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lattice_tune._version import __version__
from lattice_tune.arguments import instance
from lattice_tune.errors import MissingDependencyError, TeacherApiError, TeacherTimeoutError
from lattice_tune.teachers.answer import Outcome, TeacherAnswer
from lattice_tune.teachers.config import TeacherConfig
from lattice_tune.teachers.found_json import parse_json
from lattice_tune.teachers.limits import Budget, Reservation, Stop
from lattice_tune.teachers.prompt import Prompt, render_prompt
from lattice_tune.teachers.protocols import PROTOCOLS, method_url
from lattice_tune.teachers.provider import TeacherProvider
from lattice_tune.teachers.task import LabelingTask
from lattice_tune.teachers.texts import check_texts

if TYPE_CHECKING:
    from lattice_embed.remote import HttpAnswer, HttpRequest, RemoteServiceError

__all__ = ["Connection", "PreparedRequest", "ServedTeacher"]

EXTRA = "a teacher at a server needs an HTTP client: pip install 'lattice-tune[teachers]'"

ANSWER_BYTES, BYTES_PER_TOKEN = 1 << 20, 64
"""No sensible answer has more bytes than these for the message and for each of its tokens."""

MOST_DELAY, MOST_RETRY_AFTER = 60.0, 300.0

HOPELESS = frozenset({401, 402, 403, 404, 405, 407})
"""Statuses that the next text would get too."""


@dataclass(frozen=True)
class PreparedRequest:
    """What would be sent for a text.

    Attributes:
        prompt: instructions and text.
        body: the JSON, as bytes.
        most_input_tokens: no tokenizer makes more of it: one for a byte, and what the provider adds.
        most_output_tokens: what the server is told.
    """

    prompt: Prompt
    body: bytes
    most_input_tokens: int
    most_output_tokens: int


class ServedTeacher:
    """A model at a server that labels texts, one request for each.

    >>> teacher = ServedTeacher(TeacherConfig.claude_haiku())
    >>> teacher.provider.value, teacher.model_id
    ('anthropic', 'claude-3-5-haiku-20241022')

    Nothing is opened before a labelling asks. The key is read from the environment then, and is in no repr, log, error and
    store. Redirects are not followed.

    Args:
        config: the model and how it is asked.

    Raises:
        InvalidInputError: ``config`` is no :class:`TeacherConfig`.
    """

    def __init__(self, config: TeacherConfig) -> None:
        instance(config, "config", TeacherConfig)
        self.config = config

    @property
    def provider(self) -> TeacherProvider:
        """The server's protocol."""
        return self.config.provider

    @property
    def model_id(self) -> str:
        """What the server calls the model."""
        return self.config.model_id

    @property
    def parameters(self) -> Mapping[str, object]:
        """What answers depend on beside the model. Limits of time, length and money are none of it."""
        return {
            "endpoint": self.config.checked_endpoint().url,
            "temperature": self.config.temperature,
            "structured_output": self.config.is_structured,
        }

    def prepare(self, text: str, task: LabelingTask) -> PreparedRequest:
        """Return what would be sent for a text. Opens no connection and needs no key."""
        (text,) = check_texts([text])
        instance(task, "task", LabelingTask)
        protocol = PROTOCOLS[self.config.provider]
        prompt = render_prompt(text, task, "json", system=self.config.system_prompt)
        body = json.dumps(protocol.body(self.config, task, prompt), ensure_ascii=False, separators=(",", ":")).encode()
        return PreparedRequest(prompt, body, len(body) + protocol.hidden_tokens, self.config.max_tokens)

    def connect(self) -> Connection:
        """Return connections to the server for one labelling.

        Raises:
            MissingDependencyError: the extra ``teachers`` is not installed.
            TeacherApiError: the key's environment variable is not set, or ``LATTICE_OFFLINE`` forbids the connection.
        """
        return Connection(self.config)

    def __repr__(self) -> str:
        return f"ServedTeacher({self.config.provider.value!r}, {self.config.model_id!r})"


class Connection:
    """Connections to one server, for one event loop."""

    def __init__(self, config: TeacherConfig) -> None:
        try:
            from lattice_embed import remote
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("lattice_embed"):
                raise
            raise MissingDependencyError(EXTRA) from None
        try:
            library = remote.http_library()
        except remote.MissingHttpLibraryError:
            raise MissingDependencyError(EXTRA) from None
        self._remote: Any = remote
        self._config = config
        self._protocol = PROTOCOLS[config.provider]
        self._address = remote.ServerAddress.parse(config.checked_endpoint().url, library)
        self._credentials = remote.Credentials(None, config.key_variable, None, key_header=self._protocol.key_header)
        self._has_key = config.key_variable is not None
        self._url = method_url(config)
        self._transport = remote.HttpTransport(self._url, self._address.server)
        self._gate = remote.RateGate()
        self._policy = remote.RetryPolicy(
            max_retries=config.max_retries,
            initial_delay=config.retry_delay,
            max_delay=max(MOST_DELAY, config.retry_delay),
            max_retry_after=MOST_RETRY_AFTER,
        )
        try:
            self._credentials.headers(self._address.server)  # a missing key is told before anything else
            self._address.check_online()
        except remote.RemoteServiceError as error:
            raise self._error(error) from None
        except remote_input_error() as error:
            raise TeacherApiError(str(error)) from None

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.aclose()

    async def ask(self, prepared: PreparedRequest, task: LabelingTask, budget: Budget, stop: Stop) -> TeacherAnswer:
        """Return the server's answer to one text, asked again where that may help.

        Raises:
            TeacherApiError: the next text would fail in the same way: a refused key, a wrong address or model, no quota.
            StoppedError: nothing more may be asked.
        """
        retries = 0
        while True:
            while (held := self._gate.remaining()) > 0:
                await stop.sleep(min(held, max(0.0, budget.remaining())))
                if not budget.remaining() > 0:
                    stop.set("deadline")
            held_budget = await budget.reserve(prepared.most_input_tokens, prepared.most_output_tokens)
            outcome = await self._once(prepared, task, budget, held_budget)
            if isinstance(outcome, TeacherAnswer):
                return dataclasses.replace(outcome, cut_characters=prepared.prompt.cut_characters)
            if self._is_hopeless(outcome):
                raise self._error(outcome)
            if stop.reason is not None or not outcome.retryable or retries >= self._config.max_retries:
                return self._failed(outcome, retries)
            pause = self._policy.delay(retries)
            if outcome.retry_after is not None:
                if outcome.retry_after > MOST_RETRY_AFTER:
                    raise self._error(outcome)
                self._gate.hold(outcome.retry_after)
                pause = max(pause, outcome.retry_after)
            if not pause < budget.remaining():
                return self._failed(outcome, retries)
            await stop.sleep(pause)
            retries += 1

    async def _once(
        self, prepared: PreparedRequest, task: LabelingTask, budget: Budget, held: Reservation
    ) -> TeacherAnswer | RemoteServiceError:
        """Send one request, and put its bill in place of what was held for it, whatever comes of it."""
        try:
            answer: HttpAnswer = await self._transport.apost(self._request(prepared, budget.remaining()))
        except self._remote.RemoteServiceError as error:
            budget.settle(held, None, None)  # it may have been answered, and billed
            return error  # type: ignore[no-any-return]
        except BaseException:
            budget.settle(held, None, None)
            raise
        answer = dataclasses.replace(answer, body=self._credentials.redact_bytes(answer.body))
        if not 200 <= answer.status < 300:
            if 400 <= answer.status < 500:
                budget.release(held)
            else:
                budget.settle(held, None, None)
            failure: RemoteServiceError = self._remote.failure_of(
                answer, self._address.server, self._credentials.hint, self._url
            )
            return failure
        try:
            document = parse_json(answer.body)
            if not isinstance(document, dict):
                raise ValueError(f"it is a JSON {type(document).__name__}, not an object")
        except ValueError as error:
            budget.settle(held, None, None)
            words = " ".join(answer.body[:400].decode("utf-8", "replace").split())[:200]
            server = self._address.server
            return TeacherAnswer(Outcome.FAILED, detail=f"{server} answered with no whole JSON ({error}): {words}")
        read = self._protocol.read(document, self._config, task)
        budget.settle(held, read.input_tokens, read.output_tokens)
        return read

    def _request(self, prepared: PreparedRequest, left: float) -> HttpRequest:
        headers = {
            "content-type": "application/json",
            "accept": "application/json",
            "user-agent": f"lattice-tune/{__version__}",
            # a server, or a proxy, that delivers an answer twice would answer the connection's next request with it
            "connection": "close",
            **self._protocol.headers,
        }
        request: HttpRequest = self._remote.HttpRequest(
            headers=headers | self._credentials.headers(self._address.server),
            body=prepared.body,
            limit=ANSWER_BYTES + BYTES_PER_TOKEN * self._config.max_tokens,
            seconds=max(0.001, min(self._config.timeout, left)),
            direct=self._address.is_direct(has_key=self._has_key),
            proxy=self._address.proxy(has_key=self._has_key),
        )
        return request

    def _is_hopeless(self, error: RemoteServiceError) -> bool:
        if error.status is not None:
            spent = error.status == 429 and not error.retryable
            return spent or error.status in HOPELESS or 300 <= error.status < 400
        refused = isinstance(error, self._remote.RemoteConnectionError) and not error.retryable
        return refused or "[SSL" in str(error)

    def _failed(self, error: RemoteServiceError, retries: int) -> TeacherAnswer:
        return TeacherAnswer(Outcome.FAILED, detail=str(self._error(error.after(retries + 1))))

    def _error(self, error: RemoteServiceError) -> TeacherApiError:
        kind = TeacherTimeoutError if isinstance(error, TimeoutError) else TeacherApiError
        return kind(self._credentials.redact(str(error)), status=error.status)


def remote_input_error() -> type[Exception]:
    """Return lattice-embed's error of a wrong argument, such as a key that HTTP cannot carry."""
    from lattice_embed import InvalidInputError

    return InvalidInputError
