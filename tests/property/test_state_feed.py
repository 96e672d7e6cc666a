"""A state that is fed by updates is what its logs say, whatever becomes of its commits, its store and its owner.

Rows are applied while a transaction is under way, or after it was aborted; a transaction's outcome may stay unknown;
owners are killed at any step, and the next one has the store, or none, and the changelog.
"""

from __future__ import annotations

import dataclasses
from itertools import accumulate

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from keyhole.changelog.base import Partition
from keyhole.errors import Fenced, KafkaUnreachable, OutcomeUnknown
from keyhole.model.epoch import START
from keyhole.model.state import StateKind, ValueField, ValueSchema
from keyhole.protocol.seen import FeedPosition
from keyhole.protocol.updates import (
    DELETE,
    PUT,
    BoundaryRecord,
    EndRecord,
    FeedRules,
    LoggedUpdate,
    Record,
    RulesRecord,
    UpdateRecord,
    encode,
)
from keyhole.stores.base import Store
from keyhole.stores.memory import MemoryEngine
from keyhole.stores.overlay import Overlay
from keyhole.testing.changelog import MemoryWriter, NextCommit
from services.state_server.replica.hosted import StateReplica
from services.state_server.write.group_feed import GroupFeed, UpdateLimits
from services.state_server.write.state_feed import FeedCommit, StateFeed
from tests.support.examples import examples
from tests.support.states import descriptor as described
from tests.support.states import group, hosted, memory_changelog, names_in

GROUPS = range(2)
LONGEST, KEPT = 30, 60
SUM = described(
    key_groups=4, kind=StateKind.REDUCING, reducers=("sum",), value=ValueSchema(1, (ValueField("n", "bigint"),))
)
BEGUN = FeedPosition(rules=RulesRecord(1, FeedRules.of(SUM)))
EXPIRING = msgspec.structs.replace(SUM, ttl_ms=1)
SOURCES = st.sampled_from("st")
NAMES = [name for of in GROUPS for name in names_in(of, 2)]


