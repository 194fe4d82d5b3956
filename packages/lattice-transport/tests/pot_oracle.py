"""POT, when it is installed: tests that hold our results against it are skipped otherwise.

It is not a requirement of the default run, which compares with committed values (tests/data/pot_goldens.npz) and SciPy.
"""

import importlib
import warnings

import pytest


def pot():
    """Return the module ``ot``, or skip the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module("ot")
        except ImportError:
            pytest.skip("POT is not installed")


def quietly(function, *arguments, **options):
    """Call into POT, which reports status by warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*arguments, **options)
