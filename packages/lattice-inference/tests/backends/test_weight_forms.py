"""A weight form is one object: nothing outside of ``forms/`` compares its name."""

import ast
import re
from pathlib import Path

import numpy as np
import pytest

import lattice_inference
from lattice_inference.backends.cpu import CpuBackend, _cpu
from lattice_inference.backends.cpu.forms.float import FloatForm
from lattice_inference.backends.cpu.forms.registry import known_forms, registered_form

from .programs import Tensors, one_op

SOURCE = Path(lattice_inference.__file__).parent
FORMS = SOURCE / "backends" / "cpu" / "forms"
NAMES = {form.name for form in known_forms()}

# what a caller asks for, or what a file has: types that forms have their names from
OTHER_TYPES = {"precision", "activations", "bfloat16_products", "asked", "dtype"}


def comparisons(tree: ast.AST) -> list[str]:
    """Return the comparisons in which something that is no such type is compared with a form's name."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.Match):
            sides = [node.subject, *(case.pattern for case in node.cases)]
        else:
            continue
        named = any(isinstance(leaf, ast.Constant) and leaf.value in NAMES for side in sides for leaf in ast.walk(side))
        words = {word for side in sides for word in identifiers(side)}
        by_name = any(
            isinstance(side, ast.Attribute) and side.attr == "name" and "form" in ast.unparse(side) for side in sides
        )
        if by_name or (named and not words & OTHER_TYPES):
            found.append(f"line {node.lineno}: {ast.unparse(node)}"[:200])
    return found


def identifiers(side: ast.AST) -> set[str]:
    """Return the last identifier of a name, attribute or item."""
    last = side.value if isinstance(side, ast.Subscript) else side
    return {getattr(last, "attr", getattr(last, "id", ""))}


def test_no_module_outside_forms_compares_a_forms_name():
    texts = {path: path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py") if FORMS not in path.parents}
    quoted = [f'"{name}"' for name in NAMES]
    found = {
        str(path.relative_to(SOURCE)): comparisons(ast.parse(text))
        for path, text in texts.items()
        if re.search(r"form\w*\S*\.name\b", text) or any(name in text for name in quoted)
    }
    assert len(found) > 3
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line", ['form == "int8"', 'weights.form(ref) in ("int8", "Q8_0")', "forms[ref].name != other", '"int8" == f[ref]']
)
def test_such_a_comparison_is_found(line):
    assert comparisons(ast.parse(line))


class OnOneLevel(FloatForm):
    def __init__(self, isa):
        super().__init__("on one level", 4)
        self.isa = isa

    def serves(self, terms):
        return terms.isa == self.isa

    def suits(self, use):
        return use.ref.use == "linear"


def test_a_form_may_serve_one_level_of_the_instruction_set_only():
    program, tensors = one_op({"x": np.ones((2, 8), np.float32)}, lambda g, v: g.linear(v["x"], g.weight("w", (4, 8))))
    tensors["w"] = np.ones((4, 8), np.float32)
    levels = _cpu.available_isas()
    with registered_form(OnOneLevel(levels[0])):
        for isa in levels:
            sizes = CpuBackend(isa=isa).weight_sizes(program, Tensors(tensors))
            kept = {size.name: size.dtype for size in sizes}
            assert kept["w"] == ("on one level" if isa == levels[0] else "float32"), isa
