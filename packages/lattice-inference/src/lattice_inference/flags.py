"""Options that are true or false."""

from __future__ import annotations

from lattice_inference.errors import InvalidInputError

__all__ = ["check_flag"]


def check_flag(name: str, value: object) -> bool:
    """Return ``value``; refuse what is neither True nor False, such as the text "false".

    Raises:
        InvalidInputError: it is something else.
    """
    if not isinstance(value, bool):
        raise InvalidInputError(f"{name} is {value!r:.100}; expected True or False")
    return value
