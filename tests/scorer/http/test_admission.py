from __future__ import annotations

import pytest

from scorer.errors import Overloaded
from scorer.http.admission import Admission


def test_places_are_given_until_none_is_left_and_come_back() -> None:
    admission = Admission(max_requests=2, max_buffered_bytes=10)
    with admission.request(), admission.request():
        with pytest.raises(Overloaded) as caught, admission.request():
            pass
        assert admission.num_requests == 2

    assert (caught.value.value, caught.value.limit) == (2, 2)
    assert admission.num_requests == 0


def test_a_place_comes_back_when_the_request_fails() -> None:
    admission = Admission(max_requests=1, max_buffered_bytes=10)
    with pytest.raises(KeyError), admission.request():
        raise KeyError

    assert admission.num_requests == 0


def test_bytes_count_while_they_are_held_and_all_or_nothing() -> None:
    admission = Admission(max_requests=1, max_buffered_bytes=10)
    with admission.buffer() as first:
        first.append(b"123456")
        with admission.buffer() as second:
            with pytest.raises(Overloaded):
                second.append(b"12345")
            second.append(b"1234")
            assert admission.buffered_bytes == 10
        assert admission.buffered_bytes == 6
        assert first.content() == b"123456"

    assert admission.buffered_bytes == 0
