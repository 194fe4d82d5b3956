"""Parents and children of versions: no cycles, and pictures for Graphviz."""

from __future__ import annotations

from collections.abc import Iterable

from lattice_tune.errors import LineageError
from lattice_tune.registry.database import Row
from lattice_tune.registry.records import RegisteredModel
from lattice_tune.registry.store import RegistryStore

__all__ = ["add_parent_rows", "check_childless", "cyclic", "dot_text", "reachable"]


def reachable(store: RegistryStore, number: int, *, upwards: bool) -> list[int]:
    """Return the rows above or below a version, the nearest first, each once."""
    start, end = ("child", "parent") if upwards else ("parent", "child")
    found: dict[int, None] = {}
    level = [number]
    while level:
        following: dict[int, None] = {}
        for each in level:
            statement = f"SELECT {end} FROM parents WHERE {start} = ? ORDER BY {end}"
            for (other,) in store.database.rows(statement, (each,), of=(int,)):
                if other not in found and other != number:
                    following[other] = None
        found |= following
        level = list(following)
    return list(found)


def cyclic(edges: Iterable[Row]) -> list[int]:
    """Return the rows of pairs of child and parent that come from themselves, or from such rows."""
    parents: dict[int, set[int]] = {}
    for child, parent in edges:
        parents.setdefault(child, set()).add(parent)
    children: dict[int, list[int]] = {}
    for child, above in parents.items():
        for parent in above:
            children.setdefault(parent, []).append(child)
    waiting = {child: len(above) for child, above in parents.items()}
    ready = [number for number in children if number not in parents]
    while ready:
        for child in children.get(ready.pop(), ()):
            waiting[child] -= 1
            if waiting[child] == 0:
                ready.append(child)
    return sorted(child for child, count in waiting.items() if count)


def add_parent_rows(store: RegistryStore, child: int, parents: Iterable[int]) -> None:
    """Link a version to its parents, in a transaction of the caller.

    Raises:
        LineageError: a parent is the version itself or comes from it.
    """
    has_children = bool(store.database.rows("SELECT 1 FROM parents WHERE parent = ? LIMIT 1", (child,)))
    for parent in dict.fromkeys(parents):
        if parent == child or (has_children and child in reachable(store, parent, upwards=True)):
            names = [store.model(number).reference for number in (child, parent)]
            raise LineageError(f"{names[1]} cannot be a parent of {names[0]}: it comes from that version itself")
        store.database.execute("INSERT OR IGNORE INTO parents VALUES (?, ?)", (child, parent))


def check_childless(store: RegistryStore, number: int) -> None:
    """Refuse a version that others come from.

    Raises:
        LineageError: it has children.
    """
    children = store.database.rows(
        "SELECT name || '@' || version FROM parents JOIN models ON id = child WHERE parent = ? ORDER BY child",
        (number,),
        of=(str,),
    )
    if children:
        shown = ", ".join(str(child) for (child,) in children[:5]) + (" and others" if len(children) > 5 else "")
        raise LineageError(f"{store.model(number).reference} is a parent of {shown}: delete its children first")


def dot_text(models: Iterable[RegisteredModel], focus: RegisteredModel) -> str:
    """Return a graph in the dot language.

    Arrows lead from a version's inputs to the version.
    """
    lines = ["digraph lineage {", "  rankdir=LR;", "  node [shape=box];"]
    edges = []
    for model in models:
        label = _quoted(f"{model.reference}\n{model.status.value}")
        lines.append(f"  {_quoted(model.reference)} [label={label}{', style=bold' if model.id == focus.id else ''}];")
        edges += [(parent, "") for parent in model.parents]
        lineage = model.lineage
        for what, made_of in (
            ("dataset", lineage.dataset_digest),
            ("teacher", lineage.teacher),
            ("base model", lineage.base_model),
        ):
            if made_of is not None:
                lines.append(f"  {_quoted(f'{what}: {made_of}')} [shape=ellipse];")
                edges.append((f"{what}: {made_of}", f" [label={_quoted(what)}]"))
        lines += [f"  {_quoted(start)} -> {_quoted(model.reference)}{text};" for start, text in edges]
        edges = []
    return "\n".join([*dict.fromkeys(lines), "}"]) + "\n"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\n")
    return f'"{escaped}"'
