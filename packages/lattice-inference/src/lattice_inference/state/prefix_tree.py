"""A prefix tree: finds pages and recurrent state of the beginning of a token sequence."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from lattice_inference.state.page_pool import PagePool
from lattice_inference.state.recurrent_slots import SlotPool

__all__ = ["PrefixTree"]

Tokens = tuple[int, ...]


@dataclass(eq=False)
class _Node:
    """One page of a remembered sequence.

    ``tokens`` are the tokens of the page; only a leaf may have fewer than a page holds. A root has no page, and
    ``owner`` is the owner of the prefixes below it. ``states`` has slots by how many of the tokens their state has seen.
    ``ascending`` are the keys of ``children`` in order: those with the most first tokens in common are neighbours.
    """

    tokens: Tokens
    page: int
    parent: _Node | None
    children: dict[Tokens, _Node] = field(default_factory=dict)
    ascending: list[Tokens] = field(default_factory=list)
    owner: str = ""
    states: dict[int, int] = field(default_factory=dict)


class PrefixTree:
    """A tree of pages by their tokens: a path from a root is a prefix of some sequence.

    The tree is one holder of each of its pages in ``pool``. It keeps at most ``max_pages`` and evicts the least recently
    used first, leaves before their parents. A match may end within a page.

    A prefix belongs to an owner: the digest of an adapter's content, or ``""`` without an adapter. Only a search for the
    same owner finds it.

    With ``slots`` it also holds recurrent states. Each counts as ``slot_pages`` pages. If they take more than half of the
    room, the least recently used state is dropped first.
    """

    def __init__(
        self,
        pool: PagePool,
        *,
        page_tokens: int,
        max_pages: int,
        slots: SlotPool | None = None,
        slot_pages: int = 0,
    ) -> None:
        self.max_pages = max_pages
        self._pool = pool
        self._page_tokens = page_tokens
        self._roots: dict[str, _Node] = {}
        # least recently used first; a node comes before its parent, so the first one is always a leaf
        self._order: OrderedDict[int, _Node] = OrderedDict()
        self._slots = slots
        self._slot_pages = slot_pages
        self._states: OrderedDict[int, tuple[_Node, int]] = OrderedDict()  # by slot, least recently used first

    def __len__(self) -> int:
        return len(self._order)

    @property
    def states(self) -> int:
        """How many recurrent states it holds."""
        return len(self._states)

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
            child, common = _nearest(node, ahead)
            if child is None or common == 0:
                break
            pages.append(child.page)
            length += common
            node = child
            if common < self._page_tokens:
                break
        self._touch(node)
        return pages, length

    def find_state(self, token_ids: Sequence[int], owner: str = "") -> tuple[int, int] | None:
        """Return the slot and length of the longest prefix of ``token_ids`` with a state; or None.

        The caller is not yet a holder of the slot.
        """
        found: tuple[int, int] | None = None
        node, length = self._roots.get(owner), 0
        while node is not None and length < len(token_ids):
            ahead = tuple(token_ids[length : length + self._page_tokens])
            child, common = _nearest(node, ahead)
            if child is None:
                break
            for seen in sorted(child.states):
                if seen <= common:
                    found = child.states[seen], length + seen
            length += common
            node = child if common == self._page_tokens else None
        if found is not None:
            self._states.move_to_end(found[0])
        return found

    def insert(
        self,
        token_ids: Sequence[int],
        pages: Sequence[int],
        owner: str = "",
        states: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Remember that ``pages`` hold ``token_ids``; the tree becomes a holder of its new pages.

        ``states`` are recurrent states as (tokens seen, slot).
        """
        path: list[_Node] = []
        root = node = self._roots.get(owner) or _Node((), -1, None, owner=owner)
        for index, page in enumerate(pages):
            tokens = tuple(token_ids[index * self._page_tokens : (index + 1) * self._page_tokens])
            child = node.children.get(tokens)
            if child is None:
                place = bisect_left(node.ascending, tokens)
                if place < len(node.ascending) and node.ascending[place][: len(tokens)] == tokens:
                    path.append(node.children[node.ascending[place]])  # a page holds these tokens and more
                    break
                part: _Node | None = None
                if place and node.ascending[place - 1] == tokens[: len(node.ascending[place - 1])]:
                    part = node.children[node.ascending[place - 1]]
                child = self._grown(part, tokens, page, node)
                node.children[tokens] = child
                insort(node.ascending, tokens)
                self._order[id(child)] = child
            path.append(child)
            node = child
        if root.children:  # the loop may have removed all of its children, and the root with them
            self._roots[owner] = root
        self._touch(node)
        for length, slot in states:
            index = (length - 1) // self._page_tokens
            if index < len(path):
                self._add_state(path[index], length - index * self._page_tokens, slot)
        while len(self._order) + len(self._states) * self._slot_pages > self.max_pages:
            if 2 * len(self._states) * self._slot_pages > self.max_pages:
                self._drop_state(next(iter(self._states)))
            else:
                self._remove(next(iter(self._order.values())))

    def _grown(self, part: _Node | None, tokens: Tokens, page: int, parent: _Node) -> _Node:
        """Return a new node, which replaces the leaf ``part``: a page with fewer of the tokens."""
        states: dict[int, int] = {}
        if part is not None:
            states, part.states = part.states, {}
            self._remove(part)  # first, as its page may be the same one
        child = _Node(tokens, self._pool.share(page), parent, states=states)
        for seen, slot in states.items():
            self._states[slot] = child, seen
        self._pool.watch(page)
        return child

    def evict(self) -> bool:
        """Drop the least recently used page that only the tree holds; return False if there is none.

        Leaves go first. Those that others hold too count as used now, so the next call need not look at them again.
        """
        for _ in range(len(self._order) if self._pool.idle else 0):
            node = next(iter(self._order.values()))
            if self._pool.holders(node.page) == 1:
                self._remove(node)
                return True
            self._touch(node)
        return bool(self._pool.idle) and self._evict_inner()

    def _evict_inner(self) -> bool:
        """Drop a page that only the tree holds, and the pages after it, which sequences hold too.

        A sequence may have run the page's tokens itself, and so hold another page in its place.
        """
        self._remove_branch(next(node for node in self._order.values() if self._pool.holders(node.page) == 1))
        return True

    def drop(self, page: int) -> bool:
        """Drop a page and those after it; return False if the tree does not hold it."""
        found = next((node for node in self._order.values() if node.page == page), None)
        if found is not None:
            self._remove_branch(found)
        return found is not None

    def evict_state(self) -> bool:
        """Drop the least recently used recurrent state; return False if there is none."""
        if not self._states:
            return False
        self._drop_state(next(iter(self._states)))
        return True

    def clear(self) -> None:
        """Drop all pages."""
        while self._order:
            self._remove(next(iter(self._order.values())))

    def _remove_branch(self, node: _Node) -> None:
        branch = [node]
        for each in branch:
            branch.extend(each.children.values())
        for each in reversed(branch):
            self._remove(each)

    def _remove(self, node: _Node) -> None:
        assert node.parent is not None
        assert not node.children
        del node.parent.children[node.tokens]
        del node.parent.ascending[bisect_left(node.parent.ascending, node.tokens)]
        if node.parent.parent is None and not node.parent.children:
            self._roots.pop(node.parent.owner, None)
        del self._order[id(node)]
        for slot in list(node.states.values()):
            self._drop_state(slot)
        self._pool.unwatch(node.page)
        self._pool.release([node.page])

    def _add_state(self, node: _Node, seen: int, slot: int) -> None:
        if self._slots is None or seen > len(node.tokens):
            return
        if seen in node.states:
            self._states.move_to_end(node.states[seen])
        elif slot not in self._states:
            node.states[seen] = self._slots.share(slot)
            self._states[slot] = node, seen

    def _drop_state(self, slot: int) -> None:
        node, seen = self._states.pop(slot)
        del node.states[seen]
        assert self._slots is not None
        self._slots.release(slot)

    def _touch(self, node: _Node) -> None:
        step: _Node | None = node
        while step is not None and step.parent is not None:
            self._order.move_to_end(id(step))
            step = step.parent


def _nearest(node: _Node, ahead: Tokens) -> tuple[_Node | None, int]:
    """Return the child with the most of the tokens ``ahead``, and how many it has of them."""
    child = node.children.get(ahead)
    if child is not None:
        return child, len(ahead)
    place = bisect_left(node.ascending, ahead)
    found, most = None, -1
    for tokens in node.ascending[max(0, place - 1) : place + 1]:
        common = _common(tokens, ahead)
        if common > most:
            found, most = node.children[tokens], common
    return found, max(most, 0)


def _common(a: Tokens, b: Tokens) -> int:
    """Return the length of the common prefix."""
    length = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        length += 1
    return length
