"""Whatever happens, every key gets one answer or one error, and the right one."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from keyhole.client.wire.coalescing import Coalescer, Frame, Lane
from keyhole.client.wire.segments import Answers, Segment
from keyhole.errors import KeyholeError, Overloaded, ServerLost
from keyhole.model.read import ReadBounds
from keyhole.rpc.frames import Failure, cut_to_frame, frame_is_full
from keyhole.v1 import state_pb2
from tests.support.examples import examples

LANES = [Lane("a", "one", "t1"), Lane("a", "two", "t2"), Lane("a", "two", "t2", bounds=ReadBounds(min_epoch=7))]
MAX_FRAME_KEYS, MAX_KEYS, MAX_FRAME_BYTES = 5, 40, 100


class _Sink:
    def __init__(self, keys: list[bytes]) -> None:
        self.outcomes: list[bytes | Failure | None] = [None] * len(keys)

    def answered(self, start: int, answers: Answers) -> None:
        for offset, value in enumerate(answers.values):
            self._set(start + offset, answers.failures.get(offset, value))

    def failed(self, start: int, count: int, error: KeyholeError) -> None:
        for index in range(start, start + count):
            self._set(index, error)

    def _set(self, index: int, outcome: bytes | Failure) -> None:
        assert self.outcomes[index] is None, "told twice"
        self.outcomes[index] = outcome


class Coalescing(RuleBasedStateMachine):
    """Adds, sends, answers, loses and expires in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.number = 0
        self.coalescer = self._new()
        self.segments: list[Segment] = []
        self.dropped: list[Segment] = []
        self.frames: list[Frame] = []

    @staticmethod
    def _new() -> Coalescer:
        return Coalescer(
            "x",
            max_frame_keys=MAX_FRAME_KEYS,
            max_frame_bytes=MAX_FRAME_BYTES,
            max_keys=MAX_KEYS,
            stuck_seconds=3.0,
        )

    @rule(
        lane=st.sampled_from(LANES),
        sizes=st.lists(st.sampled_from([0, 0, 0, 30, 80, MAX_FRAME_BYTES + 1]), min_size=1, max_size=12),
        patience=st.integers(0, 6),
    )
    def add(self, lane: Lane, sizes: list[int], patience: int) -> None:
        count, name = len(sizes), f"{lane.state}-{lane.bounds.min_epoch}"
        # Some are wanted by several.
        keys = [f"{name}-{(self.number + at) % 20}".encode().ljust(size, b".") for at, size in enumerate(sizes)]
        self.number += count
        segment = Segment(keys, _Sink(keys), self.now + patience)
        try:
            self.coalescer.add(lane, segment)
        except Overloaded:
            assert self.coalescer.keys + count > MAX_KEYS
        else:
            self.segments.append(segment)

    @rule()
    def send(self) -> None:
        frame = self.coalescer.next_frame(self.now)
        if frame is not None:
            assert 0 < len(frame.keys) <= MAX_FRAME_KEYS
            assert sum(map(len, frame.keys)) <= MAX_FRAME_BYTES
            prefix = f"{frame.lane.state}-{frame.lane.bounds.min_epoch}-".encode()
            assert all(key.startswith(prefix) for key in frame.keys)
            assert len(frame.parts) == 1 or len(set(frame.keys)) == len(frame.keys)
            self.frames.append(frame)

    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        if self.frames:
            frame = self.frames.pop(data.draw(st.integers(0, len(self.frames) - 1)))
            answers = Answers([b"value of " + key for key in frame.keys], [state_pb2.Source()])
            self.coalescer.receive(frame.number, answers)

    @rule(data=st.data())
    def answer_in_part(self, data: st.DataObject) -> None:
        """As far as there is room in the response."""
        if self.frames:
            frame = self.frames.pop(data.draw(st.integers(0, len(self.frames) - 1)))
            full = data.draw(st.sets(st.integers(0, len(frame.keys) - 1)))
            values = [b"" if place in full else b"value of " + key for place, key in enumerate(frame.keys)]
            answers = Answers(values, [state_pb2.Source()], (), dict.fromkeys(full, frame_is_full("a/one")))
            self.coalescer.receive(frame.number, answers)

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        if self.segments:
            segment = self.segments.pop(data.draw(st.integers(0, len(self.segments) - 1)))
            segment.dropped = True
            self.dropped.append(segment)

    @rule(waiting_too=st.booleans())
    def lose(self, waiting_too: bool) -> None:
        self.coalescer.lost(ServerLost("gone"), waiting_too=waiting_too)

    @rule()
    def move(self) -> None:
        """Its connection is over, and another one goes on with all that it had."""
        before, self.coalescer, self.frames = self.coalescer, self._new(), []
        moved = before.let_go()
        assert before.keys == 0
        for lane, parts in moved:
            self.coalescer.add_parts(lane, parts)

    @rule(seconds=st.integers(1, 4))
    def wait(self, seconds: int) -> None:
        self.now += seconds
        self.coalescer.expire(self.now)
        assert self.coalescer.next_wakeup() > self.now or self.coalescer.next_frame(self.now) is not None

    @invariant()
    def every_key_is_answered_rightly_or_still_counted(self) -> None:
        open_keys = sum(self._open(segment) for segment in self.segments)
        # What nobody wants any more is forgotten when its turn comes.
        assert open_keys <= self.coalescer.keys <= open_keys + sum(self._open(segment) for segment in self.dropped)

    @staticmethod
    def _open(segment: Segment) -> int:
        """How many of its keys have no outcome yet; the others' are right."""
        assert isinstance(segment.sink, _Sink)
        outcomes = segment.sink.outcomes
        for key, outcome in zip(segment.keys, outcomes, strict=True):
            assert outcome is None or isinstance(outcome, Failure) or outcome == b"value of " + key
            assert len(key) <= MAX_FRAME_BYTES or outcome is None or isinstance(outcome, Failure)
        return outcomes.count(None)

    def teardown(self) -> None:
        while self.coalescer.keys and (frame := self.coalescer.next_frame(self.now)) is not None:
            self.coalescer.receive(
                frame.number, Answers([b"value of " + key for key in frame.keys], [state_pb2.Source()])
            )
        self.coalescer.lost(ServerLost("end"), waiting_too=True)
        assert self.coalescer.keys == 0
        assert not any(self._open(segment) for segment in self.segments)


