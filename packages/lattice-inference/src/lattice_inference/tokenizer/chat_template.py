"""A model's chat template: from messages to the text that the model was trained to answer.

The template is a Jinja program that comes with the model. So it runs in Jinja's sandbox, sees plain JSON values only,
and its work is bounded (``template_budget``). It is given what transformers gives it: the filter ``tojson`` without
escapes for HTML, the functions ``raise_exception`` and ``strftime_now``, the loop controls, and the block
``generation``.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lattice_inference.argument_checks import checked_mapping
from lattice_inference.errors import InvalidInputError, UnsupportedError
from lattice_inference.tokenizer.chat_left_out import refuse_left_out
from lattice_inference.tokenizer.chat_messages import ROLES, Message, checked_messages, plain_json
from lattice_inference.tokenizer.template_budget import (
    MOST_CHARACTERS,
    MOST_STEPS,
    MOST_TEMPLATE_CHARACTERS,
    Budget,
    release_budget,
    use_budget,
)
from lattice_inference.tokenizer.template_methods import Clock
from lattice_inference.tokenizer.user_text import Ranges, marked, ranges_of
from lattice_inference.value_text import value_text

if TYPE_CHECKING:
    from lattice_inference.tokenizer.template_environment import CompiledTemplate

__all__ = [
    "MOST_CHARACTERS",
    "MOST_STEPS",
    "MOST_TEMPLATE_CHARACTERS",
    "ROLES",
    "ChatTemplate",
    "checked_messages",
]

_LONGEST_REASON = 2_000
_CONTENTS = ("messages", "tools", "documents", "strftime_now")


class ChatTemplate:
    """Renders conversations. Immutable, and for any number of threads.

    Args:
        source: the template's text.
        special_tokens: the variables ``bos_token``, ``eos_token`` and so on that the template may use.
        named: further templates by name; ``tool_use`` is taken where a list of tools is given, even an empty one.

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
        if not isinstance(source, str):
            raise InvalidInputError(f"source is {value_text(source)}; expected the text of a template")
        self.source = source
        self.special_tokens: dict[str, Any] = checked_mapping("special_tokens", special_tokens, of_texts=True)
        self.named: dict[str, Any] = checked_mapping("named", named, of_texts=True)
        self._edges: dict[str, tuple[str, str]] = {}
        for text in (source, *self.named.values()):
            _compiled(text)

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
        values = self._values(messages, add_generation_prompt, tools, documents, now, variables)
        text = self._render(values)
        refuse_left_out(self._render, values, text)
        return text

    def render_marked(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        now: datetime.datetime | None = None,
        **variables: object,
    ) -> tuple[str, Ranges]:
        """Return the text of a conversation, and which of its characters came out of what was given.

        Those are the characters of messages, tools, documents and variables, but for the roles of messages; the others are
        the template's own. With :meth:`Tokenizer.encode_marked` no special token comes out of a user's text. Where a
        template changes texts so that it cannot be told whose they are, they count as users'.

        Args: as :meth:`render`, which gives the same text.

        Raises:
            InvalidInputError: as :meth:`render`.
            UnsupportedError: as :meth:`render`, or the template escapes texts for HTML, so that the marks are lost.
        """
        values = self._values(messages, add_generation_prompt, tools, documents, now, variables)
        compiled = _compiled(self._source(values))
        given = {"messages", "tools", "documents", *variables}
        text = self._render(
            {name: _marked(name, value) if name in given else value for name, value in values.items()},
            tracks_users=True,
        )
        if compiled.escapes_output or (compiled.marks_html and text != self._render(values)):
            raise UnsupportedError(
                "the model's chat template escapes texts for HTML, so control tokens cannot be kept out of them: pass "
                "special_tokens_in_text=True if you trust everyone who wrote them"
            )
        refuse_left_out(self._render, values, text)
        return str.__getitem__(text, slice(None)), ranges_of(text)

    def render_answers(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        now: datetime.datetime | None = None,
        **variables: object,
    ) -> tuple[str, Ranges, Ranges]:
        """Return the text of a finished conversation, and where its answers are.

        An answer begins where a prompt for it would end, so template text in it (an empty thought, what stands around a
        call of a tool) is part of it. It ends where the template's mark of the end begins.

        Args: as :meth:`render`. An assistant's message with ``"weight": 0`` is no answer; the field is not rendered.

        Returns:
            The text, the characters of :meth:`render_marked`, and those of the answers, both as (start, end) in order.

        Raises:
            InvalidInputError: as :meth:`render`, or a weight is neither 0 nor 1.
            UnsupportedError: as :meth:`render_marked`.
        """
        from lattice_inference.tokenizer.answer_ranges import answer_ranges, unweighted

        shown, answers = unweighted(messages)
        now = datetime.datetime.now() if now is None else now
        text, given = self.render_marked(
            shown, add_generation_prompt=False, tools=tools, documents=documents, now=now, **variables
        )
        values = self._values(shown, False, tools, documents, now, variables)
        told = zip(values["messages"], answers, strict=True)
        values["messages"] = [_marked("messages", [one])[0] if is_answer else one for one, is_answer in told]
        by_assistant = ranges_of(self._render(values, tracks_users=True))
        return text, given, answer_ranges(text, given, by_assistant, *self._answer_edges(values))

    def _answer_edges(self, values: Mapping[str, Any]) -> tuple[str, str]:
        """Return the texts that begin and end an answer of a conversation with these values.

        ``""`` stands for what cannot be told.
        """
        lists = [values["tools"] is None, values["documents"] is None]
        named = {name: value for name, value in values.items() if name not in _CONTENTS}
        key = repr([lists, named])
        if key not in self._edges:
            asked: dict[str, Any] = {**values, "messages": [{"role": "user", "content": "lattice question"}]}
            try:
                before, after = self._render(asked), self._render(asked | {"add_generation_prompt": True})
            except InvalidInputError:
                before, after = "-", ""
            start = after[len(before) :] if after.startswith(before) else ""
            self._edges[key] = start, self.answer_end().rstrip()
        return self._edges[key]

    def _values(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        tools: object,
        documents: object,
        now: datetime.datetime | None,
        variables: Mapping[str, object],
    ) -> dict[str, Any]:
        """Return what the template is given, checked."""
        if not (now is None or isinstance(now, datetime.datetime)):
            raise InvalidInputError(f"now is {value_text(now)}; expected a datetime, or None")
        values = {
            **self.special_tokens,
            **{name: plain_json(value, name) for name, value in variables.items()},
            "tools": _checked_list(tools, "tools"),
            "documents": _checked_list(documents, "documents"),
            "add_generation_prompt": add_generation_prompt,
            "strftime_now": Clock(now or datetime.datetime.now()),
        }
        values["messages"] = checked_messages(messages, roles={*ROLES, *_compiled(self._source(values)).compared})
        return values

    def _render(self, values: dict[str, Any], *, tracks_users: bool = False) -> str:
        token = use_budget(Budget(values, tracks_users=tracks_users))
        try:
            return _compiled(self._source(values)).render(values)
        except Exception as error:
            reason = str(error)[:_LONGEST_REASON]
            raise InvalidInputError(f"the model's chat template cannot render these messages: {reason}") from error
        finally:
            release_budget(token)

    def _source(self, values: Mapping[str, Any]) -> str:
        # an empty list of tools takes the template for tools, too: so does transformers
        return self.named["tool_use"] if values["tools"] is not None and "tool_use" in self.named else self.source

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


def _marked(name: str, value: Any) -> Any:
    """Mark the texts of a value as users'.

    In messages, all texts but roles and field names.
    """
    if name != "messages":
        return marked(value)
    return [{field: item if field == "role" else marked(item) for field, item in message.items()} for message in value]


def _checked_list(given: object, name: str) -> list[Any] | None:
    if given is None:
        return None
    if isinstance(given, (str, bytes, Mapping)) or not isinstance(given, Sequence):
        raise InvalidInputError(f"{name} is a {type(given).__name__}; expected a list")
    checked: list[Any] = plain_json(list(given), name)
    return checked


def _compiled(source: str) -> CompiledTemplate:
    from lattice_inference.tokenizer.template_environment import compile_template  # imports Jinja

    return compile_template(source)
