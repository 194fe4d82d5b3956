"""Rewrites what only Metal's compiler reads of the kernels' source, line by line.

C++ is run by the CPU (:mod:`build`); OpenCL C++ has Metal's address spaces, which clang then checks.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Sequence

__all__ = ["opencl_text", "runnable_text", "threadgroup_bytes"]

_ATTRIBUTE = re.compile(r"\s*\[\[[^\]]*\]\]")
_FUNCTION_CONSTANT = re.compile(r"^constant uint (\w+) \[\[function_constant\((\d+)\)\]\];", re.MULTILINE)
_THREADGROUP_ARRAY = re.compile(r"\bthreadgroup (\w+) (\w+)\[([^\]]+)\];")
_THREADGROUP = re.compile(r"\bthreadgroup (?=\w+ ?(const )?\*|const )")
_FILLED = re.compile(r"\bmake_filled_simdgroup_matrix<float, 8>\(")
_CONSTEXPR = re.compile(r"\bconstant constexpr uint (\w+) = ([^;]+);")
_SIZES = {"float": 4, "uint": 4, "float4": 16}


def runnable_text(source: str, functions: Sequence[str]) -> str:
    """Return ``source`` as C++ that the emulation runs, with what its C interface needs."""
    constants = [name for name, _ in sorted(_FUNCTION_CONSTANT.findall(source), key=lambda found: int(found[1]))]
    text = _FUNCTION_CONSTANT.sub(r'static emulated::Constant \1 = {"\1", 0};', source)
    text = _THREADGROUP_ARRAY.sub(
        r"static emulated::ThreadgroupMemory<\1[\3]> \2_memory; auto &\2 = \2_memory.of_this_group();", text
    )
    text = _THREADGROUP.sub("", text)
    text = _FILLED.sub("EMULATED_FILLED(", text)
    text = _ATTRIBUTE.sub("", text)
    digest = hashlib.sha256(source.encode()).hexdigest()
    table = "".join(f'    {{"{name}", emulated::called<decltype(&{name}), &{name}>}},\n' for name in functions)
    return f"""{text}
#line 1 "emulation"
#undef device
#undef constant
#undef thread
#undef kernel
#include "entries.h"
static emulated::Constant *const emulated_constants[] = {{{", ".join(f"&{name}" for name in constants)}}};
static const emulated::Entry emulated_entries[] = {{
{table}}};
#define EMULATED_SOURCE_SHA256 "{digest}"
#include "runtime.cpp"
"""


def opencl_text(source: str) -> str:
    """Return ``source`` as OpenCL C++, with its address spaces, for clang to check."""
    text = _FUNCTION_CONSTANT.sub(r"__constant uint \1 = \2;", source)
    return re.sub(r"\bfloat4\(", "float4_of(", _ATTRIBUTE.sub("", text))


def threadgroup_bytes(source: str) -> dict[str, int]:
    """Return the threadgroup memory in bytes of each kernel, or macro that makes kernels."""
    known = {}
    for name, expression in _CONSTEXPR.findall(source):
        known[name] = _value(expression, known)
    found: dict[str, int] = {}
    kernel = ""
    for line in source.splitlines():
        begins = re.match(r"#define ([A-Z_]+)\(NAME", line) or re.match(r"kernel void (\w+)\(", line)
        if begins:
            kernel = begins[1]
            found[kernel] = 0
        for kind, _, count in _THREADGROUP_ARRAY.findall(line):
            found[kernel] += _SIZES[kind] * _value(count, known)
    return found


def _value(expression: str, known: dict[str, int]) -> int:
    text = re.sub(r"(?<=\d)u\b", "", expression)
    for name, value in known.items():
        text = re.sub(rf"\b{name}\b", str(value), text)
    return _computed(ast.parse(text.replace("/", "//"), mode="eval").body)


def _computed(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp):
        left, right = _computed(node.left), _computed(node.right)
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.FloorDiv):
            return left // right
        if isinstance(node.op, ast.Add):
            return left + right
    raise ValueError(f"not a size: {ast.unparse(node)}")
