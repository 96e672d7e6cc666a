"""Key groups on their way from one role to another, where that is broken off or overlaps."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest

from keyhole.changelog.base import RestoredEpochs
from keyhole.errors import KafkaUnreachable
from keyhole.model.epoch import EpochStamp, Run
from keyhole.protocol.key_group import FOLLOWED
from keyhole.testing.changelog import MemoryChangelog, MemoryKafka, MemoryReader
from keyhole.testing.clock import ManualClock
from services.state_server.replica.restore import AtOnce
from services.state_server.replica.take_over import StateShare
from tests.support.hosts import INCARNATION, Hosted
from tests.support.simulation import SteppedFollower
from tests.support.states import KEY_GROUPS, key, names_in, row
from tests.support.waiting import LONG_SECONDS

ALL = frozenset(range(KEY_GROUPS))
OTHER = key(names_in(1)[0])


@pytest.mark.parametrize("away_too_long", [False, True], ids=["behind", "away too long"])
async def test_a_copy_whose_take_over_was_broken_off_shows_whole_epochs_only(
    monkeypatch: pytest.MonkeyPatch, away_too_long: bool
) -> None:
    # The epochs of this test are of 1970.
    clock = ManualClock() if away_too_long else ManualClock(now_ms=10_000)
    kafka, followers = MemoryKafka(), []

    def stepped(*arguments: Any) -> SteppedFollower:
        followers.append(SteppedFollower(*arguments))
        return followers[-1]

    MemoryChangelog(kafka, "app").control("main").open(1)
    owner, standby = (
        Hosted(kafka=kafka),
        Hosted(kafka=kafka, make_follower=stepped, at_once=AtOnce(10_000), clock=clock),
    )
    keys = [(0).to_bytes(2, "big") + f"k{number:06}".encode() for number in range(60_000)]
    await owner.own()
    await owner.apply(1, {name: row(1.0) for name in (keys[0], keys[-1], OTHER)})
    await standby.host.follow([StateShare(standby.of, frozenset(), ALL)])
    await asyncio.to_thread(followers[0].step)
    assert standby.table.lookup([keys[0], keys[-1]]).rows == [row(1.0)] * 2

    await owner.apply(2, {name: row(2.0) for name in keys})  # more than is applied at once
    read = MemoryReader.read

    def breaks_off(self: MemoryReader, *arguments: Any) -> Iterator[RestoredEpochs]:
        yield next(iter(read(self, *arguments)))
        raise KafkaUnreachable("no progress")

    monkeypatch.setattr(MemoryReader, "read", breaks_off)
    run = Run("app", "main", 2, "run-2")
    await standby.host.open_run(run, INCARNATION, "grant-2")
    with pytest.raises(KafkaUnreachable):
        await standby.host.assign(
            run,
            1,
            [StateShare(standby.of, frozenset({0}), ALL - {0})],
            EpochStamp(1, run.generation, 1000, 0),
            wait_seconds=LONG_SECONDS,
        )
    await owner.apply(3, {OTHER: row(3.0)})
    await asyncio.to_thread(followers[0].step)  # something of another key group comes, and all is shown anew
    rows = standby.table.lookup([keys[0], keys[-1]]).rows
    await owner.host.close()
    await standby.host.close()
    assert rows in ([row(1.0)] * 2, [row(2.0)] * 2)


async def one_that_writes() -> tuple[Hosted, threading.Event]:
    """An owner whose thread is busy until the event is set."""
    server, written = Hosted(), threading.Event()
    await server.own()
    await server.apply(1, {OTHER: row(1.0)})
    server.host._thread.submit(written.wait, LONG_SECONDS)
    return server, written


async def test_what_is_given_back_while_it_is_being_released_is_owned() -> None:
    server, writing = await one_that_writes()
    released = asyncio.ensure_future(server.host.release(server.run, "counts", frozenset({0}), server.version))
    await asyncio.sleep(0)
    given_back = asyncio.ensure_future(server.assign(ALL, complete=1))
    await asyncio.sleep(0.05)
    writing.set()
    await released
    assert await given_back
    owned = server.table.groups
    await server.host.close()
    assert owned == ALL


@pytest.mark.parametrize("its_state_is_opened_after", [False, True])
async def test_what_is_released_before_its_restore_begins_is_followed_and_the_rest_is_owned(
    its_state_is_opened_after: bool,
) -> None:
    server, writing = await one_that_writes()
    if its_state_is_opened_after:
        # Another descriptor is taken on the host's thread, which is still writing.
        server.of = msgspec.structs.replace(server.of, class_version=7)
    assigned = asyncio.ensure_future(server.assign(ALL, complete=1))
    await asyncio.sleep(0.05)
    released = asyncio.ensure_future(server.host.release(server.run, "counts", frozenset({0}), server.version))
    await asyncio.sleep(0.05)
    writing.set()
    await released
    assert await assigned
    owned, shown, ready = server.table.groups, server.table.standby.groups, server.host.ready
    state = server.host._states.state("counts").groups.state(0)
    await server.host.close()
    assert (owned, shown, ready) == (ALL - {0}, {0}, True)
    assert state in FOLLOWED


async def test_a_release_whose_caller_goes_away_is_done_all_the_same() -> None:
    server, writing = await one_that_writes()
    released = asyncio.ensure_future(server.host.release(server.run, "counts", frozenset({0}), server.version))
    await asyncio.sleep(0.01)
    released.cancel()
    writing.set()
    await server.host.release(server.run, "counts", frozenset(), server.version)  # comes after it
    assert 0 not in server.table.groups
    assert server.table.given.assigned == ALL - {0}
    await server.host.close()


async def test_a_release_is_answered_once_all_that_was_committed_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    server, looks = Hosted(), list[bool]()
    await server.own()
    await server.apply(1, {OTHER: row(1.0)})
    ends = MemoryReader.ends

    def held_back(self: MemoryReader, *arguments: Any) -> Mapping[Any, int]:
        found = ends(self, *arguments)
        looks.append(len(looks) == 20)
        return found if looks[-1] else dict.fromkeys(found, 0)

    monkeypatch.setattr(MemoryReader, "ends", held_back)
    await server.host.release(server.run, "counts", frozenset({1}), server.version)
    assert looks == [False] * 20 + [True]
    await server.host.close()
