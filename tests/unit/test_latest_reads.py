"""Reads of the latest on a state server: what is staged, laid over what is committed, and when it is not."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keyhole.encoding.key_codec import encode_integer
from keyhole.errors import MalformedRequest, ValueMismatch
from keyhole.model.read import ReadBounds, Stale
from keyhole.model.state import KeyColumn, KeyType, StateKind, TtlClock
from keyhole.rpc.read_requests import KeyLookup
from keyhole.rpc.status import from_proto
from keyhole.stores.memory import MemorySnapshot
from keyhole.v1 import query_pb2 as pb
from services.state_server.servicers.explained import explained
from services.state_server.servicers.lookup_responses import frame_response
from services.state_server.write.attempts import Attempt
from services.state_server.write.open_epoch import MOST_ELEMENTS
from services.state_server.write.spill import StagingRoom
from tests.support.hosts import INCARNATION, Hosted
from tests.support.states import descriptor, group, key, names_in, row

LATEST = ReadBounds(latest=True)
A, SAME = map(key, names_in(group("a"), 2))
OTHER = key(names_in((group("a") + 1) % 4, 1)[0])


def answered(hosted: Hosted, *keys: bytes) -> list[tuple[bytes | None, int, int]]:
    """Row, committed epoch and staged epoch of each key."""
    answers = hosted.table.lookup(keys, LATEST)
    sources = [answers.sources[of] for of in answers.source_of or [0] * len(keys)]
    return [(row, source.epoch, source.staged_epoch) for row, source in zip(answers.rows, sources, strict=True)]


async def test_whole_key_groups_are_shown_once_they_are_staged_and_until_they_are_committed() -> None:
    hosted = Hosted()
    await hosted.own()
    await hosted.apply(1, {A: row(1.0), OTHER: row(2.0)})
    committed = [(row(1.0), 1, 0), (row(2.0), 1, 0), (None, 1, 0)]
    assert answered(hosted, A, OTHER, SAME) == committed
    arriving = hosted.begin(2, 7)
    await hosted.host.add_rows(arriving, lambda: ([A], [row(9.0)]))
    assert answered(hosted, A, OTHER, SAME) == committed  # not whole yet
    receipts = await hosted.stage(2, {A: row(5.0)})
    assert answered(hosted, A, OTHER, SAME) == [(row(5.0), 1, 2), (row(2.0), 1, 0), (None, 1, 2)]
    assert hosted.read(A) == [row(1.0)]
    assert answered(hosted) == []
    # Of two attempts of a task the last one is shown, also where it has nothing of a key group.
    name = Attempt("counts", 2, 0, 0, 9)
    attempt = hosted.host.begin_attempt(hosted.run, INCARNATION, hosted.version, name, False)
    await hosted.host.add_rows(attempt, lambda: ([OTHER], [row(4.0)]))
    await hosted.host.stage(name, attempt, hosted.run)
    assert answered(hosted, A, OTHER) == [(row(1.0), 1, 0), (row(4.0), 1, 2)]
    # Another round drops what was staged, and has the rest of it later.
    await hosted.stage(2, {OTHER: None}, round_=1)
    assert answered(hosted, A, OTHER) == [(row(1.0), 1, 0), (None, 1, 2)]
    receipts = await hosted.stage(2, {A: row(6.0)}, round_=2)
    await hosted.commit(2, receipts, round_=2)
    assert answered(hosted, A, OTHER) == [(row(6.0), 2, 0), (row(2.0), 2, 0)]
    # The batch is run again, though it was committed.
    await hosted.stage(2, {A: row(7.0)}, round_=3)
    assert answered(hosted, A) == [(row(6.0), 2, 0)]
    for wrong in (LATEST._replace(as_of=1), LATEST._replace(stale=Stale.ALWAYS)):
        with pytest.raises(MalformedRequest, match="leave"):
            wrong.check_latest()
    await hosted.host.close()


async def test_sums_are_merged_as_at_the_commit_and_rows_that_replace_everything_replace_it() -> None:
    hosted = Hosted(of=descriptor(kind=StateKind.REDUCING, reducers=("sum",)))
    await hosted.own()
    await hosted.apply(1, {A: row(1.0), SAME: row(2.0), OTHER: row(3.0)})
    receipts = await hosted.stage(2, {A: row(5.0)})
    for _ in range(2):  # a read changes nothing
        assert answered(hosted, A, SAME, OTHER) == [(row(6.0), 1, 2), (row(2.0), 1, 2), (row(3.0), 1, 0)]
    await hosted.commit(2, receipts)
    assert answered(hosted, A) == [(row(6.0), 2, 0)]
    receipts = await hosted.stage(3, {A: row(5.0)}, replaces=True)
    # What becomes of a key group without rows is known at the commit.
    assert answered(hosted, A, SAME, OTHER) == [(row(5.0), 2, 3), (None, 2, 3), (row(3.0), 2, 0)]
    await hosted.commit(3, receipts, replace=True)
    assert answered(hosted, A, SAME, OTHER) == [(row(5.0), 3, 0), (None, 3, 0), (None, 3, 0)]
    await hosted.stage(4, {A: b"no row"})
    assert answered(hosted, OTHER) == [(None, 3, 0)]
    with pytest.raises(ValueMismatch):  # as its commit will
        answered(hosted, A)
    assert hosted.read(A) == [row(5.0)]
    await hosted.host.close()


async def test_an_entry_depends_on_what_clears_its_key_and_an_element_on_those_before_it() -> None:
    prefix = key("a")
    maps = Hosted(of=descriptor(kind=StateKind.MAP, map_key=(KeyColumn("m", KeyType.INT),)))
    await maps.own()
    entries = [prefix + encode_integer(m, 4) for m in range(3)]
    await maps.apply(1, {entries[0]: row(1.0), entries[1]: row(2.0)})
    await maps.stage(2, {prefix: None, entries[1]: row(5.0)})
    assert answered(maps, *entries) == [(None, 1, 2), (row(5.0), 1, 2), (None, 1, 2)]
    await maps.host.close()
    lists = Hosted(of=descriptor(kind=StateKind.LIST, max_length=2))
    await lists.own()
    elements = [prefix + encode_integer(at, 8) for at in range(3)]
    await lists.apply(1, {elements[0]: row(1.0), elements[1]: row(2.0)})
    # The task numbers its own alone; the first one is dropped for the third.
    await lists.stage(2, {elements[0]: row(5.0)})
    assert answered(lists, *elements) == [(None, 1, 2), (row(2.0), 1, 2), (row(5.0), 1, 2)]
    assert answered(lists, elements[2]) == [(row(5.0), 1, 2)]
    await lists.stage(2, {prefix: None, elements[0]: row(5.0)}, round_=1)
    assert answered(lists, *elements) == [(row(5.0), 1, 2), (None, 1, 2), (None, 1, 2)]
    # Of more elements than can be placed for one read, none is shown.
    many = {prefix + encode_integer(at, 8): row(float(at)) for at in range(MOST_ELEMENTS + 1)}
    await lists.stage(2, many, round_=2)
    assert answered(lists, *elements) == [(row(1.0), 1, 0), (row(2.0), 1, 0), (None, 1, 0)]
    many.pop(elements[0])
    await lists.stage(2, many, round_=3)
    last = prefix + encode_integer(2 + MOST_ELEMENTS - 1, 8)
    assert answered(lists, elements[0], last) == [(None, 1, 2), (row(float(MOST_ELEMENTS)), 1, 2)]
    await lists.host.close()


async def test_a_key_that_is_none_or_whose_row_does_not_merge_fails_no_other_key_of_its_frame() -> None:
    """The keys of a frame may be of many callers."""
    maps = Hosted(of=descriptor(kind=StateKind.MAP, map_key=(KeyColumn("m", KeyType.INT),)))
    await maps.own()
    good, bad = key("a") + encode_integer(1, 4), key("a")[:2] + b"\xff"
    await maps.stage(1, {good: row(5.0)})
    assert answered(maps, bad, good) == [(None, 0, 1), (row(5.0), 0, 1)]
    await maps.host.close()
    sums = Hosted(of=descriptor(kind=StateKind.REDUCING, reducers=("sum",)))
    await sums.own()
    await sums.apply(1, {A: row(1.0), SAME: row(2.0), OTHER: row(3.0)})
    await sums.stage(2, {A: b"no row", SAME: row(5.0)})
    topic_id = sums.table.descriptor.topic_id
    lookup = KeyLookup(("app", "counts"), LATEST, False, storage_keys=(A, SAME, OTHER), topic_id=topic_id)
    response = frame_response(sums.table, lookup, 1)
    assert list(response.values) == [b"", row(7.0), row(3.0)]
    assert [response.sources[of].staged_epoch for of in response.source_of[1:]] == [2, 0]
    (failure,) = response.failures
    # Whoever asks how the key is read is told why it has no answer.
    request = pb.ExplainRequest(
        state=pb.StateRef(application="app", state="counts"),
        key=pb.Key(parts=[pb.KeyPart(string=names_in(group("a"), 1)[0])]),
        options=pb.ReadOptions(consistency=pb.CONSISTENCY_LATEST),
    )
    response_of_one = explained(sums.table, request, pb.ServerStatus())
    assert from_proto(response_of_one.error).reason == ValueMismatch.reason
    request.options.CopyFrom(pb.ReadOptions(as_of_epoch=1))
    assert explained(sums.table, request, pb.ServerStatus()).answer.value == row(1.0)
    assert (list(failure.indexes), from_proto(failure.error).reason) == ([0], ValueMismatch.reason)
    await sums.host.close()


async def test_what_is_stored_is_not_walked_through_to_read_the_latest_of_a_few_elements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A staged clearing of a long list is one row."""
    prefix = key("a")
    lists = Hosted(of=descriptor(kind=StateKind.LIST))
    await lists.own()
    elements = [prefix + encode_integer(at, 8) for at in range(50)]
    await lists.apply(1, dict.fromkeys(elements, row(1.0)))
    walked = 0
    plain = MemorySnapshot.items

    def items(*arguments: Any, **options: Any) -> Iterator[tuple[bytes, bytes]]:
        nonlocal walked
        for entry in plain(*arguments, **options):
            walked += 1
            yield entry

    monkeypatch.setattr(MemorySnapshot, "items", items)
    for round_, rows in enumerate(({prefix: None, elements[0]: row(5.0)}, {elements[0]: row(5.0)})):
        await lists.stage(2, rows, round_=round_)
        assert answered(lists, elements[0], elements[7])[0][1:] == (1, 2)
    assert walked <= 1, "it took more than the last element"
    await lists.host.close()


