"""What a replica passes on to another one is followed a while longer; what was dropped is not followed."""

from __future__ import annotations

import asyncio

import msgspec

from keyhole.changelog.base import Partition
from keyhole.clock import SystemClock
from keyhole.protocol.control import record
from keyhole.testing.changelog import MemoryChangelog, MemoryKafka
from services.state_server.replica.member import Lingering, ReplicaMember, Share
from tests.support.readings import APPLICATION, descriptor
from tests.support.waiting import LONG_SECONDS

A, B = Partition("counts", 0), Partition("counts", 1)


def test_a_new_share_is_followed_at_once() -> None:
    assert Lingering(60).update(frozenset({A, B}), 0) == {A, B}


def test_what_has_left_the_share_lingers_and_then_goes() -> None:
    lingering = Lingering(60)
    lingering.update(frozenset({A, B}), 0)
    assert lingering.update(frozenset({A}), 10) == {A, B}
    assert lingering.update(frozenset({A}), 69) == {A, B}
    assert lingering.update(frozenset({A}), 70) == {A}


def test_what_comes_back_begins_to_linger_anew_when_it_leaves_again() -> None:
    lingering = Lingering(60)
    lingering.update(frozenset({A}), 0)
    lingering.update(frozenset(), 10)
    lingering.update(frozenset({A}), 50)
    lingering.update(frozenset(), 60)
    assert lingering.update(frozenset(), 110) == {A}
    assert lingering.update(frozenset(), 120) == frozenset()


async def test_nothing_is_followed_any_more_of_an_application_whose_last_query_was_dropped() -> None:
    changelog = MemoryChangelog(MemoryKafka(), APPLICATION)
    of = msgspec.structs.replace(descriptor(topic_id=""), topic_id=changelog.admin().ensure(descriptor(topic_id=""), 5))
    control = changelog.control(of.query)
    control.open(5)
    control.append(record("state", of.state, of), 5)
    shares: asyncio.Queue[Share] = asyncio.Queue()
    member = ReplicaMember(APPLICATION, "group", changelog, SystemClock(), 60, shares.put_nowait)
    member.start()
    try:
        async with asyncio.timeout(LONG_SECONDS):
            assert list(await shares.get()) == [of]
            control.append(record("state", of.state, None), 5)
            assert await shares.get() == {}
    finally:
        await member.close()
