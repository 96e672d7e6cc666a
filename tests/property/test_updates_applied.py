"""What updates come to depends on their log alone: not on how it is cut into polls, on commits, or on who was killed.

Each kind of state against a model that knows nothing of merging; the owner commits and dies anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.envelope import Moment, lifetime
from keyhole.encoding.storage_key import group_of
from keyhole.errors import (
    KeyholeError,
    KeyMismatch,
    KeyTooLong,
    MalformedRequest,
    NullKey,
    StaleDescriptor,
    TooLarge,
    Unsupported,
    ValueMismatch,
)
from keyhole.model.epoch import START, Position
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, TtlClock, ValueField, ValueSchema
from keyhole.protocol.seen import FeedPosition
from keyhole.protocol.updates import (
    DELETE,
    PUT,
    BoundaryRecord,
    FeedRules,
    LoggedUpdate,
    Record,
    RulesRecord,
    SourceRow,
    UpdateRecord,
    decode,
    encode,
)
from keyhole.stores.base import Advance, Batch
from keyhole.stores.memory import MemoryEngine
from keyhole.stores.overlay import Overlay, OverlaySnapshot
from services.state_server.write.group_feed import AppliedUpdates, GroupFeed, UpdateLimits
from services.state_server.write.update_reader import UpdateReader
from tests.support.states import descriptor

LIMITS = UpdateLimits(key_bytes=100, row_bytes=200)
N = ValueSchema(1, (ValueField("n", "bigint"),))
ORDERED = ValueSchema(1, (ValueField("n", "bigint"), ValueField("at", "bigint")))
MAP_KEY = (KeyColumn("m", KeyType.INT),)
KEYS, MAP_KEYS = ["a", "b"], [1, 2]

Entries = dict[tuple[Any, ...], tuple[Any, ...]]


def rules_of(of: StateDescriptor, generation: int = 1) -> RulesRecord:
    return RulesRecord(generation, FeedRules.of(of))


class Owner:
    """Applies the log of one key group; its changelog is `kept`."""

    def __init__(self, of: StateDescriptor) -> None:
        self.of = of
        self._store = MemoryEngine().open("app", of.state, "topic")
        self._kept = FeedPosition(rules=rules_of(of))
        self._log: list[LoggedUpdate] = []
        self.start_again()

    def start_again(self) -> None:
        position = self._kept
        self.overlay = Overlay()
        self.feed = GroupFeed(self.of, 0, position, "t", LIMITS)

    def apply(self, log: list[LoggedUpdate], end: int) -> AppliedUpdates:
        self._log = log
        snapshot = self._store.snapshot()
        done = self.feed.apply(log[self.feed.reads : end], snapshot, self.overlay)
        snapshot.close()
        self.overlay = done.overlay
        return done

    def commit(self) -> None:
        snapshot = self._store.snapshot()
        before = snapshot.positions().get(0, START)
        snapshot.close()
        snapshot = self._store.snapshot()
        self.overlay = self.feed.sweep(snapshot, self.overlay, entries=8)
        snapshot.close()
        changes = self.overlay.of(0)
        puts = [(key, row) for key, row in changes if row is not None]
        after = Position(before.offset + 1, self.feed.next, 1, 0)
        self._store.apply(Batch(puts, [key for key, row in changes if row is None], {0: Advance(before, after)}))
        self._kept = self.feed.position()
        self.overlay = self.overlay.without(self.overlay, [0])

    def living(self) -> list[tuple[bytes, bytes]]:
        """What has not expired by the log."""
        lives = lifetime(self.of)
        assert lives is not None
        expired = lives.expired(Moment(max(1, self.feed.time_ms), 0))
        return [entry for entry in self.entries() if lives.stamp_of(entry[1]) > expired]

    def entries(self) -> list[tuple[bytes, bytes]]:
        return list(OverlaySnapshot(self._store.snapshot(), self.overlay).items(0))


def _value(entries: Entries, record: UpdateRecord) -> None:
    if record.operation == DELETE:
        entries.pop(tuple(record.key), None)
    else:
        entries[tuple(record.key)] = tuple(record.value or ())


def _map(entries: Entries, record: UpdateRecord) -> None:
    if record.operation == DELETE and record.map_key is None:
        for name in [name for name in entries if name[0] == record.key[0]]:
            del entries[name]
        return
    name = (*record.key, *(record.map_key or ()))
    if record.operation == DELETE:
        entries.pop(name, None)
    else:
        entries[name] = tuple(record.value or ())


def _sum(entries: Entries, record: UpdateRecord) -> None:
    name = tuple(record.key)
    if record.operation == DELETE:
        entries.pop(name, None)
    else:
        assert record.value is not None
        entries[name] = (entries.get(name, (0,))[0] + record.value[0],)


def _list(entries: Entries, record: UpdateRecord) -> None:
    held = [name for name in sorted(entries) if name[0] == record.key[0]]
    if record.operation == DELETE:
        for name in held:
            del entries[name]
        return
    position = held[-1][1] + 1 if held else 0
    entries[record.key[0], position] = tuple(record.value or ())
    for name in [*held, (record.key[0], position)][:-3]:
        del entries[name]


@dataclass(frozen=True)
class Kind:
    of: StateDescriptor
    model: Callable[[Entries, UpdateRecord], None]
    has_map_key: bool = False


KINDS = {
    "value": Kind(descriptor(key_groups=1, value=N), _value),
    "broadcast": Kind(descriptor(key_groups=1, value=N, kind=StateKind.BROADCAST), _value),
    "map": Kind(descriptor(key_groups=1, value=N, kind=StateKind.MAP, map_key=MAP_KEY), _map, has_map_key=True),
    "sum": Kind(descriptor(key_groups=1, value=N, kind=StateKind.REDUCING, reducers=("sum",)), _sum),
    "list": Kind(descriptor(key_groups=1, value=N, kind=StateKind.LIST, max_length=3), _list),
}


@st.composite
def logs(
    draw: st.DrawFn,
    has_map_key: bool,
    value: st.SearchStrategy[list[Any]],
    deletion: st.SearchStrategy[list[Any] | None],
    rules: Sequence[FeedRules] = (),
) -> list[LoggedUpdate]:
    """Updates of one source, some repeated, boundaries that hold, rules that change, a clock that jumps."""
    records: list[Record] = []
    sent = 0
    for _ in range(draw(st.integers(0, 14))):
        match draw(st.integers(0, 9)):
            case 0:
                records.append(BoundaryRecord("s", 0, {0: sent}))
            case 1 | 2 if sent:
                again = draw(st.integers(0, sent - 1))
                records.append(next(one for one in records if isinstance(one, UpdateRecord) and one.offset == again))
            case 3 if rules:
                records.append(RulesRecord(2 + len(records), draw(st.sampled_from(rules))))
            case _:
                operation = DELETE if draw(st.integers(0, 4)) == 0 else PUT
                needs_map = has_map_key and (operation == PUT or draw(st.booleans()))
                map_key = [draw(st.sampled_from(MAP_KEYS))] if needs_map else None
                row = draw(value if operation == PUT else deletion)
                records.append(UpdateRecord("s", 0, sent, 0, operation, 1, [draw(st.sampled_from(KEYS))], map_key, row))
                sent += 1
    times = st.integers(0, 40)
    return [LoggedUpdate(at, draw(times), encode(record)) for at, record in enumerate(records)]


CUTS = st.lists(st.one_of(st.integers(1, 4), st.sampled_from(["commit", "kill"])), max_size=20)


def _run(of: StateDescriptor, log: list[LoggedUpdate], cuts: list[int | str]) -> Owner:
    owner = Owner(of)
    for cut in cuts:
        if cut == "commit":
            owner.commit()
        elif cut == "kill":
            owner.start_again()
        elif isinstance(cut, int):
            owner.apply(log, min(owner.feed.next + cut, len(log)))
    owner.apply(log, len(log))
    return owner


@pytest.mark.parametrize("name", KINDS)
@settings(deadline=None)
@given(data=st.data())
def test_updates_come_to_what_a_model_says_wherever_owners_commit_and_die(name: str, data: st.DataObject) -> None:
    kind = KINDS[name]
    log = data.draw(logs(kind.has_map_key, st.tuples(st.integers(-5, 5)).map(list), st.none()))
    codec, model = StateCodec(kind.of), Entries()
    seen: set[SourceRow] = set()
    for update in log:
        record = decode(update.value)
        if isinstance(record, UpdateRecord) and record.row not in seen:
            seen.add(record.row)
            kind.model(model, record)
    rows = {}
    for key, row in _run(kind.of, log, data.draw(CUTS)).entries():
        whole = (codec.key(key), ()) if not kind.of.entry_key else codec.entry(key)
        if kind.of.kind is StateKind.BROADCAST:
            whole = (codec.entries.decode(key[2:]), ())
        rows[whole[0] + whole[1]] = tuple(codec.decode_row(row).asdict().values())
    assert rows == model


EXPIRING = {
    "value": descriptor(key_groups=1, value=N, ttl_ms=10),
    "sum": descriptor(key_groups=1, value=N, kind=StateKind.REDUCING, reducers=("sum",), ttl_ms=10),
    "list": descriptor(key_groups=1, value=N, kind=StateKind.LIST, ttl_ms=10, max_length=3),
    "map": descriptor(key_groups=1, value=N, kind=StateKind.MAP, map_key=MAP_KEY, ttl_ms=10),
    "deletions": descriptor(key_groups=1, value=ORDERED, order_by="at", keep_deleted_ms=10),
    "deletions_of_a_map": descriptor(
        key_groups=1, value=ORDERED, kind=StateKind.MAP, map_key=MAP_KEY, order_by="at", keep_deleted_ms=10, ttl_ms=15
    ),
}


@pytest.mark.parametrize("name", EXPIRING)
@settings(deadline=None)
@given(data=st.data())
def test_what_expires_goes_by_the_log_s_timestamps_whoever_applies_and_removes_it(
    name: str, data: st.DataObject
) -> None:
    of = EXPIRING[name]
    orders, numbers = st.integers(0, 9), st.integers(-5, 5)
    value = st.tuples(numbers, orders).map(list) if of.order_by else st.tuples(numbers).map(list)
    deletion = st.tuples(orders).map(list) if of.order_by else st.none()
    # One that fits the state in each: what changes is how long, and how many.
    shorter = FeedRules(
        of.ttl_ms and 3, of.max_length and 1, of.keep_deleted_ms and 4, 2, rows_for_ms=5, reducers=of.reducers
    )
    longer = FeedRules(of.ttl_ms and 30, of.max_length and 9, of.keep_deleted_ms and 40, reducers=of.reducers)
    log = data.draw(logs(bool(of.map_key), value, deletion, [shorter, longer]))
    once = _run(of, log, [])
    owner = _run(of, log, data.draw(CUTS))
    assert owner.living() == once.living()
    assert (owner.feed.time_ms, owner.feed.next) == (once.feed.time_ms, once.feed.next)
    owner.commit()
    owner.commit()
    living = dict(owner.living())
    left = [key for key, _ in owner.entries() if key not in living]
    if of.kind is not StateKind.LIST:
        assert left == [], "after two rounds nothing is there that has expired"
    # The last element of a list stays as long as another one lives: the next one's position is counted from it.
    for key in left:
        assert max(other for other, _ in owner.entries() if other[:-8] == key[:-8]) == key
        assert any(other[:-8] == key[:-8] for other in living)


def test_a_sum_begins_anew_where_the_stored_one_has_expired_by_the_log() -> None:
    of = EXPIRING["sum"]
    log = [
        LoggedUpdate(at, time, encode(UpdateRecord("s", 0, at, 0, PUT, 1, ["a"], None, [1])))
        for at, time in enumerate([100, 109, 105, 130, 120])
    ]
    owner, codec, sums = Owner(of), StateCodec(of), []
    for end in range(1, 6):
        owner.apply(log, end)
        ((_, entry),) = owner.entries()
        sums.append(codec.decode_row(entry[8:])["n"])
    # A timestamp that goes back counts as the latest one: the log's time never does.
    assert (sums, owner.feed.time_ms) == ([1, 2, 3, 1, 2], 130)


@pytest.mark.parametrize("removes", [True, False])
def test_a_list_of_which_all_has_expired_counts_from_0_removed_or_not(removes: bool) -> None:
    of = EXPIRING["list"]
    log = [
        LoggedUpdate(at, time, encode(UpdateRecord("s", 0, at, 0, PUT, 1, [name], None, [at])))
        for at, (name, time) in enumerate([("a", 100), ("a", 101), ("b", 120), ("a", 121), ("a", 122)])
    ]
    owner, codec = Owner(of), StateCodec(of)
    owner.apply(log, 3)
    if removes:
        owner.commit()
    owner.apply(log, 5)
    names = {codec.entry(key)[0] + codec.entry(key)[1] for key, _ in owner.entries()}
    assert names == {("b", 0), ("a", 0), ("a", 1)}


@pytest.mark.parametrize("removes", [True, False])
def test_a_list_keeps_what_lives_in_it_though_its_last_element_has_expired(removes: bool) -> None:
    """The ttl became shorter between the first and the second."""
    of = msgspec.structs.replace(EXPIRING["list"], max_length=0)
    # The other key's only moves the log's time on: at the commit behind it the last element of this one has expired.
    rows = [UpdateRecord("s", 0, at, 0, PUT, 1, [name], None, [at]) for at, name in enumerate("aabaa")]
    records: list[Record] = [rules_of(msgspec.structs.replace(of, ttl_ms=1000), 2), rows[0], rules_of(of, 3), rows[1]]
    log = [
        LoggedUpdate(at, time, encode(record))
        for at, (record, time) in enumerate(
            zip([*records, *rows[2:]], [100, 100, 100, 101, 151, 152, 153], strict=True)
        )
    ]
    owner, codec = Owner(of), StateCodec(of)
    for end in (4, 5, 6, 7):
        owner.apply(log, end)
        if removes:
            owner.commit()
            owner.commit()
    living = [(codec.entry(key), codec.decode_row(row[8:])["n"]) for key, row in owner.living()]
    found = [(position, value) for ((name,), (position,)), value in living if name == "a"]
    assert found == [(0, 0), (2, 3), (3, 4)], "position and value"


def _ordered(**changes: object) -> StateDescriptor:
    return descriptor(key_groups=1, value=ORDERED, order_by="at", keep_deleted_ms=1000, **changes)


def test_deletions_that_come_after_a_round_that_found_none_are_removed_in_their_time() -> None:
    of = EXPIRING["deletions"]
    owner, log = Owner(of), []
    for at, (operation, value, time) in enumerate([(PUT, [1, 1], 100), (DELETE, [2], 101), (PUT, [1, 1], 111)]):
        log.append(
            LoggedUpdate(at, time, encode(UpdateRecord("s", 0, at, 0, operation, 1, ["ab"[at // 2]], None, value)))
        )
        owner.apply(log, at + 1)
        owner.commit()
    assert len(owner.entries()) == 1


def test_with_order_by_what_comes_late_changes_nothing_and_a_deletion_has_its_order() -> None:
    owner = Owner(_ordered())

    def seen(*steps: tuple[int, list[int]]) -> list[int]:
        start = owner.feed.next
        log = owner._log + [
            LoggedUpdate(at, 1, encode(UpdateRecord("s", 0, at, 0, operation, 1, ["a"], None, value)))
            for at, (operation, value) in enumerate(steps, start)
        ]
        done = owner.apply(log, len(log))
        assert not done.refused
        codec = StateCodec(owner.of)
        return [codec.decode_row(row)["n"] for _, row in owner.entries() if not row.startswith(b"\xc1")]

    assert seen((PUT, [1, 10]), (PUT, [2, 5])) == [1]
    assert seen((DELETE, [7])) == [1]
    assert seen((DELETE, [20])) == []
    assert seen((PUT, [3, 15])) == []
    owner.commit()
    owner.start_again()
    assert seen((PUT, [4, 19])) == []
    assert seen((PUT, [5, 21])) == [5]


BAD: list[tuple[str, StateDescriptor, Record | bytes, type[KeyholeError]]] = [
    ("no_record", KINDS["value"].of, b"{}", ValueMismatch),
    ("key_of_another_type", KINDS["value"].of, UpdateRecord("s", 0, 0, 0, PUT, 1, [7], None, [1]), KeyMismatch),
    ("null_key", KINDS["value"].of, UpdateRecord("s", 0, 0, 0, PUT, 1, [None], None, [1]), NullKey),
    ("too_many_key_columns", KINDS["value"].of, UpdateRecord("s", 0, 0, 0, PUT, 1, ["a", "b"], None, [1]), KeyMismatch),
    ("no_key", KINDS["value"].of, UpdateRecord("s", 0, 0, 0, PUT, 1, [], None, [1]), KeyMismatch),
    ("no_row", KINDS["value"].of, UpdateRecord("s", 0, 0, 0, PUT, 1, ["a"], None, None), MalformedRequest),
    ("no_map_key", KINDS["map"].of, UpdateRecord("s", 0, 0, 0, PUT, 1, ["a"], None, [1]), MalformedRequest),
    ("map_key", KINDS["map"].of, UpdateRecord("s", 0, 0, 0, PUT, 1, ["a"], ["x"], [1]), KeyMismatch),
    ("no_such_value", KINDS["value"].of, UpdateRecord("s", 0, 0, 0, PUT, 1, ["a"], None, ["x"]), ValueMismatch),
    (
        "deletion_with_a_row",
        KINDS["value"].of,
        UpdateRecord("s", 0, 0, 0, DELETE, 1, ["a"], None, [1]),
        MalformedRequest,
    ),
    ("deletion_of_two", _ordered(), UpdateRecord("s", 0, 0, 0, DELETE, 1, ["a"], None, [1, 2]), MalformedRequest),
    ("deletion_of_no_order", _ordered(), UpdateRecord("s", 0, 0, 0, DELETE, 1, ["a"], None, ["x"]), ValueMismatch),
    ("long_key", KINDS["value"].of, UpdateRecord("s", 0, 0, 0, PUT, 1, ["a" * 200], None, [1]), KeyTooLong),
    (
        "large_row",
        descriptor(key_groups=1, value=ValueSchema(1, (ValueField("s", "string"),))),
        UpdateRecord("s", 0, 0, 0, PUT, 1, ["a"], None, ["x" * 300]),
        TooLarge,
    ),
]


@pytest.mark.parametrize(("of", "record", "error"), [one[1:] for one in BAD], ids=[one[0] for one in BAD])
def test_what_does_not_fit_is_refused_alone_and_once(
    of: StateDescriptor, record: Record | bytes, error: type[KeyholeError]
) -> None:
    bad = record if isinstance(record, bytes) else encode(record)
    value: list[Any] = ["x"] if of.value.fields[0].type == "string" else [1, 1][: len(of.value.fields)]
    good = encode(UpdateRecord("s", 0, 1, 0, PUT, 1, ["a"], [1] if of.map_key else None, value))
    log = [LoggedUpdate(0, 1, bad), LoggedUpdate(1, 1, good), LoggedUpdate(2, 1, bad)]
    owner = Owner(of)
    done = owner.apply(log, 3)
    assert done.applied == 1
    refused = [(one.update.offset, type(one.why)) for one in done.refused]
    # What is no record has no identity: it can't be known again.
    assert refused == [(0, error)] if not isinstance(record, bytes) else [(0, error), (2, error)]
    assert len(owner.entries()) == 1


@pytest.mark.parametrize("kind", [StateKind.VALUE, StateKind.MAP])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("keeps", [0, 1000])
def test_a_deletion_counts_in_either_form_so_a_run_that_wakes_late_takes_no_identity_away(
    kind: StateKind, whole: bool, keeps: int
) -> None:
    """One that wrote by the rules before sends what the new run sends, without its order, or with one."""
    map_key = MAP_KEY if kind is StateKind.MAP else ()
    of = msgspec.structs.replace(_ordered(kind=kind, map_key=map_key), keep_deleted_ms=keeps)
    of_map = [1] if map_key else None
    put = UpdateRecord("s", 0, 0, 0, PUT, 1, ["a"], of_map, [1, 1])
    forms = [UpdateRecord("s", 0, 1, 0, DELETE, 1, ["a"], None if whole else of_map, of) for of in (None, [2])]
    for first, second in (forms, forms[::-1]):
        owner = _begun(of)
        done = owner.apply(_logged(rules_of(of), put, first, second), 4)
        assert (done.refused, done.applied, done.repeated) == ([], 2, 1)
        rows = [row for _, row in owner.entries()]
        assert len(rows) == bool(keeps and first.value)
        assert all(row.startswith(b"\xc1") for row in rows), "of the row nothing is left"


def _begun(of: StateDescriptor) -> Owner:
    """In whose log no rules stand yet."""
    owner = Owner(of)
    owner.feed = GroupFeed(of, 0, FeedPosition(), "t", LIMITS)
    return owner


def _logged(*records: Record) -> list[LoggedUpdate]:
    return [LoggedUpdate(at, 1, encode(record)) for at, record in enumerate(records)]


def test_an_update_before_the_first_rules_is_refused_and_counts_when_it_is_sent_again() -> None:
    of = KINDS["sum"].of
    row = UpdateRecord("s", 0, 0, 0, PUT, 1, ["a"], None, [1])
    owner = _begun(of)
    done = owner.apply(_logged(row, rules_of(of), row, row), 4)
    assert [(one.update.offset, type(one.why)) for one in done.refused] == [(0, MalformedRequest)]
    assert (done.applied, done.repeated) == (1, 1)


def test_rules_of_an_older_run_and_rules_that_do_not_fit_change_nothing() -> None:
    of = KINDS["value"].of
    wrong = [FeedRules(ttl_ms=5), FeedRules(keep_deleted_ms=5)]
    owner = _begun(of)
    log = _logged(
        *(RulesRecord(9, rules) for rules in wrong), rules_of(of, 3), RulesRecord(2, FeedRules(most_blocks=1))
    )
    done = owner.apply(log, 4)
    assert [(one.update.offset, type(one.why)) for one in done.refused] == [
        (0, MalformedRequest),
        (1, MalformedRequest),
    ]
    assert owner.feed.position().rules == rules_of(of, 3)


def test_rows_before_new_rules_are_applied_by_the_old_ones_whatever_the_descriptor_says() -> None:
    """A list of 3 elements is to have 1; an owner is killed, and the next one has the new descriptor from the start."""
    of = KINDS["list"].of
    shorter = msgspec.structs.replace(of, max_length=1)
    rows = [UpdateRecord("s", 0, at, 0, PUT, 1, ["a"], None, [at]) for at in range(4)]
    log = _logged(rules_of(of), *rows[:3], rules_of(shorter, 2), rows[3])
    for known in (of, shorter):
        owner = _begun(known)
        lengths = []
        for end in (4, 5, 6):
            owner.apply(log, end)
            lengths.append(len(owner.entries()))
        assert lengths == [3, 3, 1]


def test_an_update_in_another_key_group_s_partition_is_refused() -> None:
    of = descriptor(value=N)
    codec = StateCodec(of)
    elsewhere = next(name for name in map(str, range(100)) if group_of(codec.storage_key(name)) == 3)
    feed = GroupFeed(of, 0, FeedPosition(rules=rules_of(of)), "t", LIMITS)
    log = [LoggedUpdate(0, 1, encode(UpdateRecord("s", 0, 0, 0, PUT, 1, [elsewhere], None, [1])))]
    done = feed.apply(log, MemoryEngine().open("a", "s", "t").snapshot(), Overlay())
    assert [type(one.why) for one in done.refused] == [KeyMismatch]
    assert (len(done.overlay), feed.next) == (0, 1)


@pytest.mark.parametrize(
    ("of", "why"),
    [
        (descriptor(kind=StateKind.AGGREGATING), "made by a class of the job's"),
        (descriptor(class_version=1), "made by a class of the job's"),
        (descriptor(ttl_ms=10, ttl_clock=TtlClock.EVENT_TIME), "updates have no watermark"),
    ],
)
def test_what_no_server_can_apply_is_refused_at_the_start(of: StateDescriptor, why: str) -> None:
    with pytest.raises(Unsupported, match=f"state app/counts can't be fed by updates: .*{why}"):
        GroupFeed(of, 0, FeedPosition(), "t", LIMITS)


def _log(*rows: tuple[str, list[Any]], version: int = 1) -> list[LoggedUpdate]:
    return [
        LoggedUpdate(at, 1, encode(UpdateRecord("s", 0, at, 0, PUT, version, [name], None, value)))
        for at, (name, value) in enumerate(rows)
    ]


@pytest.mark.parametrize("cuts", [[], [1, 1, 1, 1]])
def test_a_sum_that_leaves_its_type_is_refused_alone(cuts: list[int]) -> None:
    of = KINDS["sum"].of
    owner, log = Owner(of), _log(("b", [5]), ("a", [2**63 - 1]), ("a", [1]), ("c", [7]))
    refused = [owner.apply(log, owner.feed.next + cut).refused for cut in cuts]
    refused.append(owner.apply(log, len(log)).refused)
    assert [(one.update.offset, type(one.why)) for some in refused for one in some] == [(2, ValueMismatch)]
    codec = StateCodec(of)
    assert [codec.decode_row(row)["n"] for _, row in owner.entries()] == [2**63 - 1, 5, 7]


def test_what_was_refused_is_told_in_the_order_of_the_log() -> None:
    log = [*_log(("a", [2**63 - 1]), ("a", [1])), LoggedUpdate(2, 1, b"{}")]
    done = Owner(KINDS["sum"].of).apply(log, 3)
    assert [one.update.offset for one in done.refused] == [1, 2], "a sum is refused when its run is merged"


@pytest.mark.parametrize("kind", ["float", "double", "bigint", "decimal(38,10)", "timestamp", "date"])
def test_a_number_of_400_digits_is_refused_alone(kind: str) -> None:
    of = descriptor(key_groups=1, value=ValueSchema(1, (ValueField("n", kind),)))
    done = Owner(of).apply(_log(("a", [10**400]), ("b", [None])), 2)
    assert ([type(one.why) for one in done.refused], done.applied) == ([ValueMismatch], 1)


def test_whatever_can_not_be_read_is_refused_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    read = UpdateReader.read

    def stumbles(self: UpdateReader, record: UpdateRecord, offset: int) -> tuple[bytes, bytes | None]:
        if record.key == ["a"]:
            raise ZeroDivisionError("with the value")
        return read(self, record, offset)

    monkeypatch.setattr(UpdateReader, "read", stumbles)
    done = Owner(KINDS["value"].of).apply(_log(("a", [1]), ("b", [2])), 2)
    assert [str(one.why) for one in done.refused] == ["an update of state app/counts can't be read: ZeroDivisionError"]
    assert done.applied == 1


WIDER = descriptor(key_groups=1, value=ValueSchema(2, (*N.fields, ValueField("m", "bigint"))), earlier=(N,))


def test_rules_of_a_newer_schema_wait_for_the_descriptor_and_an_update_of_one_does_not() -> None:
    """Whoever writes rules runs the state's feed; an update may come of any producer, with any number."""
    owner = Owner(KINDS["value"].of)
    puts = [
        UpdateRecord("s", 0, at, 0, PUT, version, [name], None, [at, at][:version])
        for at, (name, version) in enumerate([("a", 1), ("b", 2), ("c", 2), ("d", 1), ("e", 3)])
    ]
    far = msgspec.structs.replace(puts[0], schema_version=10**18)
    log = _logged(puts[0], far, puts[1], rules_of(WIDER, 2), *puts[2:])
    for _ in range(2):
        done = owner.apply(log, len(log))
        assert (type(done.waits_for), owner.feed.next) == (StaleDescriptor, 3)
        owner.commit()
        owner.start_again()
    owner.of = WIDER
    owner.start_again()
    done = owner.apply(log, len(log))
    assert (done.waits_for, done.applied) == (None, 2)
    assert [(one.update.offset, type(one.why)) for one in done.refused] == [(6, ValueMismatch)]
    owner.commit()
    owner.of = KINDS["value"].of  # a server that has not heard of it
    owner.start_again()
    assert type(owner.apply([*log, LoggedUpdate(7, 1, b"{}")], 8).waits_for) is StaleDescriptor
    assert owner.feed.next == 7


