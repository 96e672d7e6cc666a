"""Each row of a source counts once in a key group, whatever drivers and owners die, and whatever Kafka refuses.

The world: a source whose rows belong to key groups, drivers that send them batch by batch (any number of them awake at
once, each in any order, with refusals), one updates log per key group, and owners that apply it, keep their position
now and then, and start again from there. An amount counted twice or never shows in a sum.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from keyhole.errors import ChangelogRecreated
from keyhole.protocol.seen import FeedPosition, HighestSeen, SeenPartition, SeenRows, SeenSegment, resumed
from keyhole.protocol.updates import (
    MAX_SUB,
    PUT,
    BoundaryRecord,
    EndRecord,
    FeedRules,
    Record,
    RulesRecord,
    SourceRow,
    UpdateRecord,
    decode,
    encode,
)
from tests.support.examples import examples
from tests.support.states import descriptor

SOURCE = "orders"
KEY_GROUPS = 2


def update(partition: int, offset: int, sub: int = 0, amount: int = 1, source: str = SOURCE) -> UpdateRecord:
    return UpdateRecord(source, partition, offset, sub, PUT, 1, ["k"], None, [amount])


@dataclass
class Driver:
    """One run of the job, in one batch: what it has read at its start, and what of it was not acknowledged yet."""

    start: dict[int, int]
    ends: dict[int, int]
    unsent: list[UpdateRecord]
    boundaries: list[tuple[int, BoundaryRecord]] = field(default_factory=list)


class Owner:
    """Applies one log. Its position and its sum are kept together, as one write of the changelog is."""

    def __init__(self, log: list[bytes]) -> None:
        self._log = log
        self._kept = (FeedPosition(), 0)
        self.start_again()

    def start_again(self) -> None:
        position, self.sum = self._kept
        self.next = position.next
        self.seen = SeenRows(position)
        self.seen.refill(decode(self._log[at]) for at in range(position.refill, position.next))

    def keep(self) -> None:
        self._kept = (self.seen.position(self.next), self.sum)

    def apply(self, most: int) -> None:
        for at in range(self.next, min(self.next + most, len(self._log))):
            record = decode(self._log[at])
            if isinstance(record, BoundaryRecord):
                self.seen.reach(record)
            elif self.seen.take(record.row, at):
                assert record.value is not None
                self.sum += record.value[0]
            self.next = at + 1

    def expected(self) -> int:
        """Of the distinct rows in what it has applied of its log."""
        rows = {}
        for value in self._log[: self.next]:
            if isinstance(record := decode(value), UpdateRecord):
                assert record.value is not None
                rows[record.row] = record.value[0]
        return sum(rows.values())


class RealTimeLane(RuleBasedStateMachine):
    """See the module's text."""

    @initialize(partitions=st.integers(1, 2))
    def begin(self, partitions: int) -> None:
        self.source: list[list[list[tuple[int, UpdateRecord]]]] = [[] for _ in range(partitions)]
        self.amount = 1
        self.logs: list[list[bytes]] = [[] for _ in range(KEY_GROUPS)]
        self.committed: dict[int, int] = {}
        self.drivers: list[Driver] = []
        self.owners = [Owner(log) for log in self.logs]

    @rule(where=st.integers(0, 9), groups=st.lists(st.integers(0, KEY_GROUPS - 1), max_size=2))
    def a_record_comes_to_the_source(self, where: int, groups: list[int]) -> None:
        partition = where % len(self.source)
        rows = []
        for sub, group in enumerate(groups):  # none: a filter drops it; two: it was exploded
            self.amount *= 2  # so that no two sums are alike
            rows.append((group, update(partition, len(self.source[partition]), sub, self.amount)))
        self.source[partition].append(rows)

    @rule()
    def the_source_gets_a_partition(self) -> None:
        if len(self.source) < 3:
            self.source.append([])

    @rule()
    def a_driver_starts(self) -> None:
        """Beside those that are there: they sleep, and may wake."""
        if len(self.drivers) < 3:
            self.drivers.append(self._batch())

    def _batch(self) -> Driver:
        start = dict(self.committed)
        ends = {partition: len(records) for partition, records in enumerate(self.source)}
        unsent = [
            (partition, offset) for partition, end in ends.items() for offset in range(start.get(partition, 0), end)
        ]
        rows = [row for partition, offset in unsent for _, row in self.source[partition][offset]]
        return Driver(start, ends, rows)

    def _group(self, row: UpdateRecord) -> int:
        return next(group for group, one in self.source[row.partition][row.offset] if one is row)

    @rule(which=st.integers(0, 9), choices=st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=6))
    def a_driver_sends(self, which: int, choices: list[tuple[int, bool]]) -> None:
        """In any order, which is more than Spark does; what is refused stays unsent, and later ones pass."""
        if self.drivers:
            driver = self.drivers[which % len(self.drivers)]
            for index, acknowledged in choices:
                if driver.unsent:
                    row = driver.unsent[index % len(driver.unsent)]
                    self.logs[self._group(row)].append(encode(row))
                    if acknowledged:  # else it is in the log, and its driver doesn't know
                        driver.unsent.remove(row)

    @rule(which=st.integers(0, 9))
    def a_driver_commits_its_batch(self, which: int) -> None:
        """Where all was acknowledged. One that had slept may set the offset log back."""
        if self.drivers:
            driver = self.drivers[which % len(self.drivers)]
            if not driver.unsent:
                self.committed = dict(driver.ends)
                boundary = BoundaryRecord(SOURCE, 0, driver.ends)
                kept = driver.boundaries + [(group, boundary) for group in range(KEY_GROUPS)]
                self.drivers[self.drivers.index(driver)] = after = self._batch()
                after.boundaries = kept

    @rule(which=st.integers(0, 9), choice=st.integers(0, 9))
    def a_driver_writes_a_boundary(self, which: int, choice: int) -> None:
        """At any time after, or never; behind rows of the next batch, too."""
        if self.drivers and (driver := self.drivers[which % len(self.drivers)]).boundaries:
            group, boundary = driver.boundaries.pop(choice % len(driver.boundaries))
            self.logs[group].append(encode(boundary))

    @rule(which=st.integers(0, 9))
    def a_driver_is_killed(self, which: int) -> None:
        if self.drivers:
            self.drivers.pop(which % len(self.drivers))

    @rule(group=st.integers(0, KEY_GROUPS - 1), most=st.integers(1, 5))
    def an_owner_applies(self, group: int, most: int) -> None:
        self.owners[group].apply(most)

    @rule(group=st.integers(0, KEY_GROUPS - 1))
    def an_owner_keeps_its_position(self, group: int) -> None:
        self.owners[group].keep()

    @rule(group=st.integers(0, KEY_GROUPS - 1))
    def an_owner_is_killed(self, group: int) -> None:
        """Whoever follows starts from what was kept."""
        self.owners[group].start_again()

    @invariant()
    def each_row_that_was_applied_counts_once(self) -> None:
        for owner in getattr(self, "owners", []):
            assert owner.sum == owner.expected()

    def teardown(self) -> None:
        """A last driver sends all, and all is applied."""
        if not hasattr(self, "owners"):
            return
        for row in self._batch().unsent:
            self.logs[self._group(row)].append(encode(row))
        total = [0] * KEY_GROUPS
        for records in self.source:
            for group, row in (pair for rows in records for pair in rows):
                assert row.value is not None
                total[group] += row.value[0]
        for owner in self.owners:
            owner.apply(len(self.logs[0]) + len(self.logs[1]))
        assert [owner.sum for owner in self.owners] == total


