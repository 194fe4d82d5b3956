"""Masks are made while the model runs, by a thread; what fails there fails one text only."""

from __future__ import annotations

import os
import threading
import time

import pytest

from lattice_inference import Engine, EngineConfig, GenerateConfig, GrammarError, JsonSchema, Regex, Session
from lattice_inference.grammar import masks_ahead
from lattice_inference.grammar.constraint import Constraint
from lattice_inference.grammar.masks_ahead import begin_masks
from lattice_inference.grammar.matcher import EngineMatcher

GRAMMAR = Regex("[a-f]{8}")
CONFIG = GenerateConfig(max_new_tokens=20, temperature=2.0, top_k=0, seed=3, grammar=GRAMMAR)


def patient_forward(model, monkeypatch):
    """Let a step of the model last until a mask has been made, or five seconds; return where masks were made."""
    made: list[str] = []
    steps: list[int] = []
    fill, forward = EngineMatcher.fill, type(model).forward

    def noted(self, bits):
        made.append(threading.current_thread().name)
        return fill(self, bits)

    def waited(self, work):
        steps.append(len(work))
        end = time.monotonic() + 5
        logits = forward(self, work)
        while len(made) < len(steps) and time.monotonic() < end:
            time.sleep(0.001)
        return logits

    monkeypatch.setattr(masks_ahead, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(EngineMatcher, "fill", noted)
    monkeypatch.setattr(type(model), "forward", waited)
    return made


def test_masks_are_made_while_the_model_runs(drawn_model, monkeypatch):
    with Session(drawn_model) as session:
        expected = session.generate("Once", CONFIG)
        made = patient_forward(drawn_model, monkeypatch)
        assert session.generate("Once", CONFIG).token_ids == expected.token_ids
    assert made[:8] == ["lattice-masks"] * 8
    assert len(made) <= 9  # the end has no choice, so its mask is made at once


def test_an_engine_makes_them_so_too(drawn_model, monkeypatch):
    made = patient_forward(drawn_model, monkeypatch)
    with Engine(drawn_model, EngineConfig(page_tokens=16)) as engine:
        result = engine.submit("Once", CONFIG).finish()
    assert len(result.text) == 8
    assert made[:8] == ["lattice-masks"] * 8


def test_a_failing_mask_ends_its_own_text(drawn_model, monkeypatch):
    """The engine's limits are passed in the middle of a text, while another text goes on."""
    fill = EngineMatcher.fill
    bad = Regex("[xyz]{8}")

    def failing(self, bits):
        can_end = fill(self, bits)
        if not bits[ord("a") // 32] & 1 << ord("a") % 32 and bits[ord("x") // 32] & 1 << ord("x") % 32:
            raise GrammarError("the grammar cannot be followed: a limit")
        return can_end

    monkeypatch.setattr(EngineMatcher, "fill", failing)
    with Engine(drawn_model, EngineConfig(page_tokens=16)) as engine:
        good = engine.submit("Once", CONFIG)
        failed = engine.submit("Once", GenerateConfig(max_new_tokens=20, seed=3, grammar=bad))
        with pytest.raises(GrammarError, match="a limit"):
            failed.finish()
        assert len(good.finish().text) == 8


def test_the_caller_makes_what_the_thread_has_not_begun(byte_compiler):
    def constraint():
        return Constraint(byte_compiler.matcher(JsonSchema({"type": "integer"})), [3], 256)

    blocked, held = threading.Event(), threading.Event()

    class Blocking(Constraint):
        def allowed(self):
            held.set()
            blocked.wait(10)
            return super().allowed()

    blocker = Blocking(byte_compiler.matcher(GRAMMAR), [3], 256)
    first = begin_masks([blocker])
    assert held.wait(10)
    constraints = [constraint() for _ in range(5)]
    begin_masks(constraints, has_idle_processors=True).finish()
    assert all(one.is_filled for one in constraints)
    blocked.set()
    first.finish()
    assert blocker.is_filled
    assert begin_masks(constraints, has_idle_processors=True) is None


def test_quick_masks_are_left_to_the_step(byte_compiler):
    constraint = Constraint(byte_compiler.matcher(Regex("[a-f]{200}")), [3], 256)
    for _ in range(100):
        constraint.allowed()
        constraint.accept(ord("a"))
    slow = Constraint(byte_compiler.matcher(GRAMMAR), [3], 256)  # the first mask of a text may take long
    constraint.mask_seconds = 1e-5
    assert begin_masks([constraint]) is None
    assert begin_masks([constraint] * 20) is not None
    begin_masks([slow]).finish()
    assert slow.is_filled


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_process_has_its_own_thread(byte_compiler):
    begin_masks([Constraint(byte_compiler.matcher(GRAMMAR), [3], 256)]).finish()
    child = os.fork()
    if not child:
        constraint = Constraint(byte_compiler.matcher(GRAMMAR), [3], 256)
        masks = begin_masks([constraint])
        end = time.monotonic() + 20
        while not constraint.is_filled and time.monotonic() < end:
            time.sleep(0.001)
        masks.finish()
        os._exit(0 if "lattice-masks" in [thread.name for thread in threading.enumerate()] and not masks._left else 1)
    assert os.waitpid(child, 0)[1] == 0
