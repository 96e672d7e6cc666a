"""What a task does with its partition's rows: stream each to the owner of its key group. No Spark here."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Iterable, Iterator

import grpc
import numpy as np
import pyarrow as pa

from keyhole.changelog.settings import MAX_ROW_BYTES
from keyhole.encoding.columnar import ipc_stream
from keyhole.errors import ConflictError, KeyholeError, RequestError, ServerLost, TooLarge
from keyhole.protocol.receipts import PartitionReceipt, ServerReceipt, StageOrder, Target
from keyhole.rpc.convert_writes import effect_to_proto, receipt_from_proto, run_to_proto
from keyhole.rpc.status import from_rpc_error
from keyhole.v1 import state_server_pb2, state_server_pb2_grpc

# Well below the message limit of 16 MiB, and small enough to fill a bounded queue of four without hurting a task.
_CHUNK_BYTES = 1 << 20
_QUEUED_CHUNKS = 4

Connect = Callable[[str], grpc.Channel]


class NotTaken(Exception):
    """Raised by what makes a partition's rows: a server that it needed did not answer, which another round may mend."""

    def __init__(self, receipt: ServerReceipt) -> None:
        super().__init__(receipt.error)
        self.receipt = receipt

    @classmethod
    def by(cls, target: Target, error: KeyholeError) -> NotTaken:
        """What the server said, or what its silence was taken for."""
        return cls(ServerReceipt(target.server, target.incarnation, error=(type(error).reason, error.message)))


def stage_partition(
    order: StageOrder,
    state: str,
    partition: int,
    attempt_id: int,
    batches: Iterable[pa.RecordBatch],
    connect: Connect,
) -> PartitionReceipt:
    """Streams a partition to the state servers and returns what they hold of it. Blocks until they have it.

    Args:
        batches: Columns storage_key: binary and value: binary (null: delete), as columnar.encode makes them.
        connect: Gives the (cached) channel to an address.

    Returns:
        A receipt in every case that another round may mend, as a task that raises ends the query. Of a server that
            can't be reached, or that no longer owns the key group, the receipt says so. Errors in the data
            (DuplicateKey, KeyTooLong, ...) are the receipt's `failure`.
    """
    streams: dict[int, _StageStream] = {}
    routes = np.asarray(order.routes[state], dtype=np.int32)
    try:
        for batch in batches:
            for index, rows in _split(batch, routes):
                if index not in streams:
                    target = order.targets[index]
                    streams[index] = _StageStream(order, state, partition, attempt_id, target, connect)
                streams[index].send(rows)
        results = tuple(stream.finish() for stream in streams.values())
    except NotTaken as error:
        return PartitionReceipt(state, partition, attempt_id, (error.receipt,))
    except (RequestError, ConflictError) as error:
        return PartitionReceipt(state, partition, attempt_id, failure=(type(error).reason, error.message, error.facts))
    finally:
        for stream in streams.values():
            stream.cancel()
    return PartitionReceipt(state, partition, attempt_id, results)


def _split(batch: pa.RecordBatch, routes: np.ndarray) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The batch's rows by the server that owns them."""
    if batch.num_rows == 0:
        return
    if (routes == routes[0]).all():
        yield int(routes[0]), batch
        return
    owners = routes[_key_groups(batch.column("storage_key"))]
    for index in np.unique(owners):
        yield int(index), batch.filter(pa.array(owners == index))


def _key_groups(keys: pa.BinaryArray) -> np.ndarray:
    """Reads the first two bytes of each storage key, without touching Python objects."""
    _, offsets_buffer, data_buffer = keys.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype=np.int32)[keys.offset : keys.offset + len(keys)]
    data = np.frombuffer(data_buffer, dtype=np.uint8)
    return data[offsets].astype(np.int32) << 8 | data[offsets + 1]


class _StageStream:
    """One Stage call, fed through a bounded queue, so that a slow server slows the task instead of filling it."""

    def __init__(
        self, order: StageOrder, state: str, partition: int, attempt_id: int, target: Target, connect: Connect
    ) -> None:
        self._target = target
        self._state = f"{order.run.application}/{state}"
        self._queue: queue.Queue[state_server_pb2.StageRequest | None] = queue.Queue(_QUEUED_CHUNKS)
        header = state_server_pb2.StageHeader(
            run=run_to_proto(order.run),
            incarnation=target.incarnation,
            assignment_version=order.assignment_version,
            state=state,
            epoch=order.stamp.epoch,
            round=order.round,
            partition=partition,
            attempt_id=attempt_id,
            effect=effect_to_proto(order.replaces(state)),
            watermark_ms=order.stamp.watermark_ms,
        )
        self._queue.put(state_server_pb2.StageRequest(header=header))
        stub = state_server_pb2_grpc.StateServerStub(connect(target.address))
        self._call = stub.Stage.future(iter(self._queue.get, None), timeout=order.deadline_seconds)

    def send(self, rows: pa.RecordBatch) -> None:
        """Sends the rows, in messages of bounded size. Blocks while the queue is full. Raises TooLarge."""
        for chunk in chunks(rows):
            _check_size(self._state, chunk)
            self._put(state_server_pb2.StageRequest(chunk=ipc_stream(chunk)))

    def _put(self, message: state_server_pb2.StageRequest | None) -> None:
        """Waits for room, but not for a call that has ended: its result says why."""
        while not self._call.done():
            with contextlib.suppress(queue.Full):
                self._queue.put(message, timeout=0.1)
                return

    def finish(self) -> ServerReceipt:
        """Waits for the server's receipt.

        Raises:
            RequestError, ConflictError: What the server says of the data.
        """
        self._put(None)
        target = self._target
        try:
            response: state_server_pb2.StageResponse = self._call.result()
        except (grpc.RpcError, grpc.FutureCancelledError) as error:
            cause = from_rpc_error(error) if isinstance(error, grpc.RpcError) else ServerLost("cancelled")
            if isinstance(cause, (RequestError, ConflictError)):
                raise cause from error
            return ServerReceipt(target.server, target.incarnation, error=(type(cause).reason, cause.message))
        return ServerReceipt(target.server, target.incarnation, tuple(map(receipt_from_proto, response.receipts)))

    def cancel(self) -> None:
        """Idempotent; ends the call where it is still under way, and the thread that feeds it."""
        if not self._call.done():
            self._call.cancel()
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)


def _check_size(state: str, chunk: pa.RecordBatch) -> None:
    """A chunk that is larger than a row may be is one row. Raises TooLarge, before gRPC refuses the message."""
    if chunk.nbytes <= MAX_ROW_BYTES:
        return
    size = sum(len(column[0].as_buffer()) for column in chunk.columns if column[0].is_valid)
    if size > MAX_ROW_BYTES:
        raise TooLarge(
            f"a row of state {state} takes {size:,} bytes with its key, and {MAX_ROW_BYTES:,} is the most that a "
            "changelog takes: make the value smaller, or split it over several keys",
            state=state,
            bytes=size,
            limit=MAX_ROW_BYTES,
        )


def chunks(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows in pieces of about 1 MiB; above 2 MiB only where one row is that large."""
    per_chunk = max(1, rows.num_rows * _CHUNK_BYTES // max(rows.nbytes, 1))
    for start in range(0, rows.num_rows, per_chunk):
        piece = rows.slice(start, per_chunk)
        # A few large rows among many small ones can meet in one piece, beyond the message limit.
        if piece.nbytes > 2 * _CHUNK_BYTES and piece.num_rows > 1:
            half = piece.num_rows // 2
            yield from chunks(piece.slice(0, half))
            yield from chunks(piece.slice(half))
        else:
            yield piece
