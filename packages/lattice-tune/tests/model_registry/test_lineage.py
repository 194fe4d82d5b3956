"""Where versions come from: several parents, no cycles, no parent lost, pictures."""

from __future__ import annotations

import pytest

from lattice_tune import InvalidInputError, Lineage, LineageError, ModelNotFoundError, ModelRegistry, RegisteredModel


def made(
    registry: ModelRegistry, name: str, *parents: RegisteredModel, lineage: Lineage | None = None
) -> RegisteredModel:
    return registry.register(name, "1.0.0", name.encode(), parents=parents, lineage=lineage)


def names(models: list[RegisteredModel]) -> list[str]:
    return [model.name for model in models]


def test_ancestors_and_descendants_are_nearest_first_and_once(registry: ModelRegistry) -> None:
    root, other = made(registry, "root"), made(registry, "other")
    left, right = made(registry, "left", root), made(registry, "right", root, other)
    bottom = made(registry, "bottom", left, right)
    assert names(registry.ancestors(bottom)) == ["left", "right", "root", "other"]
    assert names(registry.descendants(root)) == ["left", "right", "bottom"]
    assert registry.descendants(bottom) == registry.ancestors(root) == []
    assert bottom.parents == ("left@1.0.0", "right@1.0.0")


def test_cycles_are_refused(registry: ModelRegistry) -> None:
    root = made(registry, "root")
    middle = made(registry, "middle", root)
    bottom = made(registry, "bottom", middle)
    for child, parent in ((root, bottom), (root, root), (middle, bottom)):
        with pytest.raises(LineageError, match="comes from that version itself"):
            registry.add_parent(child, parent)
    with pytest.raises(ModelNotFoundError):
        registry.register("self", "1.0.0", b"", parents=["self@1.0.0"])
    assert registry.add_parent(bottom, root).parents == ("root@1.0.0", "middle@1.0.0")
    assert registry.add_parent(bottom, "root@1.0.0").parents == ("root@1.0.0", "middle@1.0.0")
    assert registry.verify().is_clean


def test_parent_goes_only_after_its_children(registry: ModelRegistry) -> None:
    root = made(registry, "root")
    child = made(registry, "child", root)
    with pytest.raises(LineageError, match=r"delete its children first"):
        registry.delete(root)
    registry.delete(child)
    registry.delete(root)
    assert registry.list() == []


def test_verify_finds_a_cycle_that_something_else_wrote(registry: ModelRegistry) -> None:
    root = made(registry, "root")
    child = made(registry, "child", root)
    made(registry, "below", child)
    database = registry.store.database
    with database.transaction():
        database.execute(
            "INSERT INTO parents SELECT a.id, b.id FROM models a, models b WHERE a.name='root' AND b.name='child'"
        )
    problems = registry.verify().problems
    assert {"root@1.0.0 is its own ancestor", "child@1.0.0 is its own ancestor"} <= set(problems)


@pytest.mark.parametrize("reference", ["root", "root@", "@1.0.0", "root@1.0", "a@b@c", "../x@1.0.0", 1, None, ["root"]])
def test_wrong_references_are_refused(registry: ModelRegistry, reference: object) -> None:
    with pytest.raises(InvalidInputError):
        registry.register("intent", "1.0.0", b"", parents=[reference])  # type: ignore[list-item]


def test_graph_has_every_edge_and_survives_quotes(registry: ModelRegistry) -> None:
    evil = 'a "teacher"\\\nwith lines];'
    root = made(registry, "root", lineage=Lineage(teacher=evil, dataset_digest="d1", base_model="minilm"))
    child = made(registry, "child", root)
    dot = registry.lineage_dot(child)
    assert '"root@1.0.0" -> "child@1.0.0";' in dot
    assert '"dataset: d1" -> "root@1.0.0"' in dot
    assert '"teacher: a \\"teacher\\"\\\\\\nwith lines];" -> "root@1.0.0"' in dot
    assert dot.count("{") == dot.count("}") == 1
    assert all(line.endswith((";", "{", "}")) for line in dot.splitlines())
    assert registry.lineage_dot(root).count("->") == dot.count("->")