def test_an_update_of_a_schema_that_the_rules_have_not_is_refused_and_a_repetition_of_anything_is_none() -> None:
    owner = _begun(WIDER)
    row = UpdateRecord("s", 0, 0, 0, PUT, 1, ["a"], None, [1])
    newer = UpdateRecord("s", 0, 1, 0, PUT, 2, ["a"], None, [1, 2])
    of = KINDS["value"].of
    log = _logged(rules_of(of), row, msgspec.structs.replace(row, schema_version=9), newer, rules_of(WIDER, 2), newer)
    done = owner.apply(log, len(log))
    assert [(one.update.offset, type(one.why)) for one in done.refused] == [(3, ValueMismatch)]
    assert (done.applied, done.repeated, done.waits_for) == (1, 2, None)


def test_rules_that_go_back_to_an_older_schema_change_nothing() -> None:
    owner = _begun(WIDER)
    back = rules_of(KINDS["value"].of, 3)
    done = owner.apply(_logged(rules_of(WIDER, 2), back), 2)
    assert [(one.update.offset, type(one.why)) for one in done.refused] == [(1, MalformedRequest)]
    assert owner.feed.position().rules == rules_of(WIDER, 2)


TWO_SUMS = descriptor(
    key_groups=1,
    value=ValueSchema(1, (ValueField("n", "bigint"), ValueField("m", "bigint"))),
    kind=StateKind.REDUCING,
    reducers=("sum", "sum"),
)
ONE_SUM = msgspec.structs.replace(
    TWO_SUMS,
    value=ValueSchema(2, (ValueField("m", "bigint"),)),
    earlier=(TWO_SUMS.value,),
    reducers=("sum",),
)