class Owners(RuleBasedStateMachine):
    """See the module's text. One owner at a time; the changelog fences the one before."""

    @initialize()
    def begin(self) -> None:
        self.kafka, self.changelog = memory_changelog(EXPIRING)
        self.logs: dict[int, list[LoggedUpdate]] = {of: [] for of in GROUPS}
        self.sent = 0
        self.time_ms = 0
        self.grants = 0
        self.under_way: FeedCommit | None = None
        self.generation = 0
        self.rules_change(ttl_ms=6, most_blocks=1_000, rows_for_ms=LONGEST, late=False)
        self._take_over(MemoryEngine().open("app", EXPIRING.state, "topic"))

    def _take_over(self, store: Store) -> None:
        """As a restore does: all up to the changelog's end, and the last marker of each key group once more."""
        self.grants += 1
        self.writer: MemoryWriter = self.changelog.writer(f"grant-{self.grants}")
        self.writer.open(1.0)
        self.store = store
        self.state: StateReplica = hosted(GROUPS, EXPIRING, store)
        reader = self.changelog.reader()
        ends = reader.ends({EXPIRING.state: list(GROUPS)}, 1.0)
        positions = {part: self.state.position(part.key_group) for part in ends}
        again = {part: at if at == START else at._replace(offset=at.offset - 1) for part, at in positions.items()}
        found = {Partition(EXPIRING.state, of): FeedPosition() for of in GROUPS}
        for piece in reader.read(again, ends, 1.0):
            self.state.apply_pieces([dataclasses.replace(piece)])
            if piece.marker is not None:
                assert piece.marker.feed is not None
                found[piece.partition] = piece.marker.feed
        self.feed = StateFeed(self.state, "t")
        self.recorded = {part.key_group: position for part, position in found.items()}
        for part, position in found.items():
            self.feed.begin(part.key_group, position, self._log_start(part.key_group, position))
        self.under_way = None

    def _log_start(self, of: int, position: FeedPosition) -> int:
        """What is older than `KEPT` has been deleted, whether a record came since or not."""
        times = list(accumulate((update.timestamp_ms for update in self.logs[of]), max))
        away = self.time_ms - times[position.next] if position.next < len(times) else 0
        if away > KEPT - LONGEST:
            return 0  # away for longer than that: what was seen is known by its highest number only
        return next((at for at, time_ms in enumerate(times) if time_ms > self.time_ms - KEPT), len(times))

    def _append(self, of: int, record: Record) -> None:
        self.logs[of].append(LoggedUpdate(len(self.logs[of]), self.time_ms, encode(record)))

    @rule(
        ttl_ms=st.integers(1, 20),
        most_blocks=st.integers(1, 12),
        rows_for_ms=st.integers(1, LONGEST),
        late=st.booleans(),
    )
    def rules_change(self, ttl_ms: int, most_blocks: int, rows_for_ms: int, late: bool) -> None:
        self.generation += not late
        rules = FeedRules(ttl_ms, most_blocks=most_blocks, rows_for_ms=rows_for_ms, reducers=("sum",))
        for of in GROUPS:
            self._append(of, RulesRecord(self.generation, rules))

    @rule(source=SOURCES)
    def a_source_ends(self, source: str) -> None:
        for of in GROUPS:
            self._append(of, EndRecord(source))

    @rule(
        source=SOURCES,
        name=st.sampled_from(NAMES),
        amount=st.integers(1, 9),
        deletes=st.sampled_from([False] * 5 + [True]),
    )
    def a_row_is_sent(self, source: str, name: str, amount: int, deletes: bool) -> None:
        operation, value = (DELETE, None) if deletes else (PUT, [amount])
        self._append(group(name), UpdateRecord(source, 0, self.sent, 0, operation, 1, [name], None, value))
        self.sent += 1

    @rule(of=st.sampled_from(GROUPS), which=st.integers(0, 99))
    def a_row_is_sent_again(self, of: int, which: int) -> None:
        if self.logs[of]:
            again = self.logs[of][which % len(self.logs[of])].value
            self.logs[of].append(LoggedUpdate(len(self.logs[of]), self.time_ms, again))

    @rule(back=st.integers(1, 6))
    def a_batch_is_sent_again(self, back: int) -> None:
        for of in GROUPS:
            for update in self.logs[of][-back:]:
                self.logs[of].append(LoggedUpdate(len(self.logs[of]), self.time_ms, update.value))

    @rule(source=SOURCES)
    def a_boundary_is_written(self, source: str) -> None:
        for of in GROUPS:
            self._append(of, BoundaryRecord(source, 0, {0: self.sent}))

    @rule(by=st.integers(-2, 9) | st.just(KEPT))
    def time_passes(self, by: int) -> None:
        """Another broker's clock may be behind."""
        self.time_ms = max(1, self.time_ms + by)

    @rule(most=st.dictionaries(st.sampled_from(GROUPS), st.integers(1, 4)))
    def updates_are_applied(self, most: dict[int, int]) -> None:
        logs = {}
        for of, count in most.items():
            if of in self.feed.key_groups:
                at = self.feed.reads_of(of)
                logs[of] = self.logs[of][at : at + count]
        self.feed.apply(logs)

    @precondition(lambda self: self.under_way is None)
    @rule()
    def a_commit_begins(self) -> None:
        self.under_way = self.feed.begin_commit(generation=1, now_ms=1)

    @rule()
    def all_is_applied_and_committed(self) -> None:
        self.updates_are_applied(dict.fromkeys(GROUPS, 1_000))
        if self.under_way is None:
            self.a_commit_begins()
        if self.under_way is not None:
            self.it_ends("committed")

    @precondition(lambda self: self.under_way is not None)
    @rule(outcome=st.sampled_from(["committed", "aborted", "unknown, committed", "unknown, lost"]))
    def it_ends(self, outcome: str) -> None:
        assert self.under_way is not None
        commit, self.under_way = self.under_way, None
        self.kafka.down = outcome == "aborted"
        if outcome.startswith("unknown"):
            committed = outcome.endswith("committed")
            self.kafka.next_commit = (
                NextCommit.IS_COMMITTED_BUT_NOT_ANSWERED if committed else NextCommit.IS_LOST_AND_NOT_ANSWERED
            )
        try:
            offsets = self.writer.commit(commit.changes, 1.0)
        except KafkaUnreachable:
            self._begin_what_failed()
            return
        except OutcomeUnknown:
            self._take_over(self.store)
            return
        finally:
            self.kafka.down = False
        self.feed.committed(commit, offsets)
        for changes in commit.changes:
            of = changes.partition.key_group
            assert changes.marker.feed is not None
            assert self.state.position(of).epoch == changes.marker.feed.next, "also of one that failed meanwhile"
            assert of not in self.feed.key_groups or changes.marker.feed.next <= self.feed.next_of(of)
            self.recorded[of] = changes.marker.feed
        self._begin_what_failed()

    @rule(of=st.sampled_from(GROUPS))
    def a_key_group_fails(self, of: int) -> None:
        """It could not be applied. Where a commit under way names it, it begins anew after that."""
        self.feed.end([of])
        if self.under_way is None or of not in self.under_way.feeds:
            self._begin(of)

    def _begin_what_failed(self) -> None:
        for of in GROUPS:
            if of not in self.feed.key_groups:
                self._begin(of)

    def _begin(self, of: int) -> None:
        self.feed.begin(of, self.recorded[of], self._log_start(of, self.recorded[of]))

    @rule(keeps_store=st.booleans(), in_commit=st.booleans())
    def the_owner_is_killed(self, keeps_store: bool, in_commit: bool) -> None:
        before = self.writer
        if self.under_way is not None and in_commit:  # and its store is not written
            before.commit(self.under_way.changes, 1.0)
        store = self.store if keeps_store else MemoryEngine().open("app", EXPIRING.state, "topic")
        self._take_over(store)

    @invariant()
    def readers_see_what_the_log_alone_comes_to(self) -> None:
        """Applied in one go, by one who never commits, removes nothing and is never killed."""
        if not hasattr(self, "feed"):
            return
        snapshot = self.feed.snapshot()
        empty = MemoryEngine().open("app", EXPIRING.state, "topic").snapshot()
        for of in self.feed.key_groups:
            alone = GroupFeed(EXPIRING, of, FeedPosition(), "t", UpdateLimits(511, 1 << 20))
            expected = alone.apply(self.logs[of][: self.feed.next_of(of)], empty, Overlay()).overlay.of(of)
            lives_from = (alone.time_ms + 1).to_bytes(8, "big")
            living = [entry for entry in expected if entry[1] is not None and entry[1] >= lives_from]
            assert [entry for entry in snapshot.items(of) if entry[1] >= lives_from] == living
        snapshot.close()


