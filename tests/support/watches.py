"""A reader of one watch, by its messages alone, and what it knows of the state by then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import grpc
import msgspec

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.storage_key import prefix_of
from keyhole.errors import KeyholeError
from keyhole.model.state import StateDescriptor
from keyhole.rpc import channels, status
from keyhole.rpc.convert import key_to_proto
from keyhole.v1 import query_pb2 as pb
from keyhole.v1 import query_pb2_grpc
from tests.support.waiting import PATIENCE_SECONDS


class Seen(NamedTuple):
    """One change as it came. `value` None: deleted; `before` is "unknown" where the message has none."""

    key: Any
    value: Any
    epoch: int
    snapshot: bool
    before: Any = "unknown"


class WatchReader:
    """Reads a watch on a server or a proxy. It takes in what `until`, or `drop`, asks for, and no more.

    Attributes:
        rows: What the state is by now, as far as it is watched.
        seen: All changes, in their order.
        token: Behind which all of `seen` stands.
        messages: Those that were taken in.
    """

    def __init__(self, descriptor: StateDescriptor, token: str = "") -> None:
        self.descriptor = descriptor
        self.codec = StateCodec(descriptor)
        self.rows: dict[Any, Any] = {}
        self.seen: list[Seen] = []
        self.token = token
        self.snapshot_done = False
        self.messages: list[pb.WatchResponse] = []

    async def until(self, address: str, done: Callable[[WatchReader], bool], *keys: Any, **fields: Any) -> None:
        """Watches on from its token until it is done, and goes.

        Raises:
            KeyholeError: What the watch ended with.
        """
        columns = (*self.descriptor.scan_key, *self.descriptor.entry_key)
        request = pb.WatchRequest(
            state=pb.StateRef(application=self.descriptor.application, state=self.descriptor.state),
            keys=[key_to_proto(columns[: len(key) if isinstance(key, tuple) else 1], key) for key in keys],
            token=self.token,
            **({"progress_ms": 100} | fields),
        )
        async with channels.aio_channel(address) as channel:
            call = query_pb2_grpc.QueryStub(channel).Watch(request)
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    greeted = False
                    async for message in call:
                        self.take(message)
                        if (greeted or message.changes or message.snapshot_done) and done(self):
                            return
                        greeted = True
            except grpc.RpcError as error:
                raise status.from_rpc_error(error, address) from error
            finally:
                call.cancel()

    def take(self, message: pb.WatchResponse) -> None:
        """Takes in what a message has."""
        self.messages.append(message)
        self.snapshot_done |= message.snapshot_done
        for part in message.changes:
            assert len(part.values) == len(part.keys)
            assert len(part.befores) in (0, len(part.keys))
            for at, key in enumerate(part.keys):
                whole = self._key(prefix_of(part.key_group) + key)
                before = _value(part.befores[at]) if part.befores else "unknown"
                self._change(Seen(whole, _value(part.values[at]), part.epoch, part.snapshot, before))
        self.token = message.token or self.token

    def _key(self, storage_key: bytes) -> Any:
        key, map_key = self.codec.entry(storage_key)
        whole = (*key, *map_key)
        return whole[0] if len(whole) == 1 else whole

    def _change(self, seen: Seen) -> None:
        self.seen.append(seen)
        if seen.value is None:
            self.rows.pop(seen.key, None)
        else:
            self.rows[seen.key] = seen.value


def _value(row: bytes) -> Any:
    return msgspec.msgpack.decode(row)[1] if row else None


async def refused_watch(reader: WatchReader, address: str, *keys: Any, **fields: Any) -> KeyholeError:
    """The error that a watch ends with."""
    try:
        await reader.until(address, lambda _: False, *keys, **fields)
    except KeyholeError as error:
        return error
    raise AssertionError("the watch ended without an error")
