"""What a configuration may name as the source of drafts, and how drafts are verified."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Union, get_args

from lattice_inference.argument_checks import check_choice
from lattice_inference.errors import InvalidInputError
from lattice_inference.value_text import value_text

if TYPE_CHECKING:
    from lattice_inference.generate.causal_language_model import CausalLanguageModel

__all__ = ["DraftName", "Speculate", "Verify", "check_speculation"]

DraftName = Literal["ngram", "mtp", "self"]
"""A source of drafts that needs no second model."""

Speculate = Union[DraftName, "CausalLanguageModel"]
"""A source of drafts: by name, or a second model."""

Verify = Literal["exact", "distribution"]
"""Whether a drafted token is kept when it equals the one chosen without drafts, or by rejection sampling."""


def check_speculation(speculate: object, verify: object) -> None:
    """Check the fields ``speculate`` and ``verify`` of a configuration.

    Raises:
        InvalidInputError: a value of the wrong type, or a way to verify without a draft model.
    """
    is_model = not isinstance(speculate, type) and callable(getattr(speculate, "open_cache", None))
    if not (speculate is None or is_model or (isinstance(speculate, str) and speculate in get_args(DraftName))):
        raise InvalidInputError(
            f"speculate is {value_text(speculate)}; expected 'ngram', 'mtp', 'self', or a draft model, as load_model() "
            "gives it"
        )
    if verify is not None:
        check_choice("verify", verify, get_args(Verify))
        if verify == "distribution" and not is_model:
            raise InvalidInputError(
                "verify='distribution' is for drafts that are drawn: it takes a draft model, speculate=load_model(...)"
            )
