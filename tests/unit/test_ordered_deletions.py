"""With `order_by` a deletion has an order, as any row has, and is remembered: what is older changes nothing.

From the rows of tasks on: tests/property/test_deletions_by_order.py has all that can happen to them afterwards.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from keyhole.changelog.records import MARKER_KEY
from keyhole.config import JobConfig
from keyhole.encoding.codec import EntryRange, StateCodec
from keyhole.encoding.columnar import OP, encode
from keyhole.encoding.envelope import DELETED, deletion
from keyhole.encoding.key_codec import end_of_prefix
from keyhole.encoding.row_codec import encode_row
from keyhole.errors import ValueMismatch
from keyhole.model.epoch import EpochStamp
from keyhole.model.state import StateDescriptor, ValueField, ValueSchema
from keyhole.spark import queryable
from keyhole.spark.declaration.schema import describe
from keyhole.spark.sink import Sink
from keyhole.stores.base import Snapshot
from services.state_server.write.commit import EpochToCommit, StateToCommit
from services.state_server.write.merge import merge_of
from services.state_server.write.staged import StagedAttempt
from tests.support.bench import Bench
from tests.support.states import KEY_GROUPS, content, descriptor, standing, table

CONFIG = JobConfig("app", ("127.0.0.1:7410",), "127.0.0.1:9092")
SCHEMA = spark.StructType(
    [
        spark.StructField("k", spark.StringType(), nullable=False),
        spark.StructField("m", spark.StringType(), nullable=False),
        spark.StructField("v", spark.StringType()),
        spark.StructField("at", spark.LongType(), nullable=False),
    ]
)
_ARROW = pa.schema([("k", pa.string()), ("m", pa.string()), ("v", pa.string()), ("at", pa.int64()), (OP, pa.string())])

Change = tuple[str, int | None] | tuple[str, int | None, str]
"""What it does, its order, and in a map the entry (default "m")."""


def described(sink: Sink) -> StateDescriptor:
    (part,) = sink.parts_alone()
    return describe(part.declaration, "app", "main", SCHEMA)


def of_value(**options: Any) -> StateDescriptor:
    options = {"key_groups": KEY_GROUPS, "value": ["v"], "order_by": "at", "config": CONFIG} | options
    return described(queryable.value("counts", key="k", **options))


def of_map(**options: Any) -> StateDescriptor:
    options = {"key_groups": KEY_GROUPS, "value": ["v"], "order_by": "at", "config": CONFIG} | options
    return described(queryable.map("counts", key="k", map_key="m", **options))


def of_broadcast(**options: Any) -> StateDescriptor:
    return described(queryable.broadcast("counts", key="k", value=["v"], order_by="at", config=CONFIG, **options))


STATES = {"value": of_value, "map": of_map, "broadcast": of_broadcast}


@dataclass
class Job:
    """Epochs of one key, an hour apart if nothing else is said."""

    of: StateDescriptor
    number: int = 0
    now_ms: int = 0

    def __post_init__(self) -> None:
        self.bench = Bench(self.of)

    def run(self, *changes: Change, passed: timedelta = timedelta(hours=1)) -> object:
        """What readers see afterwards: the order of the row; of a map, by entry."""
        self.number, self.now_ms = self.number + 1, self.now_ms + passed // timedelta(milliseconds=1)
        attempt = StagedAttempt("app/counts", KEY_GROUPS, 511, merge_of(self.of))
        if changes:
            staged = encode(batch(changes), self.of)
            attempt.add(staged.column(0).to_pylist(), staged.column(1).to_pylist())
        states = {"counts": StateToCommit([attempt], attempt.receipts(), replace=False)}
        self.bench.commit(EpochToCommit(EpochStamp(self.number, 1, self.now_ms, 0), 0, states))
        return self.shown()

    def shown(self) -> object:
        codec, view = StateCodec(self.of), table(self.of, self.bench.state.store)
        view.publish(self.bench.state.store.snapshot(), frozenset(range(KEY_GROUPS)), standing(self.number), {})
        if not self.of.map_key:
            (found,) = view.lookup([codec.storage_key("a")]).rows
            return None if found is None else codec.decode_row(found)["at"]
        prefix = codec.prefix("a")
        scanned = view.scan(EntryRange(prefix, prefix, end_of_prefix(prefix)))
        return {codec.entry(key)[1][0]: codec.decode_row(row)["at"] for key, row in scanned.entries if row is not None}

    def stored(self) -> int:
        return len(content(self.bench.state.store))

    def declared(self, of: StateDescriptor) -> None:
        """The job is started again, with another declaration."""
        self.of = of
        self.bench.state.evolve(of)


def batch(changes: Sequence[Change]) -> pa.RecordBatch:
    rows = [
        {"k": "a", "m": entry[0] if entry else "m", "v": None if op != "put" else "x", "at": at, OP: op}
        for op, at, *entry in changes
    ]
    return pa.RecordBatch.from_pylist(rows, _ARROW)


@pytest.fixture(params=STATES)
def job(request: pytest.FixtureRequest) -> Job:
    return Job(STATES[request.param]())


def is_at(job: Job, at: int | None) -> object:
    """What is shown of one entry that has this order; None: there is none."""
    return ({} if at is None else {"m": at}) if job.of.map_key else at


class TestOrders:
    """Of rows and deletions of one entry, in one epoch and across epochs."""

    def test_a_deletion_that_is_older_than_the_stored_row_changes_nothing(self, job: Job) -> None:
        job.run(("put", 5))
        assert job.run(("delete", 3)) == is_at(job, 5)

    def test_a_row_that_is_older_than_the_deletion_does_not_come_back(self, job: Job) -> None:
        job.run(("put", 5))
        assert job.run(("delete", 7)) == is_at(job, None)
        assert job.run(("put", 5)) == job.run(("put", 6)) == is_at(job, None)
        assert job.run(("put", 8)) == is_at(job, 8)

    def test_nor_does_one_that_the_state_had_never_had(self, job: Job) -> None:
        assert job.run(("delete", 7)) == job.run(("put", 5)) == is_at(job, None)

    @pytest.mark.parametrize("changes", [(("put", 5), ("delete", 3)), (("delete", 3), ("put", 5))])
    def test_in_one_epoch_the_highest_order_counts_too(self, job: Job, changes: tuple[Change, ...]) -> None:
        assert job.run(*changes) == is_at(job, 5)
        assert job.run(*((op, 20 - at) for op, at in changes)) == is_at(job, None)  # type: ignore[operator, misc]

    def test_of_equal_orders_the_later_epoch_counts_and_in_one_epoch_the_deletion(self, job: Job) -> None:
        job.run(("put", 5))
        assert job.run(("delete", 5)) == is_at(job, None)
        assert job.run(("put", 5)) == is_at(job, 5)
        assert job.run(("put", 6), ("delete", 6)) == is_at(job, None)

    def test_a_deletion_without_an_order_is_older_than_all_that_have_one_as_a_row_is(self, job: Job) -> None:
        """So what Kafka's own tombstone says after a deletion is nothing new."""
        job.run(("put", 5))
        assert job.run(("delete", None)) == is_at(job, 5)
        job.run(("delete", 7))
        assert job.run(("delete", None)) == job.run(("put", 6)) == is_at(job, None)
        assert job.run(("put", 9), ("delete", None)) == is_at(job, 9)

    def test_among_themselves_rows_and_deletions_without_an_order_are_of_equal_order(self) -> None:
        nullable = msgspec.structs.replace(of_value().value.fields[1], nullable=True)
        of = of_value()
        of = msgspec.structs.replace(of, value=msgspec.structs.replace(of.value, fields=(of.value.fields[0], nullable)))
        job = Job(of)
        job.run(("put", None))
        assert job.stored() == 1
        job.run(("delete", None))
        assert job.stored() == 0  # nothing can be older
        job.run(("put", None))
        assert job.stored() == 1


class TestClearing:
    """Of all entries of a map's key."""

    def test_what_clears_a_key_deletes_what_is_older_and_keeps_it_away(self) -> None:
        job = Job(of_map())
        job.run(("put", 3, "a"), ("put", 5, "b"), ("put", 7, "c"), ("delete", 6, "d"))
        assert job.run(("clear", 5)) == {"c": 7}
        assert job.run(("put", 4, "a"), ("put", 4, "new"), ("put", 5, "d")) == {"c": 7}
        assert job.run(("put", 5, "a"), ("put", 6, "new")) == {"a": 5, "c": 7, "new": 6}

    def test_in_one_epoch_it_comes_before_rows_of_its_order(self) -> None:
        job = Job(of_map())
        assert job.run(("clear", 5), ("put", 5, "a"), ("put", 4, "b"), ("clear", 3)) == {"a": 5}

    def test_an_older_one_changes_nothing(self) -> None:
        job = Job(of_map())
        job.run(("clear", 5), ("put", 6, "a"))
        assert job.run(("clear", 4)) == {"a": 6}
        assert job.run(("clear", None)) == {"a": 6}
        assert job.run(("put", 4, "b")) == {"a": 6}

    def test_of_a_value_it_is_a_deletion(self) -> None:
        job = Job(of_value())
        job.run(("put", 5))
        assert job.run(("clear", 4)) == 5
        assert job.run(("clear", 6)) is None
        assert job.run(("put", 5)) is None


class TestForgetting:
    """Of deletions."""

    def test_a_deletion_is_remembered_for_a_day_if_nothing_else_is_said(self, job: Job) -> None:
        job.run(("delete", 7))
        assert job.run(("put", 5), passed=timedelta(days=1, milliseconds=-1)) == is_at(job, None)
        assert job.run(("put", 5), passed=timedelta(milliseconds=1)) == is_at(job, 5)

    @pytest.mark.parametrize("kind", STATES)
    def test_it_is_removed_from_the_store_and_the_changelog_when_it_is_due(self, kind: str) -> None:
        job = Job(STATES[kind](keep_deleted=timedelta(minutes=90)))
        job.run(("delete", 7), ("clear", 3))
        job.run()
        kept = job.stored()
        job.run()
        assert (kept, job.stored()) == (2 if kind == "map" else 1, 0)
        job.bench.kafka.compact(job.of.topic, forget_deletions=True)
        assert all(len(name) == 1 for group in range(KEY_GROUPS) for name, _ in job.bench.log(group))

    def test_as_long_as_nothing_is_due_nothing_is_looked_at(self, monkeypatch: pytest.MonkeyPatch) -> None:
        looked: list[int] = []
        job = Job(of_value())
        job.run(("put", 1))
        job.run()  # the first round: nothing is known of what a store holds at first
        taken = job.bench.state.store.snapshot

        def watched() -> Snapshot:
            snapshot = taken()
            items = snapshot.items

            def noting(group: int, *bounds: Any) -> Iterator[tuple[bytes, bytes]]:
                looked.append(group)
                return items(group, *bounds)

            monkeypatch.setattr(snapshot, "items", noting)
            return snapshot

        monkeypatch.setattr(job.bench.state.store, "snapshot", watched)
        for at in range(2, 5):
            job.run(("put", at), passed=timedelta(days=2))
        job.run(("delete", 9))
        job.run(passed=timedelta(hours=23))
        assert not looked
        job.run(passed=timedelta(hours=1))
        assert set(looked) == set(range(KEY_GROUPS))

    def test_deletions_that_come_while_a_round_is_under_way_are_removed_too(self, job: Job) -> None:
        """In the same epoch as a round begins, goes on, or ends."""
        for at in range(1, 9):
            job.run(("delete", at, f"{at}"), passed=timedelta(hours=6))
        job.run(passed=timedelta(hours=24))
        assert job.stored() == 0

    def test_what_was_remembered_stays_so_where_the_time_is_changed(self, job: Job) -> None:
        job.run(("delete", 7))
        job.declared(msgspec.structs.replace(job.of, keep_deleted_ms=1))
        assert job.run(("put", 5)) == is_at(job, None)
        job.run(("delete", 8))
        assert job.run(("put", 5)) == is_at(job, 5)


class TestOldBehaviour:
    """deletes="always"."""

    @pytest.mark.parametrize("kind", STATES)
    def test_a_deletion_counts_whatever_the_orders_and_is_forgotten_at_once(self, kind: str) -> None:
        job = Job(STATES[kind](deletes="always"))
        job.run(("put", 5))
        assert job.run(("delete", 3)) == is_at(job, None)
        assert job.stored() == 0
        assert job.run(("put", 4)) == is_at(job, 4)
        assert job.run(("put", 9), ("delete", None)) == is_at(job, None)

    @pytest.mark.parametrize("kind", STATES)
    def test_a_job_may_go_over_to_orders_and_back_and_what_is_stored_counts(self, kind: str) -> None:
        """Rows of earlier releases are stored as those of deletes="always" are."""
        always, by_order = STATES[kind](deletes="always"), STATES[kind]()
        job = Job(always)
        job.run(("put", 5))
        job.declared(by_order)
        assert job.run(("delete", 3)) == is_at(job, 5)
        assert job.run(("delete", 7)) == is_at(job, None)
        job.declared(always)
        assert job.run(("put", 6)) == is_at(job, None)  # what was remembered is, until it is due
        assert job.run(("put", 6), passed=timedelta(days=1)) == is_at(job, 6)
        assert job.run(("delete", 1)) == is_at(job, None)
        assert job.stored() == 0


ORDERS: dict[str, tuple[spark.DataType, pa.DataType, list[Any]]] = {
    "boolean": (spark.BooleanType(), pa.bool_(), [False, True]),
    "tinyint": (spark.ByteType(), pa.int8(), [-128, 127]),
    "bigint": (spark.LongType(), pa.int64(), [-(1 << 63), (1 << 63) - 1]),
    "float": (spark.FloatType(), pa.float32(), [float("-inf"), -0.5, float("nan")]),
    "double": (spark.DoubleType(), pa.float64(), [0.5, float("inf"), float("nan")]),
    "decimal": (spark.DecimalType(10, 2), pa.decimal128(10, 2), [Decimal("-9.50"), Decimal("10.00")]),
    "string": (spark.StringType(), pa.string(), ["", "a", "aa", "b"]),
    "binary": (spark.BinaryType(), pa.binary(), [b"", b"\0", b"\xff"]),
    "date": (spark.DateType(), pa.date32(), [dt.date(1, 1, 1), dt.date(1970, 1, 2), dt.date(9999, 12, 31)]),
    "timestamp": (
        spark.TimestampType(),
        pa.timestamp("us", "UTC"),
        [dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.datetime(9999, 12, 31, tzinfo=dt.UTC)],
    ),
    "timestamp_ntz": (
        spark.TimestampNTZType(),
        pa.timestamp("us"),
        [dt.datetime(1969, 12, 31), dt.datetime(1970, 1, 1)],  # noqa: DTZ001 - timestamp_ntz has no time zone
    ),
}


@pytest.mark.parametrize("name", ORDERS)
def test_deletions_and_rows_compare_by_orders_of_every_type(name: str) -> None:
    kind, arrow, orders = ORDERS[name]
    schema = spark.StructType([spark.StructField("k", spark.StringType()), spark.StructField("at", kind)])
    (part,) = queryable.value("counts", key="k", order_by="at", key_groups=KEY_GROUPS, config=CONFIG).parts_alone()
    of = describe(part.declaration, "app", "main", schema)
    columns = pa.schema([("k", pa.string()), ("at", arrow), (OP, pa.string())])
    given = [{"k": "a", "at": at, OP: op} for at in [None, *orders] for op in ("put", "delete")]
    rows = encode(pa.RecordBatch.from_pylist(given, columns), of).column(1).to_pylist()
    merge = merge_of(of)
    for number, one in enumerate(rows):
        for other in rows[number:]:
            # Ascending as they were made: null first, and of one order the deletion last.
            assert merge.staged(one, other) == merge.staged(other, one) == other


def test_a_deletion_whose_order_can_not_be_is_refused() -> None:
    columns = pa.schema([("k", pa.string()), ("at", pa.string()), (OP, pa.string())])
    given = pa.RecordBatch.from_pylist([{"k": "a", "at": "late", OP: "delete"}], columns)
    with pytest.raises(ValueMismatch, match="order_by column at is of type bigint"):
        encode(given, of_value())


@pytest.mark.parametrize("staged", [DELETED, DELETED + b"\xc1", DELETED + b"\xa4late", deletion(7) + b"\0"])
def test_a_staged_deletion_that_has_no_order_of_the_state_is_refused_without_telling_it(staged: bytes) -> None:
    of = of_value()
    with pytest.raises(ValueMismatch, match="has no at of state counts") as caught:
        merge_of(of).staged(staged, encode_row(1, ["x", 5]))
    assert "late" not in str(caught.value)


def test_kinds_that_keep_no_highest_row_take_neither_argument() -> None:
    for make, own in ((queryable.list, {"max_length": 3}), (queryable.reducing, {"reducers": {"v": "max"}})):
        for argument in ({"deletes": "by_order"}, {"keep_deleted": timedelta(1)}):
            with pytest.raises(TypeError, match="unexpected arguments"):
                make("s", key="k", config=CONFIG, **own, **argument)  # type: ignore[operator]
    (part,) = queryable.list("s", key="k", max_length=3, order_by="v", config=CONFIG).parts_alone()
    assert part.declaration.keep_deleted_ms == 0


def test_the_changelog_of_a_state_with_an_order_is_of_the_layout_that_has_deletions() -> None:
    """Also before there is one: whoever doesn't know them must not begin to follow."""
    for of, layout in ((of_value(), 2), (of_value(deletes="always"), 2), (descriptor(), 1)):
        bench = Bench(of)
        attempt = StagedAttempt("app/counts", KEY_GROUPS, 511, merge_of(of))
        attempt.add([StateCodec(of).storage_key("a")], [encode_row(1, ["x", 5] if of.order_by else [5.0])])
        states = {"counts": StateToCommit([attempt], attempt.receipts(), replace=False)}
        bench.commit(EpochToCommit(EpochStamp(1, 1, 1000, 0), 0, states))
        markers = [value for group in range(KEY_GROUPS) for name, value in bench.log(group) if name == MARKER_KEY]
        assert [json.loads(value or b"")["layout"] for value in markers] == [layout]


@pytest.mark.parametrize("kind", STATES)
def test_rows_of_many_fields_are_no_deletions(kind: str) -> None:
    """MessagePack begins an array of 16 elements or more with another byte, which is above that of a deletion."""
    of = STATES[kind]()
    more = tuple(ValueField(f"v{number}", "string") for number in range(15))
    of = msgspec.structs.replace(of, value=ValueSchema(1, (*of.value.fields, *more)))
    job, codec = Job(of), StateCodec(of)
    wide = encode_row(1, ["x", 5, *["more"] * 15])
    name = codec.storage_key(("a", "m") if of.map_key else "a")
    assert wide > deletion(5)
    for number, row in enumerate((wide, deletion(4), deletion(5), wide), start=1):
        attempt = StagedAttempt("app/counts", of.key_groups, 511, merge_of(of))
        attempt.add([name], [row])
        states = {"counts": StateToCommit([attempt], attempt.receipts(), replace=False)}
        job.bench.commit(EpochToCommit(EpochStamp(number, 1, 1000, 0), 0, states))
        assert job.shown() == is_at(job, None if number == 3 else 5)
    assert merge_of(of).staged(wide, deletion(5)) == merge_of(of).staged(deletion(5), wide) == deletion(5)
