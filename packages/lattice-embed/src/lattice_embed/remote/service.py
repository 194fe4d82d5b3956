"""The service whose models run at a server that speaks the OpenAI protocol."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any, Self, get_args

from lattice_embed._version import __version__
from lattice_embed.argument_checks import check_flag, check_kind, check_word
from lattice_embed.catalogue import EmbeddingModel, ModelDescription, Role
from lattice_embed.errors import (
    InvalidInputError,
    InvalidModelConfigError,
    LatticeEmbedError,
    ModelConfigError,
    ServiceClosedError,
    UnknownModelError,
    WrongModelError,
)
from lattice_embed.model_config import ModelConfig
from lattice_embed.origin import DeferredProvenance
from lattice_embed.provenance import VectorProvenance
from lattice_embed.remote.address import ServerAddress
from lattice_embed.remote.batching import TokenCounter, most_tokens, split_requests
from lattice_embed.remote.call import Call, count_all
from lattice_embed.remote.credentials import Credentials, check_one_key
from lattice_embed.remote.errors import RemoteResponseError, RemoteServiceError
from lattice_embed.remote.paid_vectors import PaidVectors
from lattice_embed.remote.protocol import EncodingFormat, HttpAnswer, Vectors, read_vectors, request_body, size_limit
from lattice_embed.remote.request_sequence import RequestSequence, Send, Step, Wait
from lattice_embed.remote.retrying import Deadline, RateGate, RetryPolicy, check_seconds
from lattice_embed.remote.transport import HttpRequest, HttpTransport, http_library
from lattice_embed.remote.usage import RemoteUsage, UsageCounter
from lattice_embed.result import EmbeddingResult
from lattice_embed.service import EmbeddingService, ModelName
from lattice_embed.validation import (
    DEFAULT_MAX_BATCH_SIZE,
    DEFAULT_MAX_TEXT_CHARS,
    Limits,
    check_choice,
    check_limit,
    check_role,
)

__all__ = ["OPENAI_URL", "RemoteEmbeddingService"]

OPENAI_URL = "https://api.openai.com/v1"
OPENAI_KEY_VARIABLE = "OPENAI_API_KEY"

MAX_TEXTS_PER_REQUEST = 2_048
MAX_TOKENS_PER_REQUEST = 300_000
"""OpenAI's limits of one request."""

MOST_KEPT = 4_096
"""Vectors of failed calls that are kept, at least."""

USER_AGENT = f"lattice-embed/{__version__}"


