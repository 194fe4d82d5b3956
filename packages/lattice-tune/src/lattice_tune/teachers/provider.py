"""Who labels: the providers, and what a labelling asks of a teacher."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from lattice_tune.teachers.answer import TeacherAnswer
    from lattice_tune.teachers.task import LabelingTask

__all__ = ["InProcessTeacher", "TeacherProvider"]


class TeacherProvider(enum.StrEnum):
    """What answers: the protocol of a server, or code in this process."""

    ANTHROPIC = "anthropic"
    OPENAI = "openai"
    GEMINI = "gemini"
    OPENAI_COMPATIBLE = "openai-compatible"
    LOCAL = "local"
    ENCODER = "encoder"
    CALLABLE = "callable"

    @property
    def is_served(self) -> bool:
        """Whether a server answers, over HTTP."""
        return self in (self.ANTHROPIC, self.OPENAI, self.GEMINI, self.OPENAI_COMPATIBLE)


@runtime_checkable
class InProcessTeacher(Protocol):
    """What labels texts in this process. :class:`ServedTeacher` asks a server instead.

    A class of your own needs these members and no base class.
    """

    @property
    def provider(self) -> TeacherProvider:
        """What answers."""

    @property
    def model_id(self) -> str:
        """The model's name."""

    @property
    def parameters(self) -> Mapping[str, object]:
        """What answers depend on beside the model, as JSON has it; part of a stored answer's key."""

    def answers(self, texts: Sequence[str], task: LabelingTask) -> Iterator[TeacherAnswer]:
        """Yield one answer for each text, in order. Each is stored before the next is requested."""
