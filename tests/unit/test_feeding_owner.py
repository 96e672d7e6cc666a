"""A host that owns key groups of a state that is fed by updates: what readers see, what is committed, who goes on."""

from __future__ import annotations

import asyncio
import threading

import msgspec
import pytest

from keyhole.changelog.base import Partition
from keyhole.encoding.storage_key import group_of
from keyhole.errors import EpochNotReached, NotReady, StateConflict, TooStale
from keyhole.model.epoch import START
from keyhole.model.read import ReadBounds
from keyhole.model.state import StateKind, ValueField, ValueSchema
from keyhole.protocol.updates import (
    DELETE,
    PUT,
    BoundaryRecord,
    FeedRules,
    RulesRecord,
    UpdateRecord,
)
from keyhole.stores.memory import MemoryEngine
from keyhole.testing.changelog import MemoryChangelog, NextCommit
from tests.support.fed_hosts import NAMES, STATE, TOPIC, Fed, begun, closed
from tests.support.hosts import Hosted
from tests.support.states import KEY_GROUPS, key, row
from tests.support.waiting import PATIENCE_SECONDS


async def test_an_update_is_read_before_it_is_committed_and_its_epoch_is_the_offset_behind_it() -> None:
    fed = await begun()
    fed.add(NAMES[0], 1)
    epoch = fed.add(NAMES[0], 2)
    await fed.steps()
    answers = fed.table.lookup([key(NAMES[0])], ReadBounds(min_epoch=epoch))
    assert fed.table.codec.decode_row(answers.rows[0] or b"")["n"] == 3
    assert [(of.epoch, of.generation, of.assignment_version) for of in answers.sources] == [(epoch, 1, 1)]
    with pytest.raises(EpochNotReached):
        fed.table.lookup([key(NAMES[0])], ReadBounds(min_epoch=epoch + 1))
    changelog = MemoryChangelog(fed.kafka, "app").reader()
    assert changelog.ends({STATE: [0]}, 1.0) == {Partition(STATE, 0): 0}, "nothing is committed"
    await fed.host.feeding.commit()
    assert changelog.ends({STATE: [0]}, 1.0)[Partition(STATE, 0)] > 0
    assert fed.sums(NAMES) == [3, None, None, None]
    await closed(fed)


async def test_the_next_owner_shows_what_the_one_before_has_shown_though_it_was_not_committed() -> None:
    fed = await begun()
    fed.add(NAMES[0], 1)
    await fed.steps()
    await fed.host.feeding.commit()
    epoch = fed.add(NAMES[0], 2)
    fed.add(NAMES[1], 5)
    await fed.steps()
    next_one = Fed(fed.kafka)
    await next_one.open(2, "grant-2")
    MemoryChangelog(fed.kafka, "app").admin().fence("grant-1", 1.0)
    assert await next_one.assign()
    assert next_one.sums(NAMES) == [3, 5, None, None]
    assert next_one.table.lookup([key(NAMES[0])]).sources[0].epoch == epoch
    # And what is sent once more counts no more.
    next_one.add(NAMES[0], 2, offset=1)
    next_one.add(NAMES[1], 7, offset=3)
    await next_one.steps()
    assert next_one.sums(NAMES) == [3, 12, None, None]
    await closed(fed)
    await closed(next_one)


async def test_a_key_group_that_comes_is_read_with_the_assignment_that_gives_it_and_not_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fed = Fed()
    fed.rules()
    await fed.open()
    assert await fed.assign([0])
    fed.add(NAMES[1], 5)
    caught_up, looks = fed.host.feeding.caught_up, []

    async def looking(stop: threading.Event) -> None:
        await caught_up(stop)
        looks.append(fed.table.groups)
        assert fed.sums(NAMES[:1]) == [None]

    monkeypatch.setattr(fed.host.feeding, "caught_up", looking)
    assert await fed.assign([0, 1])
    assert looks == [{0}], "its owner until then may answer on, by the assignment before"
    assert fed.sums(NAMES[:2]) == [None, 5]
    sources = fed.table.lookup([key(NAMES[1])]).sources
    assert [(of.generation, of.assignment_version) for of in sources] == [(1, 2)]
    await closed(fed)


