"""What an answer depends on beside the text, and the keys that stored answers are found by."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property

from lattice_tune.errors import ConfigError
from lattice_tune.teachers.prompt import AnswerForm, template_of
from lattice_tune.teachers.provider import InProcessTeacher, TeacherProvider
from lattice_tune.teachers.served_teacher import ServedTeacher
from lattice_tune.teachers.task import LabelingTask

__all__ = ["LabelContext", "context_of", "text_bytes"]

MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class LabelContext:
    """What an answer depends on beside the text.

    Attributes:
        provider: what answers.
        model_id: the model's name.
        parameters: JSON of what else answers depend on.
        template: digest of the prompt's words, as hexadecimal digits.
        labels: the label set, in its order.
        kind: ``"hard"`` or ``"soft"``.
    """

    provider: str
    model_id: str
    parameters: str
    template: str
    labels: tuple[str, ...]
    kind: str

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of all of it."""
        parts = [self.provider, self.model_id, self.parameters, self.template, self.kind, *self.labels]
        return hashlib.sha256(json.dumps(parts).encode()).digest()

    def key(self, text: str, vote: int) -> bytes:
        """Return what an answer is stored under: a SHA-256 of context, vote and text."""
        return hashlib.sha256(self.digest + vote.to_bytes(8, "little") + text_bytes(text)).digest()

    def differences(self, other: LabelContext) -> list[str]:
        """Return which of ``model``, ``parameters``, ``template``, ``labels`` and ``kind`` differ."""
        named = {
            "model": (self.provider, self.model_id) != (other.provider, other.model_id),
            "parameters": self.parameters != other.parameters,
            "template": self.template != other.template,
            "labels": self.labels != other.labels,
            "kind": self.kind != other.kind,
        }
        return [name for name, differs in named.items() if differs]


def context_of(teacher: InProcessTeacher | ServedTeacher, task: LabelingTask) -> LabelContext:
    """Return the context of a teacher's answers to a task.

    Raises:
        ConfigError: the teacher's parameters cannot be written as JSON.
    """
    try:
        parameters = json.dumps(dict(teacher.parameters), sort_keys=True, allow_nan=False)
        parameters.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"the teacher's parameters cannot be written as JSON: {error}") from None
    if not len(parameters) <= MOST_BYTES:
        raise ConfigError(
            f"the teacher's parameters have {len(parameters):,} characters of JSON; at most {MOST_BYTES:,} are kept"
        )
    form: AnswerForm = "json" if isinstance(teacher, ServedTeacher) else "label"
    system = teacher.config.system_prompt if isinstance(teacher, ServedTeacher) else None
    words = template_of(task, form, system=system).encode("utf-8", "surrogatepass")
    return LabelContext(
        provider=TeacherProvider(teacher.provider).value,
        model_id=teacher.model_id,
        parameters=parameters,
        template=hashlib.sha256(words).hexdigest(),
        labels=task.labels,
        kind=task.kind,
    )


def text_bytes(text: str) -> bytes:
    """Return a text's bytes; lone surrogates, which UTF-8 does not know, count as what they are."""
    return text.encode("utf-8", "surrogatepass")