SETTINGS = settings(max_examples=examples(200), stateful_step_count=40, deadline=None)
RealTimeLane.TestCase.settings = SETTINGS
TestRealTimeLane = RealTimeLane.TestCase


class HighestOnly(SeenRows):
    """What was thought of first: what is below the highest row of its partition is a repetition."""

    def __init__(self, position: FeedPosition | None = None) -> None:
        super().__init__(position)
        self._highest: dict[tuple[str, int], tuple[int, int]] = {}

    def take(self, row: SourceRow, at: int) -> bool:
        name, number = (row.source, row.partition), (row.offset, row.sub)
        if number <= self._highest.get(name, (-1, -1)):
            return False
        self._highest[name] = number
        return True


class RefilledFromTheLastBoundary(SeenRows):
    """What was thought of next: what stands before the last boundary in the log is forgotten by it."""

    def refill(self, records: Iterable[Record]) -> None:
        rows = list(records)
        last = max((at for at, record in enumerate(rows) if isinstance(record, BoundaryRecord)), default=0)
        super().refill(rows[last:])


class ForgetsAtItsStart(SeenRows):
    """A planted bug: nothing is read again."""

    def refill(self, records: Iterable[Record]) -> None:
        pass


class ForgetsWithoutFloor(SeenRows):
    """A planted bug: a boundary drops what is below it, and whoever wakes late is believed."""

    def reach(self, boundary: BoundaryRecord) -> None:
        super().reach(boundary)
        for seen in self._partitions.values():
            seen.floor = 0


