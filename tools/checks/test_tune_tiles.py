"""tools/tune_tiles.py: what it reads from the table of tile sizes, and what it writes there."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from lattice_inference.backends.cpu import _cpu

TOOL = Path(__file__).resolve().parents[1] / "tune_tiles.py"


@pytest.fixture(scope="module")
def tune_tiles() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tune_tiles", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_table_in_the_tree_is_the_one_that_was_compiled(tune_tiles: ModuleType) -> None:
    columns = tune_tiles.read_table(tune_tiles.TABLE.read_text())
    for isa in _cpu.available_isas():
        assert columns[isa] == _cpu.tile_sizes(isa)
    assert set(columns) == {"baseline", "avx2", "avx512", "neon"}


def test_every_size_has_values_to_measure_within_its_bounds(tune_tiles: ModuleType) -> None:
    assert list(tune_tiles.SIZES) == list(_cpu.TILE_BOUNDS)
    for name, size in tune_tiles.SIZES.items():
        least, most = _cpu.TILE_BOUNDS[name]
        assert all(least <= value <= most for value in size.values), name
        assert set(size.batches) <= set(tune_tiles.BATCHES)


def test_one_column_is_written_and_nothing_else(tune_tiles: ModuleType) -> None:
    text = tune_tiles.TABLE.read_text()
    changed = tune_tiles.write_column(text, "avx2", {"score_rows": 42, "linear_block_bytes": 65536})
    before, after = tune_tiles.read_table(text), tune_tiles.read_table(changed)
    before["avx2"] |= {"score_rows": 42, "linear_block_bytes": 65536}
    assert after == before
    original = tune_tiles.read_table(text)["avx2"]
    assert tune_tiles.write_column(changed, "avx2", original) == text
    with pytest.raises(ValueError, match="no such"):
        tune_tiles.write_column(text, "avx2", {"no such": 1})
    with pytest.raises(ValueError, match="there is no SIZE"):
        tune_tiles.read_table("nothing")


def test_values_are_measured_and_written_on_demand_only(
    tune_tiles: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "tile_table.h"
    table.write_text(tune_tiles.TABLE.read_text())
    before = table.read_text()
    arguments = ["--sizes", "linear_few_rows_tasks", "--rounds", "1", "--layers", "1", "--table", str(table)]
    assert tune_tiles.main([*arguments, "--margin", "-9"]) == 0
    printed = capsys.readouterr().out
    assert "linear_few_rows_tasks: 1" in printed
    assert "2* 1.000" in printed
    assert table.read_text() == before
    assert tune_tiles.main([*arguments, "--write", "--margin", "9"]) == 0  # nothing is so much faster
    assert table.read_text() == before
