"""From a chat request to a prompt's tokens, and the grammar that the answer obeys."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lattice_inference.errors import InvalidInputError, UnsupportedError
from lattice_inference.generate.prompt_tokens import encode_rendered
from lattice_inference.generate.reasoning_prompt import reasoning_of
from lattice_inference.serve.api_errors import ApiError, refusal_of
from lattice_inference.serve.fields import Fields
from lattice_inference.serve.grammar_fields import GivenGrammar, format_grammar, grammar_field, written_grammar
from lattice_inference.tokenizer.message_parts import readable_messages
from lattice_inference.value_text import value_text

if TYPE_CHECKING:
    from lattice_inference.generate.engine import Engine
    from lattice_inference.grammar.reasoning import Reasoning
    from lattice_inference.grammar.specification import Grammar
    from lattice_inference.tools.grammar import ToolGrammar

__all__ = ["Conversation", "conversation_of"]

_MESSAGE_FIELDS = {"role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content"}
_SET_FIELDS = {"messages", "tools", "add_generation_prompt", "now"}


@dataclass(frozen=True)
class Conversation:
    """A prompt, and how to read the answer.

    Attributes:
        text: the prompt as the template writes it.
        ids: its tokens.
        grammar: that the answer obeys, or ``None``.
        param: the field that states the grammar, for errors.
        calls: the grammar of an answer that may call tools, the same one; else ``None``.
        reasoning: whether the answer begins with reasoning.
        call_seed: the ids of calls are made of it.
    """

    text: str
    ids: list[int]
    grammar: Grammar | None
    param: str
    calls: ToolGrammar | None
    reasoning: Reasoning
    call_seed: str


@dataclass(frozen=True)
class _Given:
    """The fields of a chat request that its prompt and its grammar depend on."""

    messages: Any
    tools: Any
    tool_choice: Any
    parallel: bool
    format: Mapping[str, Any] | None
    grammar: GivenGrammar
    variables: Mapping[str, Any]


def conversation_of(fields: Fields, engine: Engine) -> Conversation:
    """Take the fields of a conversation; slow enough for a thread.

    Raises:
        ApiError: what is wrong, by its field.
    """
    variables = fields.mapping("chat_template_kwargs") or {}
    for name in _SET_FIELDS.intersection(variables):
        raise ApiError(400, "invalid_value", f"chat_template_kwargs cannot set {name}", "chat_template_kwargs")
    given = _Given(
        messages=_plain_messages(fields.any("messages")),
        tools=fields.any("tools"),
        tool_choice=fields.any("tool_choice"),
        parallel=fields.flag("parallel_tool_calls", True),
        format=fields.mapping("response_format"),
        grammar=grammar_field(fields),
        variables=variables,
    )
    template, tokenizer = engine.model.chat_template, engine.tokenizer
    if template is None or tokenizer is None:
        raise ApiError(400, "unsupported", "this model has no chat template: use /v1/completions", "model")
    from lattice_inference.tools.conversation import Tools
    from lattice_inference.tools.messages import template_messages

    tools = None
    asked: dict[str, Any] = dict(given.variables)
    param = "tools"
    try:
        if given.tools not in (None, []):
            tools = Tools(given.tools, template)
            param = "tool_choice"
            tools.chosen(given.tool_choice or "auto")
            asked |= tools.variables
        elif given.tool_choice not in (None, "none", "auto"):
            raise ApiError(400, "invalid_value", "tool_choice is set, but there are no tools", "tool_choice")
        param = "messages"
        messages = list(readable_messages(template, template_messages(given.messages)))
        text, plain = template.render_marked(messages, **asked)
        ids = encode_rendered(tokenizer, text, plain)
        reasoning = reasoning_of(template, messages, asked)
        param = "response_format" if given.grammar is None else "grammar"
        grammar = _grammar(given)
        calls = None
        if tools is not None:
            if grammar is not None:
                raise ApiError(400, "invalid_value", f"tools and {param} exclude each other", param)
            calls = tools.grammar(given.tool_choice or "auto", given.parallel, reasoning)
            grammar = calls
        elif grammar is not None and reasoning != "none":
            from lattice_inference.grammar.reasoning import AfterReasoning

            grammar = AfterReasoning(grammar, is_open=reasoning == "open")
    except (InvalidInputError, UnsupportedError) as error:
        raise refusal_of(error, param) from error
    param = param if calls is None else "tools"
    return Conversation(text, ids, grammar, param, calls, reasoning, hashlib.sha256(repr(ids).encode()).hexdigest())


def _plain_messages(messages: Any) -> list[dict[str, Any]]:
    """Return messages without the fields that are null; a developer's are the system's."""
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, "invalid_value", "messages must be a list of at least one message", "messages")
    plain = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, dict):
            raise ApiError(400, "invalid_value", f"{where} is {value_text(message)}; expected an object", where)
        shown = {name: value for name, value in message.items() if value is not None or name == "content"}
        for name in shown:
            if name not in _MESSAGE_FIELDS and shown[name] not in ([], None):
                raise ApiError(400, "unsupported_field", f"{where}.{name} is not supported", f"{where}.{name}")
        shown = {name: value for name, value in shown.items() if name in _MESSAGE_FIELDS}
        if shown.get("role") == "developer":
            shown["role"] = "system"
        if shown.get("content") is None and shown.get("tool_calls"):
            shown["content"] = ""  # as a Chat keeps an answer that is calls only
        _check_parts(shown.get("content"), where)
        plain.append(shown)
    return plain


def _check_parts(content: Any, where: str) -> None:
    for index, part in enumerate(content if isinstance(content, list) else ()):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            place = f"{where}.content[{index}]"
            raise ApiError(400, "unsupported_content", f"{place} is of type {value_text(kind)}; text is read", place)


def _grammar(given: _Given) -> Grammar | None:
    """Return what the answer obeys by ``response_format`` or ``grammar``."""
    if given.grammar is not None:
        if given.format is not None and given.format.get("type") != "text":
            raise InvalidInputError("grammar and response_format exclude each other")
        return written_grammar(given.grammar)
    return None if given.format is None else format_grammar(given.format)