def _applied(rule: type[SeenRows], log: list[Record], killed_at: int) -> list[int]:
    """The offsets of the source whose rows count, where the owner keeps its position at `killed_at` and is killed."""
    counted = []
    seen = rule()
    for at, record in enumerate(log):
        if at == killed_at:
            position = seen.position(at)
            seen = rule(position)
            seen.refill(log[position.refill : position.next])
        if isinstance(record, BoundaryRecord):
            seen.reach(record)
        elif seen.take(record.row, at):
            counted.append(record.offset)
    return counted


@pytest.mark.parametrize(
    ("log", "killed_at", "wrong"),
    [
        pytest.param([0, 2, 0, 1, 2], -1, HighestOnly, id="kafka_refuses_1_and_takes_2_and_the_batch_is_sent_again"),
        pytest.param([0, 1, 1], 2, ForgetsAtItsStart, id="the_owner_and_the_driver_are_killed"),
        pytest.param([0, 1, "ends at 1", 1], 3, RefilledFromTheLastBoundary, id="a_boundary_behind_rows_of_the_next"),
        pytest.param([0, "ends at 1", 0, 1], -1, ForgetsWithoutFloor, id="a_task_that_has_slept_sends_what_it_had"),
    ],
)
def test_a_simpler_rule_counts_a_row_twice_or_never(
    log: list[int | str], killed_at: int, wrong: type[SeenRows]
) -> None:
    ends = BoundaryRecord(SOURCE, 0, {0: 1})
    records: list[Record] = [update(0, one) if isinstance(one, int) else ends for one in log]
    once = sorted({one for one in log if isinstance(one, int)})
    assert sorted(_applied(SeenRows, records, killed_at)) == once
    assert sorted(_applied(wrong, records, killed_at)) != once


def test_a_row_is_known_by_source_partition_offset_and_sub() -> None:
    seen = SeenRows()
    rows = [
        SourceRow(source, partition, offset, sub)
        for source in "ab"
        for partition in (0, 1)
        for offset in (0, 1)
        for sub in (0, MAX_SUB)
    ]
    assert [seen.take(row, at) for at, row in enumerate(rows)] == [True] * 16
    assert [seen.take(row, at) for at, row in enumerate(rows, 16)] == [False] * 16


