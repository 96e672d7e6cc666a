"""What a task makes of its rows and of what the owners held, without Spark: against one aggregation over all rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent import futures
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import grpc
import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyhole.coordinator.task_stream import NotTaken
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.columnar import OP, STORAGE_KEY, VALUE
from keyhole.encoding.envelope import Aggregate, decode_aggregate
from keyhole.errors import ValueMismatch
from keyhole.model.epoch import EpochStamp, Run
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.protocol.receipts import StageOrder, Target
from keyhole.rpc.channels import sync_channel
from keyhole.rpc.frames import FRAME_BYTES
from keyhole.spark.worker.aggregating import Aggregation, aggregated, result_row
from keyhole.v1 import state_server_pb2 as pb
from keyhole.v1 import state_server_pb2_grpc
from tests.support.examples import examples

DESCRIPTOR = StateDescriptor(
    "app",
    "folded",
    "main",
    StateKind.AGGREGATING,
    4,
    (KeyColumn("k", KeyType.STRING),),
    ValueSchema(1, (ValueField("text", "string"), ValueField("rows", "bigint"))),
)
CODEC = StateCodec(DESCRIPTOR)


class Folded:
    """Folds to text, as Flink's folding state: the order of rows matters. Its accumulators are stored as JSON."""

    def create(self) -> list[str]:
        return []

    def add(self, accumulator: list[str], row: Any) -> list[str]:
        return [*accumulator, str(row.v)]

    def merge(self, one: list[str], other: list[str]) -> list[str]:
        return one + other

    def result(self, accumulator: list[str]) -> Mapping[str, Any]:
        return {"rows": len(accumulator), "text": "".join(accumulator)}

    def encode(self, accumulator: list[str]) -> bytes:
        return json.dumps(accumulator).encode()

    def decode(self, data: bytes) -> Any:
        return json.loads(data)


class Owner(state_server_pb2_grpc.StateServerServicer):
    """Holds accumulators, and gives only a few at a time."""

    def __init__(self) -> None:
        self.held: dict[bytes, bytes] = {}
        self.version = 1
        self.largest_request = 0
        self._server = grpc.server(futures.ThreadPoolExecutor(2))
        state_server_pb2_grpc.add_StateServerServicer_to_server(self, self._server)
        self.target = Target("owner", f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}", "incarnation")
        self._server.start()

    def ReadBase(self, request: pb.ReadBaseRequest, context: grpc.ServicerContext) -> pb.ReadBaseResponse:  # noqa: N802
        self.largest_request = max(self.largest_request, request.ByteSize())
        keys = request.storage_keys[:3]
        return pb.ReadBaseResponse(
            bases=[
                pb.Base(found=key in self.held, accumulator=self.held.get(key, b""), version=self.version)
                for key in keys
            ]
        )

    def stop(self) -> None:
        self._server.stop(None).wait()


@pytest.fixture(scope="module")
def owner() -> Iterator[Owner]:
    made = Owner()  # type: ignore[abstract]  # nothing else is called
    yield made
    made.stop()


def order(target: Target) -> StageOrder:
    return StageOrder(
        Run("app", "main", 1, "run"), EpochStamp(5, 1, 0, 0), 0, 1, (target,), {"folded": (0,) * 4}, 60.0, {}
    )


def run(owner: Owner, aggregator: Any, batches: Iterable[pa.RecordBatch]) -> dict[str, Aggregate | None]:
    aggregation = Aggregation(aggregator, ("v",))
    staged = {}
    for batch in aggregated(order(owner.target), DESCRIPTOR, aggregation, batches, sync_channel):
        for key, row in zip(batch.column(STORAGE_KEY).to_pylist(), batch.column(VALUE).to_pylist(), strict=True):
            assert key not in staged
            staged[CODEC.key(key)[0]] = None if row is None else decode_aggregate(row[4:])
    return staged  # type: ignore[return-value]  # of string keys


def batch(rows: Iterable[tuple[str, int, str | None]]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    return pa.record_batch(
        {
            "k": pa.array(columns[0], pa.string()),
            "v": pa.array(columns[1], pa.int32()),
            OP: pa.array(columns[2], pa.string()),
        }
    )


rows = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 9), st.sampled_from([None, "put", "clear"])))


@settings(max_examples=examples(60, least=60), deadline=None)
@given(stored=st.dictionaries(st.sampled_from("abcdefgh"), st.lists(st.integers(0, 9))), batches=st.lists(rows))
def test_a_task_adds_its_rows_to_what_the_owner_held(
    owner: Owner, stored: dict[str, list[int]], batches: list[list[tuple[str, int, str | None]]]
) -> None:
    owner.held = {CODEC.storage_key(key): json.dumps(list(map(str, of))).encode() for key, of in stored.items()}
    expected: dict[str, list[int] | None] = {}
    for key, v, op in (row for of in batches for row in of):
        if op == "clear":
            expected[key] = None
        else:
            before = expected[key] if key in expected else stored.get(key)
            expected[key] = [*(before or []), v]
    found = run(owner, Folded(), map(batch, batches))
    assert found.keys() == expected.keys()
    for key, entry in found.items():
        of = expected[key]
        if of is None:
            assert entry is None
            continue
        assert entry is not None
        row = CODEC.decode_row(entry.row)
        assert (row.text, row.rows) == ("".join(map(str, of)), len(of))
        assert json.loads(entry.accumulator) == list(map(str, of))


def test_large_keys_are_asked_for_in_several_requests(owner: Owner) -> None:
    names = [f"{number}-".ljust(400_000, "k") for number in range(12)]
    owner.held = {CODEC.storage_key(name): b'["1"]' for name in names}
    found = run(owner, Folded(), [batch([(name, 2, None) for name in names])])
    assert [json.loads(found[name].accumulator) for name in names] == [["1", "2"]] * 12  # type: ignore[union-attr]
    assert owner.largest_request <= FRAME_BYTES + 1000


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"text": "x"}, "has the fields text; declared are text, rows"),
        ({"text": "x", "rows": 1, "more": 2}, "has the fields text, rows, more"),
        (("x",), "has 1 fields"),
        (None, "is a NoneType, not its fields by name or in their order"),
        (7, "is a int"),
        ("ab", "is a str"),
        ({"a", "b"}, "is a set"),
        (("x", 1.0), r"has a float in its field rows, which does not fit \(docs/values.md"),
        (("x", True), "has a bool in its field rows"),
        (("x", 1 << 63), "has a int in its field rows"),
        ((1, 1), "has a int in its field text"),
    ],
)
def test_a_result_that_is_not_as_declared_is_refused(owner: Owner, result: Any, message: str) -> None:
    class Wrong(Folded):
        def result(self, accumulator: list[str]) -> Any:
            return result

    owner.held = {}
    with pytest.raises(ValueMismatch, match=f"the result of the aggregator of state '{DESCRIPTOR.state}' {message}"):
        run(owner, Wrong(), [batch([("a", 1, None)])])


def test_a_map_in_a_result_is_given_as_one_or_as_its_pairs() -> None:
    of = msgspec.structs.replace(DESCRIPTOR, value=ValueSchema(1, (ValueField("counts", "map<string,bigint>"),)))
    expected = result_row(of, [{"a": 1, "b": None}])
    assert result_row(of, [[("a", 1), ["b", None]]]) == expected
    assert StateCodec(of).decode_row(expected).counts == {"a": 1, "b": None}
    for wrong in ([1], ["ab"], [("a",)], [("a", 1, 2)], [("a", "1")], [(["a"], 1)], "ab", {("a", 1)}):
        with pytest.raises(ValueMismatch, match="in its field counts, which does not fit"):
            result_row(of, [wrong])


class Kept:
    """Whose accumulators are what it is made with, and stored by default."""

    def __init__(self, accumulator: Any) -> None:
        self._accumulator = accumulator

    def create(self) -> Any:
        return self._accumulator

    def add(self, accumulator: Any, row: Any) -> Any:
        return accumulator

    def merge(self, one: Any, other: Any) -> Any:
        return one

    def result(self, accumulator: Any) -> tuple[str, int]:
        return ("x", 1)


@pytest.mark.parametrize("accumulator", [{1}, [Decimal(1)], {"a": Counter()}, object(), {(1, 2): 3}, 1 << 70])
def test_an_accumulator_that_would_come_back_as_something_else_is_refused_before_it_is_stored(
    owner: Owner, accumulator: Any
) -> None:
    owner.held = {}
    with pytest.raises(ValueMismatch, match=r"of state 'folded' holds a .*; give the aggregator encode and decode"):
        run(owner, Kept(accumulator), [batch([("a", 1, None)])])


def test_plain_data_comes_back_as_what_it_is(owner: Owner) -> None:
    owner.held = {}
    plain = {"a": [1, -2.5, None, True, "x", b"y", 1 << 63], 2: [[]], "at": datetime(2026, 1, 1, tzinfo=UTC)}
    found = run(owner, Kept(plain), [batch([("a", 1, None)])])
    entry = found["a"]
    assert entry is not None
    assert msgspec.msgpack.decode(entry.accumulator) == plain


def test_an_owner_that_does_not_answer_is_a_receipt_and_no_error(owner: Owner) -> None:
    target = Target("gone", "127.0.0.1:1", "incarnation")
    with pytest.raises(NotTaken) as refused:
        list(
            aggregated(
                order(target), DESCRIPTOR, Aggregation(Folded(), ("v",)), [batch([("a", 1, None)])], sync_channel
            )
        )
    assert refused.value.receipt.server == "gone"
    assert refused.value.receipt.error is not None


def test_what_an_aggregator_brings_is_known_by_its_digest_where_the_order_of_rows_does_not_show(owner: Owner) -> None:
    class Total(Folded):
        commutative = True

        def create(self) -> Any:
            return 0

        def add(self, accumulator: Any, row: Any) -> Any:
            return accumulator + row.v

        def merge(self, one: Any, other: Any) -> Any:
            return one + other

        def result(self, accumulator: Any) -> Mapping[str, Any]:
            return {"text": "", "rows": accumulator}

    def digest(aggregator: Any, *values: int) -> bytes:
        aggregation = Aggregation(aggregator, ("v",))
        of = batch([("a", value, None) for value in values])
        (staged,) = aggregated(order(owner.target), DESCRIPTOR, aggregation, [of], sync_channel)
        row: bytes = staged.column(VALUE)[0].as_py()
        return row[:4]

    owner.held = {}
    first = digest(Total(), 1, 2)
    assert first == digest(Total(), 2, 1) != digest(Total(), 2, 2)
    owner.held = {CODEC.storage_key("a"): b"40"}
    assert digest(Total(), 1, 2) == first, "what was stored before is no part of it"
    owner.held = {}
    assert digest(Folded(), 1, 2) == digest(Folded(), 2, 1) == bytes(4)
