"""A hook of mkdocs: fences that say more than a language become fences that Markdown knows.

``python no-run`` tells ``tools/checks/snippets.py`` to compile a block only. Python-Markdown takes such a fence for text,
and the page would show its code as one paragraph.
"""

from __future__ import annotations

import re

_FENCE = re.compile(r"^( *`{3,}python) no-run$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: object) -> str:
    """Return the page with ``python no-run`` fences as ``python`` ones (called by mkdocs)."""
    return _FENCE.sub(r"\1", markdown)
