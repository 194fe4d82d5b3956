"""Rank correlation against SciPy."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from harness.spearman import average_ranks, spearman

SCORES = st.lists(st.integers(0, 5), min_size=2, max_size=60)


@given(SCORES)
def test_ranks_are_scipys(values: list[int]) -> None:
    assert average_ranks(values).tolist() == scipy.stats.rankdata(values).tolist()


@given(st.data(), SCORES)
def test_correlation_is_scipys(data: st.DataObject, first: list[int]) -> None:
    # few different values: most are tied
    second = data.draw(st.lists(st.integers(0, 5), min_size=len(first), max_size=len(first)))
    if len(set(first)) == 1 or len(set(second)) == 1:
        with pytest.raises(ValueError, match="not defined"):
            spearman(first, second)
    else:
        assert spearman(first, second) == pytest.approx(scipy.stats.spearmanr(first, second).statistic, abs=1e-12)


def test_correlation_of_reals_is_scipys() -> None:
    draw = np.random.default_rng(3)
    first = draw.standard_normal(500)
    second = first + draw.standard_normal(500)
    assert spearman(first, second) == pytest.approx(scipy.stats.spearmanr(first, second).statistic, abs=1e-12)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [([1.0], [1.0], "at least 2"), ([1, 2, 3], [1, 2], "one length"), ([1.0, np.nan], [1.0, 2.0], "NaN")],
)
def test_what_has_no_correlation_is_refused(first: list[float], second: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        spearman(first, second)
