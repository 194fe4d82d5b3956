"""Who runs how many tokens in the next step, when many texts share one cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from lattice_inference.argument_checks import as_number, check_count, check_provides
from lattice_inference.errors import CacheFullError, InvalidInputError
from lattice_inference.generate.config_checks import MOST_TOKENS
from lattice_inference.generate.step_budget import StepBudget
from lattice_inference.token_ids import as_token_id
from lattice_inference.value_text import value_text

__all__ = ["PRIORITY_SECONDS", "CacheRoom", "Row", "Scheduler", "Step"]

PRIORITY_SECONDS = 10.0
"""By how much earlier a request counts as arrived for each unit of its priority."""

MOST_PRIORITY = 1000

_Order = tuple[Any, ...]


class CacheRoom(Protocol):
    """The memory of sequences: pages, and slots of recurrent state if a model has any."""

    @property
    def page_tokens(self) -> int:
        """Tokens in a page."""

    @property
    def pages(self) -> int:
        """All pages."""

    @property
    def free_pages(self) -> int:
        """The pages that nothing holds."""

    @property
    def forgettable_pages(self) -> int:
        """The most pages that :meth:`forget` might free."""

    @property
    def free_slots(self) -> int | None:
        """The free slots; None if sequences need none."""

    def start(self, name: Hashable) -> int:
        """Begin the sequence of a request; return how many of its tokens are cached already.

        It takes a slot, and no page but shared ones. At least one token must remain to be run.
        """

    def pages_for(self, name: Hashable, tokens: int) -> int:
        """Return how many free pages a sequence takes for ``tokens`` further tokens."""

    def forget(self, pages: int) -> None:
        """Free up to ``pages`` pages of remembered prefixes."""

    def release(self, name: Hashable) -> None:
        """Free the pages and the slot of a sequence; its tokens are run again later."""


class Row(NamedTuple):
    """The part of a request in a step.

    Attributes:
        name: the request.
        tokens: how many of the tokens that are not cached are run: the next ones.
        drafts: how many drafted tokens are run after them.
        is_last: whether the context ends with these tokens, so that a token is chosen.
    """

    name: Hashable
    tokens: int
    drafts: int
    is_last: bool


class Step(NamedTuple):
    """What to do next.

    Attributes:
        rows: what is run, in one call of the model.
        started: the requests whose sequences were begun for this step.
        preempted: those whose sequences were released, to be started again later.
        failed: those that do not fit although nothing else is left to release.
        decode_tokens: how many tokens of ``rows`` continue texts.
        prompt_tokens: how many belong to prompts.
    """

    rows: tuple[Row, ...]
    started: tuple[Hashable, ...]
    preempted: tuple[Hashable, ...]
    failed: tuple[Hashable, ...]
    decode_tokens: int
    prompt_tokens: int


@dataclass(eq=False)
class _Request:
    name: Hashable
    key: Hashable
    priority: int
    age: tuple[float, int]
    """(arrival, moved by the priority; order of arrival): the least is the oldest request."""
    pending: int
    """Tokens that are not cached: they are run next."""
    cached: int = 0
    runs: bool = False
    """Whether it has a sequence."""
    decodes: bool = False
    """Whether its prompt has been run and a token is chosen in every step."""
    parked: bool = False


@dataclass
class _Plan:
    """A step in the making."""

    oldest: _Request | None
    rows: dict[Hashable, Row] = field(default_factory=dict)
    pages: dict[Hashable, int] = field(default_factory=dict)
    """Free pages that each row takes."""
    taken: int = 0
    """Their sum."""
    started: list[Hashable] = field(default_factory=list)
    preempted: list[Hashable] = field(default_factory=list)
    failed: list[Hashable] = field(default_factory=list)


class Scheduler:
    """Plans the steps of many requests that share a cache.

    It has no thread and no clock: both are the caller's.

    The caller repeats: :meth:`plan`, run the step, :meth:`complete`. Requests come and go in between.

    * Every text that is being generated has its row in every step.
    * Prompts share a budget of tokens. It is ``step_tokens`` when no text is being generated. Otherwise it is fitted to the
      measured times, so that a step takes about ``step_ms``.
    * One half of the budget goes to the keys in turn, to the oldest prompt of each. The other half goes to the shortest
      prompts, so that these do not wait for long ones.
    * Pages are taken as they are needed. If none is free, remembered prefixes are forgotten. Then parked requests are
      preempted, and after them the youngest of the lowest priority. The oldest request is never preempted.
    * A prompt is started if the cache has room for all of it, and a page for each text that is being generated. While the
      first prompt of a turn has to wait for room, none other is started, except the oldest of all, which may preempt
      others.

    A priority moves a request's arrival: each unit counts as :data:`PRIORITY_SECONDS` of waiting. So the oldest request
    gets a part of a step at least every k-th step for k keys, and ends after at most k * (tokens / least + 2) + new tokens
    steps, where ``least`` is half a page's tokens. A request waits no longer than all older ones together take.

    Args:
        room: the cache.
        step_tokens: the most tokens of prompts in a step.
        step_ms: how long a step should take while texts are being generated, in milliseconds.

    Raises:
        InvalidInputError: a number that is not positive, or something else than a room.
    """

    def __init__(self, room: CacheRoom, *, step_tokens: int, step_ms: float = 100.0) -> None:
        check_provides("room", room, "pages_for", "a CacheRoom")
        tokens = check_count("step_tokens", step_tokens, least=1, most=MOST_TOKENS)
        seconds = _positive("step_ms", step_ms) / 1000
        self._room = room
        self._budget = StepBudget(seconds, tokens, room.page_tokens)
        self._requests: dict[Hashable, _Request] = {}
        self._arrivals = 0
        self._turns: dict[Hashable, int] = {}  # when each key was served last
        self._of_key: dict[Hashable, int] = {}
        self._served = 0
        self.preemptions: int = 0

    def __len__(self) -> int:
        """Return the number of requests, waiting and running ones."""
        return len(self._requests)

    def submit(
        self,
        name: Hashable,
        prompt_tokens: int,
        new_tokens: int,
        *,
        now: float,
        key: Hashable = None,
        priority: int = 0,
    ) -> None:
        """Add a request.

        Args:
            name: what the caller calls it; no other request may have the name.
            prompt_tokens: the number of its tokens.
            new_tokens: the most tokens that it may generate.
            now: the time in seconds, by the caller's clock.
            key: whose request it is; keys take turns.
            priority: each unit counts as :data:`PRIORITY_SECONDS` of waiting; -1000 to 1000.

        Raises:
            CacheFullError: the whole cache has no room for it.
            InvalidInputError: a number out of its range, or the name of another request.
        """
        _check_hashable("name", name)
        _check_hashable("key", key)
        if name in self._requests:
            raise InvalidInputError(f"there is a request named {value_text(name)} already")
        prompt_tokens = check_count("prompt_tokens", prompt_tokens, least=1, most=MOST_TOKENS)
        new_tokens = check_count("new_tokens", new_tokens, least=1, most=MOST_TOKENS)
        priority = check_count("priority", priority, least=-MOST_PRIORITY, most=MOST_PRIORITY)
        arrival = as_number(now)
        if arrival is None or not math.isfinite(arrival):
            raise InvalidInputError(f"now is {value_text(now)}; expected a time in seconds")
        longest = prompt_tokens + new_tokens - 1  # the last token is not run
        if -(-longest // self._room.page_tokens) > self._room.pages:
            raise CacheFullError(
                f"a request of {prompt_tokens} tokens and {new_tokens} new ones does not fit: the cache has room for "
                f"{self._room.pages * self._room.page_tokens} tokens in all"
            )
        age = (arrival - priority * PRIORITY_SECONDS, self._arrivals)
        self._arrivals += 1
        self._requests[name] = _Request(name, key, priority, age, prompt_tokens)
        self._turns.setdefault(key, 0)
        self._of_key[key] = self._of_key.get(key, 0) + 1

    def finish(self, name: Hashable) -> None:
        """Remove a request, in whatever state it is; the caller frees its sequence."""
        request = self._get(name)
        del self._requests[name]
        self._of_key[request.key] -= 1
        if not self._of_key[request.key]:
            del self._of_key[request.key], self._turns[request.key]

    def park(self, name: Hashable) -> None:
        """Let a request keep its sequence, but run nothing of it, until :meth:`unpark`."""
        self._get(name).parked = True

    def unpark(self, name: Hashable) -> None:
        """Let a parked request run again."""
        self._get(name).parked = False

    def begin(self, name: Hashable) -> bool:
        """Begin a waiting request's sequence before the next plan, while its pages are shared.

        Returns:
            Whether it was begun: not if it has a sequence already, or no slot is free.
        """
        request = self._get(name)
        if request.runs or self._room.free_slots == 0:
            return False
        self._begin(request)
        return True

    def is_running(self, name: Hashable) -> bool:
        """Return whether a request has a sequence."""
        return self._get(name).runs

    def plan(self, *, drafts: Mapping[Hashable, int] | None = None) -> Step:
        """Return the next step; it starts, forgets and releases what the step needs.

        Args:
            drafts: how many drafted tokens to run for texts that are being generated. They are left out where pages are
                short.
        """
        drafts = {} if drafts is None else _checked_mapping("drafts", drafts)
        for count in drafts.values():
            check_count("a number of drafts", count, least=0, most=MOST_TOKENS)
        plan = _Plan(min((one for one in self._requests.values() if not one.parked), key=_age, default=None))
        self._add_decodes(plan)
        expected = sum(row.tokens + drafts.get(row.name, 0) for row in plan.rows.values())
        self._add_prompts(plan, self._budget.prompt_tokens(expected))
        self._add_drafts(plan, drafts)
        decode_tokens = prompt_tokens = 0
        for row in plan.rows.values():
            if self._requests[row.name].decodes:
                decode_tokens += row.tokens + row.drafts
            else:
                prompt_tokens += row.tokens
        return Step(
            rows=tuple(plan.rows.values()),
            started=tuple(plan.started),
            preempted=tuple(plan.preempted),
            failed=tuple(plan.failed),
            decode_tokens=decode_tokens,
            prompt_tokens=prompt_tokens,
        )

    def complete(self, step: Step, seconds: float, lengths: Mapping[Hashable, tuple[int, int]]) -> None:
        """Take note of what a step did.

        Args:
            step: from :meth:`plan`.
            seconds: how long it took.
            lengths: of requests whose context ended in the step, and that go on: how many tokens are cached now, and how
                many wait to be run. Those that have ended are left out; :meth:`finish` removes them.

        Raises:
            InvalidInputError: an argument of another kind.
        """
        if not isinstance(step, Step):
            raise InvalidInputError(f"step is {value_text(step)}; expected the Step of plan()")
        lengths = _checked_mapping("lengths", lengths)
        if not all(map(_is_length, lengths.values())):
            raise InvalidInputError(
                "lengths: expected for each name a pair (cached tokens, tokens to run), at least (0, 1)"
            )
        self._budget.measure(step.decode_tokens, step.prompt_tokens, _positive("seconds", seconds, or_zero=True))
        for row in step.rows:
            request = self._requests.get(row.name)
            if request is None:
                continue
            if not row.is_last:
                request.cached += row.tokens
                request.pending -= row.tokens
            elif row.name in lengths:
                request.cached, request.pending = lengths[row.name]
                request.decodes = True

    def _get(self, name: Hashable) -> _Request:
        _check_hashable("name", name)
        request = self._requests.get(name)
        if request is None:
            raise InvalidInputError(f"there is no request named {value_text(name)}")
        return request

    def _add_decodes(self, plan: _Plan) -> None:
        """Add a row for each text that is being generated; those that are preempted last come first."""
        decoding = [one for one in self._requests.values() if one.decodes and not one.parked]
        for request in sorted(decoding, key=lambda one: (one is not plan.oldest, -one.priority, one.age)):
            if not request.decodes:  # preempted for one before it
                continue
            if self._has_room(plan, request, self._room.pages_for(request.name, request.pending)):
                self._add(plan, Row(request.name, request.pending, 0, is_last=True))
            elif request is plan.oldest:
                plan.failed.append(request.name)
            else:
                self._preempt(plan, request)

    def _add_drafts(self, plan: _Plan, drafts: Mapping[Hashable, int]) -> None:
        """Add drafts to rows of texts, in pages that are left over."""
        for name, count in drafts.items():
            row = plan.rows.get(name)
            if row is None or count < 1 or not self._requests[name].decodes:
                continue
            pages = self._room.pages_for(name, row.tokens + count)
            if pages - plan.pages[name] <= self._free(plan):
                self._add(plan, row._replace(drafts=count))

    def _add_prompts(self, plan: _Plan, budget: int) -> None:
        """Share ``budget`` tokens among prompts: half of it in turns, half by length."""
        prompts = [one for one in self._requests.values() if not one.decodes and not one.parked]
        if not prompts:
            return
        in_turn = list(_in_rounds(prompts, _age, lambda one: (self._turns[one.key], one.age)))
        by_length = list(_in_rounds(prompts, lambda one: (one.pending, one.age), lambda one: (one.pending, one.age)))
        left = budget
        is_blocked = False
        served: list[Hashable] = []
        for requests, share in ((in_turn, -(-budget // 2)), (by_length, budget), (in_turn, budget)):
            for request in requests:
                given = min(share, left)
                if given == 0:
                    break
                if request.name in plan.failed or request.name in plan.preempted:
                    continue
                if not request.runs and not self._start(plan, request, may_wait=is_blocked):
                    is_blocked = True
                    continue
                added = self._extend(plan, request, given)
                left -= added
                share -= added
                if added and requests is in_turn and request.key not in served:
                    served.append(request.key)
        for key in served:
            self._served += 1
            self._turns[key] = self._served

    def _start(self, plan: _Plan, request: _Request, *, may_wait: bool) -> bool:
        """Begin a request's sequence, if there is room."""
        if request is not plan.oldest:
            if may_wait or not self._has_room_for_prompt(plan, request):
                return False
        elif self._room.free_slots == 0:
            victim = self._victim(plan)
            if victim is not None:
                self._preempt(plan, victim)
            if self._room.free_slots == 0:
                plan.failed.append(request.name)
                return False
        self._begin(request)
        plan.started.append(request.name)
        return True

    def _begin(self, request: _Request) -> None:
        cached = self._room.start(request.name)
        request.runs = True
        request.cached, request.pending = cached, request.cached + request.pending - cached

    def _has_room_for_prompt(self, plan: _Plan, request: _Request) -> bool:
        """Whether a slot and pages for a whole prompt are free or can be made so.

        The rests of the prompts that run already come first, and a page for each text that is being generated. Else many of
        them would soon be preempted.
        """
        room = self._room
        if room.free_slots == 0:
            return False
        wanted = -(-(request.pending + 1) // room.page_tokens)
        for other in self._requests.values():
            if other.decodes:
                wanted += 1
            elif other.runs:
                row = plan.rows.get(other.name)
                wanted += room.pages_for(other.name, other.pending) - (plan.pages[other.name] if row else 0)
        return wanted <= self._free(plan) + room.forgettable_pages

    def _extend(self, plan: _Plan, request: _Request, most: int) -> int:
        """Add up to ``most`` further tokens of a prompt to the step; return how many."""
        row = plan.rows.get(request.name)
        before = 0 if row is None else row.tokens
        tokens = min(request.pending, before + most)
        if tokens == before:
            return 0
        if not self._has_room(plan, request, self._room.pages_for(request.name, tokens)):
            tokens = self._fitting(plan, request, before, tokens)
            if tokens == before:
                if request is plan.oldest and row is None:
                    plan.failed.append(request.name)
                return 0
        self._add(plan, Row(request.name, tokens, 0, is_last=tokens == request.pending))
        return tokens - before

    def _fitting(self, plan: _Plan, request: _Request, fits: int, beyond: int) -> int:
        """Return how many tokens of a request fit into free pages: less than ``beyond``."""
        free = self._free(plan) + plan.pages.get(request.name, 0)
        while beyond - fits > 1:
            middle = (fits + beyond) // 2
            if self._room.pages_for(request.name, middle) <= free:
                fits = middle
            else:
                beyond = middle
        return fits

    def _add(self, plan: _Plan, row: Row) -> None:
        pages = self._room.pages_for(row.name, row.tokens + row.drafts)
        plan.taken += pages - plan.pages.get(row.name, 0)
        plan.rows[row.name], plan.pages[row.name] = row, pages

    def _free(self, plan: _Plan) -> int:
        """Return how many pages are free beside those that the step takes."""
        return self._room.free_pages - plan.taken

    def _has_room(self, plan: _Plan, request: _Request, pages: int) -> bool:
        """Make ``pages`` pages free for a request's row; return whether that was possible."""
        while (missing := pages - plan.pages.get(request.name, 0) - self._free(plan)) > 0:
            free = self._room.free_pages
            if self._room.forgettable_pages:
                self._room.forget(missing)
                if self._room.free_pages > free:
                    continue
            victim = self._victim(plan)
            if victim is None or victim is request:
                return False
            self._preempt(plan, victim)
        return True

    def _victim(self, plan: _Plan) -> _Request | None:
        """Return whom to preempt: a parked one, else the youngest of the lowest priority."""
        running = [one for one in self._requests.values() if one.runs and one is not plan.oldest]
        return max(running, key=lambda one: (one.parked, -one.priority, one.age), default=None)

    def _preempt(self, plan: _Plan, request: _Request) -> None:
        self._room.release(request.name)
        plan.rows.pop(request.name, None)
        plan.taken -= plan.pages.pop(request.name, 0)
        if request.name in plan.started:
            plan.started.remove(request.name)
        plan.preempted.append(request.name)
        request.pending += request.cached
        request.cached = 0
        request.runs = request.decodes = False
        self.preemptions += 1


def _check_hashable(argument: str, value: object) -> None:
    try:
        hash(value)
    except TypeError:
        raise InvalidInputError(
            f"{argument} is {value_text(value)}; expected a value that can be a key of a dict"
        ) from None


def _checked_mapping(argument: str, value: object) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise InvalidInputError(f"{argument} is {value_text(value)}; expected a mapping of names")
    return value


def _positive(argument: str, value: object, *, or_zero: bool = False) -> float:
    number = as_number(value)
    if number is None or not (0 < number < math.inf or (or_zero and number == 0)):
        raise InvalidInputError(f"{argument} is {value_text(value)}; expected a positive number")
    return number


def _is_length(value: object) -> bool:
    if not isinstance(value, tuple) or len(value) != 2:
        return False
    cached, pending = map(as_token_id, value)
    return cached is not None and pending is not None and cached >= 0 and pending >= 1


def _age(request: _Request) -> tuple[float, int]:
    return request.age


def _in_rounds(
    requests: Iterable[_Request], in_key: Callable[[_Request], _Order], in_round: Callable[[_Request], _Order]
) -> Iterator[_Request]:
    """Yield requests in rounds: the next one of every key, sorted by ``in_round``."""
    of_key: dict[Hashable, list[_Request]] = {}
    for request in requests:
        of_key.setdefault(request.key, []).append(request)
    queues = [sorted(queue, key=in_key, reverse=True) for queue in of_key.values()]
    while queues:
        yield from sorted([queue.pop() for queue in queues], key=in_round)
        queues = [queue for queue in queues if queue]
