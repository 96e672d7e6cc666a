"""When what was applied of updates is committed, by a clock that a test sets."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from keyhole.errors import KafkaUnreachable
from keyhole.testing.clock import ManualClock
from services.state_server.write.due_commits import DueCommits


class Commits:
    """In place of FeedCommits: counts, and waits or fails as a test says."""

    def __init__(self) -> None:
        self.begun = 0
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.error: Exception | None = None

    async def commit(self) -> None:
        self.begun += 1
        await self.go_on.wait()
        if self.error is not None:
            raise self.error


class Due:
    def __init__(self) -> None:
        self.clock, self.commits = ManualClock(), Commits()
        commits: Any = self.commits
        thread: Any = SimpleNamespace(refusing=False)
        self.of = DueCommits("orders", commits, thread, self.clock)

    async def after(self, seconds: float, *, early: bool = False, waits: bool = False) -> int:
        """How many commits were begun by then."""
        self.clock.advance(seconds)
        self.of.begin_if_due(early=early)
        await asyncio.sleep(0)
        if not waits:
            await self.of.ended()
        return self.commits.begun


async def test_a_commit_is_begun_each_quarter_of_a_second_and_sooner_where_it_must_be() -> None:
    due = Due()
    assert await due.after(0.2) == 0
    assert await due.after(0.1) == 1
    assert await due.after(0.2) == 1
    assert await due.after(0.0, early=True) == 2


async def test_none_is_begun_while_one_is_under_way() -> None:
    due = Due()
    due.commits.go_on.clear()
    assert await due.after(0.25, waits=True) == 1
    assert await due.after(5.0, early=True, waits=True) == 1
    due.commits.go_on.set()
    await due.of.ended()
    assert await due.after(0.0) == 2


@pytest.mark.parametrize("error", [KafkaUnreachable("no broker answers"), ValueError("a bug")], ids=["told", "bug"])
async def test_one_that_fails_is_tried_again_a_second_later_however_much_must_be_committed(error: Exception) -> None:
    due = Due()
    due.commits.error = error
    assert await due.after(0.25) == 1
    assert await due.after(0.9, early=True) == 1
    assert await due.after(0.2, early=True) == 2
    due.commits.error = None
    assert await due.after(1.0) == 3
    assert await due.after(0.0, early=True) == 4


async def test_why_it_fails_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    due = Due()
    due.commits.error = KafkaUnreachable("no broker answers")
    for begun in (1, 2, 3):
        assert await due.after(1.0) == begun
    due.commits.error = KafkaUnreachable("the topic is gone")
    assert await due.after(1.0) == 4
    assert [record.__dict__["why"] for record in caplog.records] == ["no broker answers", "the topic is gone"]
