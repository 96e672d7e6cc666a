"""What an owner of a state that is fed by updates says of it: how far it is behind, what it holds, what it refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from keyhole.errors import ChangelogRecreated, KafkaUnreachable, TooLarge
from keyhole.protocol.updates import PUT, FeedRules, RulesRecord, UpdateRecord
from keyhole.rpc.convert import descriptor_to_proto
from keyhole.testing.clock import ManualClock
from services.state_server.read.feed_progress import FeedProgress, GroupLag
from services.state_server.read.holdings import holdings
from services.state_server.replica.ends_asking import LogEnd
from services.state_server.write.fed_group import FedGroup
from tests.support import figures
from tests.support.fed_hosts import NAMES, STATE, TOPIC, Fed, begun, closed
from tests.support.states import KEY_GROUPS
from tests.unit.test_server_stats import Server


def progress(fed: Fed) -> FeedProgress:
    feed = fed.table.feed
    assert feed is not None
    return feed


def lag(fed: Fed) -> tuple[float, int]:
    found = progress(fed).lag()
    return found.seconds, found.updates


async def test_an_owner_that_has_not_read_all_there_is_says_how_much_it_lacks_and_since_when() -> None:
    fed = await begun()
    fed.add(NAMES[0], 1)
    await fed.steps()
    await fed.ask()
    fed.clock.advance(5.0)
    assert lag(fed) == (5.0, 0), "nobody has asked since"
    await fed.ask()
    assert lag(fed) == (0.0, 0), "it is idle, not behind"
    fed.clock.advance(5.0)
    for _ in range(5):
        fed.add(NAMES[0], 1)
    tail: Any = fed.host.feeding._tail
    tail.most = 1
    await fed.steps(2)
    assert lag(fed) == (5.0, 4)
    fed.clock.advance(2.0)
    assert lag(fed) == (7.0, 4)
    tail.most = 1_000
    await fed.steps()
    await fed.ask()
    assert lag(fed) == (0.0, 0)
    await closed(fed)


def test_a_key_group_that_never_had_all_of_its_log_lacks_it_since_it_began() -> None:
    group = FedGroup(tenure=1, begun_monotonic=5.0, at=3, log_end=7)
    assert group.lag == GroupLag(5.0, 4)
    group.ended(LogEnd(9, 1_000, 5.5))
    assert group.lag == GroupLag(5.0, 6), "an end that was only asked for counts"
    assert group.standing.as_of_ms == 0, "readers are told that it is not known"
    group.ended(LogEnd(9, 2_000, 6.0))
    group.waits = True
    group.apply_to(9)
    assert group.lag == GroupLag(6.0, 6, stopped=False, waits=True)
    assert (group.standing.as_of_ms, group.standing.heard_monotonic) == (2_000, 6.0)


async def test_commits_that_fail_are_counted_by_their_reason() -> None:
    fed = await begun()
    reasons: list[Exception] = [RuntimeError("a bug"), KafkaUnreachable("no transactions"), TooLarge("a marker")]

    def fail() -> None:
        if reasons:
            raise reasons.pop()

    fed.kafka.before_commit = fail
    fed.add(NAMES[0], 1)
    await fed.steps()
    async with fed.host.feeding.committed():
        pass  # before a release it is only logged
    with pytest.raises(KafkaUnreachable):
        await fed.host.feeding.commit()
    with pytest.raises(RuntimeError):
        await fed.host.feeding.commit()
    assert fed.host.epochs.failed == {"TOO_LARGE": 1, "KAFKA_UNREACHABLE": 1, "INTERNAL": 1}
    await closed(fed)
    assert sum(fed.host.epochs.failed.values()) == 3, "an end is no failure"


async def test_what_came_of_updates_is_counted() -> None:
    fed = await begun()
    fed.add(NAMES[0], 1)
    fed.add(NAMES[1], 1)
    fed.add(NAMES[0], 1, offset=0)
    fed.send(0, UpdateRecord("s", 0, 99, 0, PUT, 1, [NAMES[1]], None, [1.0]))  # another key group's key
    await fed.steps()
    found = progress(fed)
    assert (found.applied, found.repeated, found.refused, found.assumed) == (2, 1, 1, 0)
    await closed(fed)


async def test_numbers_that_are_given_up_are_counted_also_those_of_key_groups_that_left() -> None:
    fed = await begun()
    few = msgspec.structs.replace(FeedRules.of(fed.of), most_blocks=2)
    fed.send(0, RulesRecord(2, few))
    for block in range(6):
        fed.add(NAMES[0], 1, offset=block * 1024)
    await fed.steps()
    assumed = progress(fed).assumed
    assert assumed > 0
    await fed.host.release(fed.run, STATE, frozenset([0]), fed.version)
    await fed.steps()
    assert progress(fed).assumed == assumed
    await closed(fed)


async def test_an_owner_that_holds_too_much_says_so_and_ever_longer_behind() -> None:
    fed = await begun()
    fed.host.feeding._settings.fed_room.limit_bytes = 1
    fed.add(NAMES[0], 1)
    fed.add(NAMES[1], 1)
    fed.kafka.down = True
    await fed.steps(1)
    fed.kafka.down = False
    await fed.steps(1)
    fed.kafka.down = True  # nothing can be committed
    await fed.steps()
    found = progress(fed)
    assert (found.full, found.held_rows) == (True, 2)
    assert found.held_bytes > 0
    fed.clock.advance(9.0)
    assert lag(fed)[0] == pytest.approx(9.0, abs=1.0)
    fed.kafka.down = False
    await closed(fed)


async def test_key_groups_of_which_updates_are_gone_are_told_of_as_stopped() -> None:
    fed = await begun()
    await fed.steps()
    fed.kafka.delete_topic(TOPIC)
    fed.kafka.ensure(TOPIC, KEY_GROUPS)
    with pytest.raises(ChangelogRecreated):
        await fed.steps()
    fed.clock.advance(60.0)
    found = progress(fed).lag()
    assert (found.stopped, found.seconds) == (KEY_GROUPS, pytest.approx(60.0))
    await closed(fed)


async def test_how_long_updates_took_until_readers_saw_them_is_counted_but_not_what_a_new_owner_reads() -> None:
    fed = await begun()
    await fed.steps()
    for name, passes in ((NAMES[0], 0.3), (NAMES[1], 0.004)):
        fed.kafka.log_time_ms = fed.clock.now_ms()
        fed.add(name, 1)
        fed.clock.advance(passes)
    await fed.steps()
    found = progress(fed).seconds
    counted = {bound: count for bound, count in zip(found.bounds, found.counts, strict=False) if count}
    assert (counted, found.sum) == ({0.005: 1, 0.5: 1}, pytest.approx(0.308))

    next_one = Fed(fed.kafka)
    await next_one.open(2, "grant-2")
    assert await next_one.assign()
    assert next_one.sums(NAMES[:2]) == [1, 1]
    assert sum(progress(next_one).seconds.counts) == 0
    await closed(fed)
    await closed(next_one)

    ahead = FeedProgress(ManualClock())
    ahead.note_shown({ahead._clock.now_ms() + 5_000: 3})
    assert (ahead.seconds.counts[0], ahead.seconds.sum) == (3, 0.0), "the broker's clock is ahead"


async def test_all_of_it_is_among_the_servers_figures_and_in_its_status(tmp_path: Path) -> None:
    fed = await begun()
    fed.add(NAMES[0], 1)
    await fed.steps()
    fed.add(NAMES[0], 1)
    fed.add(NAMES[0], 1)
    tail: Any = fed.host.feeding._tail
    tail.most = 1
    await fed.steps(2)
    fed.clock.advance(4.0)
    server = Server(0, tmp_path)
    server.registry.tables["app", STATE] = fed.table
    stats = await server.stats.read()
    prefix = "keyhole_state_server_"
    reported = {
        name: figures.value(stats, prefix + name, state=STATE)
        for name in ("updates_lag_seconds", "unapplied_updates", "applied_updates_total", "uncommitted_rows")
    }
    assert sum(fed.table.feed.seconds.counts) == 2  # type: ignore[union-attr]
    assert reported == {
        "updates_lag_seconds": 4.0,
        "unapplied_updates": 1,
        "applied_updates_total": 2,
        "uncommitted_rows": 1,
    }
    (owned,) = holdings(fed.table, descriptor_to_proto(fed.of), sizes=True)
    assert (owned.lag_updates, owned.updates_lag_ms) == (1, 4_000)
    (routed,) = holdings(fed.table, descriptor_to_proto(fed.of), sizes=False)
    assert (routed.lag_updates, routed.updates_lag_ms) == (0, 0), "proxies need not hear of it"
    await closed(fed)
