"""Adds cost charges to a chat template's syntax tree.

It charges every block, loop, comparison, slice and joined text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lattice_inference.errors import ModelConfigError
from lattice_inference.tokenizer.template_budget import (
    ITEM,
    MOST_TEMPLATE_NODES,
    MOST_TEMPLATE_SCOPES,
    TemplateCostError,
    current_budget,
    each,
    weigh,
)
from lattice_inference.tokenizer.template_methods import LARGEST_INTEGER_BITS
from lattice_inference.tokenizer.user_text import UserText, concatenated, shown

if TYPE_CHECKING:
    from jinja2 import nodes
else:

    class _Nodes:
        """The kinds of Jinja's nodes, imported on demand: importing Lattice must not need Jinja."""

        def __getattr__(self, name: str) -> Any:
            from jinja2 import nodes

            setattr(self, name, getattr(nodes, name))
            return getattr(nodes, name)

    nodes = _Nodes()

__all__ = ["CHARGES", "compared_texts", "escapes_output", "guard", "marks_html"]

_HTML_FILTERS = ("e", "escape", "forceescape", "safe", "urlize", "xmlattr")

_SMALL_BLOCK = 64  # the work of a smaller block is charged where the block stands, whether it runs or not

_BLOCKS = ("If", "For", "Macro", "CallBlock", "Block", "With", "FilterBlock", "AssignBlock", "Scope", "CondExpr")
_LOOP_PIECES = 8  # what a loop costs the compiler more than an expression

_CHARGE, _EACH, _SIZED, _FOUND, _KEY, _SLICE, _SUM, _CONCAT = (
    f"lattice_{name}" for name in ("charge", "each", "sized", "found", "key", "slice", "sum", "concat")
)


def compared_texts(tree: nodes.Template) -> frozenset[str]:
    """Return the texts that a template compares something with, such as roles."""
    texts = set()
    for comparison in tree.find_all(nodes.Compare):
        for operand in (comparison.expr, *(operand.expr for operand in comparison.ops)):
            for item in operand.items if isinstance(operand, (nodes.List, nodes.Tuple)) else [operand]:
                if isinstance(item, nodes.Const) and isinstance(item.value, str):
                    texts.add(item.value)
    return frozenset(texts)


def marks_html(tree: nodes.Template) -> bool:
    """Return whether a template may mark text as HTML, which then escapes joined text."""
    filters = any(node.name in _HTML_FILTERS for node in tree.find_all(nodes.Filter))
    named = any(node.value in _HTML_FILTERS for node in tree.find_all(nodes.Const) if isinstance(node.value, str))
    return filters or named or escapes_output(tree)


def escapes_output(tree: nodes.Template) -> bool:
    """Return whether a template asks for all that it puts out to be escaped."""
    return any(True for _ in tree.find_all((nodes.EvalContextModifier, nodes.ScopedEvalContextModifier)))


def guard(tree: nodes.Template) -> None:
    """Change a template so that what it does is charged to the current budget."""
    _guarded(tree)
    _charge_block(tree.body, always=True)
    _check_size(tree)


def _check_size(tree: nodes.Template) -> None:
    """Refuse a template that takes too long to compile."""
    count = blocks = 0
    names = set()
    stack: list[nodes.Node] = [tree]
    while stack:
        node = stack.pop()
        count += _LOOP_PIECES if isinstance(node, nodes.For) else 1
        blocks += type(node).__name__ in _BLOCKS
        if (isinstance(node, nodes.Name) and node.ctx != "load") or isinstance(node, nodes.Macro):
            names.add(node.name)
        stack.extend(node.iter_child_nodes())
    if count > MOST_TEMPLATE_NODES:
        raise TemplateCostError(f"it has {count:,} pieces of expressions; the limit is {MOST_TEMPLATE_NODES:,}")
    if len(names) * blocks > MOST_TEMPLATE_SCOPES:
        raise TemplateCostError(
            f"it sets {len(names):,} names beside {blocks:,} blocks; the limit of their product is {MOST_TEMPLATE_SCOPES:,}"
        )


