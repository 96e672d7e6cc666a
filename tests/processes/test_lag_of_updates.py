"""An owner that can't follow its updates says so, by ever more, and readers who want no older answer are refused."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from contextlib import ExitStack, redirect_stdout, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest

from keyhole.cli.main import main
from keyhole.errors import KeyholeError, TooStale
from keyhole.local.java import Java
from keyhole.local.kafka import LocalKafka
from keyhole.local.ports import free_ports
from tests.support import figures
from tests.support.feed_stack import FeedStack
from tests.support.holding_relay import LARGE_BYTES, HoldingRelay

NOTE = "x" * 2 * LARGE_BYTES
FRESH = timedelta(seconds=3)


class Lag(NamedTuple):
    """As it is said somewhere: how many updates are not applied, and how old what is read may be."""

    updates: float
    seconds: float

    def is_beyond(self, other: Lag) -> bool:
        return self.updates > other.updates and self.seconds > other.seconds + 1


class SlowedStack:
    """The state server comes to Kafka through the relay, and nobody else does."""

    def __init__(self, stack: FeedStack, relay: HoldingRelay) -> None:
        self.stack = stack
        self.relay = relay

    def shown(self) -> Lag:
        """By `keyhole status`."""
        said = io.StringIO()
        with redirect_stdout(said):
            assert main(["status", "--proxy", self.stack.proxy, "--json"]) == 0
        (held,) = (held for server in json.loads(said.getvalue()) for held in server["holdings"])
        assert held["role"] == "owner"
        return Lag(held["lag_updates"], held["updates_lag_seconds"])

    def counted(self) -> Lag:
        """By the server's metrics."""
        stats = asyncio.run(figures.read_stats(self.stack.server_address))
        names = "keyhole_state_server_unapplied_updates", "keyhole_state_server_updates_lag_seconds"
        return Lag(*(figures.value(stats, name, state="totals") for name in names))

    def age(self) -> float:
        """In seconds, by an answer of the key group that is the oldest."""
        answers = self.stack.client.get_many(*self.stack.state.split("/"), [*self.stack.sent])
        oldest = min(answer.source.as_of or datetime.fromtimestamp(0, UTC) for answer in answers)
        return (datetime.now(UTC) - oldest).total_seconds()

    def read_within(self, bound: timedelta) -> None:
        """All keys. Raises TooStale."""
        self.stack.client.get_many(*self.stack.state.split("/"), [*self.stack.sent], max_staleness=bound)

    def is_within(self, bound: timedelta) -> bool:
        with suppress(KeyholeError):
            self.read_within(bound)
            return True
        return False


@pytest.fixture
def slowed(application: str, tmp_path: Path, jars: list[Path], java: Java) -> Iterator[SlowedStack]:
    with ExitStack() as ending:
        inside, outside = free_ports(2)
        relay = ending.enter_context(HoldingRelay(outside, inside))
        broker = ending.enter_context(LocalKafka(tmp_path / "kafka", jars, java, relayed={inside: outside}))
        stack = FeedStack(broker.bootstrap_servers, application, tmp_path, ending, relayed=f"127.0.0.1:{outside}")
        yield SlowedStack(stack, relay)


def test_the_lag_grows_while_an_owner_can_not_follow_and_is_gone_once_it_has_followed(slowed: SlowedStack) -> None:
    stack = slowed.stack
    stack.send(50, "short")
    stack.start_feeder("--reduce", "note=last")
    stack.all_agree()
    stack.comes_true(lambda: slowed.shown().updates == 0 and slowed.is_within(FRESH))
    before = stack.found()

    slowed.relay.hold()
    stack.send(14, NOTE)
    stack.comes_true(lambda: slowed.shown().updates > 0 and slowed.counted().updates > 0)
    shown, counted, age = slowed.shown(), slowed.counted(), slowed.age()
    stack.send(14, NOTE)
    stack.comes_true(lambda: slowed.shown().is_beyond(shown) and slowed.counted().is_beyond(counted))
    stack.comes_true(lambda: slowed.age() > max(age + 1, FRESH.total_seconds()))
    with pytest.raises(TooStale):
        slowed.read_within(FRESH)
    assert stack.found() == before, "who does not ask for more has what there is"

    slowed.relay.let_go()
    stack.all_agree()
    stack.comes_true(lambda: slowed.shown().updates == 0 and slowed.counted().updates == 0)
    stack.comes_true(lambda: slowed.is_within(FRESH))
    stack.comes_true(lambda: max(slowed.shown().seconds, slowed.age()) < FRESH.total_seconds())
