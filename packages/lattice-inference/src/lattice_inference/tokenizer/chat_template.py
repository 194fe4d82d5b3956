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
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from lattice_inference.errors import InvalidInputError, ModelConfigError, UnsupportedError
from lattice_inference.tokenizer.chat_left_out import refuse_left_out
from lattice_inference.tokenizer.chat_messages import ROLES, Message, checked_messages, plain_json

if TYPE_CHECKING:
    from jinja2 import Template

__all__ = ["MOST_LOOPS", "MOST_TEMPLATE_CHARACTERS", "ROLES", "ChatTemplate", "checked_messages"]

MOST_TEMPLATE_CHARACTERS = 2**20
"""Largest template that is compiled; the largest published ones have about 30,000 characters."""

MOST_LOOPS = 1_000_000
"""How many times the loops of a template may run in all while one conversation is rendered."""

_LARGEST_PRODUCT = 2**24

_loops_left: ContextVar[list[int]] = ContextVar("loops_left")


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
        documents: Sequence[Mapping[str, Any]] | None = None,
        now: datetime.datetime | None = None,
        **variables: object,
    ) -> str:
        """Return the text of a conversation.

        Args:
            messages: mappings with ``role`` (one of :data:`ROLES`, or another that the template compares with) and
                ``content`` (a str, or parts ``{"type": "text", "text": ...}``), and whatever else the template knows, such
                as ``tool_calls``. What is None reaches the template as none.
            add_generation_prompt: end with the beginning of an answer.
            tools: JSON schemas of functions, for a template that takes them.
            documents: what answers are to be taken from, for a template that takes them.
            now: what ``strftime_now`` tells; by default the local time.
            variables: further variables of the template, such as ``enable_thinking``.

        Raises:
            InvalidInputError: the messages are malformed, or the template refuses them.
            UnsupportedError: the template leaves out a system message, the tools or the documents, or does not know a role.
        """
        values = {
            **self.special_tokens,
            **{name: plain_json(value, name) for name, value in variables.items()},
            "tools": _checked_list(tools, "tools"),
            "documents": _checked_list(documents, "documents"),
            "add_generation_prompt": add_generation_prompt,
            "strftime_now": (now or datetime.datetime.now()).strftime,
        }
        values["messages"] = checked_messages(messages, roles={*ROLES, *_compile(self._source(values)).compared})
        text = self._render(values)
        refuse_left_out(self._render, values, text)
        return text

    def _render(self, values: dict[str, Any]) -> str:
        token = _loops_left.set([MOST_LOOPS])
        try:
            text: str = _compile(self._source(values)).template.render(values)
        except Exception as error:
            raise InvalidInputError(f"the model's chat template cannot render these messages: {error}") from error
        finally:
            _loops_left.reset(token)
        return text

    def _source(self, values: Mapping[str, Any]) -> str:
        return self.named["tool_use"] if values["tools"] and "tool_use" in self.named else self.source

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


def _checked_list(given: object, name: str) -> list[Any] | None:
    if given is None:
        return None
    if isinstance(given, (str, bytes, Mapping)) or not isinstance(given, Sequence):
        raise InvalidInputError(f"{name} is a {type(given).__name__}; expected a list")
    checked: list[Any] = plain_json(list(given), name)
    return checked


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


class _Compiled(NamedTuple):
    template: Template
    compared: frozenset[str]  # the texts that it compares something with, such as roles


@functools.lru_cache(maxsize=32)
def _compile(source: str) -> _Compiled:
    from jinja2 import TemplateSyntaxError, nodes

    if len(source) > MOST_TEMPLATE_CHARACTERS:
        raise ModelConfigError(
            f"the chat template has {len(source):,} characters; the limit is {MOST_TEMPLATE_CHARACTERS:,}"
        )
    environment = _environment()
    try:
        tree = environment.parse(source)
        compared = _compared_texts(tree)  # before the compiler puts constants together
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, "lattice_bounded", [], [], None, None, lineno=loop.lineno)
        template: Template = environment.from_string(tree)
    except TemplateSyntaxError as error:
        raise ModelConfigError(
            f"the chat template is not valid Jinja: {error.message} (line {error.lineno})"
        ) from error
    except RecursionError:
        raise ModelConfigError("the chat template is nested too deeply") from None
    return _Compiled(template, compared)


def _compared_texts(tree: Any) -> frozenset[str]:
    from jinja2 import nodes

    texts = set()
    for comparison in tree.find_all(nodes.Compare):
        for operand in (comparison.expr, *(operand.expr for operand in comparison.ops)):
            for item in operand.items if isinstance(operand, (nodes.List, nodes.Tuple)) else [operand]:
                if isinstance(item, nodes.Const) and isinstance(item.value, str):
                    texts.add(item.value)
    return frozenset(texts)