async def test_an_owner_whose_grant_was_fenced_gives_it_up_tells_its_coordinator_and_goes_on_answering() -> None:
    fed = await begun()
    fed.add(NAMES[0], 1)
    await fed.steps()
    MemoryChangelog(fed.kafka, "app").admin().fence("grant-1", 1.0)
    with pytest.raises(Exception, match="taken over"):
        await fed.host.feeding.commit()
    with pytest.raises(NotReady, match="lost its grant"):
        fed.host.confirm(fed.run, fed.version)
    fed.add(NAMES[0], 9)
    await fed.steps()
    assert fed.sums(NAMES[:1]) == [1], "nothing more is applied, and nothing is taken back"
    fed.clock.advance(0.5)
    with pytest.raises(TooStale):
        fed.table.lookup([key(NAMES[0])], ReadBounds(max_staleness_ms=400))
    await fed.open(1, "grant-2")
    assert await fed.assign()
    assert fed.sums(NAMES[:1]) == [10]
    fed.host.confirm(fed.run, fed.version)
    await closed(fed)


@pytest.mark.parametrize("fate", [NextCommit.IS_COMMITTED_BUT_NOT_ANSWERED, NextCommit.IS_LOST_AND_NOT_ANSWERED])
async def test_a_commit_of_which_the_outcome_is_not_known_counts_once(fate: NextCommit) -> None:
    fed = await begun()
    fed.add(NAMES[0], 1)
    await fed.steps()
    fed.kafka.next_commit = fate
    with pytest.raises(Exception, match="not to answer"):
        await fed.host.feeding.commit()
    with pytest.raises(NotReady, match="lost its grant"):
        fed.host.confirm(fed.run, fed.version)
    await fed.open(1, "grant-2")
    assert await fed.assign()
    fed.add(NAMES[0], 2)
    await fed.steps()
    assert fed.sums(NAMES[:1]) == [3]
    await fed.host.feeding.commit()
    assert fed.sums(NAMES[:1]) == [3]
    await closed(fed)


async def test_a_commit_made_under_a_grant_writes_nothing_under_the_next_one() -> None:
    """It has begun, and stands still before its transaction, while the server is given another grant."""
    fed = await begun()
    fed.add(NAMES[0], 1)
    await fed.steps()
    feeding = fed.host.feeding
    late = feeding._commits._begin_commit()
    assert late is not None
    await fed.open(1, "grant-2")
    assert await fed.assign()
    with pytest.raises(Exception, match="another grant"):
        feeding._commits._write(late)
    assert MemoryChangelog(fed.kafka, "app").reader().ends({STATE: [0]}, 1.0) == {Partition(STATE, 0): 0}
    await feeding.commit()
    assert fed.sums(NAMES[:1]) == [1]
    await closed(fed)


async def test_a_release_commits_what_was_applied_and_nothing_more_is_applied_after_it() -> None:
    fed = await begun()
    fed.add(NAMES[0], 1)
    await fed.steps()
    await fed.host.release(fed.run, STATE, frozenset([0]), fed.version)
    ends = MemoryChangelog(fed.kafka, "app").reader().ends({STATE: [0, 1]}, 1.0)
    assert ends[Partition(STATE, 0)] > 0
    fed.add(NAMES[0], 5)
    fed.add(NAMES[1], 7)
    await fed.steps()
    await fed.host.feeding.commit()
    after = MemoryChangelog(fed.kafka, "app").reader().ends({STATE: [0]}, 1.0)
    assert after[Partition(STATE, 0)] == ends[Partition(STATE, 0)]
    assert fed.sums([NAMES[1]]) == [7]
    fed.clock.advance(1.0)
    await fed.ask()
    fed.table.lookup([key(name) for name in NAMES[1:]], ReadBounds(max_staleness_ms=500))
    await closed(fed)


