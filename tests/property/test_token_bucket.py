"""The token bucket beside one that counts tick by tick, by a clock that goes on, stands still, jumps and goes back."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from keyhole.rpc.token_bucket import TokenBucket

TICKS = 10
"""A second has so many."""

rates = st.integers(1, 20)
counts = st.integers(0, 60)
# Ticks from one taking to the next.
jumps = st.integers(-50, 50)


class _Ticking:
    """Each tick forward brings a tenth of the rate, until the bucket is full; one back brings nothing."""

    def __init__(self, rate: int) -> None:
        self.rate = Fraction(rate)
        self.tokens = self.rate

    def go(self, ticks: int) -> None:
        for _ in range(ticks):
            self.tokens = min(self.rate, self.tokens + self.rate / TICKS)

    def take(self, count: int) -> bool:
        if self.tokens < min(count, 1):
            return False
        self.tokens -= count
        return True


def _bucket(rate: int, now: int) -> TokenBucket:
    # Exact: what is compared must not differ by a rounding.
    exact: Any = Fraction(rate), Fraction(now, TICKS)
    return TokenBucket(*exact)


def _at(ticks: int) -> Any:
    return Fraction(ticks, TICKS)


@given(rates, st.integers(-1000, 1000), st.lists(st.tuples(jumps, counts)))
def test_what_is_given_and_when_is_what_one_that_counts_ticks_gives(
    rate: int, now: int, takings: list[tuple[int, int]]
) -> None:
    bucket, model = _bucket(rate, now), _Ticking(rate)
    for jump, count in takings:
        now += jump
        model.go(jump)
        seconds = bucket.take(count, _at(now))
        assert (seconds == 0) == model.take(count)
        assert bucket.is_full(_at(now)) == (model.tokens == rate)


@given(rates, st.lists(st.tuples(jumps, counts)), counts)
def test_who_comes_when_it_was_told_gets_what_it_wants_and_nobody_gets_it_before(
    rate: int, takings: list[tuple[int, int]], count: int
) -> None:
    bucket, now = _bucket(rate, 0), 0
    for jump, other in takings:
        now += jump
        bucket.take(other, _at(now))
    seconds = bucket.take(count, _at(now))
    if seconds:
        assert bucket.take(count, _at(now) + seconds * Fraction(9, 10))
        assert bucket.take(count, _at(now) + seconds) == 0


@given(rates, st.lists(st.tuples(st.integers(0, 50), counts)))
def test_in_the_long_run_no_more_is_given_than_the_rate_and_what_was_saved_and_owed(
    rate: int, takings: list[tuple[int, int]]
) -> None:
    bucket, now, given_out = _bucket(rate, 0), 0, 0
    for jump, count in takings:
        now += jump
        if not bucket.take(count, _at(now)):
            given_out += count
    assert given_out <= rate + Fraction(rate * now, TICKS) + max((count for _, count in takings), default=0)


@given(rates, st.lists(st.tuples(jumps, counts)), st.integers(1, 60))
def test_who_wants_much_is_let_in_when_one_who_wants_little_would_be(
    rate: int, takings: list[tuple[int, int]], count: int
) -> None:
    bucket, other, now = _bucket(rate, 0), _bucket(rate, 0), 0
    for jump, taken in takings:
        now += jump
        bucket.take(taken, _at(now))
        other.take(taken, _at(now))
    assert bucket.take(count, _at(now)) == other.take(1, _at(now))


@given(rates, st.integers(1, 5), st.integers(2, 60))
def test_who_wants_much_has_its_turn_beside_one_who_takes_whatever_it_can_get(
    rate: int, little: int, much: int
) -> None:
    bucket, given_out = _bucket(rate, 0), 0
    bucket.take(rate, _at(0))
    wants_at: Any = Fraction(0)
    for tick in range(1, 100):
        # It comes when it was told to, and the other one all the time.
        while wants_at <= _at(tick):
            seconds = bucket.take(much, wants_at)
            given_out += seconds == 0
            wants_at += seconds or 1
        bucket.take(little, _at(tick))
    assert given_out >= 1


@given(rates, st.lists(st.tuples(jumps, counts)), counts)
def test_what_is_given_back_is_as_if_it_had_not_been_taken(
    rate: int, takings: list[tuple[int, int]], count: int
) -> None:
    bucket, other, now = _bucket(rate, 0), _bucket(rate, 0), 0
    for jump, taken in takings:
        now += jump
        assert bucket.take(taken, _at(now)) == other.take(taken, _at(now))
    if bucket.take(count, _at(now)) == 0:
        bucket.give_back(count)
    assert bucket.take(1, _at(now)) == other.take(1, _at(now))