async def test_what_expires_by_event_time_does_so_by_the_watermark_of_the_epoch_that_is_staged() -> None:
    sums = descriptor(kind=StateKind.REDUCING, reducers=("sum",), ttl_ms=100, ttl_clock=TtlClock.EVENT_TIME)
    hosted = Hosted(of=sums)
    await hosted.own()
    rows = {A: row(10.0), SAME: row(7.0), OTHER: row(3.0)}
    await hosted.commit(1, await hosted.stage(1, rows, watermark_ms=1000), watermark_ms=1000)
    await hosted.stage(2, {A: row(5.0)}, watermark_ms=1050)
    assert answered(hosted, A, SAME) == [(row(15.0), 1, 2), (row(7.0), 1, 2)]
    # A task of an earlier version does not say by which watermark they are merged.
    await hosted.stage(2, {A: row(5.0)}, round_=1, watermark_ms=None)
    assert answered(hosted, A) == [(row(10.0), 1, 0)]
    receipts = await hosted.stage(2, {A: row(5.0)}, round_=2, watermark_ms=5000)
    assert answered(hosted, A, SAME, OTHER) == [(row(5.0), 1, 2), (None, 1, 2), (row(3.0), 1, 0)]
    await hosted.commit(2, receipts, round_=2, watermark_ms=5000)
    assert answered(hosted, A, SAME, OTHER) == [(row(5.0), 2, 0), (None, 2, 0), (None, 2, 0)]
    await hosted.host.close()


