"""A prefix tree: finds the pages that hold the beginning of a token sequence."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from lattice_inference.state.page_pool import PagePool

__all__ = ["PrefixTree"]

Tokens = tuple[int, ...]


@dataclass(eq=False)
class _Node:
    """One page of a remembered sequence.

    ``tokens`` are the tokens of the page; only a leaf may have fewer than a page holds. A root has no page, and
    ``owner`` is the owner of the prefixes below it.
    """

    tokens: Tokens
    page: int
    parent: _Node | None
    children: dict[Tokens, _Node] = field(default_factory=dict)
    owner: str = ""


class PrefixTree:
    """A tree of pages by their tokens: a path from a root is a prefix of some sequence.

    The tree is one holder of each of its pages in ``pool``. It keeps at most ``max_pages`` and evicts the least recently
    used first, leaves before their parents. A match may end within a page.

    A prefix belongs to an owner: the digest of an adapter's content, or ``""`` without an adapter. Only a search for the
    same owner finds it.
    """

    def __init__(self, pool: PagePool, *, page_tokens: int, max_pages: int) -> None:
        self.max_pages = max_pages
        self._pool = pool
        self._page_tokens = page_tokens
        self._roots: dict[str, _Node] = {}
        # least recently used first; a node comes before its parent, so the first one is always a leaf
        self._order: OrderedDict[int, _Node] = OrderedDict()

    def __len__(self) -> int:
        return len(self._order)

    def find(self, token_ids: Sequence[int], owner: str = "") -> tuple[list[int], int]:
        """Return the pages of the longest remembered prefix of ``token_ids``, and its length.

        The length is in tokens. The caller is not yet a holder of the pages. The last page may hold more tokens than the
        prefix has.
        """
        pages: list[int] = []
        node, length = self._roots.get(owner), 0
        if node is None:
            return pages, length
        while length < len(token_ids):
            ahead = tuple(token_ids[length : length + self._page_tokens])
            child = node.children.get(ahead)
            if child is None:
                child = max(node.children.values(), key=lambda c: _common(c.tokens, ahead), default=None)
            common = 0 if child is None else _common(child.tokens, ahead)
            if child is None or common == 0:
                break
            pages.append(child.page)
            length += common
            node = child
            if common < self._page_tokens:
                break
        self._touch(node)
        return pages, length

    def insert(self, token_ids: Sequence[int], pages: Sequence[int], owner: str = "") -> None:
        """Remember that ``pages`` hold ``token_ids``; the tree becomes a holder of its new pages."""
        root = node = self._roots.get(owner) or _Node((), -1, None, owner=owner)
        for index, page in enumerate(pages):
            tokens = tuple(token_ids[index * self._page_tokens : (index + 1) * self._page_tokens])
            child = node.children.get(tokens)
            if child is None:
                if any(tokens == other.tokens[: len(tokens)] for other in node.children.values()):
                    break  # the tree has a page that holds these tokens and more
                for other in [c for c in node.children.values() if c.tokens == tokens[: len(c.tokens)]]:
                    self._remove(other)  # a leaf whose page holds a part of these tokens
                child = _Node(tokens, self._pool.share(page), node)
                node.children[tokens] = child
                self._order[id(child)] = child
            node = child
        if root.children:  # the loop may have removed all of its children, and the root with them
            self._roots[owner] = root
        self._touch(node)
        while len(self._order) > self.max_pages:
            self._remove(next(iter(self._order.values())))

    def evict(self) -> bool:
        """Drop the least recently used leaf that only the tree holds; return False if there is none."""
        for node in self._order.values():
            if not node.children and self._pool.holders(node.page) == 1:
                self._remove(node)
                return True
        return False

    def clear(self) -> None:
        """Drop all pages."""
        while self._order:
            self._remove(next(iter(self._order.values())))

    def _remove(self, node: _Node) -> None:
        assert node.parent is not None
        assert not node.children
        del node.parent.children[node.tokens]
        if node.parent.parent is None and not node.parent.children:
            self._roots.pop(node.parent.owner, None)
        del self._order[id(node)]
        self._pool.release([node.page])

    def _touch(self, node: _Node) -> None:
        step: _Node | None = node
        while step is not None and step.parent is not None:
            self._order.move_to_end(id(step))
            step = step.parent


def _common(a: Tokens, b: Tokens) -> int:
    """Return the length of the common prefix."""
    length = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        length += 1
    return length
