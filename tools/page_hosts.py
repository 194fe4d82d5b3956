"""A hook of mkdocs: a page of the site that loads anything from another host is an error.

The site must look the same without a network, and its readers' addresses go nowhere else.
"""

from __future__ import annotations

import re

_LOADED = re.compile(r"""<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=["']?((?:https?:)?//[^"'\s>]+)""")


def on_post_page(output: str, **_: object) -> str:
    """Return the page as it is (mkdocs calls this).

    Raises:
        ValueError: the page loads a script, a style, an image or a frame from another host.
    """
    if found := _LOADED.search(output):
        raise ValueError(f"the page loads {found[1]} from another host: put a copy beside the pages, or do without")
    return output
