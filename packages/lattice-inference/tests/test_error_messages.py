"""Messages of errors: whole where they are short, cut in the middle where a file makes them endless."""

from __future__ import annotations

import pickle

import pytest

from lattice_inference import errors

KINDS = [getattr(errors, name) for name in errors.__all__]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not errors.NonFiniteError])
def test_messages_have_a_limit(kind):
    assert str(kind("too long: shorten it")) == "too long: shorten it"
    message = str(kind("beginning " + "x" * 10**6 + " end"))
    assert message.startswith("beginning x")
    assert message.endswith("x end")
    assert len(message) == errors.MOST_CHARACTERS + 5


def test_an_error_is_pickled_whole():
    again = pickle.loads(pickle.dumps(errors.CheckpointError("damaged: download it again")))
    assert str(again) == "damaged: download it again"
