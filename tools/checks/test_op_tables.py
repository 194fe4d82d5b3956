"""The page of ops and kernels has the tables of what is there."""

from __future__ import annotations

import re
import sys

import pytest

from lattice_inference.backends.cpu import _cpu
from lattice_inference.graph.ops import OPS
from lattice_inference.graph.reverse_ops import REVERSE_OPS

from .conftest import ROOT

sys.path.insert(0, str(ROOT / "tools"))

import op_tables

PAGE = (ROOT / "docs" / "ops.md").read_text(encoding="utf-8")


def test_the_tables_are_those_of_the_code() -> None:
    assert op_tables.page_with_tables(PAGE) == PAGE


def test_every_op_and_every_kernel_has_a_row() -> None:
    assert re.findall(r"^\| `(\w+)` \|", op_tables.op_table(), re.MULTILINE) == list(OPS)
    assert re.findall(r"^\| `(\w+)` \|", op_tables.training_table(), re.MULTILINE) == list(REVERSE_OPS)
    assert re.findall(r"^\| `(\w+)` \|", op_tables.kernel_table(), re.MULTILINE) == list(_cpu.KERNELS)


def test_a_page_without_a_place_for_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match="0 places for the table kernels"):
        op_tables.page_with_tables(PAGE.replace("<!-- begin: kernels -->", ""))


def test_the_architecture_is_told_in_1200_words() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    prose = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    assert len(" ".join(line for line in prose.splitlines() if not line.startswith("|")).split()) <= 1_200
