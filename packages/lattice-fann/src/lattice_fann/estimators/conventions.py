"""scikit-learn's conventions for estimators, without importing it: errors and column names."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_fann.errors import InvalidInputError

__all__ = ["feature_names", "names_differ", "not_fitted_error"]


def not_fitted_error(message: str) -> InvalidInputError:
    """Return the error for a call before ``fit``.

    It is also scikit-learn's NotFittedError if that is imported.
    """
    exceptions = sys.modules.get("sklearn.exceptions")
    kind = InvalidInputError if exceptions is None else _not_fitted_class(exceptions.NotFittedError)
    return kind(message)


@cache
def _not_fitted_class(theirs: type[Exception]) -> type[InvalidInputError]:
    return type("NotFittedError", (InvalidInputError, theirs), {"__module__": __name__, "__reduce__": _reduced})


def _reduced(error: Exception) -> tuple[Any, ...]:
    """A class that is made at run time cannot be found by name: the copy asks for it again."""
    return not_fitted_error, error.args


def feature_names(x: Any) -> npt.NDArray[np.object_] | None:
    """Return the names of a frame's columns.

    None for an object without columns, or with names that are no texts.

    Raises:
        InvalidInputError: some names are texts and some are not.
    """
    columns = getattr(x, "columns", None)
    if columns is None or callable(columns):
        return None
    names = np.array(list(columns), dtype=object)
    texts = [isinstance(name, str) for name in names]
    if any(texts) and not all(texts):
        raise InvalidInputError("X has column names of several types; make all of them texts: X.columns.astype(str)")
    return names if names.size and all(texts) else None


def names_differ(fitted: list[str], given: list[str]) -> str:
    """Return the error for other columns than ``fit`` had, in scikit-learn's words."""
    lines = ["The feature names should match those that were passed during fit."]
    for title, names in (
        ("Feature names unseen at fit time", [name for name in given if name not in fitted]),
        ("Feature names seen at fit time, yet now missing", [name for name in fitted if name not in given]),
    ):
        if names:
            lines += [f"{title}:", *(f"- {name}" for name in names[:5]), *(["- ..."] if len(names) > 5 else [])]
    if len(lines) == 1:
        lines.append("Feature names must be in the same order as they were in fit.")
    return "\n".join(lines)
