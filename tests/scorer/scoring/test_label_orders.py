from __future__ import annotations

import pytest

from scorer.scoring.label_orders import label_orders


def test_the_first_order_is_that_of_the_request() -> None:
    for debias in ("none", "reverse", "rotate"):
        assert label_orders(4, debias)[0] == (0, 1, 2, 3)


def test_reversing_gives_two_orders_where_there_is_anything_to_reverse() -> None:
    assert label_orders(3, "reverse") == [(0, 1, 2), (2, 1, 0)]
    assert label_orders(1, "reverse") == [(0,)]


@pytest.mark.parametrize("count", [1, 2, 5, 26])
def test_rotating_puts_each_at_each_place_once(count: int) -> None:
    orders = label_orders(count, "rotate")

    assert len(orders) == count
    for column in zip(*orders, strict=True):
        assert sorted(column) == list(range(count))
