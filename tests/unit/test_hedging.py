"""Hedged reads: how long a server nearly always takes, how many keys may be asked twice, and a frame that is hedged."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest

from keyhole.client.routing.asked import Asked
from keyhole.client.routing.frame import Forwarding
from keyhole.client.routing.hedging import Hedging
from keyhole.client.routing.latency_quantile import LatencyQuantile
from keyhole.client.wire.coalescing import Lane
from keyhole.client.wire.segments import Answers
from keyhole.errors import (
    EpochGone,
    EpochNotReached,
    InternalError,
    KeyholeError,
    NotReady,
    Overloaded,
    ServerLost,
    TooStale,
    Unconfirmed,
)
from keyhole.model.read import ReadBounds, Stale
from tests.support.frame_servers import ALL, NAME, FrameServers, three_copies, values_of
from tests.support.manual_loops import ManualLoop, manual_loop

# Of key groups whose next copy, after a, is b.
KEYS = [group.to_bytes(2, "big") + b"key" for group in (0, 8, 2, 10)]
USUAL_SECONDS = 0.004
"""How long servers nearly always take."""
SLOW_SECONDS = 0.006
"""By when it is clear that one takes longer."""


@pytest.mark.parametrize("quantile", [0.5, 0.95, 0.99])
def test_the_quantile_of_the_latest_answers_is_learned(quantile: float) -> None:
    drawn = random.Random(1)
    latency = LatencyQuantile(quantile)
    for median in (0.002, 0.02, 0.001):  # the server becomes slower, and faster again
        seconds = [median * drawn.lognormvariate(0, 0.7) for _ in range(12_000)]
        for one in seconds:
            latency.note(one)
        exact = sorted(seconds)[int(quantile * len(seconds))]
        # The latest thousand of them have a quantile of their own.
        assert 0.75 * exact < latency.seconds < 1.6 * exact


def test_nothing_is_said_of_a_server_before_enough_of_its_answers_are_known() -> None:
    for quantile, few in ((0.95, 100), (0.999, 1_000)):
        latency = LatencyQuantile(quantile)
        for _ in range(few - 1):
            latency.note(0.002)
            assert latency.seconds == math.inf
        latency.note(0.002)
        assert 0.002 <= latency.seconds < 0.0024


def test_any_latency_is_taken_and_none_takes_memory() -> None:
    latency = LatencyQuantile(0.95)
    buckets = len(latency._counts)
    for seconds in (0.0, -1.0, 1e-9, 1e9) * 1_000:
        latency.note(seconds)
    assert len(latency._counts) == buckets
    assert latency.seconds == pytest.approx(0.0001 * 2**16)


def test_one_key_may_be_asked_twice_for_ten_that_are_read_and_some_are_saved_up() -> None:
    hedging = Hedging(0.95)
    assert not hedging.allows(1, 0.0)
    hedging.read(19)
    assert hedging.allows(1, 0.0)
    assert not hedging.allows(2, 0.0)
    hedging.hedged(1)
    assert not hedging.allows(1, 0.0)
    hedging.read(10_000_000)
    assert hedging.allows(1_024, 0.0)
    assert not hedging.allows(1_025, 0.0)


def test_none_is_hedged_for_a_second_after_a_server_was_overloaded() -> None:
    hedging = Hedging(0.95)
    hedging.read(100)
    hedging.overloaded(50.0)
    assert not hedging.allows(1, 50.9)
    assert hedging.allows(1, 51.0)


def test_a_server_is_waited_for_for_a_millisecond_at_least_and_one_that_is_gone_is_forgotten() -> None:
    hedging = Hedging(0.95)
    assert hedging.patience("a") == math.inf
    for _ in range(100):
        hedging.took("a", 0.0002)
    assert hedging.patience("a") == 0.001
    hedging.forget("a")
    hedging.took("a", 0.0002)  # an answer on its way
    assert not hedging._latencies
    hedging.forget("a")


@pytest.mark.parametrize("quantile", [0.0, 0.4, 1.0, 95.0, math.nan, -1.0])
def test_nothing_is_hedged_at_a_quantile_that_is_none(quantile: float) -> None:
    assert Hedging.at(quantile) is None


@pytest.fixture
def loop() -> Iterator[ManualLoop]:
    with manual_loop() as loop:
        yield loop


def _known(servers: FrameServers) -> Hedging:
    """All servers nearly always take so long, and 100 keys were read."""
    hedging = servers.hedging = Hedging(0.95)
    hedging.read(100)
    for address in servers.links:
        hedging.patience(address)
        for _ in range(100):
            hedging.took(address, USUAL_SECONDS)
    return hedging


def _forward(
    servers: FrameServers, keys: list[bytes] = KEYS, bounds: ReadBounds | None = None
) -> tuple[Forwarding, list[Answers]]:
    given: list[Answers] = []
    lane = Lane(*NAME, "topic-1", bounds or ReadBounds())
    forwarding = Forwarding(servers, lane, keys, 160.0, given.append)  # type: ignore[arg-type]
    forwarding.start()
    return forwarding, given


def test_a_slow_servers_keys_go_to_the_next_copy_too_and_the_first_answer_counts(loop: ManualLoop) -> None:
    servers = three_copies()
    hedging = _known(servers)
    forwarding, given = _forward(servers)
    loop.pass_by(USUAL_SECONDS)
    assert not servers.links["b"].segments
    loop.pass_by(SLOW_SECONDS - USUAL_SECONDS)
    assert servers.links["b"].segments[0].keys == KEYS
    servers.links["b"].answer()
    assert [answers.values for answers in given] == [values_of("b", KEYS)]
    loop.pass_by(0.05)
    servers.links["a"].answer()  # late: nobody is told twice
    loop.pass_by(10.0)
    assert len(given) == 1
    assert not servers.suspected
    assert not servers.links["c"].segments
    assert (hedging.keys, hedging.answered_keys) == (4, 4)
    assert forwarding.missed == 0


def test_a_server_that_is_only_slow_may_answer_before_the_hedge(loop: ManualLoop) -> None:
    servers = three_copies()
    hedging = _known(servers)
    _, given = _forward(servers)
    loop.pass_by(SLOW_SECONDS)
    hedge = servers.links["b"].segments[0]
    servers.links["a"].answer()
    assert [answers.values for answers in given] == [values_of("a", KEYS)]
    assert hedge.dropped
    loop.pass_by(10.0)
    assert not servers.suspected
    assert (hedging.keys, hedging.answered_keys) == (4, 0)


def test_only_keys_without_an_answer_are_hedged(loop: ManualLoop) -> None:
    servers = three_copies()
    _known(servers)
    _, given = _forward(servers)
    segment = servers.links["a"].segments[0]
    servers.links["a"].answer_part(segment, 0, b"1", b"2")
    loop.pass_by(SLOW_SECONDS)
    assert servers.links["b"].segments[0].keys == KEYS[2:]
    servers.links["a"].answer_part(segment, 2, b"3")
    servers.links["b"].answer()
    assert [answers.values for answers in given] == [[b"1", b"2", b"3", b"b" + KEYS[3]]]


def test_a_key_that_the_slow_server_has_refused_is_not_hedged_as_another_copy_has_it(loop: ManualLoop) -> None:
    servers = three_copies()
    hedging = _known(servers)
    hedging.forget("b")  # it may take any time
    _, given = _forward(servers, KEYS[:2])
    servers.links["a"].segments[0].sink.answered(0, Answers([b""], [], failures={0: NotReady("restoring")}))
    assert [segment.keys for segment in servers.links["b"].segments] == [KEYS[:1]]
    loop.pass_by(SLOW_SECONDS)
    assert [segment.keys for segment in servers.links["b"].segments] == [KEYS[:1], KEYS[1:2]]
    assert not servers.links["c"].segments
    assert hedging.keys == 1
    servers.links["b"].answer()
    servers.links["b"].answer()
    assert [answers.values for answers in given] == [values_of("b", KEYS[:2])]


def test_a_silent_server_is_suspected_at_the_hop_deadline_though_the_hedge_has_answered(loop: ManualLoop) -> None:
    servers = three_copies()
    _known(servers)
    _, given = _forward(servers)
    loop.pass_by(SLOW_SECONDS)
    servers.links["b"].answer()
    assert len(given) == 1
    loop.pass_by(0.08)
    assert not servers.suspected
    loop.pass_by(0.02)
    assert servers.suspected == ["a"]


def test_where_the_hedge_is_silent_too_both_are_suspected_and_the_copy_after_it_is_asked(loop: ManualLoop) -> None:
    servers = three_copies()
    _known(servers)
    forwarding, given = _forward(servers)
    loop.pass_by(0.101)
    assert servers.suspected == ["a"]
    assert not servers.links["c"].segments
    loop.pass_by(SLOW_SECONDS)
    assert servers.suspected == ["a", "b"]
    servers.links["c"].answer()
    assert [answers.values for answers in given] == [values_of("c", KEYS)]
    assert forwarding.missed == 4


@pytest.mark.parametrize("bounds", [ReadBounds(), ReadBounds(stale=Stale.NEVER), ReadBounds(latest=True)])
def test_where_no_copy_may_answer_in_its_place_a_slow_server_is_waited_for(
    loop: ManualLoop, bounds: ReadBounds
) -> None:
    servers = FrameServers(a=ALL) if bounds == ReadBounds() else three_copies()
    hedging = _known(servers)
    forwarding, given = _forward(servers, bounds=bounds)
    loop.pass_by(0.09)
    assert forwarding._retry is None
    assert not servers.links["b"].segments
    servers.links["a"].answer()
    assert [answers.values for answers in given] == [values_of("a", KEYS)]
    assert (hedging.keys, forwarding.missed) == (0, 0)
    assert not servers.suspected


@pytest.mark.parametrize(
    "error",
    [
        EpochNotReached("at epoch 8", epoch=8),
        TooStale("70 ms old", age_ms=70),
        Unconfirmed("not heard"),
        NotReady("restoring"),
        ServerLost("gone"),
        EpochGone("not kept"),
        Overloaded("too much"),
        InternalError("a bug"),
    ],
)
def test_a_hedge_that_fails_does_not_end_the_wait_for_the_slow_server(loop: ManualLoop, error: KeyholeError) -> None:
    servers = three_copies()
    _known(servers)
    forwarding, given = _forward(servers)
    loop.pass_by(SLOW_SECONDS)
    servers.links["b"].fail(error)
    loop.pass_by(0.05)
    assert not given
    assert not servers.links["c"].segments
    servers.links["a"].answer()
    assert [(answers.values, answers.failures) for answers in given] == [(values_of("a", KEYS), {})]
    assert forwarding.missed == 0
    assert not servers.suspected


@pytest.mark.parametrize("error", [TooStale("70 ms old", age_ms=70), EpochGone("not kept")])
def test_where_the_slow_server_fails_after_the_hedge_the_copies_are_asked_in_their_turn(
    loop: ManualLoop, error: KeyholeError
) -> None:
    servers = three_copies()
    _known(servers)
    _, given = _forward(servers)
    loop.pass_by(SLOW_SECONDS)
    servers.links["b"].fail(error)
    servers.links["a"].fail(ServerLost("gone"))
    servers.links["c"].answer()
    assert [answers.values for answers in given] == [values_of("c", KEYS)]


def test_where_the_slow_server_fails_before_the_hedge_answers_that_counts(loop: ManualLoop) -> None:
    servers = three_copies()
    _known(servers)
    _, given = _forward(servers)
    loop.pass_by(SLOW_SECONDS)
    servers.links["a"].fail(NotReady("restoring"))
    assert not servers.links["c"].segments
    servers.links["b"].answer()
    assert [answers.values for answers in given] == [values_of("b", KEYS)]


def test_a_server_that_can_not_be_reached_is_no_hedge(loop: ManualLoop) -> None:
    servers = three_copies()
    _known(servers)
    _, given = _forward(servers)
    servers.links["b"] = None  # type: ignore[assignment]
    loop.pass_by(0.05)
    servers.links["a"].answer()
    assert [answers.values for answers in given] == [values_of("a", KEYS)]


def test_no_more_keys_are_asked_twice_than_the_budget_has(loop: ManualLoop) -> None:
    servers = three_copies()
    hedging = _known(servers)
    for _ in range(20):
        _forward(servers)
    loop.pass_by(SLOW_SECONDS)
    # 180 were read, and a frame is hedged whole or not at all.
    assert hedging.keys == 16
    assert len(servers.links["b"].segments) == 4


@pytest.mark.parametrize("by", ["a whole frame's failure", "a key's failure"])
def test_none_is_hedged_while_a_server_is_overloaded(loop: ManualLoop, by: str) -> None:
    servers = three_copies()
    _known(servers)
    _forward(servers)
    if by == "a key's failure":
        segment = servers.links["a"].segments.pop()
        segment.sink.answered(0, Answers([b""] * 4, [], failures={2: Overloaded("too much")}))
    else:
        servers.links["a"].fail(Overloaded("too much"))
    _forward(servers)
    loop.pass_by(0.05)
    assert not servers.links["b"].segments
    servers.links["a"].answer()
    loop.pass_by(1.0)
    _forward(servers)
    loop.pass_by(SLOW_SECONDS)
    assert servers.links["b"].segments


def test_a_process_that_was_late_itself_waits_a_moment_longer(loop: ManualLoop) -> None:
    servers = three_copies()
    _known(servers)
    _, given = _forward(servers)
    loop.skip(0.05)
    loop.pass_by(0.0)
    assert not servers.links["b"].segments
    servers.links["a"].answer()
    assert len(given) == 1


def test_how_long_servers_take_is_learned_from_answers_and_silence(loop: ManualLoop) -> None:
    servers = three_copies()
    hedging = servers.hedging = Hedging(0.95)
    for _ in range(100):
        _forward(servers)
        loop.pass_by(0.02)
        servers.links["a"].answer()
    assert 0.02 < hedging.patience("a") < 0.024
    for _ in range(100):
        _forward(servers)
        loop.pass_by(0.101)
        servers.links["a"].segments.clear()
    assert hedging.patience("a") > 0.1  # it is silent: the hop deadline says when others are asked


def test_where_nothing_is_hedged_nothing_is_timed(loop: ManualLoop) -> None:
    servers = three_copies()
    forwarding, _ = _forward(servers)
    assert [type(asked) for asked in forwarding._asked] == [Asked]
    loop.pass_by(0.09)
    assert not servers.links["b"].segments
