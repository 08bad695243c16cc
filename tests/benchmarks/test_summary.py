from __future__ import annotations

import pytest

from benchmarks.summary import Drift, digits, drift, percentile, slope, spread
from benchmarks.tables import table


def test_spread_is_median_least_and_greatest() -> None:
    found = spread([3.0, 1.0, 10.0])

    assert (found.median, found.low, found.high, found.count) == (3.0, 1.0, 10.0, 3)
    assert str(found) == "3.00 (1.00–10.0)"


@pytest.mark.parametrize(("percent", "wanted"), [(1, 1), (50, 5), (51, 6), (90, 9), (99, 10), (100, 10), (0.5, 1)])
def test_percentile_is_the_nearest_rank(percent: float, wanted: float) -> None:
    assert percentile([10, 9, 8, 7, 6, 5, 4, 3, 2, 1], percent) == wanted


def test_percentile_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="percentile 50 of 0 values"):
        percentile([], 50)


def test_percentile_beyond_100_is_refused() -> None:
    with pytest.raises(ValueError, match="percentile 101"):
        percentile([1.0], 101)


def test_slope_of_points_on_a_line() -> None:
    assert slope([0, 1, 4], [5, 7, 13]) == pytest.approx(2)


def test_drift_counts_distance_and_changed_signs() -> None:
    assert drift([1.0, -1.0, 0.5], [1.5, 1.0, 1.0]) == Drift(mean=1.0, largest=2.0, flips=1)


def test_drift_of_lists_of_different_length_is_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        drift([1.0], [1.0, 2.0])


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.01234, "0.0123"), (1.234, "1.23"), (12.34, "12.3"), (1234.5, "1,234")]
)
def test_digits_keep_three_that_count(value: float, text: str) -> None:
    assert digits(value) == text


def test_table_columns_are_as_wide_as_their_widest_cell() -> None:
    assert table(("a", "long"), [("wider", "b")]) == "| a     | long |\n|-------|------|\n| wider | b    |"