Owners.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
TestOwners = Owners.TestCase


def test_a_fenced_owner_s_commit_changes_nothing() -> None:
    _, changelog = memory_changelog(SUM)
    feed = StateFeed(hosted(GROUPS, SUM), "t")
    feed.begin(0, BEGUN, 0)
    (name, *_) = names_in(0, 1)
    log = [LoggedUpdate(0, 7, encode(UpdateRecord("s", 0, 0, 0, PUT, 1, [name], None, [1])))]
    assert feed.apply({0: log, 1: log}).applied == 1, "of key group 1 nothing is applied here"
    commit = feed.begin_commit(generation=1, now_ms=1)
    assert commit is not None
    writer = changelog.writer("grant")
    writer.open(1.0)
    changelog.admin().fence("grant", 1.0)
    try:
        writer.commit(commit.changes, 1.0)
    except Fenced:
        pass
    else:
        raise AssertionError("it was fenced")
    assert changelog.reader().ends({SUM.state: [0]}, 1.0) == {Partition(SUM.state, 0): 0}
    assert (feed.uncommitted, feed.begin_commit(1, 1) is not None) == (1, True)


def test_what_was_applied_of_a_key_group_that_goes_is_dropped() -> None:
    state = hosted(GROUPS, SUM)
    feed = StateFeed(state, "t")
    for of in GROUPS:
        feed.begin(of, BEGUN, 0)
        (name, *_) = names_in(of, 1)
        feed.apply({of: [LoggedUpdate(0, 7, encode(UpdateRecord("s", of, 0, 0, PUT, 1, [name], None, [1])))]})
    commit = feed.begin_commit(generation=3, now_ms=1)
    assert commit is not None
    stamps = [(one.partition.key_group, one.marker.stamp.epoch, one.marker.stamp.generation) for one in commit.changes]
    assert stamps == [(0, 1, 3), (1, 1, 3)]
    state.groups.retain([0])
    feed.end([1])
    assert feed.uncommitted == 1
    feed.committed(commit, {Partition(SUM.state, of): 1 for of in GROUPS})
    assert (feed.key_groups, feed.next_of(0), feed.uncommitted, feed.begin_commit(3, 1)) == ({0}, 1, 0, None)
    snapshot = feed.snapshot()
    assert ([len(list(snapshot.items(of))) for of in GROUPS], set(snapshot.positions())) == ([1, 0], {0})


def _sent(name: str, at: int, amount: int) -> LoggedUpdate:
    return LoggedUpdate(at, 7, encode(UpdateRecord("s", 0, at, 0, PUT, 1, [name], None, [amount])))


