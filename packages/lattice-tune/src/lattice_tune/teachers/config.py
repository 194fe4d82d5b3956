"""Which served model labels, at what price, and how it is asked."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction

from lattice_tune.arguments import number, whole
from lattice_tune.errors import ConfigError, shown
from lattice_tune.teachers.endpoint import Endpoint, EndpointSecurity
from lattice_tune.teachers.provider import TeacherProvider

__all__ = ["TeacherConfig", "TeacherPrices"]

ENDPOINTS = {
    TeacherProvider.ANTHROPIC: "https://api.anthropic.com/v1",
    TeacherProvider.OPENAI: "https://api.openai.com/v1",
    TeacherProvider.GEMINI: "https://generativelanguage.googleapis.com/v1beta",
}
KEY_VARIABLES = {
    TeacherProvider.ANTHROPIC: "ANTHROPIC_API_KEY",
    TeacherProvider.OPENAI: "OPENAI_API_KEY",
    TeacherProvider.GEMINI: "GEMINI_API_KEY",
}

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MOST_NAME_CHARACTERS = 300
MOST_PROMPT_CHARACTERS = 100_000
MOST_TOKENS = 10**18
MOST_SECONDS = 86_400.0


@dataclass(frozen=True)
class TeacherPrices:
    """What a server bills, in any one currency.

    Attributes:
        input: for a million tokens that it reads.
        output: for a million tokens that it writes.

    Raises:
        ConfigError: a price is negative or no number.
    """

    input: float
    output: float

    def __post_init__(self) -> None:
        number(self.input, "input", least=0.0, most=1e9, refusal=ConfigError)
        number(self.output, "output", least=0.0, most=1e9, refusal=ConfigError)

    def cost(self, input_tokens: int, output_tokens: int) -> Fraction:
        """Return the exact price of a request.

        Raises:
            ConfigError: a number of tokens is negative or no integer.
        """
        whole(input_tokens, "input_tokens", least=0, most=MOST_TOKENS, refusal=ConfigError)
        whole(output_tokens, "output_tokens", least=0, most=MOST_TOKENS, refusal=ConfigError)
        million = 1_000_000
        return (input_tokens * Fraction(str(self.input)) + output_tokens * Fraction(str(self.output))) / million


@dataclass(frozen=True)
class TeacherConfig:
    """A model at a server.

    >>> TeacherConfig.claude_haiku().timeout
    15.0

    Attributes:
        provider: the server's protocol.
        model_id: what the server calls the model.
        endpoint: the address before the method's path; ``None`` for the provider's own.
        api_key_env: environment variable that holds the key. ``None`` is the provider's usual one at its own address, and no
            key at any other: a key goes to no server that you did not name it for.
        temperature: 0 to 2; ``None`` leaves it to the server, as some models want.
        max_tokens: tokens that an answer may have.
        timeout: seconds that a request may take.
        max_retries: requests after a first one that failed.
        retry_delay: seconds before the first retry; each later one is twice that.
        system_prompt: words before the instructions.
        structured_output: ask for the provider's structured output. ``None`` does so for Anthropic, OpenAI and Gemini, and
            asks a compatible server for JSON in plain words.
        security: which endpoints may be asked.
        prices: what the server bills; needed for ``max_cost``.

    Raises:
        ConfigError: a field makes no sense, or the endpoint is not allowed.
    """

    provider: TeacherProvider
    model_id: str
    endpoint: str | None = None
    api_key_env: str | None = None
    temperature: float | None = 0.3
    max_tokens: int = 1024
    timeout: float = 30.0
    max_retries: int = 3
    retry_delay: float = 1.0
    system_prompt: str | None = None
    structured_output: bool | None = None
    security: EndpointSecurity = field(default_factory=EndpointSecurity)
    prices: TeacherPrices | None = None

    def __post_init__(self) -> None:
        try:
            provider = TeacherProvider(self.provider)
        except ValueError:
            provider = None
        if provider is None or not provider.is_served:
            served = ", ".join(each.value for each in TeacherProvider if each.is_served)
            raise ConfigError(f"provider is {shown(self.provider)}; it must be one of {served}")
        object.__setattr__(self, "provider", provider)
        name = self.model_id
        if (
            not isinstance(name, str)
            or not name.strip()
            or not name.isprintable()
            or not len(name) <= MOST_NAME_CHARACTERS
        ):
            raise ConfigError(f"model_id is {shown(name)}; pass what the server calls the model")
        variable = self.api_key_env
        if variable is not None and not (isinstance(variable, str) and _VARIABLE.fullmatch(variable)):
            raise ConfigError("api_key_env is no name of an environment variable; pass the name, never the key itself")
        if self.temperature is not None:
            number(self.temperature, "temperature", least=0.0, most=2.0, refusal=ConfigError)
        whole(self.max_tokens, "max_tokens", least=1, most=1_000_000, refusal=ConfigError)
        number(self.timeout, "timeout", least=0.001, most=MOST_SECONDS, refusal=ConfigError)
        whole(self.max_retries, "max_retries", least=0, most=100, refusal=ConfigError)
        number(self.retry_delay, "retry_delay", least=0.001, most=MOST_SECONDS, refusal=ConfigError)
        words = self.system_prompt
        if words is not None and not (isinstance(words, str) and len(words) <= MOST_PROMPT_CHARACTERS):
            raise ConfigError(
                f"system_prompt is {shown(words)}; it must be a str of at most {MOST_PROMPT_CHARACTERS:,} characters"
            )
        if self.structured_output is not None and not isinstance(self.structured_output, bool):
            raise ConfigError(f"structured_output is {shown(self.structured_output)}; it must be True, False or None")
        if not isinstance(self.security, EndpointSecurity):
            raise ConfigError(f"security is {shown(self.security)}; it must be an EndpointSecurity")
        if self.prices is not None and not isinstance(self.prices, TeacherPrices):
            raise ConfigError(f"prices is {shown(self.prices)}; it must be a TeacherPrices")
        if self.endpoint is None and provider is TeacherProvider.OPENAI_COMPATIBLE:
            raise ConfigError(
                "endpoint is None, and a compatible server has no usual address: pass one like http://localhost:8000/v1"
            )
        self.checked_endpoint()

    def checked_endpoint(self) -> Endpoint:
        """Return the address that is asked.

        Raises:
            ConfigError: it is not allowed.
        """
        return self.security.check(ENDPOINTS[self.provider] if self.endpoint is None else self.endpoint)

    @property
    def key_variable(self) -> str | None:
        """The environment variable that the key is read from, or ``None`` where none is sent."""
        at_home = self.endpoint is None or self.endpoint.rstrip("/") == ENDPOINTS.get(self.provider)
        return KEY_VARIABLES.get(self.provider) if self.api_key_env is None and at_home else self.api_key_env

    @property
    def is_structured(self) -> bool:
        """Whether the provider's structured output is used."""
        if self.structured_output is None:
            return self.provider is not TeacherProvider.OPENAI_COMPATIBLE
        return self.structured_output

    @classmethod
    def claude_sonnet(cls, model_id: str = "claude-sonnet-4-20250514") -> TeacherConfig:
        """A larger model of Anthropic."""
        return cls(TeacherProvider.ANTHROPIC, model_id, security=EndpointSecurity.default_secure())

    @classmethod
    def claude_haiku(cls, model_id: str = "claude-3-5-haiku-20241022") -> TeacherConfig:
        """A smaller model of Anthropic, with 15 s for a request."""
        return cls(
            TeacherProvider.ANTHROPIC,
            model_id,
            timeout=15.0,
            retry_delay=0.5,
            security=EndpointSecurity.default_secure(),
        )

    @classmethod
    def gpt4(cls, model_id: str = "gpt-4-turbo-preview") -> TeacherConfig:
        """A model of OpenAI, asked for JSON in plain words: this age of models knows no schemas."""
        return cls(
            TeacherProvider.OPENAI, model_id, structured_output=False, security=EndpointSecurity.default_secure()
        )

    @classmethod
    def gemini_pro(cls, model_id: str = "gemini-pro") -> TeacherConfig:
        """A model of Google, asked for JSON in plain words: this age of models knows no schemas."""
        return cls(
            TeacherProvider.GEMINI, model_id, structured_output=False, security=EndpointSecurity.default_secure()
        )

    @classmethod
    def local(cls, model_id: str, endpoint: str) -> TeacherConfig:
        """A model that a server on this machine runs, with 60 s for a request."""
        return cls(
            TeacherProvider.OPENAI_COMPATIBLE,
            model_id,
            endpoint,
            timeout=60.0,
            max_retries=2,
            retry_delay=0.5,
            security=EndpointSecurity.for_local(),
            prices=TeacherPrices(0.0, 0.0),
        )
