"""Random schedules are simulated: nothing starves, no token is run twice, and all pages and slots come back."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from lattice_inference.errors import CacheFullError, InvalidInputError
from lattice_inference.generate.scheduler import PRIORITY_SECONDS, Scheduler
from lattice_inference.generate.step_budget import StepBudget
from lattice_inference.state.page_pool import PagePool

PAGE = 16


@dataclass
class Room:
    """Pages of a real pool, with remembered prefixes that new sequences may share, and slots."""

    pages: int
    slots: int | None = None
    shares: random.Random | None = None
    page_tokens: int = PAGE
    tokens: dict = field(default_factory=dict)  # all tokens of a request: what a sequence may share is less
    held: dict = field(default_factory=dict)
    length: dict = field(default_factory=dict)
    remembered: list = field(default_factory=list)

    def __post_init__(self):
        self.pool = PagePool(self.pages)

    @property
    def free_pages(self):
        return self.pool.free

    @property
    def forgettable_pages(self):
        return len(self.remembered)

    @property
    def free_slots(self):
        return None if self.slots is None else self.slots - len(self.held)

    def start(self, name):
        assert name not in self.held
        assert self.free_slots is None or self.free_slots > 0
        most = (self.tokens[name] - 1) // PAGE
        count = self.shares.randint(0, min(most, len(self.remembered))) if self.shares else 0
        self.held[name] = [self.pool.share(page) for page in self.remembered[:count]]
        self.length[name] = count * PAGE
        return count * PAGE

    def pages_for(self, name, tokens):
        return max(0, -(-(self.length[name] + tokens) // PAGE) - len(self.held[name]))

    def forget(self, pages):
        free = self.pool.free
        while self.remembered and self.pool.free < free + pages:
            self.pool.release([self.remembered.pop()])

    def release(self, name):
        self.pool.release(self.held.pop(name))
        del self.length[name]

    def extend(self, name, tokens):
        self.held[name] += [self.pool.take() for _ in range(self.pages_for(name, tokens))]
        self.length[name] += tokens

    def rewind(self, name, length):
        pages = self.held[name]
        self.pool.release(pages[-(-length // PAGE) :])
        del pages[-(-length // PAGE) :]
        self.length[name] = length


@dataclass
class Simulated:
    """A request: what it was submitted with and how far it is."""

    prompt: int
    new: int
    key: int
    priority: int
    arrival: float
    generated: int = 0
    decodes: bool = False
    first_step: int = 0
    last_step: int | None = None


class Simulation:
    """Runs a scheduler with requests that come, go, are parked and cancelled at random."""

    def __init__(self, seed, *, parks=True, priorities=True):
        self.rng = rng = random.Random(seed)
        self.parks, self.priorities = parks, priorities
        slots = rng.choice([None, None, 1, 3])
        self.room = Room(rng.choice([4, 8, 20, 60]), slots, shares=rng if rng.random() < 0.5 else None)
        self.step_tokens = rng.choice([1, 7, 32, 100])
        self.keys = rng.randint(1, 3)
        self.scheduler = Scheduler(self.room, step_tokens=self.step_tokens, step_ms=rng.choice([1.0, 30.0, 100.0]))
        self.requests: dict[int, Simulated] = {}
        self.parked: set[int] = set()
        self.steps = self.names = self.cancelled = 0
        self.now = 0.0

    def arrive(self):
        rng, room = self.rng, self.room
        most = room.pages * PAGE
        prompt = min(most, rng.choice([1, 5, 16, 40, 200, most // 2 or 1]))
        new = rng.randint(1, min(20, most - prompt + 1))
        priority = rng.choice([0, 0, 0, 1, -2]) if self.priorities else 0
        name, self.names = self.names, self.names + 1
        request = Simulated(prompt, new, rng.randrange(self.keys), priority, self.now, first_step=self.steps)
        room.tokens[name] = prompt
        self.scheduler.submit(name, prompt, new, now=self.now, key=request.key, priority=priority)
        self.requests[name] = request

    def end(self, name):
        self.scheduler.finish(name)
        self.parked.discard(name)
        self.requests[name].last_step = self.steps
        pages = self.room.held.get(name)
        if pages is not None:
            if self.rng.random() < 0.5:
                fresh = [page for page in pages if page not in self.room.remembered]
                self.room.remembered += [self.room.pool.share(page) for page in fresh]
            self.room.release(name)

    def live(self):
        return [name for name, request in self.requests.items() if request.last_step is None]

    def step(self):
        rng, room = self.rng, self.room
        drafts = {name: rng.randint(0, 6) for name in self.live()} if rng.random() < 0.5 else {}
        plan = self.scheduler.plan(drafts=drafts)
        self.steps += 1
        assert plan.failed == ()
        for name in plan.preempted:
            self.requests[name].decodes = False
        planned = {row.name for row in plan.rows}
        for name in self.live():  # each text that is being generated has its row
            if self.requests[name].decodes and name not in self.parked:
                assert name in planned
        assert not planned & self.parked
        assert plan.prompt_tokens <= self.step_tokens
        lengths = {}
        ended = []
        for row in plan.rows:
            request = self.requests[row.name]
            context = request.prompt + request.generated
            start = room.length[row.name]  # what a sequence holds is never run again
            assert 1 <= row.tokens <= context - start
            assert row.is_last == (start + row.tokens == context)
            assert row.drafts == 0 or request.decodes
            room.extend(row.name, row.tokens + row.drafts)
            if row.is_last:
                request.decodes = True
                accepted = rng.randint(0, row.drafts)
                new = min(accepted + rng.choice([1, 1, 1, 3]), request.new - request.generated)
                request.generated += new
                room.tokens[row.name] = context + new
                cached = min(context + accepted, context + new - 1)
                room.rewind(row.name, cached)
                if request.generated == request.new:
                    ended.append(row.name)
                else:
                    lengths[row.name] = (cached, context + new - cached)
        tokens = plan.decode_tokens + plan.prompt_tokens
        assert tokens == sum(row.tokens + row.drafts for row in plan.rows)
        self.scheduler.complete(plan, 0.001 + rng.choice([1e-5, 1e-4]) * tokens, lengths)
        for name in ended:
            self.end(name)
        self.now += 1.0
        return plan

    def run(self, arrivals):
        rng = self.rng
        while arrivals or self.live():
            if arrivals and rng.random() < 0.3:
                self.arrive()
                arrivals -= 1
            if self.parks and self.live() and rng.random() < 0.1:
                name = rng.choice(self.live())
                self.scheduler.park(name)
                self.parked.add(name)
            if self.parked and (rng.random() < 0.2 or not arrivals):
                name = rng.choice(sorted(self.parked))
                self.parked.discard(name)
                self.scheduler.unpark(name)
            if self.parks and self.live() and rng.random() < 0.02:
                self.cancelled += 1
                self.end(rng.choice(self.live()))
            if self.live() and rng.random() < 0.05:
                name = rng.choice(self.live())
                has_room = not self.scheduler.is_running(name) and self.room.free_slots != 0
                assert self.scheduler.begin(name) == has_room
            unparked = set(self.live()) - self.parked
            plan = self.step()
            assert plan.rows or not unparked  # something is always run
            assert self.steps < 100_000
        self.room.forget(self.room.pages)
        assert self.room.free_pages == self.room.pages
        assert self.room.held == {}
        assert self.room.free_slots == self.room.slots
        assert len(self.scheduler) == 0


def longest_wait(simulation, name):
    """The bound that the scheduler's docstring states, in steps: what all older requests may take, and it itself."""
    least = max(1, -(-min(PAGE, simulation.step_tokens) // 2))
    requests = simulation.requests.values()
    age = (simulation.requests[name].arrival, name)
    older = [one for other, one in simulation.requests.items() if (one.arrival, other) <= age]
    assert len(older) <= len(requests)
    return sum(simulation.keys * (-(-(one.prompt + one.new) // least) + 2) + one.new for one in older)


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_random_schedules_end_and_balance(first):
    preemptions = 0
    for seed in range(first, first + 50):
        simulation = Simulation(seed)
        simulation.run(arrivals=8)
        preemptions += simulation.scheduler.preemptions
    assert preemptions > 10


@pytest.mark.parametrize("first", range(0, 80, 20))
def test_no_request_waits_longer_than_stated(first):
    for seed in range(first, first + 20):
        simulation = Simulation(seed, parks=False, priorities=False)
        simulation.run(arrivals=10)
        for name, request in simulation.requests.items():
            assert request.last_step - request.first_step <= longest_wait(simulation, name)


@pytest.mark.slow
def test_ten_thousand_random_schedules_end_and_balance():
    for seed in range(10_000):
        is_plain = seed % 2 == 0
        simulation = Simulation(1000 + seed, parks=not is_plain, priorities=not is_plain)
        simulation.run(arrivals=4)
        if is_plain:
            for name, request in simulation.requests.items():
                assert request.last_step - request.first_step <= longest_wait(simulation, name)


def planned(scheduler, **settings):
    step = scheduler.plan(**settings)
    return {row.name: row.tokens for row in step.rows}


def made(pages=100, step_tokens=64, **settings):
    room = Room(pages, **settings)
    return room, Scheduler(room, step_tokens=step_tokens, step_ms=100.0)


def submit(room, scheduler, name, prompt, new=10, **settings):
    room.tokens[name] = prompt
    scheduler.submit(name, prompt, new, **{"now": 0.0, **settings})


def run(room, scheduler, seconds=0.01, **settings):
    """Run one step in which each text gets one token; return its rows' tokens."""
    step = scheduler.plan(**settings)
    lengths = {}
    for row in step.rows:
        room.extend(row.name, row.tokens + row.drafts)
        if row.is_last:
            room.tokens[row.name] = room.length[row.name] + 1
            lengths[row.name] = (room.length[row.name], 1)
    scheduler.complete(step, seconds, lengths)
    return {row.name: row.tokens for row in step.rows}


def test_a_short_prompt_does_not_wait_for_a_long_one():
    room, scheduler = made()
    submit(room, scheduler, "long", 1000)
    submit(room, scheduler, "short", 20)
    assert run(room, scheduler) == {"long": 44, "short": 20}
    assert run(room, scheduler)["short"] == 1


def test_the_oldest_prompt_does_not_wait_for_many_short_ones():
    room, scheduler = made()
    submit(room, scheduler, "long", 200)
    for step in range(6):
        submit(room, scheduler, step, 64)
        assert run(room, scheduler).get("long", 0) >= 8, step


def test_keys_take_turns_whoever_has_more_requests():
    room, scheduler = made(pages=1000)
    for index in range(20):
        submit(room, scheduler, index, 500, key="many")
    submit(room, scheduler, "one", 500, key="other", now=1.0)
    given = 0
    for step in range(1, 11):
        given += run(room, scheduler).get("one", 0)
        assert given >= (step - 1) * 16


def test_a_priority_counts_as_waiting():
    room, scheduler = made(step_tokens=10)
    submit(room, scheduler, "usual", 5, now=0.0)
    submit(room, scheduler, "late", 5, now=PRIORITY_SECONDS + 1, priority=1)
    submit(room, scheduler, "soon", 5, now=PRIORITY_SECONDS - 1, priority=1)
    assert list(planned(scheduler)) == ["soon", "usual"]


def test_prompts_have_the_whole_step_when_no_text_is_generated_and_a_fitted_part_otherwise():
    room, scheduler = made(pages=2000, step_tokens=512)
    submit(room, scheduler, "text", 10, new=1000)
    run(room, scheduler)
    submit(room, scheduler, "prompt", 20_000)
    for _ in range(40):  # 10 ms and 1 ms for each token
        given = scheduler.plan().prompt_tokens
        run(room, scheduler, seconds=0.010 + 0.001 * (given + 1))
    assert 84 <= given <= 90  # 100 ms in all
    scheduler.finish("text")
    room.release("text")
    assert planned(scheduler)["prompt"] == 512


def test_the_budget_follows_the_times_and_never_jumps():
    budget = StepBudget(0.1, 512, 16)
    assert budget.prompt_tokens(0) == 512
    assert budget.prompt_tokens(1) == 16
    granted = [16]
    for _ in range(30):
        budget.measure(4, granted[-1], 0.02 + 0.0005 * (4 + granted[-1]))
        granted.append(budget.prompt_tokens(4))
        assert granted[-1] <= 2 * granted[-2]
    assert 150 <= granted[-1] <= 160
    for _ in range(60):  # four times as slow
        budget.measure(4, granted[-1], 0.02 + 0.002 * (4 + granted[-1]))
        granted.append(budget.prompt_tokens(4))
    assert 34 <= granted[-1] <= 40
    for seconds in (0.0, 50.0, 0.0):
        budget.measure(1, 16, seconds)
        assert 16 <= budget.prompt_tokens(1) <= 512


def test_remembered_pages_are_forgotten_before_anything_is_preempted():
    room, scheduler = made(pages=4)
    room.remembered = [room.pool.take() for _ in range(3)]
    submit(room, scheduler, "a", 16, new=30)
    for _ in range(18):
        run(room, scheduler)
    assert len(room.remembered) == 1
    assert scheduler.preemptions == 0


def test_the_youngest_of_the_lowest_priority_is_preempted_and_the_oldest_never():
    room, scheduler = made(pages=6)
    for name, priority in (("low", -1), ("first", 0), ("second", 0), ("high", 1)):
        submit(
            room, scheduler, name, 16, new=40, now=-PRIORITY_SECONDS * 2 if name == "low" else 0.0, priority=priority
        )
    gone = []
    for _ in range(200):
        step = scheduler.plan()
        gone += step.preempted
        if len(gone) == 3:
            break
        for row in step.rows:
            room.extend(row.name, row.tokens)
        scheduler.complete(step, 0.01, {row.name: (room.length[row.name], 1) for row in step.rows})
    assert gone == ["second", "first", "high"]  # "low" came first of all


def test_a_parked_request_keeps_its_pages_until_they_are_needed():
    room, scheduler = made(pages=4)
    submit(room, scheduler, "parked", 30)
    submit(room, scheduler, "other", 30, new=30)
    run(room, scheduler)
    scheduler.park("parked")
    assert "parked" not in run(room, scheduler)
    assert scheduler.is_running("parked")
    for _ in range(4):
        run(room, scheduler)
    assert not scheduler.is_running("parked")
    assert planned(scheduler) == {"other": 1}
    scheduler.finish("other")
    room.release("other")
    assert planned(scheduler) == {}
    scheduler.unpark("parked")
    assert planned(scheduler)["parked"] == 31


def test_a_sequence_may_begin_before_the_plan():
    room, scheduler = made(pages=4, slots=1)
    room.remembered = [room.pool.take()]
    room.shares = random.Random(3)
    submit(room, scheduler, "a", 40)
    submit(room, scheduler, "b", 5)
    scheduler.park("a")
    assert scheduler.begin("a")
    assert scheduler.is_running("a")
    assert not scheduler.begin("a")
    assert not scheduler.begin("b")  # the slot is taken
    shared = room.length["a"]
    scheduler.unpark("a")
    step = scheduler.plan()
    assert step.started == ()
    assert [(row.name, row.tokens) for row in step.rows] == [("a", 40 - shared)]


def test_drafts_are_run_in_pages_that_are_left_over():
    room, scheduler = made(pages=3)
    submit(room, scheduler, "a", 15, new=30)
    run(room, scheduler)
    (row,) = scheduler.plan(drafts={"a": 4, "unknown": 3}).rows
    assert (row.tokens, row.drafts, row.is_last) == (1, 4, True)
    room.pool.take(), room.pool.take()
    (row,) = scheduler.plan(drafts={"a": 4}).rows
    assert (row.tokens, row.drafts) == (1, 0)


def test_a_prompt_that_waits_for_room_is_not_overtaken():
    room, scheduler = made(pages=10)
    submit(room, scheduler, "first", 90, new=30)
    while "first" not in room.length or room.length["first"] < 90:
        run(room, scheduler)
    submit(room, scheduler, "large", 100)
    submit(room, scheduler, "small", 10)
    assert run(room, scheduler) == {"first": 1}
    scheduler.finish("first")
    room.release("first")
    assert set(run(room, scheduler)) == {"large", "small"}


def test_a_prompt_leaves_a_page_to_each_text_that_is_being_generated():
    room, scheduler = made(pages=4)
    submit(room, scheduler, "text", 30, new=20)
    run(room, scheduler)
    submit(room, scheduler, "prompt", 30, new=1)
    assert planned(scheduler) == {"text": 1}  # "prompt" would take both free pages
    submit(room, scheduler, "short", 10, new=1)
    scheduler.finish("prompt")
    assert planned(scheduler) == {"text": 1, "short": 10}


def test_slots_limit_who_runs():
    room, scheduler = made(slots=1)
    submit(room, scheduler, "a", 5, new=3)
    submit(room, scheduler, "b", 5, new=3)
    assert run(room, scheduler) == {"a": 5}
    assert run(room, scheduler) == {"a": 1}
    scheduler.finish("a")
    room.release("a")
    assert run(room, scheduler) == {"b": 5}


def test_a_request_that_cannot_go_on_because_of_others_pages_fails():
    room, scheduler = made(pages=2)
    submit(room, scheduler, "a", 16, new=10)
    run(room, scheduler)
    room.pool.take()  # by something that the scheduler does not know
    step = scheduler.plan()
    assert step.failed == ("a",)
    assert step.rows == ()


def test_what_can_never_fit_is_refused_on_arrival():
    _, scheduler = made(pages=4)
    scheduler.submit("fits", 60, 5, now=0.0)
    with pytest.raises(CacheFullError, match="60 tokens and 6 new ones does not fit: the cache has room for 64 tokens"):
        scheduler.submit("too long", 60, 6, now=0.0)
    assert len(scheduler) == 1


def test_wrong_arguments_are_refused():
    room, scheduler = made()
    for wrong in ({"step_tokens": 0}, {"step_tokens": True}, {"step_tokens": 8, "step_ms": 0}):
        with pytest.raises(InvalidInputError, match="step_"):
            Scheduler(room, **wrong)
    with pytest.raises(InvalidInputError, match="step_ms is nan"):
        Scheduler(room, step_tokens=8, step_ms=float("nan"))
    submit(room, scheduler, "a", 1, 1)
    with pytest.raises(InvalidInputError, match="a request named 'a' already"):
        scheduler.submit("a", 1, 1, now=0.0)
    for prompt, new in ((0, 1), (1, 0)):
        with pytest.raises(InvalidInputError, match="_tokens must be from 1 to"):
            scheduler.submit("b", prompt, new, now=0.0)
    with pytest.raises(InvalidInputError, match="priority must be from -1,000 to 1,000, not 2000"):
        scheduler.submit("b", 1, 1, now=0.0, priority=2000)
    with pytest.raises(InvalidInputError, match=r"name is .*; expected a value that can be a key"):
        scheduler.submit([], 1, 1, now=0.0)
    with pytest.raises(InvalidInputError, match="now is inf"):
        scheduler.submit("b", 1, 1, now=float("inf"))
    with pytest.raises(InvalidInputError, match="room is 3; expected a CacheRoom"):
        Scheduler(3, step_tokens=8)
    with pytest.raises(InvalidInputError, match="drafts"):
        scheduler.plan(drafts=[1])
    step = scheduler.plan()
    with pytest.raises(InvalidInputError, match="step is 'x'"):
        scheduler.complete("x", 0.0, {})
    with pytest.raises(InvalidInputError, match="seconds is -1"):
        scheduler.complete(step, -1, {})
    with pytest.raises(InvalidInputError, match="at least"):
        scheduler.complete(step, 0.0, {"a": (1, 0)})
    for call in (scheduler.finish, scheduler.park, scheduler.unpark, scheduler.is_running):
        with pytest.raises(InvalidInputError, match="no request named 'b'"):
            call("b")