def _guarded(node: nodes.Node) -> nodes.Node:
    """Return what stands in the place of a node, with what is inside it guarded."""
    for name, value in node.iter_fields():
        if isinstance(value, nodes.Node):
            setattr(node, name, _guarded(value))
        elif isinstance(value, list):
            value[:] = [_guarded(item) if isinstance(item, nodes.Node) else item for item in value]
    guarded = _GUARDS.get(type(node).__name__)
    return node if guarded is None else guarded(node)


def _loop(node: nodes.For) -> nodes.Node:
    """Charge each turn of a loop."""
    turn = 4 + (_work(node.test)[0] if node.test is not None else 0)
    node.iter = _filter(node.iter, _EACH, nodes.Const(turn, lineno=node.lineno))
    _charge_block(node.body, always=True)
    _charge_block(node.else_)
    return node


def _branch(node: nodes.If) -> nodes.Node:
    """Charge the branch that is taken."""
    _charge_block(node.body)
    _charge_block(node.else_)
    return node


def _called(node: nodes.Macro | nodes.CallBlock | nodes.Block) -> nodes.Node:
    """Charge each call."""
    _charge_block(node.body, always=True)
    return node


def _joined(node: nodes.Concat) -> nodes.Node:
    """Charge the text that ``~`` makes."""
    return _filter(nodes.List(node.nodes, lineno=node.lineno), _CONCAT)


def _added(node: nodes.Add) -> nodes.Node:
    """Charge a sum; one of many terms is charged at once."""
    terms = [node.left, node.right]
    if isinstance(node.left, nodes.Filter) and node.left.name == _SUM and isinstance(node.left.node, nodes.List):
        terms = [*node.left.node.items, node.right]
    return _filter(nodes.List(terms, lineno=node.lineno), _SUM)


def _item(node: nodes.Getitem) -> nodes.Node:
    """Charge what a slice copies."""
    if not isinstance(node.arg, nodes.Slice):
        return node
    none = nodes.Const(None, lineno=node.lineno)
    return _filter(node.node, _SLICE, node.arg.start or none, node.arg.stop or none, node.arg.step or none)


def _pair(node: nodes.Pair) -> nodes.Node:
    """Charge the look at a key of a mapping that is written out."""
    if not isinstance(node.key, nodes.Const):
        node.key = _filter(node.key, _KEY)
    return node


def _comparison(node: nodes.Compare) -> nodes.Node:
    """Charge comparisons, but for those with a text that is written out."""
    if len(node.ops) == 1:
        (operand,) = node.ops
        contains = operand.op in ("in", "notin")
        if _is_plain(operand.expr) or (_is_plain(node.expr) and not contains):
            return node
        if contains and isinstance(operand.expr, (nodes.List, nodes.Tuple)) and all(map(_is_plain, operand.expr.items)):
            return node
    for operand in node.ops:
        operand.expr = _filter(operand.expr, _FOUND if operand.op in ("in", "notin") else _SIZED)
    if not _is_plain(node.expr):
        node.expr = _filter(node.expr, _SIZED)
    return node


def _constant(node: nodes.Const) -> nodes.Node:
    """Refuse integers that are too large to be of use."""
    if isinstance(node.value, int) and node.value.bit_length() > LARGEST_INTEGER_BITS:
        raise ModelConfigError(f"the chat template has an integer of more than {LARGEST_INTEGER_BITS:,} bits")
    return node


_GUARDS: dict[str, Callable[[Any], nodes.Node]] = {
    "For": _loop,
    "If": _branch,
    "Macro": _called,
    "CallBlock": _called,
    "Block": _called,
    "Add": _added,
    "Concat": _joined,
    "Getitem": _item,
    "Pair": _pair,
    "Compare": _comparison,
    "Const": _constant,
}


def _filter(node: nodes.Expr, name: str, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno)


