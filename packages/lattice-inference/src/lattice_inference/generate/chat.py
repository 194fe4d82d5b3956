"""A conversation: messages, rendered by the model's own template, answered in one session."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from lattice_inference.argument_checks import check_provides, checked_flag, checked_mapping
from lattice_inference.errors import InvalidInputError, UnsupportedError
from lattice_inference.generate.prompt_tokens import encode_rendered
from lattice_inference.generate.result import FinishReason, GenerateResult
from lattice_inference.turn import Turn

if TYPE_CHECKING:
    from lattice_inference.generate.config import GenerateConfig
    from lattice_inference.generate.session import Cancelled, Session
    from lattice_inference.generate.stream import GenerationStream
    from lattice_inference.tokenizer.chat_template import ChatTemplate

__all__ = ["Chat"]

_OWN_VARIABLES = frozenset({"self", "messages", "add_generation_prompt"})


class Chat:
    """A conversation with a model.

    >>> chat = Chat(session, system="Answer in one sentence.")                            # doctest: +SKIP
    >>> chat.send("Why is the sky blue?").text                                            # doctest: +SKIP

    Every turn renders the whole conversation by the template; of its tokens, those that the session holds already are not
    run again. For one call at a time: one beside another, or while an answer's stream is open, raises :class:`BusyError`.

    Args:
        session: where it takes place; its context is the conversation's.
        template: by default the model's own.
        system: the first message, by the one who sets the model up.
        config: how to generate, unless a turn says otherwise.
        variables: what the template may ask for, such as ``{"enable_thinking": False}``, ``tools`` and ``documents`` too.
        special_tokens_in_text: let special tokens that messages, tools, documents or variables spell out become those
            tokens. By default they are text like any other there, so that a message cannot end its turn or begin
            another's; the template's own text keeps them, and added tokens that are not special are found everywhere.

    Raises:
        UnsupportedError: there is no template.
        InvalidInputError: a variable has the name of something that the chat itself gives the template.

    Attributes:
        session: the session.
        template: the template.
        special_tokens_in_text: whether special tokens come out of messages; can be changed between turns.
        messages: the messages so far, answers included; change them to change the history.
    """

    def __init__(
        self,
        session: Session,
        *,
        template: ChatTemplate | None = None,
        system: str | None = None,
        config: GenerateConfig | None = None,
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
        self.system = system
        self._turn = Turn("this conversation", "wait for it, or make a Chat with a Session for each")
        self.messages: list[dict[str, Any]] = self._first_messages()

    def reset(self) -> None:
        """Forget all but the system message.

        Raises:
            BusyError: an answer is not complete.
        """
        with self._turn:
            self.session.settle()
            self.messages = self._first_messages()

    def _first_messages(self) -> list[dict[str, Any]]:
        return [] if self.system is None else [{"role": "system", "content": self.system}]

    def prompt_ids(self) -> list[int]:
        """Return the tokens of the conversation so far, with the beginning of an answer.

        Raises:
            InvalidInputError: a message is malformed, or the template refuses the conversation.
            UnsupportedError: the template leaves out the system message, or another thing; see :meth:`ChatTemplate.render`.
        """
        assert self.session.tokenizer is not None  # checked at the beginning
        if self.special_tokens_in_text:
            return encode_rendered(self.session.tokenizer, self.template.render(self.messages, **self.variables))
        return encode_rendered(self.session.tokenizer, *self.template.render_marked(self.messages, **self.variables))

    def send(
        self, text: str, config: GenerateConfig | None = None, *, cancelled: Cancelled | None = None
    ) -> GenerateResult:
        """Say ``text`` and return the answer. Raises as :meth:`Session.generate` and :meth:`prompt_ids` do.

        When it raises, the conversation is what it was before.
        """
        return self.stream(text, config, cancelled=cancelled).finish()

    def stream(
        self, text: str, config: GenerateConfig | None = None, *, cancelled: Cancelled | None = None
    ) -> GenerationStream:
        """Say ``text`` and return the answer piece by piece; see :meth:`send`.

        The answer is part of the conversation once the stream has ended, or been closed with some of it there.
        """
        if not isinstance(text, str):
            raise InvalidInputError(f"a message is a {type(text).__name__}; expected a str")
        with self._turn:
            self.session.settle()  # what was left of the last answer belongs into the messages before they are rendered
            before = list(self.messages)
            question = {"role": "user", "content": text}
            self.messages.append(question)
            try:
                ids = self.prompt_ids()
                stream = self.session.stream(
                    ids, self.config if config is None else config, continues=False, cancelled=cancelled
                )
            except BaseException:
                self.messages = before
                raise
            stream.when_ended(partial(_take_answer, self.messages, question))
            return stream


def _take_answer(messages: list[dict[str, Any]], question: dict[str, Any], result: GenerateResult | None) -> None:
    """Take the answer into the conversation, or, where it failed or nothing came of it, the question out."""
    if result is not None and (result.finish_reason is not FinishReason.CANCELLED or result.text):
        messages.append({"role": "assistant", "content": result.text})
    elif messages and messages[-1] is question:
        messages.pop()
