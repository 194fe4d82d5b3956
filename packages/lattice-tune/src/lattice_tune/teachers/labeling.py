"""A teacher labels texts: stored answers are not asked for, new ones are stored first."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from lattice_tune.arguments import instance, whole
from lattice_tune.errors import ConfigError, InvalidInputError
from lattice_tune.teachers.answer import Outcome, TeacherAnswer
from lattice_tune.teachers.label_context import LabelContext, context_of
from lattice_tune.teachers.label_store import LabelStore, StoredAnswer
from lattice_tune.teachers.labeling_run import Job, LabelingRun
from lattice_tune.teachers.limits import RequestLimits
from lattice_tune.teachers.prompt import render_prompt
from lattice_tune.teachers.provider import InProcessTeacher, TeacherProvider
from lattice_tune.teachers.report import DryRun, LabelingProgress, LabelingReport, average_votes
from lattice_tune.teachers.served_teacher import ServedTeacher
from lattice_tune.teachers.task import LabelingTask
from lattice_tune.teachers.texts import check_texts

__all__ = ["alabel_texts", "dry_run", "label_texts"]

MOST_VOTES = 100
BYTES_PER_TOKEN = 4
"""Of English text, for what is likely."""

Result = TypeVar("Result")


def label_texts(
    texts: Sequence[str],
    teacher: InProcessTeacher | ServedTeacher,
    task: LabelingTask,
    *,
    store: LabelStore | None = None,
    limits: RequestLimits | None = None,
    votes: int = 1,
    progress: Callable[[LabelingProgress], object] | None = None,
) -> LabelingReport:
    """Label texts.

    A text that stands several times is sent once. With a store, stored texts are not sent, and each answer is stored
    before it counts. After a kill, the same call sends only the rest. An interrupt (Ctrl-C) ends the call after the
    answers under way are stored; a second one ends it at once.

    Args:
        texts: any number of texts.
        teacher: what labels them.
        task: the labels.
        store: where answers are kept; ``None`` keeps none.
        limits: for a :class:`ServedTeacher`; see :class:`RequestLimits`.
        votes: answers for each text, which are averaged; more than one for teachers whose answers vary.
        progress: called after each answer.

    Returns:
        A result for each text. Refusals, cut-off answers, unknown labels and wrong sums are outcomes, not labels.

    Raises:
        InvalidInputError, ConfigError: an argument makes no sense.
        MissingDependencyError: the extra ``teachers`` is not installed.
        TeacherApiError: the server refuses every request, or too many failed one after another; its ``report`` has what
            was labelled before.
        LabelStoreError: the store cannot be written; its ``report`` has what was labelled before.
    """
    return _run(lambda: alabel_texts(texts, teacher, task, store=store, limits=limits, votes=votes, progress=progress))


async def alabel_texts(
    texts: Sequence[str],
    teacher: InProcessTeacher | ServedTeacher,
    task: LabelingTask,
    *,
    store: LabelStore | None = None,
    limits: RequestLimits | None = None,
    votes: int = 1,
    progress: Callable[[LabelingProgress], object] | None = None,
) -> LabelingReport:
    """Do :func:`label_texts` on the running event loop.

    A task that is cancelled ends after the answers under way are stored; one that is cancelled twice ends at once.
    """
    request = _Request(texts, teacher, task, store, votes)
    limits = RequestLimits() if limits is None else limits
    instance(limits, "limits", RequestLimits)
    if progress is not None and not callable(progress):
        raise InvalidInputError("progress is no function: pass a function of a LabelingProgress")
    run = LabelingRun(
        teacher,
        task,
        request.context,
        store=store,
        limits=limits,
        missing=request.missing,
        stored=len(request.stored),
        progress=progress,
    )
    await run.run()
    report = request.report(run)
    if run.stop.error is not None:
        run.stop.error.report = report
        raise run.stop.error
    return report


def dry_run(
    texts: Sequence[str],
    teacher: InProcessTeacher | ServedTeacher,
    task: LabelingTask,
    *,
    store: LabelStore | None = None,
    votes: int = 1,
    first: int = 3,
) -> DryRun:
    """Return what :func:`label_texts` would ask, the most that it costs, and first prompts.

    Opens no connection and needs neither key nor extra.

    Args:
        texts, teacher, task, store, votes: as for :func:`label_texts`.
        first: how many prompts are shown.

    Raises:
        InvalidInputError, ConfigError, LabelStoreError: as :func:`label_texts`.
    """
    whole(first, "first", least=0, most=1000, refusal=ConfigError)
    request = _Request(texts, teacher, task, store, votes)
    likely = most_input = most_output = cut = 0
    prompts: list[str] = []
    for job in request.missing:
        if isinstance(teacher, ServedTeacher):
            prepared = teacher.prepare(job.text, task)
            prompt = prepared.prompt
            likely += -(-len(prepared.body) // BYTES_PER_TOKEN)
            most_input += prepared.most_input_tokens
            most_output += prepared.most_output_tokens
        else:
            prompt = render_prompt(job.text, task, "label")
        if job.vote == 0:
            cut += prompt.cut_characters > 0
            if len(prompts) < first:
                prompts.append(f"{prompt.system}\n\n{prompt.user}")
    prices = teacher.config.prices if isinstance(teacher, ServedTeacher) else None
    return DryRun(
        texts=len(request.texts),
        stored=len(request.stored),
        requests=len(request.missing),
        asked_anew=request.asked_anew,
        likely_input_tokens=likely,
        most_input_tokens=most_input,
        most_output_tokens=most_output,
        most_cost=None if prices is None else float(prices.cost(most_input, most_output)),
        cut_texts=cut,
        prompts=tuple(prompts),
    )


class _Request:
    """Checked arguments, and what of them is stored already."""

    def __init__(
        self,
        texts: Sequence[str],
        teacher: InProcessTeacher | ServedTeacher,
        task: LabelingTask,
        store: LabelStore | None,
        votes: int,
    ) -> None:
        instance(task, "task", LabelingTask)
        if isinstance(teacher, type) or not isinstance(teacher, (ServedTeacher, InProcessTeacher)):
            raise InvalidInputError(
                f"teacher is a {type(teacher).__name__}; pass a ServedTeacher or an InProcessTeacher"
            )
        if store is not None:
            instance(store, "store", LabelStore)
        whole(votes, "votes", least=1, most=MOST_VOTES, refusal=ConfigError)
        if votes > 1 and teacher.provider in (TeacherProvider.LOCAL, TeacherProvider.ENCODER):
            raise ConfigError(f"votes is {votes}, and this teacher gives one answer to a text: leave it out")
        self.texts = check_texts(texts)
        self.task = task
        self.votes = votes
        self.context: LabelContext = context_of(teacher, task)
        jobs = [
            Job(self.context.key(text, vote), text, vote) for text in dict.fromkeys(self.texts) for vote in range(votes)
        ]
        self.stored: dict[bytes, StoredAnswer] = (
            {} if store is None else store.get(self.context, (job.key for job in jobs))
        )
        self.missing = [job for job in jobs if job.key not in self.stored]
        self.asked_anew: dict[str, int] = {}
        if store is not None and self.missing:
            self.asked_anew = store.count_changed(self.context, list(dict.fromkeys(job.text for job in self.missing)))

    def report(self, run: LabelingRun) -> LabelingReport:
        """Put the answers of the store and of a run together."""
        results = []
        for text in self.texts:
            keys = [self.context.key(text, vote) for vote in range(self.votes)]
            answers = [self._answer(key, run) for key in keys]
            from_store = all(key in self.stored for key in keys)
            results.append(average_votes(text, self.task.labels, answers, from_store=from_store))
        budget = run.budget
        return LabelingReport(
            results=tuple(results),
            context=self.context,
            requests=budget.requests,
            from_store=len(self.stored) + run.found_later,
            asked_anew=self.asked_anew,
            input_tokens=budget.input_tokens,
            output_tokens=budget.output_tokens,
            cost=float(budget.cost),
            unknown_cost=float(budget.unknown_cost),
            unknown_tokens=budget.unknown_tokens,
            stopped=run.stop.reason,
        )

    def _answer(self, key: bytes, run: LabelingRun) -> TeacherAnswer:
        if (stored := self.stored.get(key)) is not None:
            return TeacherAnswer(Outcome.LABELLED, stored.probabilities, cut_characters=stored.cut_characters)
        if (answer := run.answers.get(key)) is not None:
            return answer
        return TeacherAnswer(Outcome.NOT_ASKED, detail=f"not asked: {run.stop.reason or 'interrupted'}")


def _run(make: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Run a coroutine to its end, in another thread if this one runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(make())
    outcome: list[Any] = []
    finished = threading.Event()
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []

    async def announced() -> Result:
        task = asyncio.current_task()
        assert task is not None
        running.append((asyncio.get_running_loop(), task))
        return await make()

    def in_thread() -> None:
        try:
            outcome.append(asyncio.run(announced()))
        except BaseException as error:
            outcome.append(error)
        finally:
            finished.set()

    thread = threading.Thread(target=in_thread, name="lattice-tune labelling")
    thread.start()
    try:
        finished.wait()  # join takes an interrupted thread for one that has ended (bpo-45274)
    except KeyboardInterrupt:
        for loop, task in running:
            with contextlib.suppress(RuntimeError):  # it has just ended
                loop.call_soon_threadsafe(task.cancel)
        finished.wait()
        raise
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    result: Result = outcome[0]
    return result