async def test_a_release_in_the_middle_of_a_commit_waits_for_it() -> None:
    fed = await begun()
    fed.add(NAMES[0], 1)
    await fed.steps()
    started, goes_on = threading.Event(), threading.Event()

    def stand_still() -> None:
        started.set()
        assert goes_on.wait(PATIENCE_SECONDS)

    fed.kafka.before_commit = stand_still
    commit = asyncio.ensure_future(fed.host.feeding.commit())
    assert await asyncio.to_thread(started.wait, PATIENCE_SECONDS)
    fed.add(NAMES[0], 2)
    await fed.steps()
    release = asyncio.ensure_future(fed.host.release(fed.run, STATE, frozenset([0]), fed.version))
    await asyncio.sleep(0.05)
    assert not release.done()
    assert fed.sums(NAMES[:1]) == [3], "what comes meanwhile is applied all the same"
    goes_on.set()
    await commit
    await release
    other = Fed(fed.kafka)
    await other.open(1, "grant-other")
    assert await other.assign([0])
    assert other.host._states.state(STATE).position(0).epoch == 3, "the last of both commits"
    assert other.sums(NAMES[:1]) == [3]
    await closed(fed)
    await closed(other)


async def test_a_key_group_is_not_committed_while_kafka_is_away_and_is_afterwards() -> None:
    fed = await begun()
    fed.add(NAMES[0], 1)
    await fed.steps()
    fed.kafka.down = True
    with pytest.raises(Exception, match="down"):
        await fed.host.feeding.commit()
    assert fed.sums(NAMES[:1]) == [1]
    fed.kafka.down = False
    fed.add(NAMES[0], 1)
    await fed.steps()
    await fed.host.feeding.commit()
    fed.host.confirm(fed.run, fed.version)
    assert fed.sums(NAMES[:1]) == [2]
    await closed(fed)


async def test_what_is_refused_is_a_dead_letter_before_the_commit_that_has_passed_it() -> None:
    fed = await begun()
    fed.kafka.append(TOPIC, 0, b"{}")
    fed.add(NAMES[0], 1)
    await fed.steps()
    letters = f"{TOPIC}.dead-letter"
    seen: list[int] = []
    fed.kafka.before_commit = lambda: seen.append(len(fed.kafka.records(letters, 0, 0, 9)))
    await fed.host.feeding.commit()
    assert seen == [1]
    fed.add(NAMES[0], 1)
    await fed.steps()
    await fed.host.feeding.commit()
    assert seen == [1, 1], "it is there once"
    await closed(fed)


async def test_an_updates_topic_made_anew_is_refused_and_what_was_committed_goes_on_being_read() -> None:
    fed = await begun()
    epoch = fed.add(NAMES[0], 1)
    await fed.steps()
    await fed.host.feeding.commit()
    fed.add(NAMES[0], 2)
    await fed.steps()
    fed.kafka.delete_topic(TOPIC)
    other = MemoryChangelog(fed.kafka, "app").updates_topics().ensure(STATE, KEY_GROUPS, "", 1.0)
    assert other != fed.of.updates_topic_id
    fed.rules()
    for _ in range(9):
        fed.add(NAMES[0], 100)
    with pytest.raises(Exception, match="made anew"):
        await fed.host.feeding.commit()
    await fed.steps(5)
    assert fed.sums(NAMES[:1]) == [1]
    assert fed.table.lookup([key(NAMES[0])]).sources[0].epoch == epoch
    again = Fed(fed.kafka)
    again.of = fed.of
    await again.open(2, "grant-2")
    assert await again.assign()
    assert again.sums(NAMES[:1]) == [1]
    await closed(fed)
    await closed(again)


async def test_updates_that_were_deleted_before_they_were_applied_stop_their_key_group_alone() -> None:
    fed = Fed()
    fed.rules()
    for name in NAMES:
        fed.add(name, 1)
    for offset in (0, 1):
        del fed.kafka._topics[TOPIC].partitions[0][offset]
    fed.add(NAMES[0], 5)
    await fed.own()
    assert fed.sums(NAMES) == [None, 1, 1, 1]
    fed.add(NAMES[1], 1)
    await fed.steps()
    assert fed.sums(NAMES) == [None, 2, 1, 1]
    with pytest.raises(TooStale):
        fed.table.lookup([key(NAMES[0])], ReadBounds(max_staleness_ms=1_000_000))
    await closed(fed)


