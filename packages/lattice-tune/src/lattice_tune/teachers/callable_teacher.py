"""A function of the caller's as a teacher."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from lattice_tune.arguments import instance
from lattice_tune.errors import InvalidInputError, shown
from lattice_tune.teachers.answer import Outcome, TeacherAnswer, to_task
from lattice_tune.teachers.provider import TeacherProvider
from lattice_tune.teachers.task import LabelingTask
from lattice_tune.teachers.texts import check_texts

__all__ = ["CallableTeacher"]

MOST_NAME_CHARACTERS = 300


class CallableTeacher:
    """Labels each text by a function: rules, a model of another library, people.

    >>> teacher = CallableTeacher(lambda text: "question" if text.endswith("?") else "other", name="question mark")

    An exception of the function is the outcome ``FAILED`` of its text, and is not stored.

    Args:
        function: takes a text; returns a label, a mapping of labels to probabilities, or a probability for each label.
        name: what stored answers are found by; give a function that answers otherwise another name.

    Raises:
        InvalidInputError: ``function`` cannot be called, or ``name`` is empty.
    """

    provider = TeacherProvider.CALLABLE

    def __init__(self, function: Callable[[str], object], *, name: str) -> None:
        if not callable(function):
            raise InvalidInputError(f"function is {shown(function)}; pass a function of one text")
        if (
            not isinstance(name, str)
            or not name.strip()
            or not name.isprintable()
            or not len(name) <= MOST_NAME_CHARACTERS
        ):
            raise InvalidInputError(f"name is {shown(name)}; pass what stored answers are to be found by")
        self._function = function
        self._name = name

    @property
    def model_id(self) -> str:
        """The name."""
        return self._name

    @property
    def parameters(self) -> Mapping[str, object]:
        """Nothing: the name says it all."""
        return {}

    def answers(self, texts: Sequence[str], task: LabelingTask) -> Iterator[TeacherAnswer]:
        """Yield what the function makes of each text."""
        texts = check_texts(texts)
        instance(task, "task", LabelingTask)
        for text in texts:
            try:
                given = self._function(text)
            except Exception as error:
                yield TeacherAnswer(Outcome.FAILED, detail=f"the function raised {type(error).__name__}: {error}")
                continue
            yield to_task(given, task)

    def __repr__(self) -> str:
        return f"CallableTeacher(name={self._name!r})"