def test_a_position_names_where_the_oldest_rows_above_the_floors_were_seen() -> None:
    seen = SeenRows()
    for at, offset in enumerate([4, 2, 3], 10):
        seen.take(SourceRow("a", 0, offset, 0), at)
    segments = (SeenSegment(10, 0),)
    highest = [HighestSeen(10, 4, 0)]
    assert seen.position(13) == FeedPosition(
        next=13, refill=10, segments=segments, seen={"a": {0: SeenPartition(0, 0, 0, highest)}}
    )
    seen.reach(BoundaryRecord("a", 0, {0: 3, 7: 100}))
    assert seen.position(14) == FeedPosition(
        next=14,
        refill=10,
        segments=segments,
        seen={"a": {0: SeenPartition(3, 0, 0, highest), 7: SeenPartition(100, 0, 0, [])}},
    )
    seen.reach(BoundaryRecord("a", 0, {0: 5}))
    assert (seen.position(15).refill, seen.remembered) == (15, 0)
    seen.reach(BoundaryRecord("a", 0, {0: 4}))  # of a driver that had slept
    assert seen.position(16).seen["a"][0] == (5, 0, 0, [])


@pytest.mark.parametrize(
    ("position", "start", "why"),
    [
        (FeedPosition("other", next=5, refill=5), 0, "made anew"),
        (FeedPosition(), 1, "updates from offset 0 on are needed, and the topic begins at 1: .*keyhole drop"),
        (FeedPosition("t", next=9, refill=4), 10, "updates from offset 9 on are needed"),
    ],
)
def test_updates_that_are_gone_are_not_passed_over(position: FeedPosition, start: int, why: str) -> None:
    with pytest.raises(ChangelogRecreated, match=why):
        resumed(position, "t", start)


def test_a_position_goes_on_in_its_topic_from_what_it_needs() -> None:
    for position, start in [(FeedPosition(), 0), (FeedPosition("t", next=9, refill=4), 4)]:
        assert resumed(position, "t", start) is position


def test_a_producer_may_stop_for_longer_than_its_updates_are_kept() -> None:
    """All was applied and committed; no boundary came after the last rows, and no record by which time passes."""
    seen = limited(rows_for_ms=100)
    for at, (source, offset, time_ms) in enumerate([("a", 5, 10), ("a", 3, 10), ("b", 7, 20), ("a", 9, 200)]):
        seen.pass_time(time_ms)
        seen.take(SourceRow(source, 0, offset, 1), at)
    position = seen.position(4, rules=RulesRecord(1, FeedRules(rows_for_ms=100)))
    assert position.refill == 3, "those before are old by the log"
    after = resumed(position, "", 4)
    assert (after.refill, after.next) == (4, 4)
    again = SeenRows(after)
    known = [(source, offset) for source in "ab" for offset in range(11) if not again.take(_first(source, offset), 5)]
    assert known == [("a", offset) for offset in range(10)] + [("b", offset) for offset in range(8)]
    assert resumed(position, "", 3) is position


def _first(source: str, offset: int) -> SourceRow:
    return SourceRow(source, 0, offset, 1)


def limited(**limits: int) -> SeenRows:
    seen = SeenRows()
    seen.limit(FeedRules(**limits))
    return seen


BLOCK = 1024