def test_a_commit_of_an_earlier_time_as_owner_changes_nothing() -> None:
    (name, *_) = names_in(0, 1)
    replica = hosted(GROUPS, SUM)
    feed = StateFeed(replica, "t")
    feed.begin(0, BEGUN, 0)
    feed.apply({0: [_sent(name, 0, 1)]})
    late = feed.begin_commit(generation=1, now_ms=1)
    assert late is not None
    feed.end([0])
    feed.begin(0, BEGUN, 0)
    feed.apply({0: [_sent(name, 0, 1), _sent(name, 1, 2)]})
    newer = feed.begin_commit(generation=2, now_ms=2)
    assert newer is not None
    feed.committed(newer, {Partition(SUM.state, 0): 5})
    rows = list(feed.snapshot().items(0))
    for again in (late, newer):
        feed.committed(again, {Partition(SUM.state, 0): 9})
    assert list(feed.snapshot().items(0)) == rows
    assert (replica.position(0).offset, replica.position(0).epoch) == (6, 2)


def test_a_commit_of_an_earlier_time_as_owner_writes_nothing_before_the_first_of_this_one() -> None:
    (name, *_) = names_in(0, 1)
    replica = hosted(GROUPS, SUM)
    feed = StateFeed(replica, "t")
    feed.begin(0, BEGUN, 0)
    feed.apply({0: [_sent(name, 0, 1)]})
    late = feed.begin_commit(generation=1, now_ms=1)
    assert late is not None
    feed.end([0])
    feed.begin(0, BEGUN, 0)
    feed.committed(late, {Partition(SUM.state, 0): 5})
    assert (replica.position(0), list(feed.snapshot().items(0))) == (START, [])


def test_a_commit_of_a_key_group_that_failed_meanwhile_is_in_the_store_and_one_of_an_earlier_time_is_not() -> None:
    (name, *_) = names_in(0, 1)
    replica = hosted(GROUPS, SUM)
    feed = StateFeed(replica, "t")
    feed.begin(0, BEGUN, 0)
    feed.apply({0: [_sent(name, 0, 1)]})
    commit = feed.begin_commit(generation=1, now_ms=1)
    assert commit is not None
    feed.end([0])
    feed.committed(commit, {Partition(SUM.state, 0): 5})
    assert (replica.position(0).epoch, len(list(feed.snapshot().items(0)))) == (1, 1)
    feed.begin(0, BEGUN, 0)
    feed.apply({0: [_sent(name, 0, 1), _sent(name, 1, 2)]})
    late = feed.begin_commit(generation=1, now_ms=1)
    assert late is not None
    feed.end([0])
    replica.groups.retain([])
    replica.groups.begin_restore([0])
    replica.groups.restored([0])
    feed.committed(late, {Partition(SUM.state, 0): 9})
    assert replica.position(0).epoch == 1


def test_a_commit_that_is_told_of_late_leaves_a_deletion_that_was_applied_again() -> None:
    (name, *_) = names_in(0, 1)
    replica = hosted(GROUPS, SUM)
    feed = StateFeed(replica, "t")
    feed.begin(0, BEGUN, 0)
    feed.apply({0: [_sent(name, 0, 1)]})
    first = feed.begin_commit(generation=1, now_ms=1)
    assert first is not None
    feed.committed(first, {Partition(SUM.state, 0): 1})
    position = first.changes[0].marker.feed
    assert position is not None
    deletion = LoggedUpdate(1, 7, encode(UpdateRecord("s", 0, 1, 0, DELETE, 1, [name])))
    feed.apply({0: [deletion]})
    late = feed.begin_commit(generation=1, now_ms=1)
    assert late is not None
    feed.end([0])
    feed.begin(0, position, 0)
    feed.apply({0: [one for one in (_sent(name, 0, 1), deletion) if one.offset >= feed.reads_of(0)]})
    feed.committed(late, {Partition(SUM.state, 0): 3})
    assert list(feed.snapshot().items(0)) == []
    after = feed.begin_commit(generation=2, now_ms=1)
    assert after is not None
    assert [row for _, row in after.changes[0].changes] == [None], "the changelog has it with the next commit"


def test_a_key_group_whose_updates_can_not_be_applied_is_dropped_whole_and_the_others_count() -> None:
    (name, *_), (other, *_) = names_in(0, 1), names_in(1, 1)
    feed = StateFeed(hosted(GROUPS, SUM), "t")
    for of in GROUPS:
        feed.begin(of, BEGUN, 0)
    feed.apply({0: [_sent(name, 0, 1)]})
    bad = LoggedUpdate(0, 7, b"{}")
    counts = feed.apply({1: [bad, _sent(other, 1, 1)], 0: [_sent(name, 1, 1), _sent(name, 0, 1)]})
    assert [one.update for one in counts.refused[1]] == [bad]
    assert [(of, type(why)) for of, why in counts.failed.items()] == [(0, AssertionError)]
    assert (feed.key_groups, feed.next_of(1), feed.uncommitted) == ({1}, 2, 1)
