"""A model's own chat template: messages to the one text that the model was trained to answer.

The template is a Jinja program that comes with the model, so it runs in Jinja's sandbox, sees plain JSON values only, and
what it may loop is bounded. It is given what transformers gives it: the filter ``tojson`` without escapes for HTML, the
functions ``raise_exception`` and ``strftime_now``, the loop controls, and the block ``generation``.
"""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NoReturn

from lattice_inference.errors import InvalidInputError, ModelConfigError, UnsupportedError

if TYPE_CHECKING:
    from jinja2 import Template

__all__ = ["MOST_LOOPS", "MOST_TEMPLATE_CHARACTERS", "ROLES", "ChatTemplate", "checked_messages"]

ROLES = ("system", "developer", "user", "assistant", "tool")
"""The roles that a message can have; which of them a model takes, its template decides."""

MOST_TEMPLATE_CHARACTERS = 2**20
"""Largest template that is compiled; the largest published ones have about 30,000 characters."""

MOST_LOOPS = 1_000_000
"""How many times the loops of a template may run in all while one conversation is rendered."""

_LARGEST_PRODUCT = 2**24
_MOST_DEPTH = 64

_loops_left: ContextVar[list[int]] = ContextVar("loops_left")

Message = Mapping[str, Any]


class ChatTemplate:
    """Renders conversations. Immutable, and for any number of threads.

    Args:
        source: the template's text.
        special_tokens: the variables ``bos_token``, ``eos_token`` and so on that the template may use.
        named: further templates by name; ``tool_use`` is taken where tools are given.

    Raises:
        ModelConfigError: a template is not valid Jinja or too long.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str] | None = None,
        *,
        named: Mapping[str, str] | None = None,
    ) -> None:
        self.source = source
        self.special_tokens = dict(special_tokens or {})
        self.named = dict(named or {})
        for text in (source, *self.named.values()):
            _compile(text)

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        now: datetime.datetime | None = None,
        **variables: object,
    ) -> str:
        """Return the text of a conversation.

        Args:
            messages: mappings with ``role`` (one of :data:`ROLES`) and ``content`` (a str, or parts
                ``{"type": "text", "text": ...}``), and whatever else the template knows, such as ``tool_calls``.
            add_generation_prompt: end with the beginning of an answer.
            tools: JSON schemas of functions, for a template that takes them.
            now: what ``strftime_now`` tells; by default the local time.
            variables: further variables of the template, such as ``enable_thinking``.

        Raises:
            InvalidInputError: the messages are malformed, or the template refuses them.
            UnsupportedError: the template leaves out a system message.
        """
        checked = checked_messages(messages)
        source = self.named["tool_use"] if tools and "tool_use" in self.named else self.source
        values = {
            **self.special_tokens,
            **{name: _plain(value, name) for name, value in variables.items()},
            "messages": checked,
            "tools": None if tools is None else _plain(list(tools), "tools"),
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        clock = now or datetime.datetime.now()
        values["strftime_now"] = clock.strftime
        token = _loops_left.set([MOST_LOOPS])
        try:
            text: str = _compile(source).render(values)
        except Exception as error:
            raise InvalidInputError(f"the model's chat template cannot render these messages: {error}") from error
        finally:
            _loops_left.reset(token)
        for message in checked:
            content = message.get("content")
            if message["role"] == "system" and isinstance(content, str) and content.strip() not in text:
                raise UnsupportedError(
                    "the model's chat template leaves out the system message; put it into the first user message"
                )
        return text

    def answer_end(self) -> str:
        """Return the text that the template puts after an answer, ``""`` if it cannot be told."""
        mark = "lattice answer"
        try:
            text = self.render(
                [{"role": "user", "content": "lattice question"}, {"role": "assistant", "content": mark}],
                add_generation_prompt=False,
            )
        except (InvalidInputError, UnsupportedError):
            return ""
        return text.rpartition(mark)[2] if mark in text else ""


def checked_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages as plain JSON values, those without a value left out.

    Raises:
        InvalidInputError: no messages, a message that is no mapping, an unknown role, no content, or a part of a content
            that is no text.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise InvalidInputError(f"messages is a {type(messages).__name__}; expected a list of messages")
    if not messages:
        raise InvalidInputError("messages is empty; a conversation needs a message")
    return [_checked_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _checked_message(message: object, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidInputError(f"{where} is a {type(message).__name__}; expected a mapping with role and content")
    role = message.get("role")
    if role not in ROLES:
        raise InvalidInputError(f"{where} has the role {role!r}; expected one of {', '.join(ROLES)}")
    checked = {name: _plain(value, f"{where}.{name}") for name, value in message.items() if value is not None}
    content = checked.get("content")
    if content is None and not checked.get("tool_calls"):
        raise InvalidInputError(f"{where} has no content")
    if isinstance(content, list):
        for part in content:
            if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise InvalidInputError(f"{where} has a part that is no text: {str(part)[:100]}")
    elif content is not None and not isinstance(content, str):
        raise InvalidInputError(f"{where}.content is a {type(content).__name__}; expected a str or a list of parts")
    return checked


def _plain(value: object, where: str, depth: int = 0) -> Any:
    """Return ``value`` rebuilt of JSON's types alone: a template must not reach the methods of anything else."""
    if depth > _MOST_DEPTH:
        raise InvalidInputError(f"{where} is nested deeper than {_MOST_DEPTH} levels")
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return {_plain(key, where, depth + 1): _plain(item, where, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, where, depth + 1) for item in value]
    raise InvalidInputError(f"{where} holds a {type(value).__name__}; expected what JSON can hold")


def _bounded(items: Iterable[Any]) -> Iterator[Any]:
    left = _loops_left.get()
    for item in items:
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError(f"its loops run more than {MOST_LOOPS:,} times")
        yield item


def _raise_exception(message: object) -> NoReturn:
    raise RuntimeError(str(message))


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@functools.cache
def _environment() -> Any:
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):  # type: ignore[misc]
        """The block ``generation``, which marks answers for training: here just its content."""

        tags = {"generation"}  # noqa: RUF012 -- Jinja's own attribute, read once a class

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

    class Environment(ImmutableSandboxedEnvironment):  # type: ignore[misc]
        """The sandbox, with products bounded too."""

        intercepted_binops = frozenset(["*", "**"])

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            sizes = [abs(item) if isinstance(item, (int, float)) else len(item) for item in (left, right)]
            if (operator == "**" and max(sizes) > 2**10) or (
                operator == "*" and sizes[0] * sizes[1] > _LARGEST_PRODUCT
            ):
                raise RuntimeError(f"the result of its {operator} is too large")
            return super().call_binop(context, operator, left, right)

    environment = Environment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.filters["lattice_bounded"] = _bounded
    environment.globals["raise_exception"] = _raise_exception
    return environment


@functools.lru_cache(maxsize=32)
def _compile(source: str) -> Template:
    from jinja2 import TemplateSyntaxError, nodes

    if len(source) > MOST_TEMPLATE_CHARACTERS:
        raise ModelConfigError(
            f"the chat template has {len(source):,} characters; the limit is {MOST_TEMPLATE_CHARACTERS:,}"
        )
    environment = _environment()
    try:
        tree = environment.parse(source)
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, "lattice_bounded", [], [], None, None, lineno=loop.lineno)
        template: Template = environment.from_string(tree)
    except TemplateSyntaxError as error:
        raise ModelConfigError(
            f"the chat template is not valid Jinja: {error.message} (line {error.lineno})"
        ) from error
    except RecursionError:
        raise ModelConfigError("the chat template is nested too deeply") from None
    return template
