"""How late frames are taken to be, beside how long they have really waited."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from keyhole.rpc.frame_ages import FrameAges, stamp_of

# Milliseconds: from one sending to the next, and how long the frame then waits.
frames = st.lists(st.tuples(st.integers(0, 15_000), st.integers(0, 60_000)), min_size=1)
offsets = st.integers(0, 1 << 33)


def _late(sender_ms: int, frames_of: list[tuple[int, int]]) -> list[int]:
    """What is said of each. `sender_ms`: the sender's clock, when the receiver's is at 1,000 s."""
    ages, now_ms, free_at_ms, said = FrameAges(), 1_000_000, 0, []
    for pause, waits in frames_of:
        now_ms += pause
        # A stream keeps its order.
        free_at_ms = max(free_at_ms, now_ms + waits)
        stamp = stamp_of((sender_ms + now_ms) / 1000)
        said.append(ages.late_ms(stamp, free_at_ms / 1000))
    return said


def _waited(frames_of: list[tuple[int, int]]) -> list[int]:
    now_ms, free_at_ms, waited = 0, 0, []
    for pause, waits in frames_of:
        now_ms += pause
        free_at_ms = max(free_at_ms, now_ms + waits)
        waited.append(free_at_ms - now_ms)
    return waited


@given(offsets, frames)
def test_a_frame_is_never_said_to_be_later_than_it_is_whatever_the_two_clocks_say(
    sender_ms: int, frames_of: list[tuple[int, int]]
) -> None:
    for late, waited in zip(_late(sender_ms, frames_of), _waited(frames_of), strict=True):
        # Of each clock a part of a millisecond is cut off.
        assert 0 <= late <= waited + 2


@given(offsets, st.lists(st.integers(0, 900), min_size=1, max_size=10), st.integers(0, 50_000))
def test_a_frame_that_waits_behind_others_that_came_at_once_is_as_late_as_it_is(
    sender_ms: int, pauses: list[int], waits: int
) -> None:
    said = _late(sender_ms, [*((pause, 0) for pause in pauses), (0, min(waits, 9_000))])
    assert max(said[:-1]) <= 2
    assert abs(said[-1] - min(waits, 9_000)) <= 2


@given(offsets, st.integers(1, 100_000))
def test_a_frame_that_does_not_say_when_is_not_late_and_the_next_ones_are_measured_anew(
    sender_ms: int, stood_still_ms: int
) -> None:
    ages = FrameAges()
    ages.late_ms(stamp_of((sender_ms + 1) / 1000), 1_000.0)
    assert ages.late_ms(0, 1_001.0) == 0
    now_ms = 1_001_000 + stood_still_ms
    assert ages.late_ms(stamp_of((sender_ms + 1) / 1000), now_ms / 1000) == 0
    assert ages.late_ms(stamp_of((sender_ms + 11) / 1000), (now_ms + 110) / 1000) in range(98, 103)


def test_after_a_while_the_fastest_frame_is_forgotten_and_a_clock_that_goes_back_begins_anew() -> None:
    ages = FrameAges()
    ages.late_ms(1, 100.0)
    # The sender's clock has stood still for 5 s.
    assert [ages.late_ms(1_001 + 1_000 * second, 106.0 + second) for second in range(4)] == [5_000] * 4
    assert [ages.late_ms(5_001 + 1_000 * second, 110.0 + second) for second in range(14)][-1] == 0
    assert ages.late_ms(20_000, 50.0) == 0
