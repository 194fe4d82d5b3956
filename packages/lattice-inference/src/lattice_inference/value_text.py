"""A wrong value as an error's message shows it: short, whatever it is."""

from __future__ import annotations

__all__ = ["value_text"]

MOST_CHARACTERS = 80


def value_text(value: object) -> str:
    """Return ``repr(value)`` on one line, truncated if it is long.

    The type's name if Python cannot write the value.
    """
    try:
        text = repr(value)
    except Exception:  # an integer of more digits than Python writes out, or a class of the caller's
        return f"<{type(value).__name__}>"
    if "\n" in text:  # of an array, say: a message is one line
        text = " ".join(text.split())
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 3]}..."
