"""Remembers which pages hold which beginnings of token sequences."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from lattice_inference.state.page_pool import PagePool

__all__ = ["PrefixTree"]

Tokens = tuple[int, ...]


@dataclass(eq=False)
class _Node:
    """One page of a remembered sequence; ``tokens`` are what it holds, fewer than a page only in a leaf.

    A root has no page; ``owner`` is whose beginnings are below it.
    """

    tokens: Tokens
    page: int
    parent: _Node | None
    children: dict[Tokens, _Node] = field(default_factory=dict)
    owner: str = ""


class PrefixTree:
    """A tree of pages by their tokens: a path from the root is a beginning that some sequence had.

    The tree holds each of its pages once in ``pool``. At most ``max_pages`` stay; the least recently used go first, ends
    before beginnings. A beginning is found to the token: where a page agrees only in part, that part counts.

    Beginnings belong to an owner, the digest of an adapter's content or nothing, and are found only by the same.
    """

    def __init__(self, pool: PagePool, *, page_tokens: int, max_pages: int) -> None:
        self.max_pages = max_pages
        self._pool = pool
        self._page_tokens = page_tokens
        self._roots: dict[str, _Node] = {}
        # least recently used first; a node stands before its parent, so the first one is always a leaf
        self._order: OrderedDict[int, _Node] = OrderedDict()

    def __len__(self) -> int:
        return len(self._order)

    def find(self, token_ids: Sequence[int], owner: str = "") -> tuple[list[int], int]:
        """Return the pages of the longest remembered beginning of ``token_ids``, and its length in tokens.

        The pages are not held for the caller yet. The last one may hold more than what agrees.
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
        """Remember that ``pages`` hold ``token_ids``; pages that are new to the tree are held by it from now on."""
        root = node = self._roots.get(owner) or _Node((), -1, None, owner=owner)
        for index, page in enumerate(pages):
            tokens = tuple(token_ids[index * self._page_tokens : (index + 1) * self._page_tokens])
            child = node.children.get(tokens)
            if child is None:
                if any(tokens == other.tokens[: len(tokens)] for other in node.children.values()):
                    break  # a page that holds these and more is there
                for other in [c for c in node.children.values() if c.tokens == tokens[: len(c.tokens)]]:
                    self._remove(other)  # a page that holds a part of these: a leaf
                child = _Node(tokens, self._pool.share(page), node)
                node.children[tokens] = child
                self._order[id(child)] = child
            node = child
        if root.children:  # it may have lost all of them meanwhile, and its place
            self._roots[owner] = root
        self._touch(node)
        while len(self._order) > self.max_pages:
            self._remove(next(iter(self._order.values())))

    def evict(self) -> bool:
        """Forget the least recently used page that only the tree holds; False when there is none."""
        for node in self._order.values():
            if not node.children and self._pool.holders(node.page) == 1:
                self._remove(node)
                return True
        return False

    def clear(self) -> None:
        """Forget everything."""
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
    """Return how many first tokens agree."""
    length = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        length += 1
    return length
