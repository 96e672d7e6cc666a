"""Whatever happens, every key gets one answer or one error, and the right one."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from keyhole.client.coalescing import Answers, Coalescer, Frame, Lane, Segment
from keyhole.errors import KeyholeError, Overloaded, ServerLost
from keyhole.types import ReadBounds
from keyhole.v1 import state_pb2

LANES = [Lane("a", "one", "t1"), Lane("a", "two", "t2"), Lane("a", "two", "t2", bounds=ReadBounds(min_epoch=7))]
MAX_FRAME_KEYS, MAX_KEYS = 5, 40


class _Sink:
    def __init__(self, keys: list[bytes]) -> None:
        self.outcomes: list[bytes | KeyholeError | None] = [None] * len(keys)

    def answered(self, start: int, answers: Answers) -> None:
        for index, value in enumerate(answers.values, start):
            self._set(index, value)

    def failed(self, start: int, count: int, error: KeyholeError) -> None:
        for index in range(start, start + count):
            self._set(index, error)

    def _set(self, index: int, outcome: bytes | KeyholeError) -> None:
        assert self.outcomes[index] is None, "told twice"
        self.outcomes[index] = outcome


class Coalescing(RuleBasedStateMachine):
    """Adds, sends, answers, loses and expires in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.number = 0
        self.coalescer = Coalescer("x", max_frame_keys=MAX_FRAME_KEYS, max_keys=MAX_KEYS, stuck_seconds=3.0)
        self.segments: list[tuple[list[bytes], _Sink]] = []
        self.frames: list[Frame] = []

    @rule(lane=st.sampled_from(LANES), count=st.integers(1, 12), patience=st.integers(0, 6))
    def add(self, lane: Lane, count: int, patience: int) -> None:
        keys = [f"{lane.state}-{lane.bounds.min_epoch}-{self.number + offset}".encode() for offset in range(count)]
        self.number += count
        sink = _Sink(keys)
        try:
            self.coalescer.add(lane, Segment(keys, sink, self.now + patience))
        except Overloaded:
            assert self.coalescer.keys + count > MAX_KEYS
        else:
            self.segments.append((keys, sink))

    @rule()
    def send(self) -> None:
        frame = self.coalescer.next_frame(self.now)
        if frame is not None:
            assert 0 < len(frame.keys) <= MAX_FRAME_KEYS
            prefix = f"{frame.lane.state}-{frame.lane.bounds.min_epoch}-".encode()
            assert all(key.startswith(prefix) for key in frame.keys)
            self.frames.append(frame)

    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        if self.frames:
            frame = self.frames.pop(data.draw(st.integers(0, len(self.frames) - 1)))
            answers = Answers([b"value of " + key for key in frame.keys], [state_pb2.Source()])
            self.coalescer.receive(frame.number, answers)

    @rule(waiting_too=st.booleans())
    def lose(self, waiting_too: bool) -> None:
        self.coalescer.lost(ServerLost("gone"), waiting_too=waiting_too)

    @rule(seconds=st.integers(1, 4))
    def wait(self, seconds: int) -> None:
        self.now += seconds
        self.coalescer.expire(self.now)
        assert self.coalescer.next_wakeup() > self.now or self.coalescer.next_frame(self.now) is not None

    @invariant()
    def every_key_is_answered_rightly_or_still_counted(self) -> None:
        open_keys = 0
        for keys, sink in self.segments:
            for key, outcome in zip(keys, sink.outcomes, strict=True):
                open_keys += outcome is None
                assert outcome is None or isinstance(outcome, KeyholeError) or outcome == b"value of " + key
        assert open_keys == self.coalescer.keys

    def teardown(self) -> None:
        self.coalescer.lost(ServerLost("end"), waiting_too=True)
        assert self.coalescer.keys == 0
        assert all(outcome is not None for _, sink in self.segments for outcome in sink.outcomes)


TestCoalescing = Coalescing.TestCase
TestCoalescing.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