async def test_a_state_of_updates_takes_no_epochs() -> None:
    fed = Fed()
    await fed.own()
    with pytest.raises(StateConflict, match="fed by updates"):
        await fed.stage(1, {key(NAMES[0]): row(1)})
    with pytest.raises(StateConflict, match="fed by updates"):
        await fed.commit(1, [], replace=True)
    await closed(fed)


async def test_rules_ahead_of_the_descriptor_wait_and_the_key_group_goes_on_with_the_descriptor() -> None:
    fed = Fed(kind=StateKind.VALUE, reducers=())
    fed.rules()
    await fed.own()
    fed.add(NAMES[0], 1)
    fields = (*fed.of.value.fields, ValueField("m", "double"))
    newer = msgspec.structs.replace(fed.of, value=ValueSchema(2, fields), earlier=(fed.of.value,))
    for group in range(KEY_GROUPS):
        fed.send(group, RulesRecord(2, FeedRules.of(newer)))
    fed.send(0, UpdateRecord("s", 0, 9, 0, PUT, 2, [NAMES[0]], None, [7.0, 8.0]))
    await fed.steps(6)
    assert fed.sums(NAMES[:1]) == [1]
    fed.of = newer
    assert await fed.assign()
    await fed.host.feeding.commit()  # by the new descriptor nothing is applied before
    await fed.steps()
    assert fed.sums(NAMES[:1]) == [7]
    await closed(fed)


async def test_an_owner_that_has_not_read_to_the_end_says_since_when() -> None:
    fed = await begun()
    await fed.steps()
    await fed.ask()
    fed.clock.advance(1.0)
    for _ in range(4):
        fed.add(NAMES[0], 1)
    tail = fed.host.feeding._tail
    tail.most = 1  # type: ignore[union-attr]
    await fed.steps(2)
    await fed.ask()
    assert fed.sums(NAMES[:1]) == [2]
    assert not fed.is_within(NAMES[0], 0.9)
    assert fed.is_within(NAMES[0], 1.0), "when it was asked before them"
    assert fed.is_within(NAMES[1], 0.0)
    await fed.steps(4)
    assert fed.is_within(NAMES[0], 0.0)
    await closed(fed)


async def test_the_loop_runs_by_itself_commits_in_time_and_ends_with_its_host() -> None:
    fed = Fed()
    fed.rules()
    object.__setattr__(fed.host.feeding._settings, "feeds_by_itself", True)
    await fed.own()
    fed.add(NAMES[0], 1)
    changelog = MemoryChangelog(fed.kafka, "app").reader()
    while not changelog.ends({STATE: [0]}, 1.0)[Partition(STATE, 0)]:
        fed.clock.advance(0.1)
        await asyncio.sleep(0.01)
    assert fed.sums(NAMES[:1]) == [1]
    await closed(fed)
    assert fed.host.feeding._task is not None
    assert fed.host.feeding._task.done()


async def test_a_host_without_such_states_has_no_threads_for_updates() -> None:
    hosted = Hosted(engine=MemoryEngine())
    await hosted.own()
    await hosted.apply(1, {key("a"): row(1)})
    assert (hosted.host.feeding._pool, hosted.host.feeding._task) == (None, None)
    await hosted.host.close()


