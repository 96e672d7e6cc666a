"""What a watch with a predicate gives of an epoch: by whichever schema, and what another has found of it already."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from keyhole import field
from keyhole.encoding.selected_changes import SelectedChanges, ShownChange
from keyhole.encoding.storage_key import prefix_of
from keyhole.encoding.watch_token import WatchMark
from keyhole.errors import ValueMismatch
from keyhole.model.epoch import Position
from keyhole.model.selection import Selection
from keyhole.model.state import StateDescriptor, ValueField, ValueSchema
from keyhole.rpc.convert_predicates import selection_to_proto
from keyhole.rpc.watch_requests import watch_asked
from keyhole.v1 import query_pb2 as pb
from services.state_server.read.watch_selection import Selections, WatchSelection
from services.state_server.read.watcher import GroupEpoch, Pending, Watcher
from tests.support.hosts import Hosted
from tests.support.states import KEY_GROUPS, descriptor, key, row

HOT = field("n") > 10


def test_what_is_known_of_before_decides_on_deletions_and_a_key_that_is_not_selected_is_none_of_them() -> None:
    of = descriptor()
    select = SelectedChanges(of, Selection(HOT & (field("k") < "m")))
    changes = [
        ShownChange(0, key("a"), row(11.0), row(1.0)),
        ShownChange(1, key("b"), row(1.0), row(11.0)),
        ShownChange(2, key("c"), None, row(12.0)),
        ShownChange(3, key("d"), row(1.0), row(2.0)),
        ShownChange(4, key("e"), None, None),
        ShownChange(5, key("z"), row(99.0), row(99.0)),
        ShownChange(6, key("f"), row(13.0), row(14.0)),
    ]
    known = [
        ShownChange(0, key("a"), row(11.0), None),
        ShownChange(1, key("b"), None, row(11.0)),
        ShownChange(2, key("c"), None, row(12.0)),
        changes[6],
    ]
    assert select.given(changes, known=True) == known
    unknown = [change._replace(before=None) for change in changes]
    given = select.given(unknown, known=False)
    assert [(change.number, change.row is None) for change in given] == [
        *((0, False), (1, True), (2, True), (3, True), (4, True)),
        (6, False),
    ]
    assert (select.tests, select.of_rows) == (True, True)
    assert not SelectedChanges(of, Selection(field("k") < "m")).of_rows
    # Any of both may be true: then the key alone decides nothing.
    assert SelectedChanges(of, Selection(HOT | (field("k") < "m"))).of_rows


def selecting(hosted: Hosted, selections: Selections, turn: int = 3, **select: Any) -> WatchSelection:
    chosen = Selection(HOT, **select)
    request = pb.WatchRequest(selection=selection_to_proto(chosen))
    return WatchSelection(hosted.table, watch_asked(hosted.table.codec, request), selections, turn)


def given_by(select: WatchSelection, pending: Pending) -> list[tuple[int, bool]]:
    return [(change.number, change.row is not None) for batch in select.given(pending) for change in batch]


@pytest.fixture
def tested(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many changes were tested, each time."""
    found, as_it_is = list[int](), SelectedChanges.given

    def counted(select: SelectedChanges, changes: Any, **known: Any) -> Any:
        found.append(len(changes))
        return as_it_is(select, changes, **known)

    monkeypatch.setattr(SelectedChanges, "given", counted)
    return found


async def test_an_epoch_is_tested_once_for_all_who_have_the_same_predicate(tested: list[int]) -> None:
    hosted, selections = Hosted(), Selections()
    await hosted.own()
    rows = [(prefix_of(0) + b"%d" % number, row(float(number * 3))) for number in range(8)]
    befores = [row(50.0), *[None] * 7]
    epoch = GroupEpoch(0, 0, Position(10, 1, 1, 0, 1000), rows, befores, 1)
    first, second = (selecting(hosted, selections) for _ in range(2))
    assert first._select is second._select
    expected = [(0, False), *((number, True) for number in range(4, 8))]
    assert given_by(first, Pending.of(epoch, None)) == expected
    assert tested == [3, 3, 2]
    assert given_by(second, Pending.of(epoch, None)) == expected
    # And who goes on within it.
    for skip in range(9):
        assert given_by(second, Pending.of(epoch, None, skip)) == [one for one in expected if one[0] >= skip]
    assert tested == [3, 3, 2]
    # What is given of rows is each watch's own.
    fields = selecting(hosted, selections, fields=("n",))
    assert fields._select is not first._select
    assert given_by(fields, Pending.of(epoch, None)) == expected
    assert tested == [3, 3, 2]
    await hosted.host.close()


async def test_what_was_before_is_each_watch_s_own_where_keys_alone_decide() -> None:
    hosted, selections = Hosted(), Selections()
    await hosted.own()
    epoch = GroupEpoch(0, 0, Position(10, 1, 1, 0, 1000), [(prefix_of(0) + b"a\0\0", row(1.0))], [row(2.0)], 1)
    for before in (False, True):
        request = pb.WatchRequest(selection=selection_to_proto(Selection(field("k") < "m")), before=before)
        select = WatchSelection(hosted.table, watch_asked(hosted.table.codec, request), selections, 3)
        ((change,),) = select.given(Pending.of(epoch, None))
        assert change.before == (row(2.0) if before else None)
    await hosted.host.close()


async def test_what_has_expired_and_is_removed_or_replaced_is_a_deletion_of_what_the_reader_has() -> None:
    hosted = Hosted(of=descriptor(ttl_ms=1500))
    await hosted.own()
    watcher = Watcher(None, frozenset(range(KEY_GROUPS)), befores=True)
    changes = hosted.table.changes
    changes.expect(watcher, hosted.table.committed.positions)
    assert changes.attach(watcher, {of: WatchMark.at(position) for of, position in changes.positions.items()})
    select = selecting(hosted, Selections())
    await hosted.apply(1, {key("a"): row(20.0)})
    for epoch in range(2, 5):
        await hosted.apply(epoch, {key("b"): row(1.0)})
    # Expired by now, and replaced by what is not selected.
    await hosted.apply(5, {key("a"): row(1.0)})
    found = []
    while (pending := watcher.take()) is not None:
        found += [(of.key, of.row is None) for batch in select.given(pending) for of in batch]
    assert found[0] == (key("a"), False)
    assert found[1:] == [(key("a"), True)]
    await hosted.host.close()


async def test_a_watch_goes_by_the_newest_schema() -> None:
    hosted, selections = Hosted(), Selections()
    await hosted.own()
    select = selecting(hosted, selections, fields=("n",))
    assert select.kept([(key("a"), row(11.0)), (key("b"), row(1.0))]) == [(key("a"), row(11.0))]
    newer = descriptor()
    newer = msgspec.structs.replace(
        newer,
        value=ValueSchema(2, (*newer.value.fields, ValueField("more", "bigint"))),
        earlier=(newer.value,),
        topic_id=hosted.table.descriptor.topic_id,
    )
    assert hosted.table.evolve(newer)
    of_newer = msgspec.msgpack.encode([2, 12.0, 7])
    assert select.kept([(key("a"), of_newer), (key("b"), row(1.0))]) == [(key("a"), of_newer)]
    assert select.values([of_newer]) == [msgspec.msgpack.encode([2, 12.0])]
    await hosted.host.close()


def without(of: StateDescriptor) -> StateDescriptor:
    return msgspec.structs.replace(of, value=ValueSchema(1, (ValueField("m", "double"),)))


def test_a_state_without_the_field_is_refused() -> None:
    with pytest.raises(ValueMismatch, match="'n'"):
        SelectedChanges(without(descriptor()), Selection(HOT))