@pytest.mark.parametrize("killed", [0, 1, 2, 3, 4])
def test_a_sum_is_refused_by_the_rules_schema_though_the_new_owner_s_descriptor_has_not_the_field(killed: int) -> None:
    puts = [UpdateRecord("s", 0, at, 0, PUT, 1, ["a"], None, [n, 1]) for at, n in enumerate([2**63 - 1, 1])]
    last = UpdateRecord("s", 0, 2, 0, PUT, 2, ["a"], None, [5])
    owner, log = _begun(TWO_SUMS), _logged(rules_of(TWO_SUMS), *puts, rules_of(ONE_SUM, 2), last)
    owner.apply(log, min(killed, 3))
    owner.commit()
    if not killed:
        owner._kept = FeedPosition()
    owner.of = ONE_SUM
    owner.start_again()
    owner.apply(log, killed)
    owner.apply(log, len(log))
    ((_, row),) = owner.entries()
    assert StateCodec(ONE_SUM).decode_row(row).asdict() == {"m": 6}


def test_bytes_that_are_no_text_are_refused_alone() -> None:
    owner = Owner(KINDS["value"].of)
    good = _log(("a", [1]), ("b", [2]))
    log = [good[0], LoggedUpdate(1, 10**15, b'[1,"s",0,9,0,0,1,["\xff"],null,[1]]'), good[1]._replace(offset=2)]
    done = owner.apply(log, 3)
    assert (done.applied, [type(one.why) for one in done.refused]) == (2, [ValueMismatch])
    assert owner.feed.time_ms == 1, "of what does not count no time counts"
    owner.commit()
    owner.start_again()