def test_without_boundaries_memory_is_bounded_and_what_is_given_up_counts_as_seen() -> None:
    seen = limited(most_blocks=10)
    for at, offset in enumerate(range(0, 11 * BLOCK, BLOCK // 2)):
        assert seen.take(SourceRow("a", 0, offset, 0), at)
    assert (seen.remembered, seen.assumed) == (6, 10)
    assert not seen.take(SourceRow("a", 0, 7, 0), 30), "it was not sent, and can't be told from one that was"
    assert seen.take(SourceRow("a", 0, 5 * BLOCK + 1, 0), 31)
    assert not seen.take(SourceRow("a", 0, 10 * BLOCK, 0), 32)
    again = SeenRows(seen.position(33))
    assert not again.take(SourceRow("a", 0, 7, 0), 33)


@pytest.mark.parametrize("key_groups", [1, 64])
def test_at_the_rates_that_are_promised_a_batch_without_a_boundary_is_remembered(key_groups: int) -> None:
    """100,000 rows a second of one partition, for 60 s; a key group gets one of so many."""
    of = FeedRules.of(descriptor(key_groups=key_groups))
    rows = 100_000 * 60
    assert -(-rows // BLOCK) < of.most_blocks
    seen = SeenRows()
    seen.limit(of)
    for at, offset in enumerate(range(0, rows // 40, key_groups)):
        if offset != 5 * key_groups:
            seen.take(SourceRow("a", 0, offset, 0), at)
    assert (seen.assumed, seen.remembered) == (0, -(-(rows // 40) // BLOCK))
    assert seen.take(SourceRow("a", 0, 5 * key_groups, 0), rows), "Kafka had refused it"


def test_what_was_restored_is_bounded_by_the_rules_in_force() -> None:
    seen = SeenRows(limited().position(0, rules=RulesRecord(1, FeedRules(most_blocks=10, rows_for_ms=100))))
    seen.pass_time(1)
    for offset in range(20):
        seen.take(SourceRow("a", 0, offset * BLOCK, 0), offset)
    assert 5 <= seen.remembered <= 10
    seen.pass_time(101)
    assert seen.remembered == 0


def test_all_sources_of_a_key_group_share_the_room_and_the_largest_makes_it() -> None:
    seen = limited(most_blocks=10)
    for at in range(60):
        seen.take(SourceRow("abc"[at % 3 if at % 2 else 0], at % 4, at * BLOCK, 0), at)
        assert seen.remembered <= 10
    assert seen.assumed + seen.remembered == 60


def test_numbers_that_are_old_by_the_log_hold_nothing_back() -> None:
    seen = limited(rows_for_ms=100)
    for at, (source, offset, time_ms) in enumerate([("gone", 5, 10), ("gone", 3, 20), ("a", 0, 30), ("gone", 4, 60)]):
        seen.pass_time(time_ms)
        assert seen.take(SourceRow(source, 0, offset, 0), at)
    seen.pass_time(109)
    assert seen.position(4).refill == 0
    seen.pass_time(110)
    # With 5, and all below it; what comes above it is new.
    assert seen.position(4).seen["gone"] == {0: SeenPartition(5, 1, 60, [])}
    assert (seen.position(4).refill, seen.assumed) == (2, 3)
    assert [seen.take(SourceRow("gone", 0, offset, 0), 9) for offset in (2, 3, 5, 6)] == [False] * 3 + [True]


def test_producers_that_died_without_an_end_are_forgotten_where_they_are_many() -> None:
    seen = limited(rows_for_ms=100)
    for at in range(1_500):
        seen.pass_time(at)
        seen.take(SourceRow(f"producer-{at}", 0, 7, 0), at)
    seen.pass_time(1_501)
    position = seen.position(1_500)
    assert len(position.seen) == 1_000
    assert (min(position.seen), "producer-499" in position.seen, "producer-500" in position.seen) == (
        "producer-1000",
        False,
        True,
    )
    few = limited(rows_for_ms=100)
    few.take(SourceRow("a", 0, 7, 0), 0)
    few.pass_time(10**9)
    assert not few.take(SourceRow("a", 0, 7, 0), 1), "of a few it is remembered for ever"


def test_an_end_forgets_a_source_and_holds_nothing_back() -> None:
    seen = limited(rows_for_ms=100)
    seen.pass_time(10)
    for at in range(4):
        seen.take(SourceRow("over", at % 2, at, 0), at)
    seen.take(SourceRow("a", 0, 0, 0), 4)
    seen.reach(BoundaryRecord("over", 0, {0: 1}))
    seen.pass_time(20)
    seen.end("over")
    position = seen.position(6)
    assert (list(position.seen), position.ended) == (["a"], {"over": 20})
    late = [SourceRow("over", 0, 0, 0), SourceRow("over", 1, 3, 0), SourceRow("over", 7, 0, 0)]
    again = SeenRows(position)
    for one in (seen, again):
        one.pass_time(30)
        assert [one.take(row, 6) for row in late] == [False] * 3
        one.reach(BoundaryRecord("over", 1, {0: 5}))
        assert one.position(7).ended == {"over": 30}, "when it was heard of last"
    seen.pass_time(129)
    assert seen.position(7).ended == {"over": 30}
    seen.pass_time(130)
    assert seen.position(7).ended == {}


def test_a_segment_stays_open_over_a_restart_though_a_boundary_has_passed_all_that_was_seen_in_it() -> None:
    """Else the next row would be given up later after a restart than without one."""
    seen = limited(rows_for_ms=1_000)
    seen.pass_time(1)
    seen.take(SourceRow("a", 0, 0, 0), 10)
    seen.reach(BoundaryRecord("a", 0, {0: 5}))
    again = SeenRows(seen.position(12))
    for one in (seen, again):
        one.pass_time(2)
        assert one.take(SourceRow("a", 0, 7, 0), 12)
    assert again.position(13) == seen.position(13)
    assert seen.position(13).segments == ((10, 1),)


@pytest.mark.parametrize("killed", range(9))
def test_rows_that_were_passed_over_behind_an_end_are_not_read_again_as_seen(killed: int) -> None:
    """The source comes back once its end is forgotten."""
    row, other = SourceRow("x", 0, 5, 0), SourceRow("x", 0, 9, 0)
    log: list[tuple[int, Logged]] = [
        (1, RulesRecord(1, FeedRules(rows_for_ms=100))),
        (1, EndRecord("x")),
        (90, SourceRow("y", 0, 0, 0)),
        (95, row),
        (150, SourceRow("y", 0, 1, 0)),
        (151, other),
        (152, row),
        (252, row),
        (253, row),
    ]
    once, owner = _Applies(log), _Applies(log)
    once.apply(len(log))
    owner.taken = dict(once.taken)
    owner.apply(killed)
    owner.start_again(owner.position(), 0)
    owner.apply(len(log))
    assert [at for at, taken in once.taken.items() if taken] == [2, 4, 7]


OFFSETS = st.sampled_from([0, 1, 2, 3, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 9 * BLOCK])
ROWS = st.builds(SourceRow, st.sampled_from("abc"), st.integers(0, 1), OFFSETS, st.integers(0, 1))
BOUNDARIES = st.builds(BoundaryRecord, st.sampled_from("abc"), st.just(0), st.dictionaries(st.integers(0, 1), OFFSETS))
ENDS = st.builds(EndRecord, st.sampled_from("abc"))
LONGEST, KEPT = 10, 30
Logged = SourceRow | BoundaryRecord | EndRecord | RulesRecord


class _Applies:
    """What an owner does with a log, all of it in memory."""

    def __init__(self, log: list[tuple[int, Logged]]) -> None:
        self._log = log
        self.seen, self.rules, self.next = SeenRows(), RulesRecord(1, FeedRules()), 0
        self.taken: dict[int, bool] = {}

    def position(self) -> FeedPosition:
        return self.seen.position(self.next, rules=self.rules)

    def start_again(self, position: FeedPosition, start: int) -> None:
        position = resumed(position, "", start)
        assert position.rules is not None
        self.seen, self.rules, self.next = SeenRows(position), position.rules, position.next
        rows = (row for _, row in self._log[position.refill : position.next])
        self.seen.refill(update(*row[1:3], row[3], row[2], row[0]) for row in rows if isinstance(row, SourceRow))

    def apply(self, end: int) -> None:
        for at in range(self.next, end):
            time_ms, record = self._log[at]
            self.seen.pass_time(time_ms)
            if isinstance(record, SourceRow):
                taken = self.seen.take(record, at)
                assert self.taken.setdefault(at, taken) is taken, f"{at} again: {record}"
            elif isinstance(record, BoundaryRecord):
                self.seen.reach(record)
            elif isinstance(record, EndRecord):
                self.seen.end(record.source)
            else:
                self.rules = record
                self.seen.limit(record.rules)
            self.next = at + 1


def _random_log(chance: random.Random) -> list[tuple[int, Logged]]:
    """Few sources, so that they end and come back, and are silent for long."""
    log: list[tuple[int, Logged]] = []
    sources = "abc"[: chance.randint(1, 3)]
    gaps = chance.choice([[0, 1], [0, 0, 1, 3, 12], [0, 0, 0, 5, 50]])
    rows, others = chance.randint(4, 12), chance.choice([[1, 2, 1], [1, 0, 0], [0, 1, 0], [1, 1, 0]])
    offsets = [0, 1, 2, 3, BLOCK, BLOCK + 1, 9 * BLOCK]
    for _ in range(40):
        source, partition = chance.choice(sources), chance.randint(0, 1)
        (kind,) = chance.choices(["row", "boundary", "end", "rules"], [rows, *others])
        record: Logged = SourceRow(source, partition, chance.choice(offsets), chance.randint(0, 1))
        if kind == "boundary":
            record = BoundaryRecord(source, 0, {partition: chance.choice(offsets)})
        elif kind == "end":
            record = EndRecord(source)
        elif kind == "rules":
            record = RulesRecord(
                1, FeedRules(most_blocks=chance.randint(1, 8), rows_for_ms=chance.randint(LONGEST // 2, LONGEST))
            )
        log.append((chance.choice(gaps) + (log[-1][0] if log else 1), record))
    return log


@settings(max_examples=examples(1000), deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_what_is_taken_depends_on_the_log_alone_whatever_is_forgotten_and_deleted(seed: int) -> None:
    """Sources end and come back, rules change, and what is older than `KEPT` is deleted from the log."""
    chance = random.Random(seed)
    log = _random_log(chance)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("keyhole.protocol.seen._SEGMENT", chance.randint(1, 4))
        patched.setattr("keyhole.protocol.seen._MOST_FLOORS", chance.randint(1, 4))
        once, owner = _Applies(log), _Applies(log)
        for one in (once, owner):
            one.rules = RulesRecord(1, FeedRules(rows_for_ms=LONGEST))
            one.seen.limit(one.rules.rules)
        once.apply(len(log))
        owner.taken = dict(once.taken)
        for _ in range(6):
            owner.apply(min(owner.next + chance.randint(0, 12), len(log) - 1))
            position = owner.position()
            owner.apply(min(owner.next + chance.randint(0, 5), len(log) - 1))
            # The next one starts at once, or just before the next record comes.
            now = log[max(owner.next - chance.randint(0, 1), 0)][0]
            start = next((at for at, (time_ms, _) in enumerate(log) if time_ms > now - KEPT), 0)
            if now - log[position.next][0] > KEPT - LONGEST:
                continue  # away for longer than that: what was seen is known by its highest number only
            owner.start_again(position, start)
        owner.apply(len(log))
        assert owner.position() == once.position()


@settings(max_examples=examples(100), deadline=None)
@given(log=st.lists(st.one_of(ROWS, ROWS, BOUNDARIES), max_size=60), kill=st.integers(0, 60))
def test_rows_are_remembered_as_a_set_of_numbers_would(log: list[Logged], kill: int) -> None:
    owner = _Applies([(1, record) for record in log])
    owner.apply(min(kill, len(log)))
    owner.start_again(owner.position(), 0)
    owner.apply(len(log))
    numbers: set[SourceRow] = set()
    floors: dict[tuple[str, int], int] = {}
    for at, record in enumerate(log):
        if isinstance(record, SourceRow):
            is_new = record not in numbers and record.offset >= floors.get(record[:2], 0)
            assert owner.taken[at] is is_new
            numbers.add(record)
        elif isinstance(record, BoundaryRecord):
            for partition, end in record.ends.items():
                name = record.source, partition
                floors[name] = max(end, floors.get(name, 0))
