"""However servers answer, refuse, are slow or silent: each key of a hedged frame gets one answer, and that is right."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from keyhole.client.routing.frame import Forwarding
from keyhole.client.routing.hedging import Hedging
from keyhole.client.wire.coalescing import Lane
from keyhole.client.wire.segments import Answers, Segment
from keyhole.errors import EpochGone, NotOwner, NotReady, Overloaded, ServerLost, TooStale
from keyhole.model.read import ReadBounds, Stale
from keyhole.rpc.frames import AskAgain
from keyhole.v1 import state_pb2
from tests.support.examples import examples
from tests.support.frame_servers import ALL, KEYS, NAME, FrameServers
from tests.support.manual_loops import ManualLoop, manual_loop

DEADLINE_SECONDS = 2.0
REFUSALS = (NotReady, NotOwner, ServerLost, TooStale)
"""What another copy can mend."""
ENDS = (Overloaded, EpochGone)
"""What it can't."""

# What a server does next: to which of its segments, and for how many of its keys; or time passes.
steps = st.lists(
    st.one_of(
        st.tuples(st.just("answer"), st.sampled_from("abc"), st.integers(0, 5), st.integers(1, 4)),
        st.tuples(st.sampled_from([*REFUSALS, *ENDS]), st.sampled_from("abc"), st.integers(0, 5), st.integers(1, 4)),
        st.tuples(st.just("pass"), st.sampled_from([0.001, 0.002, 0.005, 0.03, 0.1])),
    ),
    max_size=40,
)


class _Servers(FrameServers):
    """They answer what they are told to, each key with itself and who answered. They keep what became of each."""

    def __init__(self, loop: ManualLoop) -> None:
        super().__init__()
        self.route({"a": ALL}, {"b": ALL, "c": ALL})
        self._loop = loop
        self._answered: dict[int, int] = {}
        # So that no other segment has the id of one that is gone.
        self._gone: list[Segment] = []
        self.ended: set[bytes] = set()
        """Keys for which the first copy, or one in its turn, has said what no other copy can mend."""

    def do(self, step: tuple[Any, ...]) -> None:
        if step[0] == "pass":
            self._loop.pass_by(step[1])
            return
        what, address, number, count = step
        segments = self.links[address].segments
        if not segments:
            return
        segment = segments[number % len(segments)]
        start = self._answered.get(id(segment), 0)
        keys = segment.keys[start : start + count]
        self._answered[id(segment)] = start + len(keys)
        if start + len(keys) == len(segment.keys):
            segments.remove(segment)
            self._gone.append(segment)
        if what == "answer":
            segment.sink.answered(start, Answers([address.encode() + key for key in keys], [state_pb2.Source()]))
        else:
            if what in ENDS and not segment.sink.is_hedge:  # type: ignore[attr-defined]
                self.ended.update(keys)
            segment.sink.failed(start, len(keys), what("not now"))


@settings(max_examples=examples(900), deadline=None)
@given(
    first_seconds=st.sampled_from([0.0, 0.005, 0.03]),
    steps=steps,
    stale=st.sampled_from(Stale),
    keys=st.integers(1, len(KEYS)),
    in_parts=st.booleans(),
)
def test_every_key_of_a_hedged_frame_has_one_answer_of_its_own(
    first_seconds: float, steps: list[tuple[Any, ...]], stale: Stale, keys: int, in_parts: bool
) -> None:
    with manual_loop() as loop:
        servers = _Servers(loop)
        hedging = servers.hedging = Hedging(0.95)
        for address in "abc":
            hedging.patience(address)
            for _ in range(100):
                hedging.took(address, 0.003)
        hedging.read(60)
        delivered: list[Answers] = []
        lane = Lane(*NAME, "topic-1", ReadBounds(stale=stale))
        asked = KEYS[:keys]
        deadline = loop.time() + DEADLINE_SECONDS
        Forwarding(servers, lane, asked, deadline, delivered.append, in_parts=in_parts).start()  # type: ignore[arg-type]
        loop.pass_by(first_seconds)
        for step in steps:
            servers.do(step)
        # All that was silent answers in the end, in whatever order, while there is time, or is asked again until then.
        while not delivered and loop.time() < deadline:
            for address in "cba":
                while servers.links[address].segments:
                    servers.do(("answer", address, 0, 4))
            loop.pass_by(0.01)
        if loop.time() >= deadline and not delivered:
            return  # the steps took all the time; what silent servers owe, streams end at the deadline
        (answers,) = delivered
        for key, value, place in zip(asked, answers.values, range(keys), strict=True):
            failure = answers.failures.get(place)
            if failure is None:
                assert value[1:] == key
                assert stale is not Stale.NEVER or value[:1] == b"a"
            else:
                late = loop.time() >= deadline - 0.5
                assert isinstance(failure, AskAgain) or key in servers.ended or late
        # Nobody is told twice, whatever comes then.
        for address in "abc":
            while servers.links[address].segments:
                servers.do(("answer", address, 0, 4))
        loop.pass_by(10.0)
        assert len(delivered) == 1
        assert 10 * hedging.keys <= 60 + keys