async def test_a_key_group_that_is_released_and_owned_again_begins_where_its_changelog_is() -> None:
    """Others have owned it meanwhile: what was applied before is not what stands there now."""
    fed = await begun()
    fed.add(NAMES[0], 1)
    await fed.steps()
    await fed.host.release(fed.run, STATE, frozenset([0]), fed.version)
    other = Fed(fed.kafka)
    await other.open(1, "grant-other")
    other.version = fed.version
    assert await other.assign([0])
    other.add(NAMES[0], 2, offset=1)
    other.send(0, BoundaryRecord("s", 0, {0: 2}))
    await other.steps()
    await other.host.release(other.run, STATE, frozenset([0]), other.version)
    fed.version = other.version
    assert await fed.assign()
    fed.add(NAMES[0], 4, offset=2)
    fed.send(0, UpdateRecord("s", 0, 1, 0, DELETE, 1, [NAMES[0]]))
    await fed.steps()
    assert fed.sums(NAMES[:1]) == [7]
    state = fed.host._states.state(STATE)
    assert state.position(0) != START
    await closed(fed)
    await closed(other)


async def test_an_update_whose_row_is_too_large_once_it_is_merged_is_a_dead_letter_and_all_others_are_committed() -> (
    None
):
    texts = ValueSchema(1, (ValueField("a", "string"), ValueField("b", "string")))
    fed = await begun(value=texts, reducers=("max", "max"))
    group, large = group_of(key(NAMES[0])), "x" * (9 << 20)
    fed.send(group, UpdateRecord("s", 0, 0, 0, PUT, 1, [NAMES[0]], None, [large, None]))
    await fed.steps()
    fed.send(group, UpdateRecord("s", 0, 1, 0, PUT, 1, [NAMES[0]], None, [None, large]))
    fed.send(group, UpdateRecord("s", 0, 2, 0, PUT, 1, [NAMES[0]], None, [None, "y"]))
    other = group_of(key(NAMES[1]))
    fed.send(other, UpdateRecord("s", 0, 3, 0, PUT, 1, [NAMES[1]], None, ["v", "w"]))
    await fed.steps()
    await fed.host.feeding.commit()
    for of, next_ in ((group, fed.kafka.end(TOPIC, group)), (other, fed.kafka.end(TOPIC, other))):
        assert fed.host._states.state(STATE).position(of).epoch == next_
    assert fed.kafka.end(f"{TOPIC}.dead-letter", 0) == 1
    row = fed.table.lookup([key(NAMES[0])], ReadBounds()).rows[0]
    assert fed.table.codec.decode_row(row or b"")["b"] == "y"
    await closed(fed)


async def test_values_that_can_not_be_compared_and_rules_that_can_not_be_followed_stop_no_key_group() -> None:
    structs = ValueSchema(1, (ValueField("n", "struct<a:int>"),))
    fed = await begun(value=structs, reducers=(), kind=StateKind.VALUE, order_by="n")
    group = group_of(key(NAMES[0]))
    for number in range(3):
        value = [{"a": number}] if number < 2 else [None]
        fed.send(group, UpdateRecord("s", 0, number, 0, PUT, 1, [NAMES[0]], None, value))
    fed.send(group, RulesRecord(99, FeedRules(reducers=("bogus",))))
    await fed.steps()
    await fed.host.feeding.commit()
    assert fed.host._states.state(STATE).position(group).epoch == fed.kafka.end(TOPIC, group)
    assert fed.kafka.end(f"{TOPIC}.dead-letter", 0) >= 2
    await closed(fed)


async def test_rules_of_a_reducer_that_there_is_not_are_a_dead_letter() -> None:
    fed = await begun(value=ValueSchema(1, (ValueField("n", "string"),)), reducers=("max",))
    group = group_of(key(NAMES[0]))
    for number, reducer in enumerate(("bogus", "max_by(zz)", "sum()")):
        fed.send(group, RulesRecord(99 + number, FeedRules(reducers=(reducer,))))
    fed.send(group, UpdateRecord("s", 0, 1, 0, PUT, 1, [NAMES[0]], None, ["1.5"]))
    await fed.steps()
    await fed.host.feeding.commit()
    assert fed.host._states.state(STATE).position(group).epoch == fed.kafka.end(TOPIC, group)
    assert fed.kafka.end(f"{TOPIC}.dead-letter", 0) == 3
    row = fed.table.lookup([key(NAMES[0])], ReadBounds()).rows[0]
    assert fed.table.codec.decode_row(row or b"")["n"] == "1.5"
    await closed(fed)
