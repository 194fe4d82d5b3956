"""Options that name a teacher, its task and its limits, and what they mean."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lattice_tune.errors import InvalidInputError, shown

if TYPE_CHECKING:
    from lattice_tune.teachers.limits import RequestLimits
    from lattice_tune.teachers.provider import InProcessTeacher
    from lattice_tune.teachers.served_teacher import ServedTeacher
    from lattice_tune.teachers.task import LabelingTask

__all__ = ["TEACHERS", "add_teacher_options", "limits_of", "open_teacher", "task_of"]

PRESETS = {"claude-sonnet": "claude_sonnet", "claude-haiku": "claude_haiku", "gpt4": "gpt4", "gemini-pro": "gemini_pro"}
SERVED = ("anthropic", "openai", "gemini", "openai-compatible")
SERVED_ONLY = {
    "endpoint": "--endpoint",
    "api_key_env": "--api-key-env",
    "temperature": "--temperature",
    "max_tokens": "--max-tokens",
    "timeout": "--timeout",
    "price_input": "--price-input",
    "price_output": "--price-output",
    "max_cost": "--max-cost",
    "max_total_tokens": "--max-total-tokens",
    "requests_per_minute": "--requests-per-minute",
    "tokens_per_minute": "--tokens-per-minute",
    "concurrency": "--concurrency",
}

TEACHERS = """\
teachers (--teacher):
  anthropic:MODEL  openai:MODEL  gemini:MODEL      a provider; its key is read from ANTHROPIC_API_KEY, OPENAI_API_KEY or
                                                   GEMINI_API_KEY
  openai-compatible:MODEL --endpoint URL           any server that speaks OpenAI's chat protocol
  claude-sonnet  claude-haiku  gpt4  gemini-pro    presets
  local:MODEL                                      a language model in this process: a folder, a GGUF file, or a name
  encoder:MODEL  cross-encoder:MODEL               by how near a text is to the labels' descriptions
"""


def add_teacher_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add("--labels", required=True, metavar="A,B,C", help="the label set, separated by commas")
    add("--describe", action="append", default=[], metavar="LABEL=TEXT", help="what a label means; may be repeated")
    add("--instructions", metavar="TEXT", help="what the teacher is told to do")
    add("--soft", action="store_true", help="a probability of each label, not one label")
    add(
        "--max-text-characters",
        type=int,
        default=10_000,
        metavar="N",
        help="characters of a text that are shown (10,000)",
    )
    add("--teacher", required=True, metavar="TEACHER", help="what labels; see below")
    add("--endpoint", metavar="URL", help="address of the server, before the method's path")
    add("--api-key-env", metavar="NAME", help="environment variable that holds the key")
    add("--temperature", type=float, metavar="T", help="0 to 2 (0.3)")
    add("--max-tokens", type=int, metavar="N", help="tokens that an answer may have (1,024)")
    add("--timeout", type=float, metavar="SECONDS", help="for one request (30)")
    add("--votes", type=int, default=1, metavar="N", help="answers for each text, which are averaged (1)")
    add("--concurrency", type=int, metavar="N", help="requests under way at once (8)")
    add("--requests-per-minute", type=int, metavar="N", help="send no more")
    add("--tokens-per-minute", type=int, metavar="N", help="read and write no more")
    add("--price-input", type=float, metavar="P", help="what a million tokens that are read cost")
    add("--price-output", type=float, metavar="P", help="what a million tokens that are written cost")
    add("--max-cost", type=float, metavar="C", help="stop before this can be exceeded; needs both prices")
    add("--max-total-tokens", type=int, metavar="N", help="stop before this can be exceeded")
    add("--deadline", type=float, metavar="SECONDS", help="ask no more after this time")


def task_of(options: argparse.Namespace) -> LabelingTask:
    """Return the task.

    Raises:
        InvalidInputError: the labels or their descriptions make no sense.
    """
    from lattice_tune.teachers.task import DEFAULT_INSTRUCTIONS, LabelingTask

    descriptions: dict[str, str] = {}
    for given in options.describe:
        label, mark, text = given.partition("=")
        if not mark or not text:
            raise InvalidInputError(f"--describe is {shown(given)}; write LABEL=TEXT")
        descriptions[label.strip()] = text
    return LabelingTask(
        tuple(label.strip() for label in options.labels.split(",")),
        kind="soft" if options.soft else "hard",
        instructions=DEFAULT_INSTRUCTIONS if options.instructions is None else options.instructions,
        descriptions=descriptions,
        max_text_characters=options.max_text_characters,
    )


def limits_of(options: argparse.Namespace) -> RequestLimits:
    """Return the limits.

    Raises:
        InvalidInputError: a limit makes no sense.
    """
    from lattice_tune.teachers.limits import RequestLimits

    return RequestLimits(
        concurrency=8 if options.concurrency is None else options.concurrency,
        requests_per_minute=options.requests_per_minute,
        tokens_per_minute=options.tokens_per_minute,
        max_cost=options.max_cost,
        max_tokens_total=options.max_total_tokens,
        deadline=options.deadline,
    )


@contextmanager
def open_teacher(options: argparse.Namespace) -> Iterator[InProcessTeacher | ServedTeacher]:
    """Open the teacher that the options name, and close it at the end.

    Raises:
        InvalidInputError: they name none, or do not go together.
    """
    kind, _, model = options.teacher.partition(":")
    if kind in PRESETS or kind in SERVED:
        yield _served(options, kind, model)
        return
    if kind not in ("local", "encoder", "cross-encoder") or not model:
        raise InvalidInputError(
            f"--teacher is {shown(options.teacher)}; it must be like anthropic:MODEL; --help lists them"
        )
    for name, option in SERVED_ONLY.items():
        if getattr(options, name) is not None:
            raise InvalidInputError(f"{option} is for teachers at a server, and {kind}:{model} runs in this process")
    if kind == "local":
        from lattice_tune.teachers.local_teacher import LocalTeacher

        with LocalTeacher(model) as teacher:
            yield teacher
        return
    from lattice_inference import load_cross_encoder, load_encoder
    from lattice_tune.teachers.encoder_teacher import EncoderTeacher

    with load_encoder(model) if kind == "encoder" else load_cross_encoder(model) as loaded:
        yield EncoderTeacher(loaded)


def _served(options: argparse.Namespace, kind: str, model: str) -> ServedTeacher:
    from lattice_tune.teachers.config import TeacherConfig, TeacherPrices
    from lattice_tune.teachers.served_teacher import ServedTeacher

    prices = (options.price_input, options.price_output)
    if (prices[0] is None) != (prices[1] is None):
        raise InvalidInputError("--price-input and --price-output go together")
    changes: dict[str, Any] = {} if prices[0] is None else {"prices": TeacherPrices(*prices)}
    for name in ("endpoint", "api_key_env", "temperature", "max_tokens", "timeout"):
        if getattr(options, name) is not None:
            changes[name] = getattr(options, name)
    if kind in PRESETS:
        import dataclasses

        preset = getattr(TeacherConfig, PRESETS[kind])
        return ServedTeacher(dataclasses.replace(preset(model) if model else preset(), **changes))
    if not model:
        raise InvalidInputError(f"--teacher is {shown(options.teacher)}; name the model, as in {kind}:MODEL")
    return ServedTeacher(TeacherConfig(kind, model, **changes))  # type: ignore[arg-type]
