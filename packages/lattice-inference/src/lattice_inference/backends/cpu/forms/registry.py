"""The list of weight forms."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from lattice_inference.backends.cpu.forms.bfloat16 import BFLOAT16, BFLOAT16_PAIRS
from lattice_inference.backends.cpu.forms.blocks import BLOCKS
from lattice_inference.backends.cpu.forms.float import FLOAT16, FLOAT32
from lattice_inference.backends.cpu.forms.int8 import INT8
from lattice_inference.backends.cpu.forms.weight_form import Terms, WeightForm

__all__ = ["FLOAT32", "forms_for", "known_forms", "register_form", "registered_form"]

_FORMS: list[WeightForm] = [INT8, *BLOCKS, BFLOAT16_PAIRS, BFLOAT16, FLOAT16, FLOAT32]


def known_forms() -> tuple[WeightForm, ...]:
    """Return all forms in the order in which they are tried."""
    return tuple(_FORMS)


def forms_for(terms: Terms) -> tuple[WeightForm, ...]:
    """Return the forms that serve ``terms``, in the order in which they are tried.

    The first form that suits a weight keeps it; the last form suits every weight.
    """
    return tuple(form for form in _FORMS if form.serves(terms))


def register_form(form: WeightForm) -> None:
    """Register ``form`` so that it is tried before all others.

    Raises:
        ValueError: a form has its name already.
    """
    if any(known.name == form.name for known in _FORMS):
        raise ValueError(f"there is a form {form.name!r} already: give it another name")
    _FORMS.insert(0, form)


@contextlib.contextmanager
def registered_form(form: WeightForm) -> Iterator[None]:
    """Register ``form`` while the body of the ``with`` statement runs."""
    register_form(form)
    try:
        yield
    finally:
        _FORMS.remove(form)
