"""The error tree: what a caller may catch, and that errors survive a trip between processes."""

import pickle

import pytest

import lattice_embed
import lattice_inference
from lattice_embed import errors

INSTANCES = [
    errors.DimensionMismatchError(expected=3, actual=4),
    errors.EmptyInputError("nothing"),
    errors.InvalidTextError(index=2, reason="is an int, not a str"),
    errors.InvalidTransitionError(state="paused", action="start", remedy="resume it"),
    errors.NonFiniteVectorError(index=1, model="m"),
    errors.ProvenanceMismatchError(fields={"dimensions": (3, 4)}),
    errors.SpaceMismatchError(expected="one", actual="another"),
    errors.TextTooLongError(index=7, length=33_000, limit=32_768, unit="characters"),
    errors.TextTooLongError(index=7, length=300, limit=256, unit="tokens"),
    errors.TooManyTextsError(limit=1_000),
    errors.WrongModelError(expected="a", actual="b"),
]


def test_one_base_catches_everything() -> None:
    for name in errors.__all__:
        kind = getattr(errors, name)
        assert issubclass(kind, lattice_embed.LatticeEmbedError)
        assert issubclass(kind, lattice_inference.errors.LatticeError)
        assert name in lattice_embed.__all__


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.InvalidInputError, ValueError),
        (errors.TextTooLongError, lattice_inference.errors.TextTooLongError),
        (errors.UnsupportedModelError, lattice_inference.errors.UnsupportedError),
        (errors.ModelConfigError, ValueError),
        (errors.NonFiniteVectorError, ArithmeticError),
        (errors.ServiceClosedError, RuntimeError),
        (errors.InvalidTransitionError, RuntimeError),
        (errors.StoreCorruptError, ValueError),
    ],
)
def test_errors_are_also_what_python_users_catch(kind: type[Exception], builtin: type[Exception]) -> None:
    assert issubclass(kind, builtin)


@pytest.mark.parametrize("error", INSTANCES, ids=lambda error: type(error).__name__)
def test_errors_survive_pickling(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_too_long_names_both_numbers_and_the_unit() -> None:
    message = str(errors.TextTooLongError(index=7, length=33_000, limit=32_768, unit="characters"))
    assert "text 7" in message
    assert "33,000 characters" in message
    assert "32,768" in message