KEYS_IN_JSON = descriptor(
    key_groups=1,
    value=N,
    key=(KeyColumn("d", KeyType.DATE), KeyColumn("t", KeyType.TIMESTAMP), KeyColumn("b", KeyType.BINARY)),
)


def test_keys_have_the_forms_of_values() -> None:
    owner, codec = Owner(KEYS_IN_JSON), StateCodec(KEYS_IN_JSON)
    keys: list[list[Any]] = [
        [20_000, 1_700_000_000_000_000, "AP8="],
        ["2024-10-04", "2023-11-14T22:13:20+00:00", "AP8="],
    ]
    log = [
        LoggedUpdate(at, 1, encode(UpdateRecord("s", 0, at, 0, PUT, 1, key, None, [at]))) for at, key in enumerate(keys)
    ]
    assert owner.apply(log, 2).refused == []
    ((stored, row),) = owner.entries()
    assert codec.key(stored) == (date(2024, 10, 4), datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC), b"\x00\xff")
    assert codec.decode_row(row)["n"] == 1


@pytest.mark.parametrize(
    "key",
    [
        [20_000, 0, "0g"],
        ["20.11.2026", 0, ""],
        [0, "0001-01-01T00:00:00+14:00", ""],
        [0, "9999-12-31T23:59:59-14:00", ""],
        [[0], 0, ""],
        [True, 0, ""],
    ],
)
def test_a_key_in_no_form_of_its_columns_is_refused(key: list[Any]) -> None:
    owner = Owner(KEYS_IN_JSON)
    log = [LoggedUpdate(0, 1, encode(UpdateRecord("s", 0, 0, 0, PUT, 1, key, None, [1])))]
    assert [type(one.why) for one in owner.apply(log, 1).refused] == [KeyMismatch]