TestCoalescing = Coalescing.TestCase
TestCoalescing.settings = settings(max_examples=examples(150), stateful_step_count=50, deadline=None)


@settings(max_examples=examples(300))
@given(
    segments=st.lists(st.lists(st.sampled_from([0, 1, 1, 5, 20, 200]), min_size=1, max_size=9), min_size=1, max_size=6),
    room=st.sampled_from([1, 10, 30, 1000]),
    frames_in_flight=st.integers(1, 3),
    newest_first=st.booleans(),
)
def test_whatever_has_room_in_which_response_each_segment_gets_all_its_values(
    segments: list[list[int]], room: int, frames_in_flight: int, newest_first: bool
) -> None:
    coalescer = Coalescer("x", max_frame_keys=12, frames_in_flight=frames_in_flight)
    values: dict[bytes, bytes] = {}
    added = []
    for number, sizes in enumerate(segments):
        keys = [f"{number}-{at}".encode() for at in range(len(sizes))]
        values |= {key: key * size for key, size in zip(keys, sizes, strict=True)}
        added.append(Segment(keys, _Sink(keys), 1.0))
        coalescer.add(LANES[number % 2], added[-1])
    frames = answered = 0
    while coalescer.keys:
        sent = []
        while (frame := coalescer.next_frame(0.0)) is not None:
            sent.append(frame)
        for frame in reversed(sent) if newest_first else sent:
            frames += 1
            found = [values[key] for key in frame.keys]
            failures = cut_to_frame("a/one", found, room)
            answered += len(found) - len(failures)
            coalescer.receive(frame.number, Answers(found, [state_pb2.Source()], (), failures))
    for segment in added:
        assert isinstance(segment.sink, _Sink)
        assert segment.sink.outcomes == [values[key] for key in segment.keys]
    assert answered == len(values)
    assert frames <= len(values)
