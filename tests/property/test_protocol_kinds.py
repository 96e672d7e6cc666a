"""The same machine as in test_protocol.py for maps, lists, aggregates, and for states whose entries expire.

What these are is said by models (tests/support/models.py). When an entry expires depends on when its key group took the
epoch, which its marker tells; so the models follow the markers.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from keyhole import field
from keyhole.changelog.base import Partition
from keyhole.changelog.records import MARKER_KEY, decode_marker
from keyhole.encoding.codec import EntryRange
from keyhole.encoding.envelope import Moment, deletion
from keyhole.encoding.key_codec import encode_integer, end_of_prefix
from keyhole.encoding.selected_entries import SelectedEntries
from keyhole.errors import EpochGone, EpochNotReached, NotOwner, NotReady
from keyhole.model.read import ReadBounds
from keyhole.model.selection import Selection
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, TtlClock
from keyhole.v1.state_pb2 import ROLE_OWNER, Source
from services.state_server.read.indexed_scans import IndexRule
from services.state_server.read.table import Table
from tests.property.test_protocol import NAMES, Protocol
from tests.support.examples import examples
from tests.support.models import Model, Rows, Shown, State, aggregated
from tests.support.simulated_watches import WatchedGroup
from tests.support.simulation import SimulatedServer
from tests.support.states import KEY_GROUPS, descriptor, row

BY_N = ("n",)
MAP_KEY = (KeyColumn("m", KeyType.INT),)
TTL_MS = 3000
AT_LEAST_TWO = field("n") >= 2.0
numbers = st.sampled_from([1.0, 2.0, 3.0])


class Written(NamedTuple):
    """An epoch in a key group: as of when, and the state after it."""

    epoch: int
    moment: Moment
    state: State


NEVER = Written(0, Moment(0, 0), {})


class KindsProtocol(Protocol):
    """Subclasses say which state, and what a batch does to a key."""

    standbys = 1

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(self.state)
        # By version of the fields.
        self.looks_up: dict[int, SelectedEntries] = {}
        # By key group: after each epoch that it was written in.
        self.written: dict[int, list[Written]] = {group: [] for group in range(KEY_GROUPS)}
        # When it was looked last, and up to which epoch by key group.
        self.looked_ms = self.world.clock.now_ms()
        self.looked_at = dict.fromkeys(range(KEY_GROUPS), 0)

    def batch(self, values: Mapping[str, object]) -> Rows:
        return {name: value for key, of in values.items() for name, value in self.rows(key, of)}

    def rows(self, key: str, of: object) -> Iterator[tuple[bytes, bytes | None]]:
        """What is staged of one key."""
        raise NotImplementedError

    def apply(self, before: Mapping[bytes, bytes], rows: Rows) -> Mapping[bytes, bytes]:
        return {}  # the models say what it is

    def attempt(self, plan: object) -> None:
        self.world.watermark_ms = self.watermark(self.done + 1)
        super().attempt(plan)  # type: ignore[arg-type]

    def watermark(self, epoch: int) -> int:
        return 1000 * epoch

    @rule(seconds=st.sampled_from([1, 2]))
    def the_clock_goes_on(self, seconds: int) -> None:
        self.world.clock.advance(seconds)

    # --- what must hold -------------------------------------------------------------------------------------------

    def take_note(self, group: int, epoch: int, moment: Moment) -> None:
        """Of a marker; they are still in the log when it is looked at next."""
        last = self.at(group, epoch)
        if last.epoch == epoch:
            assert last.moment == moment
            return
        self.nothing_is_missing(last, group, epoch - 1)
        state = self.model.apply(last.state, self.of_batch(epoch, group), epoch, moment)
        self.written[group].append(Written(epoch, moment, state))

    def at(self, group: int, epoch: int) -> Written:
        """The last epoch up to this one that the key group was written in."""
        return next((of for of in reversed(self.written[group]) if of.epoch <= epoch), NEVER)

    def nothing_is_missing(self, last: Written, group: int, epoch: int) -> None:
        """Whatever epochs came since the last one that was written have changed nothing that can be seen.

        Each is looked at once, as of when it came, or a moment before or after: what is remembered of a deletion, and
        kept a row out then, may be forgotten by now.
        """
        for number in range(max(last.epoch, self.looked_at[group]) + 1, epoch + 1):
            moments = [Moment(ms, self.watermark(number)) for ms in (self.looked_ms, self.world.clock.now_ms())]
            afters = [self.model.apply(last.state, self.of_batch(number, group), number, of) for of in moments]
            assert any(
                self.model.living(after, of) == self.model.living(last.state, of)
                for after, of in zip(afters, moments, strict=True)
            )
            self.looked_at[group] = number

    def of_batch(self, epoch: int, group: int) -> Rows:
        return {name: value for name, value in self.batches[epoch - 1].items() if name[:2] == group.to_bytes(2, "big")}

    @invariant()
    def the_changelog_is_the_epochs_one_after_the_other(self) -> None:
        kafka, topic = self.world.kafka, self.state.topic
        if kafka.topic_id(topic) is None:
            return
        for group in range(KEY_GROUPS):
            content: dict[bytes, bytes] = {}
            epochs = [0]
            for offset, name, value in kafka.records(topic, group, 0, kafka.end(topic, group)):
                if name == MARKER_KEY:
                    marker = decode_marker(value, Partition("counts", group), offset)
                    epochs.append(marker.stamp.epoch)
                    self.take_note(
                        group, marker.stamp.epoch, Moment(marker.stamp.commit_time_ms, marker.stamp.watermark_ms)
                    )
                elif value is None:
                    content.pop(name, None)
                else:
                    content[name] = value
            assert epochs == sorted(set(epochs)), "an epoch was written twice, or after a later one"
            last = self.at(group, len(self.batches))
            self.nothing_is_missing(last, group, self.done)
            self.model.check(content, last.state, last.moment)
        self.looked_ms = self.world.clock.now_ms()

    @invariant()
    def readers_see_whole_epochs_that_do_not_go_back(self) -> None:
        self.the_changelog_is_the_epochs_one_after_the_other()
        now_ms = self.world.clock.now_ms()
        for group in range(KEY_GROUPS):
            for as_of in (0, *range(max(1, self.done - 1), len(self.history))):
                for source, shown in self.scans(group, as_of):
                    now = Moment(now_ms, source.watermark_ms)
                    expected = self.model.shown(self.at(group, source.epoch).state, now)
                    assert as_of in (0, source.epoch)
                    assert self.without_positions(shown) == expected, f"not the whole of epoch {source.epoch}"

    def an_epoch_that_is_read_by_its_number_is_that_epoch(self) -> None:
        """See the reads of whole epochs: what the model knows is found out there."""

    def read_on(self, watched: WatchedGroup, server: SimulatedServer, most: int) -> None:
        """Of each key in the order of the epochs, each once; what they hold is for the reads of whole epochs."""
        for change in watched.read(self.world, server, most):
            assert change.epoch > watched.last.get(change.key, -1), f"told twice, or out of order: {change}"
            assert change.epoch <= len(self.batches), f"of no epoch: {change}"
            watched.take(change)

    def who_watches_has_all(self, watched: WatchedGroup) -> None:
        """What has expired it may still have."""

    def the_latest(self) -> None:
        """Key by key, by the names that its entries may have; the model says what the epoch would make of them now."""
        self.the_changelog_is_the_epochs_one_after_the_other()
        for group in range(KEY_GROUPS):
            keys = list(map(self.world.codec.prefix, NAMES[group]))
            names = [key + name for key in keys for name in self.names()]
            for table in [table for server in self.world.servers.values() for table in server.tables.values()]:
                with contextlib.suppress(NotOwner, NotReady):
                    answers = table.lookup(names, ReadBounds(latest=True))
                    (source,) = answers.sources
                    now = Moment(self.world.clock.now_ms(), source.watermark_ms)
                    state = self.at(group, source.epoch).state
                    if source.staged_epoch:
                        # As at the commit: what it writes, and what it leaves alone, expires by its own watermark.
                        now = now._replace(watermark_ms=self.watermark(source.staged_epoch))
                        rows = self.of_batch(source.staged_epoch, group)
                        state = self.model.apply(state, rows, source.staged_epoch, now)
                    read = iter(answers.rows)
                    found = {key: [(name, row) for name in self.names() if (row := next(read))] for key in keys}
                    shown = {key: tuple(entries) for key, entries in found.items() if entries}
                    assert self.without_positions(shown) == self.model.shown(state, now), (
                        f"not the latest of epoch {source.epoch}"
                    )

    def names(self) -> Sequence[bytes]:
        """By which the entries of a key are looked up, in their order."""
        return [b""]

    def scans(self, group: int, as_of: int = 0) -> Iterator[tuple[Source, Shown]]:
        """All that every copy of a key group shows."""
        for server in self.world.servers.values():
            for table in server.tables.values():
                with contextlib.suppress(NotOwner, NotReady, EpochGone, EpochNotReached):
                    found: dict[bytes, tuple[tuple[bytes, bytes], ...]] = {}
                    for key in map(self.world.codec.prefix, NAMES[group]):
                        scanned = table.scan(EntryRange(key, key, end_of_prefix(key)), ReadBounds(as_of=as_of))
                        found[key] = tuple((name[len(key) :], row) for name, row in scanned.entries if row is not None)
                        source = scanned.source
                        scanned.close()
                    if not as_of:
                        self.an_index_finds_what_is_there(table, group)
                    yield source, {key: entries for key, entries in found.items() if entries}

    def an_index_finds_what_is_there(self, table: Table, group: int) -> None:
        """Whatever was written, replayed, restored or followed: a scan finds by it what it finds without."""
        table.index_rule = IndexRule(1, 1000)
        within, found = table.codec.group_range(group), []
        looks_up = self.looks_up.setdefault(
            table.descriptor.value.version, SelectedEntries(table.descriptor, Selection(AT_LEAST_TWO))
        )
        for indexed in ((), looks_up.indexed):
            scanned = table.scan(within, indexed=indexed)
            entries = list(scanned.entries)
            found.append(looks_up.kept([(key, stored) for key, stored in entries if stored is not None]))
            scanned.close()
        assert found[0] == found[1]

    def without_positions(self, shown: Shown) -> Shown:
        if self.state.kind is not StateKind.LIST:
            return shown
        return {key: tuple((b"", value) for _, value in entries) for key, entries in shown.items()}

    def every_copy_answers_and_the_servers_share_evenly(self) -> None:
        owned: Counter[str] = Counter()
        for group in range(KEY_GROUPS):
            answers = list(self.scans(group))
            assert all(source.epoch == self.done for source, _ in answers)
            assert all(shown == answers[0][1] for _, shown in answers)
            (owner,) = (source.server for source, _ in answers if source.role == ROLE_OWNER)
            owned[owner] += 1
            assert len(answers) - 1 == min(self.standbys, len(self.servers) - 1)
        assert max(owned[name] for name in self.servers) - min(owned[name] for name in self.servers) <= 1


class MapProtocol(KindsProtocol):
    """Entries are put and deleted, and keys cleared."""

    state: StateDescriptor = descriptor(kind=StateKind.MAP, map_key=MAP_KEY, index=BY_N)
    values = st.tuples(st.booleans(), st.dictionaries(st.integers(0, 2), st.none() | numbers, max_size=3))  # type: ignore[assignment]

    def rows(self, key: str, of: tuple[bool, dict[int, float | None]]) -> Iterator[tuple[bytes, bytes | None]]:  # type: ignore[override]
        clears, entries = of
        prefix = self.world.codec.prefix(key)
        if clears:
            yield prefix, None
        for name, n in entries.items():
            yield prefix + encode_integer(name, 4), None if n is None else row(n)

    def names(self) -> Sequence[bytes]:
        return [encode_integer(name, 4) for name in range(3)]


class OrderedMapProtocol(KindsProtocol):
    """Entries, their deletions, and what clears keys have an order, and are remembered for a while."""

    state = descriptor(kind=StateKind.MAP, map_key=MAP_KEY, order_by="n", keep_deleted_ms=TTL_MS, index=BY_N)
    values = st.tuples(  # type: ignore[assignment]
        st.none() | numbers, st.dictionaries(st.integers(0, 2), st.tuples(st.booleans(), numbers), max_size=3)
    )

    def rows(self, key: str, of: tuple[float | None, dict[int, tuple[bool, float]]]) -> Iterator[tuple[bytes, bytes]]:  # type: ignore[override]
        clears, entries = of
        prefix = self.world.codec.prefix(key)
        if clears is not None:
            yield prefix, deletion(clears)
        for name, (deletes, n) in entries.items():
            yield prefix + encode_integer(name, 4), deletion(n) if deletes else row(n)

    def names(self) -> Sequence[bytes]:
        return [encode_integer(name, 4) for name in range(3)]


class ExpiringSumsProtocol(MapProtocol):
    """Sums by a map key, which begin anew where they have expired."""

    state = descriptor(kind=StateKind.REDUCING, reducers=("sum",), map_key=MAP_KEY, ttl_ms=TTL_MS, index=BY_N)
    servers = ("a", "b", "c")


class ListProtocol(KindsProtocol):
    """Elements are appended to lists, and lists replaced and cleared."""

    state = descriptor(kind=StateKind.LIST, max_length=3, index=BY_N)
    values = st.tuples(st.sampled_from([False, False, True]), st.lists(numbers, max_size=4))  # type: ignore[assignment]

    def rows(self, key: str, of: tuple[bool, list[float]]) -> Iterator[tuple[bytes, bytes | None]]:  # type: ignore[override]
        clears, elements = of
        prefix = self.world.codec.prefix(key)
        if clears:
            yield prefix, None
        for at, n in enumerate(elements):
            yield prefix + encode_integer(at, 8), row(n)

    def names(self) -> Sequence[bytes]:
        return [encode_integer(at, 8) for at in range(4 * len(self.batches) + 4)]


class ExpiringListProtocol(ListProtocol):
    """The same, and elements expire by the watermark."""

    state = descriptor(kind=StateKind.LIST, max_length=3, ttl_ms=TTL_MS, ttl_clock=TtlClock.EVENT_TIME, index=BY_N)


class ExpiringAggregatesProtocol(KindsProtocol):
    """Aggregates, by the clock."""

    state = descriptor(kind=StateKind.AGGREGATING, ttl_ms=TTL_MS, index=BY_N)
    values = st.none() | numbers

    def rows(self, key: str, of: float | None) -> Iterator[tuple[bytes, bytes | None]]:  # type: ignore[override]
        yield self.world.codec.prefix(key), None if of is None else aggregated(row(of), b"%d" % of)


_SETTINGS = settings(max_examples=examples(40), stateful_step_count=30)

TestMapProtocol = MapProtocol.TestCase
TestOrderedMapProtocol = OrderedMapProtocol.TestCase
TestExpiringSumsProtocol = ExpiringSumsProtocol.TestCase
TestListProtocol = ListProtocol.TestCase
TestExpiringListProtocol = ExpiringListProtocol.TestCase
TestExpiringAggregatesProtocol = ExpiringAggregatesProtocol.TestCase
TestMapProtocol.settings = TestOrderedMapProtocol.settings = TestExpiringSumsProtocol.settings = _SETTINGS
TestListProtocol.settings = TestExpiringListProtocol.settings = TestExpiringAggregatesProtocol.settings = _SETTINGS
