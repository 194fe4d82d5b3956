"""The prompt that asks a decoder whether a document answers a query, and the answer tokens."""

from __future__ import annotations

from dataclasses import dataclass

from lattice_inference.errors import TokenizerError
from lattice_inference.tokenizer import Tokenizer

__all__ = ["PairTemplate"]


@dataclass(frozen=True)
class PairTemplate:
    """The text around a query and a document, and the tokens whose logits are compared.

    Special tokens count in ``before`` and ``after``, which are never cut. A limit cuts the text between them at its end.

    Attributes:
        before: the beginning of a text.
        body: the text between, with ``{instruction}``, ``{query}`` and ``{document}``.
        after: the end of a text; the model's answer follows.
        instruction: the instruction, if the caller gives none.
        yes, no: the texts of the answer tokens. A score is the logistic function of the difference of their logits: the
            probability of ``yes`` if these two are the only answers.
    """

    before: str
    body: str
    after: str
    instruction: str
    yes: str = "yes"
    no: str = "no"

    def text(self, instruction: str | None, query: str, document: str) -> str:
        """Return the text between ``before`` and ``after`` for one pair."""
        parts = {
            "{instruction}": self.instruction if instruction is None else instruction,
            "{query}": query,
            "{document}": document,
        }
        text, rest = "", self.body
        for name, part in parts.items():  # one by one, because a part may hold the name of another
            head, _, rest = rest.partition(name)
            text += head + part
        return text + rest

    def answers(self, tokenizer: Tokenizer) -> tuple[int, int]:
        """Return the ids of ``yes`` and ``no``.

        Raises:
            TokenizerError: one of them is no token.
        """
        yes, no = (self._answer(tokenizer, answer) for answer in (self.yes, self.no))
        return yes, no

    @staticmethod
    def _answer(tokenizer: Tokenizer, answer: str) -> int:
        token = tokenizer.token_to_id(answer)
        if token is None:
            raise TokenizerError(f"the tokenizer has no token {answer!r}, whose logit is a part of the score")
        return token
