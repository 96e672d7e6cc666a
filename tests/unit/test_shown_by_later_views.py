"""What a server shows already is shown by its store's last commit: what is asked for, and nothing is left over."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from keyhole.errors import NotReady
from services.state_server.write.host_thread import HostThread
from tests.support.hosts import Hosted
from tests.support.states import key, names_in, row
from tests.support.waiting import LONG_SECONDS

A = key(names_in(0)[0])


@pytest.fixture
async def hosted() -> AsyncIterator[Hosted]:
    made = Hosted()
    yield made
    await made.host.close()


async def test_only_the_copies_that_are_asked_for_are_shown_by_a_later_view_both_by_the_same(hosted: Hosted) -> None:
    """Another process that has the other one would lose it, where the store has gone on."""
    await hosted.own()
    await hosted.apply(1, {A: row(1.0)})
    await hosted.host.release(hosted.run, "counts", frozenset({1}), hosted.version)
    assert hosted.table.standby.groups == {1}
    thread: Any = hosted.host._thread
    call, taken = thread.call_or_drop, list[tuple[bool, bool]]()

    async def watched(given: Callable[[], Any], drop: Callable[[Any], None]) -> object:
        views = await call(given, drop)
        taken.append((views.owned is not None, views.followed is not None))
        return views

    thread.call_or_drop = watched
    for which in ((False, True), (True, False), (True, True), (False, False)):
        before, _ = hosted.table.owned.shown
        await hosted.host.renew("counts", owned=which[0], followed=which[1])
        after, _ = hosted.table.owned.shown
        assert (after is not before) == which[0]
    # In one call each: nothing is written between the two.
    assert taken == [(False, True), (True, False), (True, True)]
    assert hosted.read(A) == [row(1.0)]


async def test_what_a_call_of_the_hosts_thread_gives_nobody_any_more_is_dropped_before_the_next_one() -> None:
    thread, steps = HostThread("server-a", "app", "main"), list[object]()
    begun, go_on = threading.Event(), threading.Event()

    def view(name: str) -> str:
        begun.set()
        assert go_on.wait(LONG_SECONDS)
        steps.append(name)
        return name

    waiting = [
        asyncio.create_task(thread.call_or_drop(lambda name=name: view(name), lambda of: steps.append((of, "dropped"))))  # type: ignore[misc]
        for name in ("running", "queued")
    ]
    assert await asyncio.to_thread(begun.wait, LONG_SECONDS)
    for of in waiting:
        of.cancel()
    async with asyncio.timeout(LONG_SECONDS):  # it stands behind nothing
        await asyncio.gather(*waiting, return_exceptions=True)
    assert steps == []
    behind = thread.submit(steps.append, "next")
    go_on.set()
    await asyncio.wrap_future(behind)
    assert steps == ["running", ("running", "dropped"), "next"]
    assert await thread.call_or_drop(lambda: 1, lambda _: pytest.fail("it was taken")) == 1
    thread.refuse()
    with pytest.raises(NotReady):
        await thread.call_or_drop(lambda: 1, lambda _: None)
    thread.end()
