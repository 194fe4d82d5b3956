"""The tools of a conversation: what its template gets, and the grammar of an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lattice_inference.grammar.reasoning import Reasoning
from lattice_inference.tools.definitions import Tool, ToolChoice, checked_tools, chosen_tools
from lattice_inference.tools.detection import ToolFormatName, tool_format
from lattice_inference.tools.grammar import ToolGrammar

if TYPE_CHECKING:
    from lattice_inference.tokenizer.chat_template import ChatTemplate

__all__ = ["Tools"]


class Tools:
    """Tools and the format in which a model calls them. Immutable.

    Args:
        tools: in OpenAI's form.
        template: the model's chat template.
        name: the format; by default the template tells.

    Raises:
        InvalidInputError: a tool is malformed, or no format has that name.
        GrammarError: a schema cannot be enforced.
        UnsupportedError: the template takes no tools, or writes calls in a form that is not known.
    """

    def __init__(self, tools: object, template: ChatTemplate, name: ToolFormatName | None = None) -> None:
        self._tools = checked_tools(tools)
        self._format = tool_format(template, name) if self._tools or name is not None else None
        for grammar in [] if self._format is None else [ToolGrammar(self._format, self._tools)]:
            grammar.engine_grammar()  # a schema that this format cannot hold is told now

    @property
    def variables(self) -> dict[str, Any]:
        """The variables of the template; in the format ``"json"`` it gets no tools."""
        if not self._tools or self._format is None or not self._format.is_told_by_template:
            return {}
        return {"tools": [tool.definition for tool in self._tools]}

    def chosen(self, choice: ToolChoice) -> tuple[tuple[Tool, ...], bool]:
        """Return the tools that an answer may call, and whether it has to; see :func:`chosen_tools`."""
        return chosen_tools(self._tools, choice)

    def grammar(self, choice: ToolChoice, several: bool, reasoning: Reasoning) -> ToolGrammar | None:
        """Return the grammar of the next answer, ``None`` where there are no tools."""
        tools, required = self.chosen(choice)
        if self._format is None:
            return None
        one = not isinstance(choice, str) or self._format.has_one_call
        return ToolGrammar(self._format, tools, required, several and not one, reasoning)
