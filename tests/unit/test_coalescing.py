"""The decisions of coalescing, without sockets, clocks or loops."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from keyhole.client.wire.coalescing import Coalescer, Frame, Lane
from keyhole.client.wire.segments import Answers, Segment
from keyhole.errors import (
    DeadlineExceeded,
    InternalError,
    KeyholeError,
    KeyTooLong,
    MalformedRequest,
    NotOwner,
    Overloaded,
    ServerLost,
)
from keyhole.rpc.frames import Failure, frame_is_full
from keyhole.v1 import state_pb2

LANE = Lane("weather", "readings", "topic-1")
OTHER = Lane("weather", "alarms", "topic-2")
SOURCE = state_pb2.Source(server="a")


class _Recorder:
    """A sink that keeps what it is told, by key index."""

    def __init__(self) -> None:
        self.values: dict[int, bytes] = {}
        self.errors: dict[int, Failure] = {}

    def answered(self, start: int, answers: Answers) -> None:
        for offset, value in enumerate(answers.values):
            if offset in answers.failures:
                self.errors[start + offset] = answers.failures[offset]
            else:
                assert start + offset not in self.values
                self.values[start + offset] = value

    def failed(self, start: int, count: int, error: KeyholeError) -> None:
        self.errors.update(dict.fromkeys(range(start, start + count), error))


def _keys(count: int, prefix: str = "k") -> list[bytes]:
    return [f"{prefix}{number}".encode() for number in range(count)]


def _add(coalescer: Coalescer, keys: Sequence[bytes], *, lane: Lane = LANE, deadline: float = 100.0) -> _Recorder:
    sink = _Recorder()
    coalescer.add(lane, Segment(keys, sink, deadline))
    return sink


def _next(coalescer: Coalescer, now: float = 0.0) -> Frame:
    frame = coalescer.next_frame(now)
    assert frame is not None
    return frame


def _answer(coalescer: Coalescer, frame: Frame) -> None:
    coalescer.receive(frame.number, Answers([b"v" + key for key in frame.keys], [SOURCE]))


def _warm(coalescer: Coalescer, lane: Lane = LANE) -> None:
    """Lets it learn that values are small, so that frames may have their full size."""
    _add(coalescer, _keys(1), lane=lane)
    _answer(coalescer, _next(coalescer))


def test_a_lone_lookup_is_sent_at_once() -> None:
    coalescer = Coalescer("a")
    sink = _add(coalescer, [b"k"])
    _answer(coalescer, _next(coalescer))
    assert sink.values == {0: b"vk"}
    assert coalescer.keys == 0


def test_what_waits_goes_into_one_frame_and_each_segment_gets_its_own_answers() -> None:
    coalescer = Coalescer("a")
    sinks = [_add(coalescer, _keys(3, prefix)) for prefix in ("x", "y", "z")]
    frame = _next(coalescer)
    assert frame.keys == _keys(3, "x") + _keys(3, "y") + _keys(3, "z")
    _answer(coalescer, frame)
    for sink, prefix in zip(sinks, ("x", "y", "z"), strict=True):
        assert sink.values == {number: f"v{prefix}{number}".encode() for number in range(3)}


def test_at_most_two_frames_are_in_flight_and_the_rest_waits_for_an_answer() -> None:
    coalescer = Coalescer("a")
    _add(coalescer, [b"1"])
    first = _next(coalescer)
    _add(coalescer, [b"2"])
    _next(coalescer)
    _add(coalescer, [b"3"])
    _add(coalescer, [b"4"])
    assert coalescer.next_frame(0.0) is None
    _answer(coalescer, first)
    assert _next(coalescer).keys == [b"3", b"4"]


def test_a_frame_that_is_stuck_does_not_hold_up_the_others() -> None:
    coalescer = Coalescer("a", stuck_seconds=0.05)
    for key in (b"1", b"2", b"3"):
        _add(coalescer, [key])
        coalescer.next_frame(0.0)
    assert coalescer.next_frame(0.0) is None
    wakeup = coalescer.next_wakeup()
    assert wakeup == pytest.approx(0.05)
    assert _next(coalescer, wakeup).keys == [b"3"]


def test_large_segments_are_cut_and_put_together_again_in_any_order_of_answers() -> None:
    coalescer = Coalescer("a", max_frame_keys=4)
    _warm(coalescer)
    sink = _add(coalescer, _keys(6))
    first, second = _next(coalescer), _next(coalescer)
    assert (len(first.keys), len(second.keys)) == (4, 2)
    _answer(coalescer, second)
    _answer(coalescer, first)
    assert sink.values == {number: f"vk{number}".encode() for number in range(6)}


def test_states_take_turns_and_do_not_share_frames() -> None:
    coalescer = Coalescer("a", max_frame_keys=2, frames_in_flight=9)
    for lane in (LANE, OTHER):
        _warm(coalescer, lane)
    _add(coalescer, _keys(4), lane=LANE)
    _add(coalescer, _keys(4), lane=OTHER)
    assert [_next(coalescer).lane for _ in range(4)] == [LANE, OTHER, LANE, OTHER]
    assert coalescer.next_frame(0.0) is None


def test_frames_shrink_where_values_are_large() -> None:
    coalescer = Coalescer("a")
    _add(coalescer, _keys(1000))
    first = _next(coalescer)
    coalescer.receive(first.number, Answers([b"x" * 100_000] * len(first.keys), [SOURCE]))
    assert len(first.keys) == 64
    assert len(_next(coalescer).keys) == 10


def test_a_full_queue_refuses_and_keeps_what_it_has() -> None:
    coalescer = Coalescer("a", max_keys=10)
    sink = _add(coalescer, _keys(8))
    with pytest.raises(Overloaded, match="8 lookups wait for a already, and at most 10") as refused:
        _add(coalescer, _keys(3))
    assert refused.value.facts["retry_after_seconds"] == "0.05"
    with pytest.raises(Overloaded) as refused:
        _add(coalescer, _keys(11))
    assert "retry_after_seconds" not in refused.value.facts
    _answer(coalescer, _next(coalescer))
    assert len(sink.values) == 8
    _add(coalescer, _keys(10))


def test_keys_that_fail_do_so_alone() -> None:
    coalescer = Coalescer("a")
    first, second = _add(coalescer, _keys(2, "x")), _add(coalescer, _keys(2, "y"))
    moved = NotOwner("moved")
    coalescer.receive(_next(coalescer).number, Answers([b"0", b"1", b"", b"3"], [SOURCE], (), {2: moved}))
    assert first.values == {0: b"0", 1: b"1"}
    assert (second.errors, second.values) == ({0: moved}, {1: b"3"})


def test_answers_of_several_sources_keep_theirs() -> None:
    answers = Answers([b"0", b"1", b"2"], [SOURCE, state_pb2.Source(server="b")], (0, 1, 1))
    assert answers.part(1, 3).source_of == (1, 1)


def test_a_key_that_several_wait_for_is_asked_for_once_and_never_shared_with_a_frame_on_its_way() -> None:
    coalescer = Coalescer("a", frames_in_flight=1)
    before = _add(coalescer, [b"hot"])
    under_way = _next(coalescer)
    waiting = [_add(coalescer, keys) for keys in ([b"hot"], [b"x", b"hot"], [b"hot", b"y"])]
    coalescer.receive(under_way.number, Answers([b"old"], [SOURCE]))
    frame = _next(coalescer)
    assert frame.keys == [b"hot", b"x", b"y"]
    moved = NotOwner("moved")
    sources = [SOURCE, state_pb2.Source(server="b")]
    coalescer.receive(frame.number, Answers([b"new", b"", b"vy"], sources, (1, 0, 0), {1: moved}))
    assert before.values == {0: b"old"}
    assert [sink.values for sink in waiting] == [{0: b"new"}, {1: b"new"}, {0: b"new", 1: b"vy"}]
    assert waiting[1].errors == {0: moved}
    assert coalescer.keys == 0


def test_answers_of_merged_keys_have_their_sources_and_failures() -> None:
    moved = NotOwner("moved")
    answers = Answers([b"0", b"", b"2"], [SOURCE, state_pb2.Source(server="b")], (0, 1, 1), {1: moved}, 7)
    spread = answers.spread([1, 0, 1, 2])
    assert spread.values == [b"", b"0", b"", b"2"]
    assert spread.source_of == [1, 0, 1, 1]
    assert spread.failures == {0: moved, 2: moved}
    assert (spread.server_micros, spread.message) == (7, None)


def test_a_refused_frame_fails_all_that_is_in_it_and_nothing_else() -> None:
    coalescer = Coalescer("a")
    inside = _add(coalescer, _keys(2))
    frame = _next(coalescer)
    outside = _add(coalescer, _keys(2))
    error = MalformedRequest("no")
    coalescer.frame_failed(frame.number, error)
    assert inside.errors == {0: error, 1: error}
    _answer(coalescer, _next(coalescer))
    assert len(outside.values) == 2


def test_a_frame_that_came_too_late_waits_again_before_others_but_for_what_has_expired() -> None:
    coalescer = Coalescer("a")
    soon = _add(coalescer, _keys(2, "soon"), deadline=5.0)
    later = _add(coalescer, _keys(2, "later"))
    frame = _next(coalescer)
    behind = _add(coalescer, _keys(1, "behind"))
    coalescer.expire(5.0)
    coalescer.wait_again(frame.number)
    assert coalescer.keys == 3
    again = _next(coalescer)
    assert again.keys == [b"later0", b"later1", b"behind0"]
    _answer(coalescer, again)
    assert [type(error) for error in soon.errors.values()] == [DeadlineExceeded] * 2
    assert (len(later.values), len(behind.values), coalescer.keys) == (2, 1, 0)
    # Of one that nobody waits for any more there is nothing to send.
    coalescer.wait_again(frame.number)
    assert coalescer.next_frame(6.0) is None


def test_a_lost_connection_fails_what_was_in_flight_and_keeps_what_waits() -> None:
    coalescer = Coalescer("a", frames_in_flight=1)
    sent = _add(coalescer, [b"1"])
    frame = _next(coalescer)
    waiting = _add(coalescer, [b"2"])
    lost = ServerLost("gone")
    coalescer.lost(lost, waiting_too=False)
    assert sent.errors == {0: lost}
    _answer(coalescer, frame)  # late, from the broken stream: nobody is told twice
    assert not sent.values
    _answer(coalescer, _next(coalescer))
    assert waiting.values == {0: b"v2"}
    assert coalescer.keys == 0


def _full(coalescer: Coalescer, frame: Frame, places: Sequence[int], size: int = 1) -> None:
    """The response has no room for the keys at these places."""
    error = frame_is_full("weather/readings")
    values = [b"" if place in places else b"v" + key + bytes(size) for place, key in enumerate(frame.keys)]
    coalescer.receive(frame.number, Answers(values, [SOURCE], (), dict.fromkeys(places, error)))


def test_keys_for_which_a_response_had_no_room_are_asked_for_again_in_a_smaller_frame_before_others() -> None:
    coalescer = Coalescer("a", frames_in_flight=1)
    _warm(coalescer)
    first, second = _add(coalescer, _keys(6, "x")), _add(coalescer, _keys(6, "y"))
    frame = _next(coalescer)
    later = _add(coalescer, [b"z"])
    _full(coalescer, frame, [3, 4, 5, 6, 8, 11])
    assert sorted(first.values) == [0, 1, 2]
    assert sorted(second.values) == [1, 3, 4]
    assert not first.errors
    assert coalescer.keys == 7
    assert _next(coalescer).keys == [b"x3", b"x4", b"x5"]
    coalescer.receive(2 + 1, Answers([b"vx3", b"vx4", b"vx5"], [SOURCE]))
    assert _next(coalescer).keys == [b"y0", b"y2", b"y5"]
    coalescer.receive(4, Answers([b"vy0", b"vy2", b"vy5"], [SOURCE]))
    _answer(coalescer, _next(coalescer))
    assert later.values == {0: b"vz"}
    assert [first.values[place][:3] for place in range(6)] == [b"vx%d" % place for place in range(6)]
    assert [second.values[place][:3] for place in range(6)] == [b"vy%d" % place for place in range(6)]
    assert coalescer.keys == 0


def test_keys_for_which_there_is_never_room_come_to_travel_alone_whatever_comes_meanwhile() -> None:
    coalescer = Coalescer("a", frames_in_flight=1)
    _warm(coalescer)
    sink = _add(coalescer, _keys(512))
    frame, rounds = _next(coalescer), 0
    while len(frame.keys) > 1:
        _add(coalescer, _keys(100, "other"))
        _full(coalescer, frame, range(1, len(frame.keys)))
        frame, rounds = _next(coalescer), rounds + 1
    assert rounds <= 9
    assert frame.keys == _keys(512)[rounds : rounds + 1]
    assert len(sink.values) == rounds


def test_a_response_with_room_for_nothing_at_all_is_a_failure_and_not_asked_for_for_ever() -> None:
    coalescer = Coalescer("a")
    sink = _add(coalescer, _keys(3))
    _full(coalescer, _next(coalescer), [0, 1, 2])
    assert set(sink.errors) == {0, 1, 2}
    assert coalescer.keys == 0


def test_a_full_response_does_not_let_one_state_have_all_turns() -> None:
    coalescer = Coalescer("a", frames_in_flight=1)
    _warm(coalescer)
    _warm(coalescer, OTHER)
    _add(coalescer, _keys(50))
    frame = _next(coalescer)
    other = _add(coalescer, [b"small"], lane=OTHER)
    _full(coalescer, frame, range(1, 50))
    _answer(coalescer, _next(coalescer))
    assert other.values == {0: b"vsmall"}


def test_frames_shrink_by_what_a_full_response_brings_too() -> None:
    coalescer = Coalescer("a")
    _add(coalescer, _keys(64))
    _full(coalescer, _next(coalescer), range(6, 64), 300_000)
    assert len(_next(coalescer).keys) == 3


def test_keys_that_are_large_together_travel_in_several_frames() -> None:
    coalescer = Coalescer("a", frames_in_flight=9, max_frame_bytes=1000)
    _warm(coalescer)
    first = _add(coalescer, [b"a" * 300] * 4)
    second = _add(coalescer, [b"b" * 300, b"c" * 1000, b"d"])
    frames = [_next(coalescer) for _ in range(4)]
    assert coalescer.next_frame(0.0) is None
    assert [[key[:1] for key in frame.keys] for frame in frames] == [[b"a"] * 3, [b"a", b"b"], [b"c"], [b"d"]]
    for frame in reversed(frames):
        _answer(coalescer, frame)
    assert [len(first.values), len(second.values), coalescer.keys] == [4, 3, 0]


def test_a_key_that_is_too_large_for_any_frame_fails_alone() -> None:
    coalescer = Coalescer("a", max_frame_bytes=1000)
    _warm(coalescer)
    sink, beside = _add(coalescer, [b"a", b"b" * 1001, b"c", b"d" * 2000]), _add(coalescer, [b"e"])
    alone = _add(coalescer, [b"f" * 1001], lane=OTHER)
    frame = _next(coalescer)
    assert frame.keys == [b"a", b"c", b"e"]
    assert coalescer.next_frame(0.0) is None
    _answer(coalescer, frame)
    assert (sink.values, beside.values) == ({0: b"va", 2: b"vc"}, {0: b"ve"})
    assert {place: type(error) for place, error in sink.errors.items()} == {1: KeyTooLong, 3: KeyTooLong}
    assert "1,001 bytes" in alone.errors[0].message
    assert coalescer.keys == 0


def test_what_nobody_wants_any_more_is_neither_sent_nor_told() -> None:
    coalescer = Coalescer("a", frames_in_flight=1)
    _warm(coalescer)
    sink = _Recorder()
    segment = Segment(_keys(20), sink, 100.0)
    coalescer.add(LANE, segment)
    beside = _add(coalescer, [b"beside"])
    frame = _next(coalescer)
    more = Segment(_keys(5), sink, 100.0)
    coalescer.add(LANE, more)
    segment.dropped = more.dropped = True
    _full(coalescer, frame, range(1, 20))
    assert coalescer.next_frame(0.0) is None
    assert coalescer.keys == 0
    assert beside.values == {0: b"vbeside\0"}


def test_without_any_connection_what_waits_fails_too() -> None:
    coalescer = Coalescer("a", frames_in_flight=1)
    sinks = [_add(coalescer, [b"1"])]
    _next(coalescer)
    sinks.append(_add(coalescer, [b"2"]))
    coalescer.lost(ServerLost("gone"), waiting_too=True)
    assert all(isinstance(sink.errors[0], ServerLost) for sink in sinks)
    assert coalescer.keys == 0
    assert coalescer.next_frame(0.0) is None


def test_each_segment_has_its_own_deadline_waiting_or_in_flight() -> None:
    coalescer = Coalescer("a", frames_in_flight=1)
    patient, hasty = _add(coalescer, [b"1"], deadline=9.0), _add(coalescer, [b"2"], deadline=1.0)
    frame = _next(coalescer)
    waiting = _add(coalescer, [b"3"], deadline=2.0)
    assert frame.deadline == 9.0
    assert coalescer.next_wakeup() <= 1.0
    coalescer.expire(1.0)
    assert isinstance(hasty.errors[0], DeadlineExceeded)
    assert not patient.errors
    assert not waiting.errors
    coalescer.expire(2.0)
    assert isinstance(waiting.errors[0], DeadlineExceeded)
    _answer(coalescer, frame)
    assert patient.values == {0: b"v1"}
    assert not hasty.values
    assert coalescer.keys == 0


def test_a_frame_that_all_gave_up_no_longer_counts() -> None:
    coalescer = Coalescer("a", frames_in_flight=1, stuck_seconds=math.inf)
    _add(coalescer, [b"1"], deadline=1.0)
    frame = _next(coalescer)
    _add(coalescer, [b"2"], deadline=5.0)
    coalescer.expire(1.0)
    assert _next(coalescer, 1.0).keys == [b"2"]
    _answer(coalescer, frame)
    assert coalescer.keys == 1


def test_an_answer_of_another_length_fails_the_frame_instead_of_mixing_up_keys() -> None:
    coalescer = Coalescer("a")
    sink = _add(coalescer, _keys(3))
    coalescer.receive(_next(coalescer).number, Answers([b"0", b"1"], [SOURCE]))
    assert all(isinstance(sink.errors[number], MalformedRequest) for number in range(3))
    assert coalescer.keys == 0


def test_an_idle_coalescer_never_wakes_up() -> None:
    assert Coalescer("a").next_wakeup() == math.inf


def test_what_one_connection_lets_go_waits_at_another_and_expires_there_lane_by_lane() -> None:
    first, second = Coalescer("a"), Coalescer("b")
    in_flight, waits = _add(first, _keys(2), deadline=1.0), _add(first, _keys(1), lane=OTHER, deadline=5.0)
    _next(first)
    moved = first.let_go()
    assert (first.keys, first.next_expiry()) == (0, math.inf)
    for lane, parts in moved:
        second.add_parts(lane, parts)
    assert (second.keys, second.next_expiry()) == (3, 1.0)
    second.expire(2.0)
    assert [type(error) for error in in_flight.errors.values()] == [DeadlineExceeded] * 2
    _answer(second, _next(second, 2.0))
    assert waits.values == {0: b"vk0"}


class _Raises(_Recorder):
    def answered(self, start: int, answers: Answers) -> None:
        raise OverflowError("what nobody has thought of")


@pytest.mark.parametrize("full", [(), (3,)])
def test_where_answers_can_not_be_taken_their_own_lookups_fail_at_once_and_no_others(full: Sequence[int]) -> None:
    """They waited for ever, beyond their deadline: no frame had them any more."""
    coalescer = Coalescer("a")
    _warm(coalescer)
    raises = _Raises()
    coalescer.add(LANE, Segment(_keys(2), raises, 100.0))
    other = _add(coalescer, _keys(2, "other"))
    frame = _next(coalescer)
    values = [b"" if at in full else b"v" + key for at, key in enumerate(frame.keys)]
    coalescer.receive(frame.number, Answers(values, [SOURCE], (), {at: frame_is_full("s") for at in full}))
    for at in full:
        assert _next(coalescer).keys == [frame.keys[at]]
    assert {at: type(error) for at, error in raises.errors.items()} == dict.fromkeys(range(2), InternalError)
    assert "a response of a could not be handed out" in str(raises.errors[0])
    assert other.values == {at: b"vother%d" % at for at in range(2) if at + 2 not in full}
    assert coalescer.keys == len(full)
