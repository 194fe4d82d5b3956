"""Our own decoder as a teacher: the probability of each label's tokens after the prompt."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt

from lattice_inference.errors import InvalidInputError as InferenceInputError
from lattice_inference.errors import LatticeError
from lattice_tune.arguments import instance
from lattice_tune.errors import ConfigError, InvalidInputError, shown
from lattice_tune.teachers.answer import Outcome, TeacherAnswer, of_kind, softmax
from lattice_tune.teachers.prompt import render_prompt
from lattice_tune.teachers.provider import TeacherProvider
from lattice_tune.teachers.task import LabelingTask
from lattice_tune.teachers.texts import check_texts

if TYPE_CHECKING:
    from lattice_inference import CachedSequence, CausalLanguageModel

__all__ = ["LocalTeacher"]

LABELS_AT_ONCE = 32
SMALLEST_TEXT = 32
"""Characters of a text below which it is not cut further to make a prompt fit."""


class LocalTeacher:
    """Labels by a language model in this process; see :func:`lattice_inference.load_model`.

    A label's score is the sum of its tokens' log-probabilities after the prompt, less the same after an empty text.
    The scores of all labels are scaled to probabilities. So an answer is always a label, and the same one each time.
    Where one label's tokens begin another's, each label is followed by the token that ends an answer.

    A model with a chat template is asked by it. The instructions are run once for all texts. For one labelling at a time:
    a second one waits. A context manager, which closes a model that it has loaded itself.

    Args:
        model: a loaded model with a tokenizer, or the path or name of one.
        calibrate: subtract the score after an empty text, so that a label which the model likes by itself does not win for
            every text (contextual calibration; Zhao et al. 2021). ``False`` leaves the probabilities of the tokens.

    Raises:
        InvalidInputError: it is no model, or has no tokenizer.
        LatticeError: the model cannot be loaded.
    """

    provider = TeacherProvider.LOCAL

    def __init__(self, model: CausalLanguageModel | str | os.PathLike[str], *, calibrate: bool = True) -> None:
        from lattice_inference import CausalLanguageModel, load_model

        if not isinstance(calibrate, bool):
            raise InvalidInputError(f"calibrate is {shown(calibrate)}; it must be True or False")
        self._calibrate = calibrate
        self._owned = not isinstance(model, CausalLanguageModel)
        if isinstance(model, CausalLanguageModel):
            self._model = model
        elif isinstance(model, (str, os.PathLike)):
            self._model = load_model(model)
        else:
            raise InvalidInputError(f"model is {shown(model)}; pass a CausalLanguageModel, or the path or name of one")
        if not self._model.has_tokenizer:
            self.close()
            raise InvalidInputError("the model's files have no tokenizer, which labels need")
        self._lock = threading.Lock()

    @property
    def model_id(self) -> str:
        """The name of the model's file or folder."""
        return self._model.directory.name

    @property
    def parameters(self) -> Mapping[str, object]:
        """The model's fingerprint, and ``calibrate``."""
        return {"fingerprint": self._model.fingerprint, "calibrate": self._calibrate}

    def answers(self, texts: Sequence[str], task: LabelingTask) -> Iterator[TeacherAnswer]:
        """Yield the probabilities of the labels for each text.

        Raises:
            ConfigError: two labels have the same tokens, or the instructions leave no room for a text.
        """
        texts = check_texts(texts)
        instance(task, "task", LabelingTask)
        labels = self._label_ids(task)
        longest = max(map(len, labels))
        room = self._model.context_length - longest
        tokens = self._model.context_length + LABELS_AT_ONCE * (longest + 64)
        bytes_for_prompts = 1 << 28
        with self._lock, self._model.open_cache(tokens=2 * tokens, prefix_bytes=bytes_for_prompts) as cache:
            empty, _ = self._prompt_ids("", task, room)
            with cache.start(empty) as sequence:
                prior = self._scores(sequence, empty, labels)
                cache.remember(sequence)  # the instructions, which all prompts begin with
            for text in texts:
                try:
                    ids, cut = self._prompt_ids(text, task, room)
                    with cache.start(ids) as sequence:
                        scores = self._scores(sequence, ids, labels)
                    scores = scores - prior if self._calibrate else scores
                    answer = TeacherAnswer(Outcome.LABELLED, softmax(scores), cut_characters=cut)
                except (LatticeError, InvalidInputError) as error:
                    if isinstance(error, (ConfigError, InferenceInputError)):
                        raise
                    answer = TeacherAnswer(Outcome.FAILED, detail=str(error))
                yield of_kind(answer, task)

    def close(self) -> None:
        """Close the model, if it was loaded here. Closing twice is harmless."""
        if self._owned:
            self._model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LocalTeacher({self.model_id!r})"

    def _label_ids(self, task: LabelingTask) -> list[list[int]]:
        """Return the tokens of each label, as they follow a prompt."""
        before = "" if self._model.chat_template is not None else " "
        tokenizer = self._model.tokenizer
        labels = [
            tokenizer.encode(before + label, add_special_tokens=False, special_tokens_in_text=False).ids.tolist()
            for label in task.labels
        ]
        for index, ids in enumerate(labels):
            if not ids or ids in labels[:index]:
                raise ConfigError(f"the label {shown(task.labels[index])} has no tokens that tell it apart: rename it")
        if any(a is not b and b[: len(a)] == a for a in labels for b in labels):
            end = self._end_token()
            labels = [[*ids, end] for ids in labels]
        return labels

    def _end_token(self) -> int:
        """Return the token that ends an answer.

        Raises:
            ConfigError: the model's files name none.
        """
        from lattice_inference.generate.prompt_tokens import answer_end_ids, end_token_ids

        model, template = self._model, self._model.chat_template
        ends = [] if template is None else sorted(answer_end_ids(model.tokenizer, template))
        ends += [*model.eos_token_ids, *sorted(end_token_ids(model.tokenizer, model.special_tokens))]
        if not ends:
            raise ConfigError("one label begins another, and the model has no token that ends a text: rename one")
        return ends[0]

    def _prompt_ids(self, text: str, task: LabelingTask, room: int) -> tuple[list[int], int]:
        """Return a prompt's tokens, and how many characters of the text were cut to fit."""
        most = task.max_text_characters
        while True:
            prompt = render_prompt(text, task, "label", most=most)
            ids = self._encode(f"{prompt.system}\n\n{prompt.user}")
            if len(ids) <= room:
                return ids, prompt.cut_characters
            if most <= SMALLEST_TEXT:
                raise ConfigError(
                    f"a prompt has {len(ids):,} tokens, and the model takes {room:,}: shorten the instructions or the labels"
                )
            most = min(most, len(text))
            most = max(SMALLEST_TEXT, min(most - 1, most * room // len(ids)))

    def _encode(self, prompt: str) -> list[int]:
        from lattice_inference.generate.prompt_tokens import encode_rendered

        template = self._model.chat_template
        if template is None:
            prompt += "\nLabel:"
            return encode_rendered(self._model.tokenizer, prompt, [(0, len(prompt))])
        rendered, plain = template.render_marked([{"role": "user", "content": prompt}])
        return encode_rendered(self._model.tokenizer, rendered, plain)

    def _scores(self, sequence: CachedSequence, ids: list[int], labels: list[list[int]]) -> npt.NDArray[np.float64]:
        """Return the log-probability of each label after a prompt, (n,) float64."""
        from lattice_inference import Extension

        first = _log_softmax(self._model.forward([Extension(sequence, ids[sequence.length :])]))[0]
        scores = np.array([first[label[0]] for label in labels])
        longer = [index for index, label in enumerate(labels) if len(label) > 1]
        for start in range(0, len(longer), LABELS_AT_ONCE):
            part = longer[start : start + LABELS_AT_ONCE]
            forks = [sequence.fork() for _ in part]
            try:
                extensions = [
                    Extension(fork, labels[index][:-1], "all") for fork, index in zip(forks, part, strict=True)
                ]
                rows = _log_softmax(self._model.forward(extensions))
            finally:
                for fork in forks:
                    fork.close()
            row = 0
            for index in part:
                for token in labels[index][1:]:
                    scores[index] += rows[row][token]
                    row += 1
        return scores


def _log_softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide
