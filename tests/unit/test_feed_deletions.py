"""What deletes in a feed with `--order-by`: rows that say so, by their order; and what records without a value do."""

from __future__ import annotations

import itertools
import json
from typing import Any

import msgspec
import pytest

from keyhole.cli.arguments import parser_of_all
from keyhole.cli.feed import feed_options
from keyhole.errors import InvalidConfiguration, MalformedRequest, RequestError, ValueMismatch
from keyhole.feed.deleting_records import Deletions, Unordered
from keyhole.feed.feed_options import FeedOptions, describe
from keyhole.feed.mapping import RecordMapper
from keyhole.feed.preview import check_records
from keyhole.feed.rows import SourceRecord
from tests.support.fed_hosts import Fed, begun, closed
from tests.support.states import KEY_GROUPS

DAY_MS = 86_400_000
FEED = ["feed", "app/counts", "--topic", "customers", "--key", "k", "--key-groups", str(KEY_GROUPS)]
ROWS = ["--value", "n:double", "--value", "at:bigint"]
BY_ORDER = [*ROWS, "--order-by", "at", "--delete-when", "__deleted=true"]


def options_of(*words: str) -> FeedOptions:
    return feed_options(parser_of_all().parse_args([*FEED, *words]))


def mapper(options: FeedOptions) -> RecordMapper:
    return RecordMapper(describe(options), options.format, "src", columns=options.columns, deletions=options.deletions)


def done(options: FeedOptions, value: object, key: bytes | None = None) -> list[tuple[int, Any]]:
    """Of each update of one record: its operation, and its value."""
    record = SourceRecord(0, 7, key, None if value is None else json.dumps(value).encode())
    return [(one.record.operation, one.record.value) for one in mapper(options).updates(record)]


def changed(key: str, at: int, n: float | None, **more: object) -> dict[str, object]:
    """A row as Debezium flattens its changes, with what was deleted told by a field of its own."""
    return {"k": key, "n": n, "at": at, "__deleted": "true" if n is None else "false", **more}


class Feeding:
    """Records of a topic, mapped and applied by a real owner, one after the other."""

    def __init__(self, fed: Fed, options: FeedOptions) -> None:
        self._fed = fed
        self._mapper = mapper(options)
        self._offset = 0

    async def records(self, *values: object, key: bytes | None = None) -> None:
        for value in values:
            self._offset += 1
            record = SourceRecord(0, self._offset, key, None if value is None else json.dumps(value).encode())
            for update in self._mapper.updates(record):
                self._fed.send(update.key_group, update.record)
        await self._fed.steps()

    def seen(self, key: str) -> float | None:
        return self._fed.sums([key])[0]


async def begun_with(*words: str) -> tuple[Fed, Feeding]:
    options = options_of(*words)
    of = describe(options)
    same = {name: getattr(of, name) for name in ("kind", "reducers", "value", "order_by", "keep_deleted_ms")}
    fed = await begun(**same)
    return fed, Feeding(fed, options)


async def test_a_row_that_deletes_has_an_order_as_any_row_whatever_came_first() -> None:
    fed, topic = await begun_with(*BY_ORDER)
    changes = [(1, 1.0), (2, 2.0), (3, None), (4, 4.0)]
    for number, order in enumerate(itertools.permutations(changes)):
        await topic.records(*(changed(f"all-{number}", at, n) for at, n in order))
    for number, order in enumerate(itertools.permutations(changes[:3])):
        await topic.records(*(changed(f"gone-{number}", at, n) for at, n in order))
        # A connector that begins again sends what it had sent.
        await topic.records(*(changed(f"gone-{number}", at, n) for at, n in changes[:2]))
    assert {topic.seen(f"all-{number}") for number in range(24)} == {4.0}
    assert {topic.seen(f"gone-{number}") for number in range(6)} == {None}
    await closed(fed)


async def test_without_an_order_of_deletions_each_deletes_and_what_is_older_counts_behind_it() -> None:
    fed, topic = await begun_with(*BY_ORDER, "--keep-deleted", "0")
    await topic.records(changed("a", 5, 5.0), changed("a", 3, None))
    assert topic.seen("a") is None
    await topic.records(changed("a", 2, 2.0))
    assert topic.seen("a") == 2.0
    await topic.records(None, key=b"a")
    assert topic.seen("a") is None
    await closed(fed)


async def test_a_record_without_a_value_does_beside_orders_what_the_feed_is_told() -> None:
    fed, topic = await begun_with(*BY_ORDER, "--unordered-deletes", "ignore")
    await topic.records(changed("a", 5, 5.0))
    await topic.records(None, key=b"a")
    assert topic.seen("a") == 5.0
    await topic.records(changed("a", 6, None))
    await topic.records(None, key=b"a")
    await topic.records(changed("a", 5, 5.0))
    assert topic.seen("a") is None
    await closed(fed)

    fed, topic = await begun_with(*BY_ORDER, "--unordered-deletes", "delete")
    await topic.records(changed("a", 5, 5.0))
    await topic.records(None, key=b"a")
    assert topic.seen("a") is None
    await topic.records(changed("a", 4, 4.0))
    assert topic.seen("a") == 4.0
    await closed(fed)

    fed, topic = await begun_with(*BY_ORDER)
    await topic.records(changed("a", 5, 5.0))
    with pytest.raises(MalformedRequest, match=r"has no at, by which deletions are ordered.*--unordered-deletes"):
        await topic.records(None, key=b"a")
    assert topic.seen("a") == 5.0
    await closed(fed)


def test_by_default_a_deletion_is_remembered_for_a_day_and_one_without_an_order_is_a_dead_letter() -> None:
    plain = options_of(*ROWS)
    assert (plain.keep_deleted_ms, plain.deletions) == (0, Deletions())
    assert done(plain, None, b"a") == [(1, None)]
    ordered = options_of(*ROWS, "--order-by", "at")
    assert (ordered.keep_deleted_ms, ordered.deletions) == (DAY_MS, Deletions(unordered=Unordered.REFUSE))
    assert describe(ordered).keep_deleted_ms == DAY_MS
    with pytest.raises(MalformedRequest, match="has no at"):
        done(ordered, None, b"a")
    assert options_of(*ROWS, "--order-by", "at", "--keep-deleted", "2.5").keep_deleted_ms == 2500
    as_before = options_of(*ROWS, "--order-by", "at", "--keep-deleted", "0")
    assert (as_before.keep_deleted_ms, as_before.deletions.unordered) == (0, Unordered.DELETE)
    assert done(as_before, None, b"a") == [(1, None)]


def test_a_row_that_deletes_and_has_no_order_is_never_passed_over() -> None:
    """Nothing that has the order comes behind it, as it does behind a row whose tombstone is passed over."""
    gone = {"k": "a", "gone": True}
    words = [*ROWS, "--order-by", "at", "--delete-when", "gone=true"]
    for unordered in ("ignore", "refuse"):
        with pytest.raises(MalformedRequest, match=r"has no at, by which deletions are ordered"):
            done(options_of(*words, "--unordered-deletes", unordered), gone)
    assert done(options_of(*words, "--unordered-deletes", "delete"), gone) == [(1, None)]


def test_an_order_that_is_not_kept_is_not_looked_at() -> None:
    words = [*ROWS, "--order-by", "at", "--delete-when", "gone=true", "--keep-deleted", "0"]
    assert done(options_of(*words), {"k": "a", "gone": True, "at": "seven"}) == [(1, None)]


def test_a_record_s_key_may_have_the_order_of_a_deletion() -> None:
    assert done(options_of(*ROWS, "--order-by", "at"), None, b'{"k": "a", "at": 7}') == [(1, [7])]


def test_of_a_tombstone_that_is_passed_over_the_key_may_be_anything() -> None:
    of_a_map = [*ROWS, "--map-key", "number:int", "--order-by", "at"]
    key_of_the_table = b'{"number": 7}'
    assert done(options_of(*of_a_map, "--unordered-deletes", "ignore"), None, key_of_the_table) == []
    assert done(options_of(*of_a_map, "--unordered-deletes", "ignore"), None) == []
    for words in (of_a_map, [*of_a_map, "--unordered-deletes", "delete"]):
        with pytest.raises(MalformedRequest, match="lacks one of the columns k, number"):
            done(options_of(*words), None, key_of_the_table)
    with pytest.raises(MalformedRequest):
        mapper(options_of(*of_a_map, "--unordered-deletes", "ignore")).updates(
            SourceRecord(0, 1, key_of_the_table, b"{")
        )


@pytest.mark.parametrize(
    ("said", "value", "deletes"),
    [
        ("gone=true", True, True),
        ("gone=true", "true", True),
        ("gone=true", False, False),
        ("gone=true", None, False),
        ("gone=true", "True", False),
        ("gone=1", 1, True),
        ("gone=1", "1", True),
        ("gone=1", True, False),
        ("gone=d", "d", True),
        ("gone=", "", True),
        ("gone={}", {}, False),
        ('"a=b"=d', "d", True),
    ],
)
def test_a_row_deletes_where_the_column_holds_that(said: str, value: object, deletes: bool) -> None:
    options = options_of(*ROWS, "--delete-when", said)
    row = {"k": "a", "n": 1, options.deletions.column: value}
    assert done(options, row) == ([(1, None)] if deletes else [(0, [1, None])])
    assert done(options, {"k": "a", "n": 1}) == [(0, [1, None])], "a row without the column puts"


def test_of_a_row_that_deletes_the_key_and_the_order_count_and_no_other_column() -> None:
    options = options_of(*BY_ORDER)
    assert done(options, {"k": "a", "n": "none", "at": 5, "__deleted": "true"}) == [(1, [5])]
    with pytest.raises(ValueMismatch, match="the order at of a row that deletes is no bigint"):
        done(options, {"k": "a", "at": "s3cret", "__deleted": "true"})
    with pytest.raises(MalformedRequest, match="has no at, by which deletions are ordered"):
        done(options, {"k": "a", "__deleted": "true"})
    with pytest.raises(RequestError, match="k"):
        done(options, {"at": 5, "__deleted": "true"})


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([*ROWS, "--keep-deleted", "5"], "--keep-deleted is for --order-by COLUMN"),
        ([*ROWS, "--unordered-deletes", "delete"], "--unordered-deletes is for --order-by COLUMN"),
        ([*ROWS, "--delete-when", "gone"], "--delete-when takes COLUMN=VALUE, as gone=true, not 'gone'"),
        ([*ROWS, "--delete-when", "=true"], "--delete-when takes COLUMN=VALUE"),
        ([*BY_ORDER, "--keep-deleted", "1e12"], "deletions are remembered for at most 31536000000 seconds"),
        ([*ROWS, "--format", "debezium", "--delete-when", "op=d"], "say themselves which rows are deleted"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else None,
)
def test_what_contradicts_itself_is_refused_by_the_option(words: list[str], says: str) -> None:
    with pytest.raises(InvalidConfiguration, match=says):
        describe(options_of(*words))


def test_a_start_on_records_that_only_delete_without_an_order_or_lack_the_column_is_refused() -> None:
    def check(options: FeedOptions, *records: SourceRecord) -> None:
        check_records(records, describe(options), options.format, "customers", deletions=options.deletions)

    tombstone = SourceRecord(0, 1, b"a", None)
    row = SourceRecord(0, 2, b"a", msgspec.json.encode(changed("a", 1, 1.0)))
    with pytest.raises(InvalidConfiguration, match=r"none of the last 1 records .* has no at"):
        check(options_of(*BY_ORDER), tombstone)
    check(options_of(*BY_ORDER), tombstone, row)
    check(options_of(*BY_ORDER, "--unordered-deletes", "delete"), tombstone)
    # Rows that stay need not have the column that deletes, and rows that delete none of the values.
    by_column = options_of(*ROWS, "--order-by", "at", "--delete-when", "gone=true")
    check(by_column, row)
    check(by_column, SourceRecord(0, 3, b"a", b'{"k": "a", "gone": true, "at": 3}'))
    with pytest.raises(InvalidConfiguration, match=r"has a field __delete.*__deleted"):
        check(options_of(*ROWS, "--order-by", "at", "--delete-when", "__delete=true"), row)