def _is_plain(node: nodes.Node) -> bool:
    """Return whether a node is a value of a few characters that is written out."""
    return isinstance(node, nodes.Const) and not isinstance(node.value, tuple) and len(str(node.value)) < 2**10


def _charge_block(body: list[nodes.Node], *, always: bool = False) -> None:
    """Put a block's charge before it; a small one stays part of the enclosing block."""
    if not body:
        return
    steps, characters = _work(*body)
    if always or steps + characters > _SMALL_BLOCK:
        line = body[0].lineno
        args = [nodes.Const(value, lineno=line) for value in (steps, characters)]
        body.insert(0, nodes.ExprStmt(_filter(nodes.Const(None, lineno=line), _CHARGE, *args), lineno=line))


def _work(*found: nodes.Node) -> tuple[int, int]:
    """Return the steps and characters of nodes, without blocks that are charged by themselves."""
    steps = characters = 0
    stack = list(found)
    while stack:
        node = stack.pop()
        if isinstance(node, list):
            if node and _is_charged(node[0]):
                continue
            stack.extend(node)
            continue
        if isinstance(node, nodes.TemplateData):
            characters += len(node.data)
            continue
        steps += 1
        for _, value in node.iter_fields():
            if isinstance(value, nodes.Node):
                stack.append(value)
            elif isinstance(value, list) and value and isinstance(value[0], nodes.Node):
                stack.append(value)  # a block, or the items of an expression
    return steps, characters


def _is_charged(node: nodes.Node) -> bool:
    return isinstance(node, nodes.ExprStmt) and isinstance(node.node, nodes.Filter) and node.node.name == _CHARGE


def _charge(context: Any, value: None, steps: int, characters: int) -> None:
    current_budget().spend(max(steps, 0), max(characters, 0))  # a template could name this filter itself


def _looped(context: Any, items: Any, steps: int) -> Any:
    return each(items, max(steps, 1))


def _sum(context: Any, items: list[Any]) -> Any:
    """Add what stands between the signs of ``a + b + c``."""
    budget = current_budget()
    if all(type(item) is str for item in items):
        budget.spend(len(items), sum(map(len, items)))
        return "".join(items)
    if all(type(item) in (str, UserText) for item in items):
        budget.spend(len(items), sum(map(len, items)))
        return concatenated(items)
    budget.spend(len(items))
    made = items[0]
    for item in items[1:]:
        made = context.environment.call_binop(context, "+", made, item)
    return made


def _sized(context: Any, value: Any) -> Any:
    """Charge a look at all of a value."""
    current_budget().spend(1, weigh(value))
    return value


def _found(context: Any, value: Any) -> Any:
    """Charge a search in a value; in a mapping it is none."""
    current_budget().spend(1, 1 if isinstance(value, dict) else weigh(value))
    return value


def _sliced(context: Any, value: Any, start: Any, stop: Any, step: Any) -> Any:
    if isinstance(value, (str, list, tuple)):
        made = len(range(*slice(start, stop, step).indices(len(value))))
        if isinstance(value, UserText) and step not in (None, 1):
            made = len(value)  # whose marks are looked at one by one
        current_budget().spend(1, made if isinstance(value, str) else ITEM * made)
    return value[start:stop:step]


def _concat(context: Any, items: list[Any]) -> str:
    from jinja2.runtime import markup_join, str_join

    size = sum(map(weigh, items))
    marked = context.eval_ctx.autoescape
    current_budget().spend(1, 6 * size if marked or any(hasattr(item, "__html__") for item in items) else size)
    if current_budget().tracks_users:
        return concatenated([shown(item) for item in items])
    joined: str = (markup_join if marked else str_join)(items)
    return joined


CHARGES: dict[str, Callable[..., Any]] = {
    _CHARGE: _charge,
    _EACH: _looped,
    _SIZED: _sized,
    _FOUND: _found,
    _KEY: _sized,
    _SUM: _sum,
    _SLICE: _sliced,
    _CONCAT: _concat,
}
"""The filters that :func:`guard` puts into templates."""