async def test_nothing_is_laid_over_where_it_may_not_count_any_more_or_is_not_at_hand() -> None:
    room = StagingRoom(1 << 30, 1 << 30, Path(tempfile.gettempdir()))
    hosted = Hosted(room=room)
    await hosted.own()
    await hosted.apply(1, {A: row(1.0)})
    committed = [(row(1.0), 1, 0)]
    # A task of an earlier version does not say what its rows do.
    await hosted.stage(2, {A: row(5.0)}, replaces=None)
    assert answered(hosted, A) == committed
    # One of a later version does; the watermark matters only to what expires by it.
    await hosted.stage(2, {A: row(5.0)}, round_=1, watermark_ms=None)
    assert answered(hosted, A) == [(row(5.0), 1, 2)]
    hosted.clock.advance(3.5)  # the lease has passed
    assert answered(hosted, A) == committed
    hosted.host.confirm(hosted.run, hosted.version)
    assert answered(hosted, A) == [(row(5.0), 1, 2)]
    # On disk, in part or as a whole.
    name = Attempt("counts", 2, 2, 0, 9)
    attempt = hosted.host.begin_attempt(hosted.run, INCARNATION, hosted.version, name, False)
    await hosted.host.add_rows(attempt, lambda: ([A], [row(6.0)]))
    attempt.spill()
    await hosted.host.add_rows(attempt, lambda: ([SAME], [row(7.0)]))
    await hosted.host.stage(name, attempt, hosted.run)
    assert answered(hosted, A, SAME) == [*committed, (None, 1, 0)]
    await hosted.stage(2, {A: row(5.0)}, round_=3)
    # Another run begins: it stages anew.
    await hosted.own(generation=2, complete=1)
    assert answered(hosted, A) == committed
    await hosted.host.close()