class RemoteEmbeddingService(EmbeddingService):
    """Embeds texts with a model that runs at a server.

    Texts are cut into requests, each retried by itself; a request that succeeded is not made again when another fails. A
    call that fails, or is cancelled, keeps the vectors it has been given: made again, it asks for the rest. A text
    that stands several times in a call is sent once. All methods may be called from several threads at once, and the
    ``a...`` methods do not use threads but the event loop. Pickling keeps the options but no secret: the copy reads the
    key from the environment.

    Args:
        model: what the server calls the model, sent as it is written; or a catalogue member. Where the catalogue knows the
            name, its dimension and prompts hold. A :class:`ModelDescription` says them for a model of your own.
        base_url: the address before ``/embeddings``.
        api_key: the key. ``None`` reads ``api_key_variable`` at each request; beside a key, the variable counts for pickled
            copies, which do not keep the key.
        api_key_variable: environment variable with the key. ``None`` is ``OPENAI_API_KEY`` for OpenAI's own address, and no
            key for any other: a key goes nowhere that you did not name.
        allow_plain_http: allow a key, or headers, over ``http://`` to another machine, where all on the way can read them;
            ``None`` is false unless ``LATTICE_ALLOW_PLAIN_HTTP`` is 1. To this machine (``localhost``, 127.0.0.0/8, ``::1``)
            they go in any case.
        headers: further headers of every request; they are treated as secrets. ``Authorization`` among them is sent instead
            of a key, so that neither ``api_key`` nor ``api_key_variable`` may be given beside it.
        output_dim: length of shorter vectors, sent to the server as ``dimensions``.
        native_dimensions: length of the model's vectors where the catalogue does not know it; ``None`` learns it from the
            first answer. Vectors of any other length are refused.
        encoding_format: what the server is asked to write vectors as; both forms are understood, whichever comes.
        max_texts_per_request: texts in one request.
        max_tokens_per_request: tokens in one request.
        count_tokens: counts the tokens of a text as the model does; a text over the model's limit is then refused before
            anything is paid. ``None`` assumes one token per byte, an upper bound.
        retry: when a failed request is made again.
        timeout: seconds that one request may take.
        deadline: seconds that one call may take in all; ``None`` for no end.
        max_batch_size: most texts in one call of :meth:`embed`.
        max_text_chars: most characters (code points) in one text, its prompt not counted.

    Raises:
        InvalidInputError: an argument is wrong.
        ModelConfigError: ``output_dim`` or ``native_dimensions`` is not possible for the model.
        MissingHttpLibraryError: the extra ``remote`` is not installed.
    """

    def __init__(
        self,
        model: EmbeddingModel | ModelDescription | str = EmbeddingModel.TEXT_EMBEDDING_3_SMALL,
        *,
        base_url: str = OPENAI_URL,
        api_key: str | None = None,
        api_key_variable: str | None = None,
        allow_plain_http: bool | None = None,
        headers: Mapping[str, str] | None = None,
        output_dim: int | None = None,
        native_dimensions: int | None = None,
        encoding_format: EncodingFormat = "base64",
        max_texts_per_request: int = MAX_TEXTS_PER_REQUEST,
        max_tokens_per_request: int = MAX_TOKENS_PER_REQUEST,
        count_tokens: TokenCounter | None = None,
        retry: RetryPolicy | None = None,
        timeout: float = 60.0,
        deadline: float | None = 300.0,
        max_batch_size: int = DEFAULT_MAX_BATCH_SIZE,
        max_text_chars: int = DEFAULT_MAX_TEXT_CHARS,
    ) -> None:
        check_choice("encoding_format", encoding_format, get_args(EncodingFormat))
        if count_tokens is not None and not callable(count_tokens):
            raise InvalidInputError(f"count_tokens is a {type(count_tokens).__name__}; pass a function of one text")
        self._address = ServerAddress.parse(base_url, http_library())
        self._base_url = self._address.url
        self._wire_name, self._member, self._description = _read_model(model)
        self._dimensions = _known_dimensions(self._description, native_dimensions, output_dim)
        self._native_dimensions = native_dimensions
        self._output_dim = output_dim
        self._encoding: EncodingFormat = encoding_format
        self._max_texts_per_request = check_limit("max_texts_per_request", max_texts_per_request)
        self._max_tokens_per_request = check_limit("max_tokens_per_request", max_tokens_per_request)
        self._count_tokens = count_tokens
        if retry is not None:
            check_kind("retry", retry, RetryPolicy)
        self._retry = RetryPolicy() if retry is None else retry
        self._timeout = check_seconds("timeout", timeout)
        self._deadline = None if deadline is None else check_seconds("deadline", deadline)
        self._limits = Limits(max_batch_size, max_text_chars)
        if output_dim is not None:
            self._output_dim = self._config().output_dim  # checked against the native length
        if headers is not None:
            check_kind("headers", headers, Mapping)
        if api_key_variable is not None and not check_word("api_key_variable", api_key_variable).strip():
            raise InvalidInputError("api_key_variable is empty: name a variable, or leave it out")
        check_one_key(api_key, api_key_variable, headers)
        self._has_key = api_key is not None or api_key_variable is not None or bool(headers)
        self._address.check_key(allow_plain_http, has_key=self._has_key)
        self._allow_plain_http = allow_plain_http
        if api_key_variable is None and self._base_url == OPENAI_URL:
            api_key_variable = OPENAI_KEY_VARIABLE
        self._credentials = Credentials(api_key, api_key_variable, headers)
        self._server = self._address.server
        self._gate = RateGate()
        self._usage = UsageCounter()
        self._transport = HttpTransport(
            f"{self._base_url}/embeddings", self._server, partial(self._usage.add, requests=1, retries=1)
        )
        self._paid = PaidVectors(max(self._limits.max_batch_size, MOST_KEPT))
        self._learning = threading.Lock()
        self._stopped = threading.Event()
        self._sleepers: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    # What the service is

    @property
    def name(self) -> str:
        """``"remote:"`` and the model's name."""
        return f"remote:{self._wire_name}"

    @property
    def base_url(self) -> str:
        """The address before ``/embeddings``."""
        return self._base_url

    @property
    def usage(self) -> RemoteUsage:
        """What has been asked of the server so far."""
        return self._usage.snapshot()

    def model_config(self, model: ModelName | None = None) -> ModelConfig:
        """Return the model and the dimension of its vectors.

        Raises:
            WrongModelError: ``model`` is not the service's.
            ModelConfigError: the dimension is not known before the first answer; pass ``native_dimensions``.
        """
        self._check_model(model)
        return self._config()

    def supports_model(self, model: ModelName) -> bool:
        """Return whether ``model`` names the model that this service asks for."""
        try:
            self._check_model(model)
        except LatticeEmbedError:
            return False
        return True

    def provenance(
        self, model: ModelName | None = None, *, role: Role = Role.GENERIC, normalize: bool = True
    ) -> VectorProvenance | None:
        """Return the known origin of the vectors of such a call.

        The weights that the server uses are unknown. Its ``model`` is the name and the server's address: under one
        name, two servers may run two models. ``weights``, ``pooling`` and ``precision`` are empty. ``None`` while the
        dimension is not known: before the first answer of a model that is not in the catalogue, where no
        ``native_dimensions`` was passed.

        Raises:
            WrongModelError: ``model`` is not the service's.
        """
        self._check_model(model)
        return self._provenance(self._prompt(check_role(role)), check_flag("normalize", normalize))

    def __repr__(self) -> str:
        return f"RemoteEmbeddingService({self._wire_name!r}, base_url={self._base_url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._credentials.has_headers:
            raise TypeError("a service with custom headers is not pickled: make it where it is used")
        options = {
            "base_url": self._base_url,
            "api_key_variable": self._credentials.variable,
            "allow_plain_http": self._allow_plain_http,
            "output_dim": self._output_dim,
            "native_dimensions": self._native_dimensions,
            "encoding_format": self._encoding,
            "max_texts_per_request": self._max_texts_per_request,
            "max_tokens_per_request": self._max_tokens_per_request,
            "count_tokens": self._count_tokens,
            "retry": self._retry,
            "timeout": self._timeout,
            "deadline": self._deadline,
            **self._limits.options(),
        }
        return (_remake, (self._member or self._description or self._wire_name, options))

    # Closing

    def close(self) -> None:
        """Close the connections.

        A later call is an error. A call in another thread fails at its next step.
        """
        self._stop()
        self._transport.close()

    async def aclose(self) -> None:
        """Do :meth:`close`, the running loop's connections included."""
        self._stop()
        await self._transport.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # Embedding

    def embed(
        self,
        texts: Sequence[str],
        model: ModelName | None = None,
        *,
        role: Role = Role.GENERIC,
        normalize: bool = True,
    ) -> EmbeddingResult:
        """Embed the texts of one call, in as many requests as they need.

        Args:
            texts: 1 to ``max_batch_size`` texts of at most ``max_text_chars`` characters.
            model: the model that the caller expects; an error if it is not this service's.
            role: what the texts are for; decides the prompt that is put before each.
            normalize: scale the vectors to length 1, whether or not the server has; ``False`` leaves what it sent.

        Returns:
            Vectors in the order of the texts. ``token_counts`` are -1 except where the server, or ``count_tokens``, says how
            many tokens one text has. ``truncated`` is always false: servers refuse what is too long, or do not say.

        Raises:
            EmptyInputError, TooManyTextsError, InvalidTextError, TextTooLongError, WrongModelError: the input.
            RemoteServiceError: the server, in its several kinds.
            RemoteOfflineError: ``LATTICE_OFFLINE`` is set, and the server is on another machine.
            NonFiniteVectorError: the server delivered NaN or infinity.
            ServiceClosedError: the service was closed.
        """
        call, sequence = self._begin(texts, model, role, normalize)
        with self._keeping(sequence):
            steps = sequence.steps()
            reply: HttpAnswer | RemoteServiceError | None = None
            while (step := advance(steps, reply)) is not None:
                reply = self._take(step)
        return call.result(sequence.delivered, sequence.tokens)

    async def aembed(
        self,
        texts: Sequence[str],
        model: ModelName | None = None,
        *,
        role: Role = Role.GENERIC,
        normalize: bool = True,
    ) -> EmbeddingResult:
        """Do :meth:`embed` on the event loop. Cancelling it breaks off the request under way."""
        call, sequence = self._begin(texts, model, role, normalize)
        with self._keeping(sequence):
            steps = sequence.steps()
            reply: HttpAnswer | RemoteServiceError | None = None
            while (step := advance(steps, reply)) is not None:
                reply = await self._atake(step)
        return call.result(sequence.delivered, sequence.tokens)

    def _begin(
        self, texts: Sequence[str], model: ModelName | None, role: Role, normalize: bool
    ) -> tuple[Call, RequestSequence]:
        """Check a call, and work out which requests it needs."""
        checked = self._limits.texts(texts)
        role = check_role(role)
        normalize = check_flag("normalize", normalize)
        self._check_model(model)
        self._check_open()
        self._credentials.headers(self._server)  # a missing key is said before anything else
        self._address.check_online()
        prompt = self._prompt(role)
        sent = [prompt + text for text in checked] if prompt else checked
        limit = sys.maxsize if self._description is None else self._description.max_tokens
        call = Call(
            texts=sent,
            prompt=prompt,
            role=role,
            normalize=normalize,
            counts=None if self._count_tokens is None else count_all(sent, self._count_tokens, limit),
            model=self._wire_name,
            server=self._server,
            provenance=DeferredProvenance(self._provenance, prompt, normalize),
        )
        unique = list(dict.fromkeys(sent))
        paid = self._paid.take(unique)
        sequence = RequestSequence(
            list(
                split_requests(
                    [text for text in unique if text not in paid],
                    max_texts=self._max_texts_per_request,
                    max_tokens=self._max_tokens_per_request,
                    count=most_tokens if call.counts is None else call.counts.__getitem__,
                )
            ),
            read=partial(self._read, call),
            server=self._server,
            credential=self._credentials.hint,
            asked=self._address.described(has_key=self._has_key),
            policy=self._retry,
            gate=self._gate,
            deadline=Deadline(self._deadline),
            timeout=self._timeout,
            usage=self._usage,
        )
        sequence.delivered.update(paid)
        return call, sequence

    @contextmanager
    def _keeping(self, sequence: RequestSequence) -> Iterator[None]:
        """On any early end of a call, keep the delivered answers and redact secrets in errors."""
        try:
            yield
        except BaseException as error:
            self._paid.put(sequence.delivered)
            if isinstance(error, RemoteServiceError) and (clean := error.cleaned(self._credentials.redact)) is not None:
                raise clean from None
            raise

    def _take(self, step: Step) -> HttpAnswer | RemoteServiceError | None:
        """Do the next step of a sequence and return its outcome."""
        if isinstance(step, Wait):
            if self._stopped.wait(step.seconds):
                self._check_open()
            return None
        self._address.check_online()
        request = self._request(step)
        try:
            return self._cleaned(self._transport.post(request))
        except RemoteServiceError as error:
            return error

    async def _atake(self, step: Step) -> HttpAnswer | RemoteServiceError | None:
        if isinstance(step, Wait):
            await self._asleep(step.seconds)
            self._check_open()
            return None
        self._address.check_online()
        request = self._request(step)
        try:
            return self._cleaned(await self._transport.apost(request))
        except RemoteServiceError as error:
            return error

    async def _asleep(self, seconds: float) -> None:
        """Wait so long, or until the service is closed."""
        sleeper = asyncio.get_running_loop(), asyncio.Event()
        self._sleepers.add(sleeper)
        try:
            if not self._stopped.is_set():
                async with asyncio.timeout(seconds):
                    await sleeper[1].wait()
        except TimeoutError:
            pass
        finally:
            self._sleepers.discard(sleeper)

    def _stop(self) -> None:
        """Mark the service as closed, and wake the calls that wait."""
        self._stopped.set()
        for loop, closed in list(self._sleepers):
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(closed.set)

    def _cleaned(self, answer: HttpAnswer) -> HttpAnswer:
        """Return an answer whose words may be shown: servers repeat keys that they do not know."""
        return dataclasses.replace(answer, body=self._credentials.redact_bytes(answer.body))

    def _request(self, step: Send) -> HttpRequest:
        headers = {"content-type": "application/json", "accept": "application/json", "user-agent": USER_AGENT}
        return HttpRequest(
            headers=headers | self._credentials.headers(self._server),
            body=request_body(step.texts, self._wire_name, self._encoding, self._output_dim),
            limit=size_limit(len(step.texts), self._dimensions),
            seconds=step.seconds,
            direct=self._address.is_direct(has_key=self._has_key),
            proxy=self._address.proxy(has_key=self._has_key),
        )

    def _read(self, call: Call, answer: HttpAnswer, texts: Sequence[str]) -> Vectors:
        vectors = read_vectors(answer.body, call.positions(texts), self._dimensions, self._server)
        if self._dimensions is None:
            self._learn(vectors.vectors.shape[1])
        return vectors

    def _learn(self, dimensions: int) -> None:
        """Note the length of the model's vectors from the first answer.

        A later one must agree.
        """
        with self._learning:
            if self._dimensions is None:
                self._dimensions = dimensions
        if self._dimensions != dimensions:
            raise RemoteResponseError(
                f"{self._server} answered two requests with vectors of {self._dimensions} and of {dimensions} dimensions"
            )

    def _config(self) -> ModelConfig:
        if self._member is not None and self._output_dim is None:
            return ModelConfig(self._member)
        description = self._description
        if description is None:
            native = self._native_dimensions or (self._dimensions if self._output_dim is None else None)
            if native is None:
                raise ModelConfigError(
                    f"the dimension of {self._wire_name} is not known before its first answer: pass native_dimensions"
                )
            description = ModelDescription(
                slug=self._wire_name,
                model_id=self._wire_name,
                native_dimensions=native,
                max_tokens=sys.maxsize,
                pooling=None,
                is_remote=True,
            )
        if self._output_dim is not None:  # whether the model was trained for it, the server must know
            description = dataclasses.replace(description, supports_output_dim=True)
        return ModelConfig(description, self._output_dim)

    def _prompt(self, role: Role) -> str:
        return "" if self._description is None else self._description.prompt(role)

    def _provenance(self, prompt: str, normalize: bool) -> VectorProvenance | None:
        if self._dimensions is None:
            return None
        return VectorProvenance(
            model=f"{self._wire_name} at {self._base_url}",
            prompt=prompt,
            dimensions=self._dimensions,
            precision="",
            normalized=normalize,
        )

    def _check_model(self, model: ModelName | None) -> None:
        if model is None or model is self._member or (isinstance(model, str) and model == self._wire_name):
            return
        try:
            asked = model if isinstance(model, EmbeddingModel) else EmbeddingModel.parse(model)
        except UnknownModelError:
            raise WrongModelError(expected=self._wire_name, actual=str(model)) from None
        if asked is not self._member:
            raise WrongModelError(expected=self._wire_name, actual=asked.slug)

    def _check_open(self) -> None:
        if self._stopped.is_set():
            raise ServiceClosedError(f"{self.name} was closed: make a new service")


