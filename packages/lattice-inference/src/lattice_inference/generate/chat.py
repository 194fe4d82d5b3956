"""A conversation: messages that the model's chat template renders and one session answers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from lattice_inference.argument_checks import check_provides, checked_flag, checked_mapping
from lattice_inference.errors import InvalidInputError, UnsupportedError
from lattice_inference.generate.prompt_tokens import encode_rendered
from lattice_inference.generate.result import FinishReason, GenerateResult
from lattice_inference.tokenizer.message_parts import readable_messages
from lattice_inference.turn import Turn

if TYPE_CHECKING:
    from lattice_inference.generate.config import GenerateConfig
    from lattice_inference.generate.session import Cancelled, Session
    from lattice_inference.generate.stream import GenerationStream
    from lattice_inference.tokenizer.chat_template import ChatTemplate
    from lattice_inference.tools.conversation import Tools
    from lattice_inference.tools.definitions import ToolChoice
    from lattice_inference.tools.detection import ToolFormatName
    from lattice_inference.tools.grammar import ToolGrammar
    from lattice_inference.tools.stream import ToolStream

__all__ = ["Chat"]

_OWN_VARIABLES = frozenset({"self", "messages", "add_generation_prompt"})


class Chat:
    """A conversation with a model.

    >>> chat = Chat(session, system="Answer in one sentence.")                            # doctest: +SKIP
    >>> chat.send("Why is the sky blue?").text                                            # doctest: +SKIP

    Every turn renders the whole conversation by the template. Tokens that the session holds already are not run again. A
    chat is for one call at a time: a second call, or one while an answer's stream is open, raises :class:`BusyError`.

    Args:
        session: the session that runs it; the session's context becomes the conversation's.
        template: the chat template; by default the model's own.
        system: the system message.
        config: how to generate, unless a turn has its own configuration.
        tools: functions that answers may call, in OpenAI's form: ``{"type": "function", "function": {"name": ...,
            "description": ..., "parameters": ...}}``. An answer is then a text, calls whose arguments obey the schemas, or a
            text and then calls.
        tool_choice: ``"auto"``, ``"none"`` (no calls), ``"required"`` (calls only), or ``{"type": "function", "function":
            {"name": ...}}`` for one call of this function. It can be changed between turns.
        parallel_tool_calls: whether an answer may have several calls.
        tool_format: how the model writes calls; by default its template tells. ``"json"`` is for models whose template
            takes no tools: an answer is then a text, or a JSON array of calls, and the system message has to say so.
        variables: further variables of the template, such as ``{"enable_thinking": False}`` and ``documents``.
        special_tokens_in_text: whether the spelling of a special token in messages, tools, documents or variables becomes
            that token. By default it stays text, so that a message cannot end its turn or begin another one. In the
            template's own text it always becomes the token. Added tokens that are not special are found everywhere.

    Raises:
        UnsupportedError: there is no template, or no tokenizer; or the template takes no tools, or writes calls in a form
            that is not known.
        InvalidInputError: a variable has a name that the chat itself sets, or a tool is malformed.
        GrammarError: a tool's schema cannot be enforced.

    Attributes:
        session: the session.
        template: the chat template.
        special_tokens_in_text: as the argument; it can be changed between turns.
        messages: the messages so far, answers included; change them to change the history.
    """

    def __init__(
        self,
        session: Session,
        *,
        template: ChatTemplate | None = None,
        system: str | None = None,
        config: GenerateConfig | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: ToolChoice = "auto",
        parallel_tool_calls: bool = True,
        tool_format: ToolFormatName | None = None,
        variables: Mapping[str, Any] | None = None,
        special_tokens_in_text: bool = False,
    ) -> None:
        check_provides("session", session, "chat_template", "a Session")
        self.session = session
        found = session.chat_template if template is None else template
        if found is None:
            raise UnsupportedError(
                "the model has no chat template: pass ChatTemplate(...) of yours, or use Session.generate with a prompt"
            )
        if session.tokenizer is None:
            raise UnsupportedError("the model has no tokenizer, which a conversation needs: pass one to Session")
        self.template = found
        self.config = config
        self.special_tokens_in_text: bool = checked_flag("special_tokens_in_text", special_tokens_in_text)
        self.variables: dict[str, Any] = checked_mapping("variables", variables)
        taken = sorted(_OWN_VARIABLES.intersection(self.variables))
        if taken:
            raise InvalidInputError(f"the variable {taken[0]!r} is the chat's: give it another name")
        self.tool_choice = tool_choice
        self.parallel_tool_calls: bool = checked_flag("parallel_tool_calls", parallel_tool_calls)
        self._tools: Tools | None = None
        if tools is not None:
            from lattice_inference.tools.conversation import Tools

            if "tools" in self.variables:
                raise InvalidInputError("tools are given twice: as an argument and as a variable of the template")
            self._tools = Tools(tools, found, tool_format)
            self._tools.chosen(tool_choice)  # is checked now
        self.system = system
        self._turn = Turn("this conversation", "wait for it, or make a Chat with a Session for each")
        self.messages: list[dict[str, Any]] = self._first_messages()

    def reset(self) -> None:
        """Forget all but the system message.

        Raises:
            BusyError: an answer is still being generated.
        """
        with self._turn:
            self.session.settle()
            self.messages = self._first_messages()

    def _first_messages(self) -> list[dict[str, Any]]:
        return [] if self.system is None else [{"role": "system", "content": self.system}]

    def prompt_ids(self) -> list[int]:
        """Return the tokens of the conversation so far, with the prompt for an answer.

        Raises:
            InvalidInputError: a message is malformed, or the template refuses the conversation.
            UnsupportedError: the template ignores the system message or another input; see :meth:`ChatTemplate.render`.
        """
        assert self.session.tokenizer is not None  # __init__ has checked it
        messages, variables = self._rendered()
        if self.special_tokens_in_text:
            return encode_rendered(self.session.tokenizer, self.template.render(messages, **variables))
        return encode_rendered(self.session.tokenizer, *self.template.render_marked(messages, **variables))

    def _rendered(self) -> tuple[list[Any], dict[str, Any]]:
        """Return messages and variables as the template gets them."""
        messages: list[Any] = self.messages
        if any(isinstance(message, Mapping) and message.get("tool_calls") for message in messages):
            from lattice_inference.tools.messages import template_messages

            messages = template_messages(messages)
        readable: Any = readable_messages(self.template, messages)
        return readable, self.variables if self._tools is None else {**self.variables, **self._tools.variables}

    def send(
        self, text: str, config: GenerateConfig | None = None, *, cancelled: Cancelled | None = None
    ) -> GenerateResult:
        """Send ``text`` as the user's message and return the answer.

        With tools, the result's ``tool_calls`` are to be answered by :meth:`send_tool_results`. It raises the errors of
        :meth:`Session.generate` and :meth:`prompt_ids`. An error leaves the conversation as it was.
        """
        return self.stream(text, config, cancelled=cancelled).finish()

    def stream(
        self, text: str, config: GenerateConfig | None = None, *, cancelled: Cancelled | None = None
    ) -> GenerationStream | ToolStream:
        """Send ``text`` as the user's message and stream the answer; see :meth:`send`.

        The answer joins the conversation when the stream ends, or when it is closed after some text.
        """
        if not isinstance(text, str):
            raise InvalidInputError(f"a message is a {type(text).__name__}; expected a str")
        return self._answer(lambda _: [{"role": "user", "content": text}], config, cancelled)

    def send_tool_results(
        self, results: Mapping[str, str], config: GenerateConfig | None = None, *, cancelled: Cancelled | None = None
    ) -> GenerateResult:
        """Answer the calls of the last answer and return the next answer.

        Args:
            results: what the functions returned, by the calls' ids.
            config: how to generate.
            cancelled: what ends the generation early.

        Raises:
            InvalidInputError: the last answer calls no tool, a call has no result, or a result has no call. Further the
                errors of :meth:`send`.
        """
        return self.stream_tool_results(results, config, cancelled=cancelled).finish()

    def stream_tool_results(
        self, results: Mapping[str, str], config: GenerateConfig | None = None, *, cancelled: Cancelled | None = None
    ) -> GenerationStream | ToolStream:
        """Answer the calls of the last answer and stream the next one.

        See :meth:`send_tool_results`.
        """
        from lattice_inference.tools.messages import result_messages

        return self._answer(lambda messages: result_messages(messages, results), config, cancelled)

    def _answer(
        self,
        made: Callable[[list[dict[str, Any]]], list[dict[str, Any]]],
        config: GenerateConfig | None,
        cancelled: Cancelled | None,
    ) -> GenerationStream | ToolStream:
        """Append the messages that ``made`` returns, and stream the answer."""
        with self._turn:
            self.session.settle()  # adds the last answer to the messages before they are rendered
            before = list(self.messages)
            new = made(before)
            self.messages.extend(new)
            try:
                ids = self.prompt_ids()
                config, grammar = self._constrained(self.config if config is None else config)
                stream: GenerationStream | ToolStream = self.session.stream(
                    ids, config, continues=False, cancelled=cancelled
                )
                if grammar is not None:
                    from lattice_inference.tools.stream import ToolStream

                    seed = hashlib.sha256(repr(ids).encode()).hexdigest()
                    stream = ToolStream(cast("GenerationStream", stream), grammar, seed)
            except BaseException:
                self.messages = before
                raise
            stream.when_ended(partial(_take_answer, self.messages, new))
            return stream

    def _constrained(self, config: GenerateConfig | None) -> tuple[GenerateConfig | None, ToolGrammar | None]:
        """Return the configuration with the turn's grammar, and the grammar of its calls."""
        given = getattr(config, "grammar", None)  # what is no configuration, the session refuses
        if self._tools is None and given is None:
            return config, None
        from lattice_inference.generate.config import GenerateConfig
        from lattice_inference.generate.reasoning_prompt import reasoning_of
        from lattice_inference.grammar.reasoning import AfterReasoning

        messages, variables = self._rendered()
        reasoning = reasoning_of(self.template, messages, variables)
        if self._tools is None:
            assert config is not None
            assert given is not None
            if reasoning == "none" or isinstance(given, AfterReasoning):
                return config, None
            return replace(config, grammar=AfterReasoning(given, is_open=reasoning == "open")), None
        if given is not None:
            raise InvalidInputError("tools and grammar exclude each other: leave one of them out")
        grammar = self._tools.grammar(self.tool_choice, self.parallel_tool_calls, reasoning)
        return (config if grammar is None else replace(config or GenerateConfig(), grammar=grammar)), grammar


def _take_answer(messages: list[dict[str, Any]], question: list[dict[str, Any]], result: GenerateResult | None) -> None:
    """Add the answer to the conversation; without an answer, remove the question."""
    if result is not None and (result.finish_reason is not FinishReason.CANCELLED or result.text or result.tool_calls):
        answer: dict[str, Any] = {"role": "assistant", "content": result.text}
        if result.tool_calls:
            answer["tool_calls"] = [call.to_message() for call in result.tool_calls]
        messages.append(answer)
        return
    last = messages[len(messages) - len(question) :]
    if len(last) == len(question) and all(mine is theirs for mine, theirs in zip(last, question, strict=True)):
        del messages[len(messages) - len(question) :]
