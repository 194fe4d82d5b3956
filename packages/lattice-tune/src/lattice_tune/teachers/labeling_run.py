"""One labelling under way: workers that ask, a writer that stores, and what ends them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lattice_tune.errors import LabelStoreError, TeacherApiError
from lattice_tune.teachers.answer import Outcome, TeacherAnswer
from lattice_tune.teachers.label_context import LabelContext
from lattice_tune.teachers.label_store import LabelStore, StoredAnswer
from lattice_tune.teachers.limits import Budget, RequestLimits, Stop, StoppedError
from lattice_tune.teachers.provider import InProcessTeacher
from lattice_tune.teachers.report import LabelingProgress
from lattice_tune.teachers.served_teacher import Connection, ServedTeacher
from lattice_tune.teachers.task import LabelingTask

__all__ = ["Job", "LabelingRun"]

CLAIM_PAUSE = 0.05
"""Seconds between two looks at a text that another process asks for."""

MOST_WAITING = 0.1
"""Seconds that an answer of a teacher in this process may wait to be stored together with others."""


@dataclass(frozen=True)
class Job:
    """An answer that is wanted: one vote on one text."""

    key: bytes
    text: str
    vote: int


class LabelingRun:
    """Asks for what is missing. For one event loop, and to be run once.

    Attributes:
        answers: what came of each job that was asked, by key; labels among them are stored.
        budget: what was spent.
        stop: why it ended early, if it did.
        found_later: answers that another process stored meanwhile.
    """

    def __init__(
        self,
        teacher: InProcessTeacher | ServedTeacher,
        task: LabelingTask,
        context: LabelContext,
        *,
        store: LabelStore | None,
        limits: RequestLimits,
        missing: Sequence[Job],
        stored: int,
        progress: Callable[[LabelingProgress], object] | None,
    ) -> None:
        self.answers: dict[bytes, TeacherAnswer] = {}
        self.stop: Stop = Stop()
        prices = teacher.config.prices if isinstance(teacher, ServedTeacher) else None
        self.budget: Budget = Budget(limits, prices, self.stop)
        self.found_later: int = 0
        self._teacher = teacher
        self._task = task
        self._context = context
        self._store = store
        self._limits = limits
        self._jobs = deque(missing)
        self._held: list[Job] = []  # by other processes
        self._done = stored
        self._total = stored + len(missing)
        self._failed = 0
        self._in_a_row = 0
        self._progress = progress
        self._failure: Exception | None = None
        self._writer = _Writer(store, context)

    async def run(self) -> None:
        """Ask until all is answered, or the stop is set.

        Raises:
            CancelledError: the task was cancelled; what was under way is stored.
            MissingDependencyError, TeacherApiError: nothing can be asked at all.
        """
        if not self._jobs:
            return
        if isinstance(self._teacher, ServedTeacher):
            connection = self._teacher.connect()
            try:
                workers = min(self._limits.concurrency, len(self._jobs))
                await self._drained([self._work(connection) for _ in range(workers)])
            finally:
                await connection.aclose()
        else:
            await self._drained([self._work_here(self._teacher)])

    async def _drained(self, coroutines: Sequence[object]) -> None:
        """Run workers to their end; a first cancellation lets them finish what is under way."""
        tasks = [asyncio.ensure_future(each) for each in coroutines]  # type: ignore[call-overload]
        try:
            await asyncio.shield(asyncio.gather(*tasks, return_exceptions=True))
        except asyncio.CancelledError:
            self.stop.set("interrupted")
            try:
                await asyncio.wait(tasks)
            except asyncio.CancelledError:
                for task in tasks:
                    task.cancel()
                raise
            raise
        for task in tasks:
            if (error := task.exception()) is not None:  # a fault of ours, or of the caller's functions
                raise error

    # A teacher at a server

    async def _work(self, connection: Connection) -> None:
        """Take jobs until there are none."""
        try:
            while (job := await self._next()) is not None:
                try:
                    await self._ask(connection, job)
                finally:
                    if self._store is not None:
                        self._store.release(job.key)
        except StoppedError:
            pass
        except (TeacherApiError, LabelStoreError) as error:
            self.stop.set("error", error)
        except BaseException:
            self.stop.set("error")
            raise

    async def _next(self) -> Job | None:
        """Return a job that is claimed, or ``None`` at the end."""
        while self.stop.reason is None:
            if not self._jobs:
                if not self._held:
                    return None
                await self.stop.sleep(CLAIM_PAUSE)
                if not self.budget.remaining() > 0:
                    self.stop.set("deadline")
                self._jobs.extend(self._held)
                self._held.clear()
                continue
            job = self._jobs.popleft()
            if self._store is None:
                return job
            if not self._store.claim(job.key):
                self._held.append(job)
                continue
            found = self._store.get(self._context, [job.key]).get(job.key)  # another process may have stored it since
            if found is None:
                return job
            self._store.release(job.key)
            self.found_later += 1
            answer = TeacherAnswer(Outcome.LABELLED, found.probabilities, cut_characters=found.cut_characters)
            self._note(job, answer)
        return None

    async def _ask(self, connection: Connection, job: Job) -> None:
        assert isinstance(self._teacher, ServedTeacher)
        prepared = self._teacher.prepare(job.text, self._task)
        answer = await connection.ask(prepared, self._task, self.budget, self.stop)
        if answer.outcome is Outcome.LABELLED:
            await self._writer.put(_row(job, answer))
        self._note(job, answer)

    # A teacher in this process

    async def _work_here(self, teacher: InProcessTeacher) -> None:
        """Run the teacher in a thread; each answer comes back to this loop once it is stored."""
        loop = asyncio.get_running_loop()
        try:
            await asyncio.to_thread(self._answer_all, teacher, loop)
        except (TeacherApiError, LabelStoreError) as error:
            self.stop.set("error", error)
        if self._failure is not None:
            raise self._failure

    def _answer_all(self, teacher: InProcessTeacher, loop: asyncio.AbstractEventLoop) -> None:
        """Ask for all jobs; answers within a moment are stored together, a slow one at once."""
        by_vote: dict[int, list[Job]] = {}
        for job in self._jobs:
            by_vote.setdefault(job.vote, []).append(job)
        for jobs in by_vote.values():
            waiting: list[tuple[Job, TeacherAnswer]] = []
            stored_at = time.monotonic()
            try:
                answers = teacher.answers([job.text for job in jobs], self._task)
                for job, answer in zip(jobs, answers, strict=False):
                    waiting.append((job, answer))
                    if time.monotonic() - stored_at >= MOST_WAITING:
                        self._store_here(waiting, loop)
                        waiting, stored_at = [], time.monotonic()
                    if self.stop.reason is not None:
                        return
            finally:
                self._store_here(waiting, loop)

    def _store_here(self, settled: Sequence[tuple[Job, TeacherAnswer]], loop: asyncio.AbstractEventLoop) -> None:
        rows = [_row(job, answer) for job, answer in settled if answer.outcome is Outcome.LABELLED]
        if self._store is not None and rows:
            self._store.put(self._context, rows)
        with contextlib.suppress(RuntimeError):  # the loop was closed: nothing waits for the answers any more
            loop.call_soon_threadsafe(self._note_here, settled)

    def _note_here(self, settled: Sequence[tuple[Job, TeacherAnswer]]) -> None:
        try:
            for job, answer in settled:
                self._note(job, answer)
        except Exception as error:  # of the caller's progress function
            self._failure = self._failure or error
            self.stop.set("error")
        if not self.budget.remaining() > 0:
            self.stop.set("deadline")

    def _note(self, job: Job, answer: TeacherAnswer) -> None:
        """Count an answer that is settled."""
        self.answers[job.key] = answer
        self._done += 1
        self._failed += answer.outcome is not Outcome.LABELLED
        self._in_a_row = self._in_a_row + 1 if answer.outcome is Outcome.FAILED else 0
        if self._in_a_row >= self._limits.max_failures:
            message = f"{self._in_a_row} texts failed one after another; the last one: {answer.detail}"
            self.stop.set("error", TeacherApiError(message))
        if self._progress is not None:
            cost = float(self.budget.cost + self.budget.unknown_cost)
            self._progress(LabelingProgress(self._done, self._total, self._failed, cost))


class _Writer:
    """Stores answers, all that wait in one transaction, without holding the event loop up."""

    def __init__(self, store: LabelStore | None, context: LabelContext) -> None:
        self._store = store
        self._context = context
        self._waiting: list[tuple[StoredAnswer, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def put(self, answer: StoredAnswer) -> None:
        """Return when an answer is on the disk.

        Raises:
            LabelStoreError: it is not.
        """
        if self._store is None:
            return
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((answer, stored))
        if self._task is None:
            self._task = asyncio.ensure_future(self._write(self._store))
        await stored

    async def _write(self, store: LabelStore) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            failure: BaseException | None = None
            try:
                await asyncio.to_thread(store.put, self._context, [answer for answer, _ in batch])
            except BaseException as error:
                failure = error
            for _, stored in batch:
                with contextlib.suppress(asyncio.InvalidStateError):  # its worker was cancelled
                    if failure is None:
                        stored.set_result(None)
                    else:
                        stored.set_exception(failure)
        self._task = None


def _row(job: Job, answer: TeacherAnswer) -> StoredAnswer:
    return StoredAnswer(
        job.key,
        job.text,
        job.vote,
        answer.probabilities,
        answer.input_tokens,
        answer.output_tokens,
        answer.cut_characters,
    )