def advance(
    steps: Generator[Step, HttpAnswer | None, None], reply: HttpAnswer | RemoteServiceError | None
) -> Step | None:
    """Send a sequence its last outcome and return the next step; ``None`` at its end."""
    try:
        return steps.throw(reply) if isinstance(reply, RemoteServiceError) else steps.send(reply)
    except StopIteration:
        return None


def _read_model(
    model: EmbeddingModel | ModelDescription | str,
) -> tuple[str, EmbeddingModel | None, ModelDescription | None]:
    """Return the model's name at the server, and the catalogue's facts about it."""
    if isinstance(model, EmbeddingModel):
        return model.model_id, model, model.description
    if isinstance(model, ModelDescription):
        return model.model_id, None, model
    if not isinstance(model, str) or not model.strip():
        raise InvalidInputError(f"model is {model!r}: pass the name that the server knows it by")
    name = model.strip()
    try:
        member = EmbeddingModel.parse(name)
    except UnknownModelError:
        return name, None, None
    # a remote model has one name; a model with weights is called as its server pleases
    return member.model_id if member.is_remote else name, member, member.description


def _known_dimensions(
    description: ModelDescription | None, native_dimensions: int | None, output_dim: int | None
) -> int | None:
    """Return the length that vectors must have, where it is known before the first answer."""
    if native_dimensions is not None:
        check_limit("native_dimensions", native_dimensions)
        if description is not None and description.native_dimensions != native_dimensions:
            raise InvalidModelConfigError(
                f"native_dimensions={native_dimensions}, but {description.slug} has {description.native_dimensions}"
            )
    if output_dim is not None:
        return output_dim
    return native_dimensions if description is None else description.native_dimensions


def _remake(model: EmbeddingModel | ModelDescription | str, options: Mapping[str, Any]) -> RemoteEmbeddingService:
    return RemoteEmbeddingService(model, **options)
