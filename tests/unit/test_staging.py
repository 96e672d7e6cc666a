"""What a task sends to the owners of its rows: chunks of a size that any message can have."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import pyarrow as pa
import pytest

from keyhole.changelog.settings import MAX_ROW_BYTES
from keyhole.coordinator.task_stream import stage_partition
from keyhole.model.epoch import EpochStamp, Run
from keyhole.protocol.receipts import PartitionReceipt, StageOrder, Target
from keyhole.rpc.channels import MESSAGE_SIZE, sync_channel
from keyhole.v1 import state_server_pb2 as pb
from keyhole.v1 import state_server_pb2_grpc

KEY = b"\0\0key"


class Owner(state_server_pb2_grpc.StateServerServicer):
    """Takes whatever is staged, as a state server's port does."""

    def __init__(self) -> None:
        self.rows: list[tuple[bytes, bytes | None]] = []
        self.chunks: list[int] = []
        self.effects: list[pb.StageEffect.ValueType] = []
        self.watermarks: list[int] = []
        self._server = grpc.server(futures.ThreadPoolExecutor(2), options=MESSAGE_SIZE)
        state_server_pb2_grpc.add_StateServerServicer_to_server(self, self._server)
        self.target = Target("owner", f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}", "incarnation")
        self._server.start()

    def Stage(  # noqa: N802  # as the proto names it
        self, request_iterator: Iterator[pb.StageRequest], context: grpc.ServicerContext
    ) -> pb.StageResponse:
        for request in request_iterator:
            if request.WhichOneof("message") == "chunk":
                table = pa.ipc.open_stream(request.chunk).read_all()
                self.rows += zip(
                    table.column("storage_key").to_pylist(), table.column("value").to_pylist(), strict=True
                )
                self.chunks.append(len(request.chunk))
            else:
                self.effects.append(request.header.effect)
                self.watermarks.append(request.header.watermark_ms)
        return pb.StageResponse()

    def stop(self) -> None:
        self._server.stop(None).wait()


@pytest.fixture
def owner() -> Iterator[Owner]:
    made = Owner()  # type: ignore[abstract]  # nothing else is called
    yield made
    made.stop()


def staged(owner: Owner, rows: list[tuple[bytes, bytes | None]], **order_has: Any) -> PartitionReceipt:
    keys, values = zip(*rows, strict=True)
    batch = pa.record_batch({"storage_key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})
    order = StageOrder(
        Run("app", "main", 1, "run"),
        EpochStamp(5, 1, 0, 5_000),
        0,
        1,
        (owner.target,),
        {"counts": (0,) * 4},
        60.0,
        {},
        **order_has,
    )
    return stage_partition(order, "counts", 3, 7, [batch], sync_channel)


def test_rows_near_the_limit_are_staged_each_in_a_message_of_its_own(owner: Owner) -> None:
    largest = bytes(MAX_ROW_BYTES - len(KEY))
    rows = [(KEY, b"small"), (KEY, largest), (KEY, None), (KEY, largest), (KEY, b"small")]
    receipt = staged(owner, rows)
    assert (receipt.failure, receipt.servers[0].error) == (None, None)
    assert owner.rows == rows
    assert sum(size > MAX_ROW_BYTES for size in owner.chunks) == 2


@pytest.mark.parametrize("rows", [[], [(KEY, b"small")] * 1000])
def test_a_row_that_no_changelog_takes_is_refused_by_its_size_and_state(
    owner: Owner, rows: list[tuple[bytes, bytes | None]]
) -> None:
    receipt = staged(owner, [*rows, (KEY, bytes(MAX_ROW_BYTES)), *rows])
    assert receipt.failure is not None
    reason, message, facts = receipt.failure
    assert reason == "TOO_LARGE"
    assert "a row of state app/counts takes 16,777,221 bytes with its key, and 16,777,216 is the most" in message
    assert facts == {"state": "app/counts", "bytes": "16777221", "limit": "16777216"}
    assert receipt.servers == ()


def test_many_rows_with_large_keys_are_sent_in_chunks(owner: Owner) -> None:
    rows: list[tuple[bytes, bytes | None]] = [(KEY.ljust(500, b"k"), None)] * 20_000
    assert staged(owner, rows).failure is None
    assert owner.rows == rows
    assert max(owner.chunks) < 3 << 20


def test_a_server_is_told_what_the_commit_will_do_with_the_rows_for_those_who_read_before_it(owner: Owner) -> None:
    for order_has in ({}, {"replaced": frozenset({"others"})}, {"replaced": frozenset({"counts"})}, {"empties": True}):
        assert staged(owner, [(KEY, b"row")], **order_has).failure is None
    merges, replaces = pb.STAGE_EFFECT_MERGES, pb.STAGE_EFFECT_REPLACES
    assert owner.effects == [merges, merges, replaces, replaces]
    assert owner.watermarks == [5_000] * 4
