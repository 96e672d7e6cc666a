"""An owner of a state that is fed by updates is as old as what it has of its log, whatever its coordinator says."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyhole.errors import KafkaUnreachable, KeyholeError, Unconfirmed
from keyhole.model.read import ReadBounds, Stale
from keyhole.rpc.convert import descriptor_to_proto
from services.state_server.read.holdings import holdings
from tests.support import figures
from tests.support.examples import examples
from tests.support.fed_hosts import NAMES, STATE, TOPIC, Fed, begun, closed
from tests.support.states import KEY_GROUPS, key
from tests.unit.test_server_stats import Server


async def grown_old(fed: Fed, seconds: int) -> None:
    """Time passes, its coordinator is heard of, and where its log ends is asked in vain."""
    for _ in range(seconds):
        fed.clock.advance(1.0)
        fed.host.confirm(fed.run, fed.version)
        with pytest.raises(KafkaUnreachable):
            await fed.ask()
        await fed.steps(1)


async def test_an_owner_that_is_cut_off_from_its_log_grows_old_while_its_lease_is_renewed(tmp_path: Path) -> None:
    fed = await begun()
    fed.add(NAMES[0], 1)
    await fed.steps()
    await fed.ask()
    fed.kafka.down = True
    await grown_old(fed, 5)
    assert (fed.is_within(NAMES[0], 4.9), fed.is_within(NAMES[0], 5.0)) == (False, True)
    (source,) = fed.table.lookup([key(NAMES[0])], ReadBounds(stale=Stale.NEVER)).sources
    assert (source.as_of_ms, source.unconfirmed) == (fed.clock.now_ms() - 5_000, False)
    # The console, `keyhole status` and the metrics say the same.
    server = Server(0, tmp_path)
    server.registry.tables["app", STATE] = fed.table
    stats = await server.stats.read()
    assert [copy.as_of_ms for copy in stats.copies] == [source.as_of_ms]
    assert figures.value(stats, "keyhole_state_server_updates_lag_seconds", state=STATE) == 5.0
    (held,) = holdings(fed.table, descriptor_to_proto(fed.of), sizes=True)
    assert (held.updates_lag_ms, held.source.as_of_ms) == (5_000, source.as_of_ms)
    fed.kafka.down = False
    fed.add(NAMES[0], 1)
    await fed.ask()
    assert not fed.is_within(NAMES[0], 4.9), "it is known where its log ends, and not read"
    await fed.steps()
    assert fed.is_within(NAMES[0], 0.0)
    await closed(fed)


async def test_an_owner_whose_coordinator_is_gone_is_as_fresh_as_what_others_feed_it() -> None:
    fed = await begun()
    await fed.steps()
    fed.clock.advance(60.0)
    epoch = fed.add(NAMES[0], 1)
    await fed.steps()
    await fed.ask()
    assert fed.is_within(NAMES[0], 0.0)
    (source,) = fed.table.lookup([key(NAMES[0])]).sources
    assert (source.epoch, source.as_of_ms, source.unconfirmed) == (epoch, fed.clock.now_ms(), True)
    with pytest.raises(Unconfirmed):
        fed.table.lookup([key(NAMES[0])], ReadBounds(stale=Stale.NEVER))
    await closed(fed)


async def test_a_new_owner_is_as_old_as_the_end_that_it_was_applied_to() -> None:
    fed = await begun()
    fed.add(NAMES[0], 1)
    next_one = Fed(fed.kafka)
    await next_one.own()
    next_one.clock.advance(2.0)
    assert (next_one.is_within(NAMES[0], 1.9), next_one.is_within(NAMES[0], 2.0)) == (False, True)
    await closed(fed)
    await closed(next_one)


async def test_an_end_of_a_topic_that_was_made_anew_is_not_believed() -> None:
    fed = await begun()
    fed.add(NAMES[0], 1)
    await fed.steps()
    await fed.ask()
    fed.clock.advance(5.0)
    fed.kafka.delete_topic(TOPIC)
    fed.kafka.ensure(TOPIC, KEY_GROUPS)
    with suppress(KeyholeError):
        await fed.ask()
    assert not fed.is_within(NAMES[0], 4.9)
    await closed(fed)


async def test_rows_that_were_taken_back_count_as_those_of_no_time() -> None:
    fed = await begun()
    await fed.steps()
    await fed.host.feeding.commit()
    fed.add(NAMES[0], 1)
    await fed.steps()
    await fed.ask()
    fed.kafka.delete_topic(TOPIC)
    fed.kafka.ensure(TOPIC, KEY_GROUPS)
    with suppress(KeyholeError):
        await fed.steps()
    await fed.steps()
    assert fed.sums(NAMES[:2]) == [None, None]
    assert [fed.is_within(name, 1e6) for name in NAMES[:2]] == [False, True]
    await closed(fed)


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(st.sampled_from(["add", "ask", "step", "down", "commit", "wait", "again"]), max_size=40))
def test_whatever_happens_an_answer_has_all_that_its_log_had_when_it_says(steps: list[str]) -> None:
    async def run() -> None:
        fed = await begun()
        ends: list[tuple[int, int]] = [(0, 1)]
        for step in steps:
            fed.clock.advance(0.001)
            with suppress(KeyholeError):
                match step:
                    case "add":
                        fed.kafka.down = False
                        ends.append((fed.clock.now_ms(), fed.add(NAMES[0], 1)))
                    case "ask":
                        await asyncio.to_thread(fed.host.feeding.ends.ask, fed.updates_topics())
                        await asyncio.sleep(0)
                    case "step":
                        tail: Any = fed.host.feeding._tail
                        if tail is not None:
                            tail.most = 1
                        await fed.steps(1)
                    case "down":
                        fed.kafka.down = not fed.kafka.down
                    case "commit":
                        await fed.host.feeding.commit()
                    case "wait":
                        fed.clock.advance(1.0)
                        fed.host.lease.confirm()
                    case _:  # it is released, and owned again
                        await fed.host.release(fed.run, STATE, frozenset([0]), fed.version)
                        await fed.assign()
            if 0 in fed.table.groups:
                (source,) = fed.table.lookup([key(NAMES[0])]).sources
                assert max((end for ms, end in ends if ms < source.as_of_ms), default=0) <= source.epoch
        fed.kafka.down = False
        await closed(fed)

    asyncio.run(run())
