"""Examples for language models: token ids, and which of them are trained.

A conversation is rendered once by the model's chat template, a pair of prompt and completion is one text, and either is
tokenized once. The characters of the answer then say which tokens are trained: a prompt's tokens alone may be others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lattice_inference import ChatTemplate, Tokenizer
from lattice_inference.errors import InvalidInputError as InferenceInputError
from lattice_inference.errors import UnsupportedError
from lattice_inference.generate.prompt_tokens import answer_end_ids, end_token_ids, rendered_tokens
from lattice_inference.models.opened_model import open_model
from lattice_inference.tokenizer.message_parts import readable_messages
from lattice_tune.errors import DatasetError, InvalidInputError
from lattice_tune.lora.rows import PlacedRow, text_in

__all__ = ["TokenExample", "TokenExamples", "TokenReader"]

Int32Array = npt.NDArray[np.int32]
Ranges = Iterable[tuple[int, int]]

_KINDS = ("messages", "completion", "text")


@dataclass(frozen=True, eq=False)
class TokenExample:
    """One sequence.

    Attributes:
        place: where it came from, for messages.
        token_ids: (n,) int32.
        trained: (n,) bool, which tokens are to be predicted; the first never is.
    """

    place: str
    token_ids: Int32Array
    trained: npt.NDArray[np.bool_]

    @property
    def trained_count(self) -> int:
        """How many tokens are trained."""
        return int(self.trained.sum())


@dataclass(frozen=True)
class TokenExamples:
    """All sequences of a source, and how many examples were cut to the longest length."""

    examples: list[TokenExample]
    truncated: int


class TokenReader:
    """Makes sequences of rows, as the model is asked when it generates.

    Args:
        tokenizer: the model's.
        template: its chat template, or None.
        special_tokens: the texts of its special tokens by role; the end of a text is put after a completion.
        max_tokens: the longest sequence.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        special_tokens: dict[str, str],
        max_tokens: int,
    ) -> None:
        self._tokenizer, self._template, self._max_tokens = tokenizer, template, max_tokens
        end = special_tokens.get("eos_token")
        self._end = None if end is None else tokenizer.token_to_id(end)
        self._ends = end_token_ids(tokenizer, special_tokens)
        if template is not None:
            self._ends |= answer_end_ids(tokenizer, template)

    @classmethod
    def of_model(cls, path: Path, max_tokens: int) -> TokenReader:
        """Return the reader of a model's directory or GGUF file.

        Raises:
            InvalidInputError: the model has no tokenizer.
        """
        with open_model(path, causal=True) as model:
            if not model.has_tokenizer:
                raise InvalidInputError(f"{path}: the model has no tokenizer, which texts need")
            max_tokens = min(max_tokens, model.config.context_length)
            return cls(model.tokenizer, model.template(), model.special_tokens, max_tokens)

    def read(self, rows: Iterable[PlacedRow]) -> TokenExamples:
        """Return the sequences of rows.

        A row has ``messages``, ``prompt`` and ``completion``, or ``text``. Of a conversation the assistant's messages are
        trained, of a pair the completion, of a text everything.

        Raises:
            DatasetError: a row is something else, or has no trained token; the message has its place.
        """
        found: list[TokenExample] = []
        truncated = 0
        for row in rows:
            whole = self._sequence(row)
            if "text" in row.fields:
                found += self._windows(whole)
                continue
            cut = whole if len(whole.token_ids) <= self._max_tokens else self._cut(whole)
            truncated += cut is not whole
            found.append(cut)
        if not found:
            raise DatasetError("there is no example to train on")
        return TokenExamples(found, truncated)

    def _sequence(self, row: PlacedRow) -> TokenExample:
        kinds = [kind for kind in _KINDS if kind in row.fields]
        if len(kinds) != 1:
            raise DatasetError(
                f"{row.place}: an example has messages, prompt and completion, or text; this one has "
                f"{', '.join(map(repr, list(row.fields)[:8])) or 'no field'}"
            )
        try:
            if kinds[0] == "messages":
                made = self._conversation(row)
            elif kinds[0] == "completion":
                made = self._pair(row)
            else:
                text = text_in(row, "text")
                made = self._marked(row.place, text, (), [(0, len(text))], ends=True)
        except (InferenceInputError, UnsupportedError) as error:
            raise DatasetError(f"{row.place}: {error}") from error
        if not made.trained.any():
            raise DatasetError(
                f"{row.place}: no token of the example is trained: it has no answer of the assistant's"
                if kinds[0] == "messages"
                else f"{row.place}: no token of the example is trained: its {kinds[0]} is empty"
            )
        return made

    def _conversation(self, row: PlacedRow) -> TokenExample:
        if self._template is None:
            raise DatasetError(
                f"{row.place}: messages need a chat template, which the model lacks: give prompt, completion"
            )
        more = {name: row.fields[name] for name in ("tools", "documents") if row.fields.get(name) is not None}
        messages = readable_messages(self._template, row.fields["messages"])
        text, given, answers = self._template.render_answers(messages, **more)
        return self._marked(row.place, text, given, answers, ends=False)

    def _pair(self, row: PlacedRow) -> TokenExample:
        prompt, completion = text_in(row, "prompt"), text_in(row, "completion")
        if not completion:
            raise DatasetError(f"{row.place}: no token of the example is trained: its completion is empty")
        text = prompt + completion
        return self._marked(row.place, text, (), [(len(prompt), len(text))], ends=True)

    def _marked(self, place: str, text: str, plain: Ranges, answers: Ranges, *, ends: bool) -> TokenExample:
        """Tokenize a text once, and find the tokens that hold characters of the answers.

        The token that ends an answer is trained, too: it stands after it in a conversation, and is added with ``ends``.
        """
        ids, offsets = rendered_tokens(self._tokenizer, text, tuple(plain))
        trained = np.zeros(len(ids), np.bool_)
        for first, last in answers:
            inside = (offsets[:, 1] > first) & (offsets[:, 0] < last) & (offsets[:, 1] > offsets[:, 0])
            trained |= inside
            after = int(np.flatnonzero(inside)[-1]) + 1 if inside.any() else len(ids)
            while after < len(ids) and not text[offsets[after, 0] : offsets[after, 1]].strip():
                after += 1
            if after < len(ids) and ids[after] in self._ends:
                trained[after] = True
        if ends and self._end is not None and (not ids or ids[-1] != self._end):
            ids, trained = [*ids, self._end], np.append(trained, True)
        if len(trained):
            trained[0] = False
        return TokenExample(place, np.array(ids, np.int32), trained)

    def _cut(self, whole: TokenExample) -> TokenExample:
        trained = whole.trained[: self._max_tokens]
        if not trained.any():
            raise DatasetError(
                f"{whole.place}: no token of the example is trained: its answer begins beyond the first "
                f"{self._max_tokens} of {len(whole.token_ids)} tokens: raise max_tokens, or shorten the prompt"
            )
        return TokenExample(whole.place, whole.token_ids[: self._max_tokens], trained)

    def _windows(self, whole: TokenExample) -> list[TokenExample]:
        """Divide a plain text; each window begins with the last token of the one before it."""
        count, step = len(whole.token_ids), self._max_tokens - 1
        found = []
        for start in range(0, max(count - 1, 1), step):
            trained = whole.trained[start : start + self._max_tokens].copy()
            trained[0] = False
            if trained.any():
                found.append(TokenExample(whole.place, whole.token_ids[start : start + self._max_tokens], trained))
        return found
