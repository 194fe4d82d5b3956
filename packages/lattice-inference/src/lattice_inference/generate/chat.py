"""A conversation: messages that the model's chat template renders and one session answers."""

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

    Every turn renders the whole conversation by the template. Tokens that the session holds already are not run again. A
    chat is for one call at a time: a second call, or one while an answer's stream is open, raises :class:`BusyError`.

    Args:
        session: the session that runs it; the session's context becomes the conversation's.
        template: the chat template; by default the model's own.
        system: the system message.
        config: how to generate, unless a turn has its own configuration.
        variables: further variables of the template, such as ``{"enable_thinking": False}``, ``tools`` and ``documents``.
        special_tokens_in_text: whether the spelling of a special token in messages, tools, documents or variables becomes
            that token. By default it stays text, so that a message cannot end its turn or begin another one. In the
            template's own text it always becomes the token. Added tokens that are not special are found everywhere.

    Raises:
        UnsupportedError: there is no template, or no tokenizer.
        InvalidInputError: a variable has a name that the chat itself sets.

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
        if self.special_tokens_in_text:
            return encode_rendered(self.session.tokenizer, self.template.render(self.messages, **self.variables))
        return encode_rendered(self.session.tokenizer, *self.template.render_marked(self.messages, **self.variables))

    def send(
        self, text: str, config: GenerateConfig | None = None, *, cancelled: Cancelled | None = None
    ) -> GenerateResult:
        """Send ``text`` as the user's message and return the answer.

        It raises the errors of :meth:`Session.generate` and :meth:`prompt_ids`. An error leaves the conversation as it was.
        """
        return self.stream(text, config, cancelled=cancelled).finish()

    def stream(
        self, text: str, config: GenerateConfig | None = None, *, cancelled: Cancelled | None = None
    ) -> GenerationStream:
        """Send ``text`` as the user's message and stream the answer; see :meth:`send`.

        The answer joins the conversation when the stream ends, or when it is closed after some text.
        """
        if not isinstance(text, str):
            raise InvalidInputError(f"a message is a {type(text).__name__}; expected a str")
        with self._turn:
            self.session.settle()  # adds the last answer to the messages before they are rendered
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
    """Add the answer to the conversation; without an answer, remove the question."""
    if result is not None and (result.finish_reason is not FinishReason.CANCELLED or result.text):
        messages.append({"role": "assistant", "content": result.text})
    elif messages and messages[-1] is question:
        messages.pop()
