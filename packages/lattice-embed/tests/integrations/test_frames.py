"""Columns of pandas, polars, Arrow and xarray are lists of texts; tables are refused with the columns that they have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lattice_embed import InvalidInputError, NativeEmbeddingService

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
pa = pytest.importorskip("pyarrow")
xr = pytest.importorskip("xarray")

TEXTS = ["a cat", "the dog", "a cat"]
FRAME = pd.DataFrame({"text": TEXTS, "year": [1, 2, 3]})

COLUMNS = {
    "pandas": FRAME["text"],
    "pandas string": FRAME["text"].astype("string"),
    "pandas category": FRAME["text"].astype("category"),
    "pandas with an index of another order": FRAME["text"].set_axis([2, 0, 1]),
    "pandas index": pd.Index(TEXTS),
    "polars": pl.Series(TEXTS),
    "polars categories": pl.Series(TEXTS, dtype=pl.Categorical),
    "Arrow array": pa.array(TEXTS),
    "Arrow dictionary": pa.array(TEXTS).dictionary_encode(),
    "Arrow chunks": pa.chunked_array([TEXTS[:1], TEXTS[1:]]),
    "xarray values": xr.DataArray(TEXTS).values,
}

TABLES = {
    "pandas": (FRAME, r"texts\['text'\]"),
    "pandas, the text last": (FRAME[["year", "text"]], "the columns 'year', 'text'"),
    "pandas, one name twice": (FRAME[["text", "text"]], r"texts\.iloc\[:, 0\]"),
    "pandas, nothing": (pd.DataFrame(), "without columns"),
    "polars": (pl.DataFrame({"text": TEXTS}), r"texts\['text'\]"),
    "polars, lazy": (pl.DataFrame({"text": TEXTS}).lazy(), r"texts\.collect\(\)\['text'\]"),
    "Arrow table": (pa.table({"text": TEXTS}), r"texts\['text'\]"),
    "Arrow batch": (pa.table({"text": TEXTS}).to_batches()[0], r"texts\['text'\]"),
    "dict of columns": ({"text": TEXTS}, r"texts\['text'\]"),
    "dict of arrays": ({"text": np.array(TEXTS), "year": np.arange(3)}, "the columns 'text', 'year'"),
    "xarray": (xr.Dataset({"text": ("row", TEXTS)}), r"texts\['text'\]\.values"),
    "xarray array": (xr.DataArray(TEXTS), r"\.values"),
}


def calls(service: NativeEmbeddingService) -> list[Callable[[Any], Any]]:
    """The ways to embed several texts."""
    return [service.encode, service.embed, lambda texts: list(service.embed_batches(texts))]


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_is_a_list_of_texts(minilm: NativeEmbeddingService, name: str) -> None:
    expected = minilm.encode(TEXTS)
    np.testing.assert_array_equal(minilm.encode(COLUMNS[name]), expected)
    np.testing.assert_array_equal(minilm.embed(COLUMNS[name]).vectors, expected)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_refused_with_the_column_to_name(minilm: NativeEmbeddingService, name: str) -> None:
    table, remedy = TABLES[name]
    for call in calls(minilm):
        with pytest.raises(InvalidInputError, match=remedy):
            call(table)


@pytest.mark.parametrize("column", [pd.Series(["a", None]), pl.Series(["a", None]), pa.array(["a", None])], ids=type)
def test_an_empty_cell_is_named_by_its_row(minilm: NativeEmbeddingService, column: Any) -> None:
    with pytest.raises(InvalidInputError, match="text 1 is a"):
        minilm.encode(column)
