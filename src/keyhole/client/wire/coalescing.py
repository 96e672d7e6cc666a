"""What makes lookups fast: whatever is waiting goes into the next frame of one Lookup stream.

A single-key call costs gRPC about 0.3 ms of one core; a key in a frame costs microseconds. So nothing is sent alone
while something else is under way: lookups wait (no timer) until fewer than `frames_in_flight` frames are, and then all
that wait go together. Alone, a lookup is sent at once.

`Coalescer` decides what goes into which frame and who gets which part of a response. It has no socket, no clock and no
loop: times come in as numbers. lookup_stream.py is the edge that does the input and output; the client and the proxy
use both. The unit of waiting is the Segment, a list of keys that one SegmentSink answers for, so that nothing here
works per key.

                      add                 next_frame                 receive
    Segment(keys) ──────────► waiting ──────────────────► in flight ──────────► SegmentSink.answered
                                 ├─── expire, lost, close ────┼───────────────► SegmentSink.failed
                                 └────────────────────────────┘ the response was full

A response has the values of as many keys as make rpc.frames.FRAME_BYTES, and says of the others that it is full: these
wait again, for a smaller frame. How large values are, and so how many keys make a frame, is learned from what comes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from keyhole.client.wire.segments import (
    GONE,
    Answers,
    Part,
    Segment,
    gone,
    key_too_long,
    keys_of,
    lightened,
    merged,
    not_handed_out,
    take,
)
from keyhole.errors import DeadlineExceeded, KeyholeError, MalformedRequest, Overloaded
from keyhole.model.read import ReadBounds
from keyhole.rpc.frames import FRAME_BYTES, AskAgain


class Lane(NamedTuple):
    """What all keys of one frame have in common.

    `patient` keys wait for their server already: they travel in frames of their own, so as not to hold up others. Of
    `timed` ones the server says how long it has taken.
    """

    application: str
    state: str
    topic_id: str
    bounds: ReadBounds = ReadBounds()
    patient: bool = False
    timed: bool = False


Moved: TypeAlias = list[tuple[Lane, list[Part]]]
"""What goes from one connection to another, by lane."""


@dataclass(slots=True)
class Frame:
    """One message. `deadline` is that of its most patient segment, `first_deadline` that of the least patient one.

    `places`: where several want the same key, which of `keys` each key of the parts is; None: each is its own.
    `by`: what it was sent by, of several that a connection has; for whoever sends it to say.
    """

    number: int
    lane: Lane
    keys: Sequence[bytes]
    deadline: float
    first_deadline: float
    sent_at: float
    parts: list[Part] = field(repr=False)
    places: Sequence[int] | None = None
    by: object = None


# What a frame's answer should have: below FRAME_BYTES, so that few keys are asked for in vain. Of the first frame of a
# state nothing is known.
_ANSWER_BYTES = FRAME_BYTES // 2
_FIRST_FRAME_KEYS = 64
# Others' keys fill the queue: by then a server has answered thousands of them.
_AGAIN_SECONDS = 0.05


class Coalescer:
    """The lookups of one connection. Used by one thread.

    Args:
        target: Whose connection it is, for messages.
        max_frame_keys: A frame has at most so many keys, and fewer where values are large.
        max_frame_bytes: Its keys have at most so many bytes.
        frames_in_flight: While so many frames are unanswered, lookups wait. Two keep both sides busy: one would leave
            the server idle while a response travels, more would make frames smaller.
        stuck_seconds: A frame unanswered for so long no longer counts: its keys may wait for a new owner, and must not
            hold up the others.
        max_keys: Beyond so many keys waiting and in flight, new ones are refused.
    """

    def __init__(
        self,
        target: str,
        *,
        max_frame_keys: int = 512,
        max_frame_bytes: int = FRAME_BYTES,
        frames_in_flight: int = 2,
        stuck_seconds: float = 0.05,
        max_keys: int = 65_536,
    ) -> None:
        self._target = target
        self._max_frame_keys = max_frame_keys
        self._max_frame_bytes = max_frame_bytes
        self._frames_in_flight = frames_in_flight
        self._stuck_seconds = stuck_seconds
        self._max_keys = max_keys
        # Lanes take turns: the first is next, and goes to the end after each frame. An empty one is not in it.
        self._waiting: dict[Lane, deque[Part]] = {}
        self._in_flight: dict[int, Frame] = {}
        self._frames = 0
        self._keys = 0
        # No segment has an earlier one. Looking for the exact value after each answer would cost more than waking up
        # once in vain.
        self._earliest_deadline = math.inf
        self._value_bytes: dict[tuple[str, str], float] = {}

    @property
    def keys(self) -> int:
        """How many keys wait or are in flight."""
        return self._keys

    @property
    def waits(self) -> bool:
        """Whether there is something to be sent."""
        return bool(self._waiting)

    @property
    def in_flight(self) -> Collection[Frame]:
        """The frames that have no answer."""
        return self._in_flight.values()

    def add(self, lane: Lane, segment: Segment) -> None:
        """Lets a segment wait for the next frame.

        Raises:
            Overloaded: Too much waits already. Nothing was added. The fact `retry_after_seconds` says when to try
                again; there is none where the segment alone is too much.
        """
        count = len(segment.keys)
        if self._keys + count > self._max_keys:
            again = {"retry_after_seconds": _AGAIN_SECONDS} if count <= self._max_keys else {}
            raise Overloaded(
                f"{self._keys} lookups wait for {self._target} already, and at most {self._max_keys} may; send fewer "
                "at once, or wait for answers",
                address=self._target,
                **again,
            )
        self._keys += count
        self._earliest_deadline = min(self._earliest_deadline, segment.deadline)
        waiting = self._waiting.get(lane)
        if waiting is None:
            self._waiting[lane] = waiting = deque()
        waiting.append(Part(segment, 0, count))

    def add_parts(self, lane: Lane, parts: Sequence[Part]) -> None:
        """Lets parts wait that another Coalescer has let go of: they were taken once, and are not refused."""
        self._keys += sum(part.stop - part.start for part in parts)
        self._earliest_deadline = min([self._earliest_deadline, *(part.segment.deadline for part in parts)])
        self._waiting.setdefault(lane, deque()).extend(parts)

    def let_go(self) -> Moved:
        """Forgets all that has no answer, and returns it: nobody hears of it from here."""
        moved = [(of.lane, [part for part in of.parts if part.segment is not GONE]) for of in self._in_flight.values()]
        moved += [(lane, list(parts)) for lane, parts in self._waiting.items()]
        self._in_flight.clear()
        self._waiting.clear()
        self._keys, self._earliest_deadline = 0, math.inf
        return [(lane, parts) for lane, parts in moved if parts]

    def next_frame(self, now: float) -> Frame | None:
        """The frame to send now; it counts as in flight from here on. None: nothing waits, or enough is in flight."""
        while self._waiting and self._fresh_frames(now) < self._frames_in_flight:
            lane = next(iter(self._waiting))
            waiting = self._waiting.pop(lane)
            parts, dropped = take(waiting, self._frame_keys(lane))
            self._keys -= dropped
            keys = keys_of(parts)
            heavy: list[Part] = []
            if sum(map(len, keys)) > self._max_frame_bytes:
                parts, others, heavy = lightened(parts, self._max_frame_bytes)
                waiting.extendleft(reversed(others))
                keys = keys_of(parts)
            if waiting:
                self._waiting[lane] = waiting
            for part in heavy:
                self._fail([part], key_too_long(part, self._max_frame_bytes))
            if parts:
                self._frames += 1
                deadlines = [part.segment.deadline for part in parts]
                # What is on its way already is never shared: its answer may be older than whoever asks now has seen.
                keys, places = merged(keys) if len(parts) > 1 else (keys, None)
                frame = Frame(self._frames, lane, keys, max(deadlines), min(deadlines), now, parts, places)
                self._in_flight[frame.number] = frame
                return frame
        return None

    def receive(self, number: int, answers: Answers) -> None:
        """Hands a frame's answers to its sinks. Frames that were given up are ignored."""
        frame = self._in_flight.pop(number, None)
        if frame is None:
            return
        if len(answers.values) != len(frame.keys):
            error = MalformedRequest(
                f"{self._target} answered {len(answers.values)} of {len(frame.keys)} keys; check that it is a Keyhole "
                "server of this version"
            )
            self._fail(frame.parts, error)
            return
        if frame.places is not None:
            answers = answers.spread(frame.places)
        if not answers.failures:  # keys that failed say nothing of how large values are
            self._note_size(frame.lane, answers.values)
        else:
            full = {index for index, why in answers.failures.items() if isinstance(why, AskAgain) and why.full}
            if 0 < len(full) < len(answers.values):
                self._receive_full(frame, answers, full)
                return
        first = 0
        for segment, start, stop, _ in frame.parts:
            last = first + stop - start
            if segment is not GONE:
                self._answer(segment, start, answers.part(first, last))
            first = last

    def frame_failed(self, number: int, error: KeyholeError) -> None:
        """The whole frame was refused."""
        frame = self._in_flight.pop(number, None)
        if frame is not None:
            self._fail(frame.parts, error)

    def wait_again(self, number: int) -> None:
        """A frame has come back as one that came too late. What is in time waits for another one, before others."""
        frame = self._in_flight.pop(number, None)
        if frame is not None:
            # Those that are GONE have their errors; the frame has others, or `expire` had given it up.
            parts = [part for part in frame.parts if part.segment is not GONE]
            self._waiting.setdefault(frame.lane, deque()).extendleft(reversed(parts))

    def lost(self, error: KeyholeError, *, waiting_too: bool, by: object = None) -> None:
        """The connection broke: fails what was in flight.

        Args:
            waiting_too: Also what was not sent yet: there is no connection to be had, or wanted.
            by: Only what was sent by this.
        """
        lost = [frame for frame in self._in_flight.values() if by is None or frame.by is by]
        parts = [part for frame in lost for part in frame.parts]
        for frame in lost:
            del self._in_flight[frame.number]
        if waiting_too:
            parts += [part for waiting in self._waiting.values() for part in waiting]
            self._waiting.clear()
        self._fail(parts, error)

    def expire(self, now: float) -> None:
        """Fails what has passed its deadline, waiting or in flight."""
        if now < self._earliest_deadline:
            return
        late: list[Part] = []
        for number, frame in list(self._in_flight.items()):
            late += (part for part in frame.parts if part.segment.deadline <= now)
            frame.parts = [gone(part) if part.segment.deadline <= now else part for part in frame.parts]
            if frame.deadline <= now:
                del self._in_flight[number]
        for lane, waiting in list(self._waiting.items()):
            late += (part for part in waiting if part.segment.deadline <= now)
            self._waiting[lane] = deque(part for part in waiting if part.segment.deadline > now)
            if not self._waiting[lane]:
                del self._waiting[lane]
        left = [*(frame.parts for frame in self._in_flight.values()), *self._waiting.values()]
        self._earliest_deadline = min((part.segment.deadline for parts in left for part in parts), default=math.inf)
        error = DeadlineExceeded(
            f"{self._target} did not answer a lookup within its deadline ({len(self._in_flight)} other frames are "
            "under way); give it more time, or look at the server's load",
            address=self._target,
        )
        self._fail(late, error)

    def next_expiry(self) -> float:
        """When `expire` should be called if nothing happens before; infinity: never."""
        return self._earliest_deadline

    def next_wakeup(self) -> float:
        """When `expire`, then `next_frame`, should be called if nothing happens before; infinity: never."""
        if not self._waiting or len(self._in_flight) < self._frames_in_flight:
            return self._earliest_deadline
        newest = sorted((frame.sent_at for frame in self._in_flight.values()), reverse=True)
        return min(self._earliest_deadline, newest[self._frames_in_flight - 1] + self._stuck_seconds)

    def _fresh_frames(self, now: float) -> int:
        if len(self._in_flight) < self._frames_in_flight:
            return len(self._in_flight)
        stuck_since = now - self._stuck_seconds
        return sum(frame.sent_at > stuck_since for frame in self._in_flight.values())

    def _frame_keys(self, lane: Lane) -> int:
        value_bytes = self._value_bytes.get(lane[:2])
        if value_bytes is None:
            return min(_FIRST_FRAME_KEYS, self._max_frame_keys)
        return max(1, min(self._max_frame_keys, int(_ANSWER_BYTES / (value_bytes + 1))))

    def _note_size(self, lane: Lane, values: Sequence[bytes]) -> None:
        now = sum(map(len, values)) / len(values)
        before = self._value_bytes.get(lane[:2], now)
        # Quick to believe in larger values, slow to forget them.
        self._value_bytes[lane[:2]] = max(now, 0.9 * before + 0.1 * now)

    def _receive_full(self, frame: Frame, answers: Answers, full: Set[int]) -> None:
        """Has the keys that the response had no room for wait again, before others of their lane, for a smaller frame.
        In the end each has a frame of its own, whose response has room for any value.
        """
        answered = [value for index, value in enumerate(answers.values) if index not in full]
        self._note_size(frame.lane, answered)
        most = max(1, len(full) // 2)
        again: list[Part] = []
        first = 0
        for segment, start, stop, _ in frame.parts:
            at = start
            while at < stop:
                has_room = (first + at - start) not in full
                end = at + 1
                while end < stop and ((first + end - start) not in full) == has_room:
                    end += 1
                if segment is not GONE and has_room:
                    self._answer(segment, at, answers.part(first + at - start, first + end - start))
                elif segment is not GONE:
                    again.append(Part(segment, at, end, most))
                at = end
            first += stop - start
        if again:
            self._waiting.setdefault(frame.lane, deque()).extendleft(reversed(again))

    def _answer(self, segment: Segment, start: int, answers: Answers) -> None:
        count = len(answers.values)
        self._keys -= count
        try:
            segment.sink.answered(start, answers)
        except Exception:  # noqa: BLE001 - no frame has it any more: nobody else would tell whoever waits
            segment.sink.failed(start, count, not_handed_out(self._target))

    def _fail(self, parts: Sequence[Part], error: KeyholeError) -> None:
        for segment, start, stop, _ in parts:
            if segment is not GONE:
                self._keys -= stop - start
                segment.sink.failed(start, stop - start, error)
