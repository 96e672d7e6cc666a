"""What `explain` answers, as values: which way a key went, and who holds its key group."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from keyhole.encoding.codec import StateCodec
from keyhole.errors import KeyholeError
from keyhole.model.read import Answer, Role, Source
from keyhole.model.state import StateDescriptor
from keyhole.rpc import convert
from keyhole.rpc.status import from_proto
from keyhole.v1 import query_pb2


class Hop(msgspec.Struct, frozen=True):
    """One server that a proxy has asked for the key.

    Attributes:
        began: After the beginning of the lookup.
        took: Until it answered or failed; None: it had done neither by the end.
        in_server: Of this, how long the server had the key; None: it does not say.
        overdue: It was silent for so long that the next copy was asked as well.
        error: Why it has not answered; None: it has, or keeps silent.
    """

    address: str
    began: timedelta
    took: timedelta | None
    in_server: timedelta | None
    overdue: bool
    error: KeyholeError | None


class KeyGroupCopy(msgspec.Struct, frozen=True):
    """What one server holds of the key group, as it says now.

    Attributes:
        owner: The proxy takes it for the owner.
        ready: Its copy can be read; else `restored_records` of `records_to_restore` are restored.
        source: As of when its copy is; None: it holds none now, or does not answer.
        replica: It holds standby copies only.
        silent: It has kept silent, and is asked after the others.
        unreachable: Empty: it answers. Otherwise why it does not.
    """

    server: str
    address: str
    owner: bool
    ready: bool
    source: Source | None
    replica: bool
    draining: bool
    silent: bool
    unreachable: str
    restored_records: int
    records_to_restore: int

    @property
    def role(self) -> str:
        """owner, standby or replica; of one that does not say, what it is taken for."""
        if self.owner or (self.source is not None and self.source.role is Role.OWNER):
            return "owner"
        return "replica" if self.replica else "standby"


class Explanation(msgspec.Struct, frozen=True):
    """How one key is read. Either `answer` or `error` is there.

    Attributes:
        key_group: Of the key; the state has `descriptor.key_groups`.
        answer: What `get` would have returned.
        error: What it would have failed with.
        hops: Whom the proxy has asked, in order; empty where a state server was asked directly.
        hops_left_out: How many of them, in the middle, are not listed.
        copies: Who holds the key group, in the order in which they are asked.
        missing: Why key groups of the state have no owner; empty: each has one.
        whole: The call, as this client has waited for it.
        in_target: Of this, in the proxy (or state server) that was asked; the rest was the way there and back.
        lookup: Of this, until the answer was there. In the rest the copies were asked what they hold.
    """

    descriptor: StateDescriptor
    key_group: int
    answer: Answer | None
    error: KeyholeError | None
    hops: tuple[Hop, ...]
    hops_left_out: int
    copies: tuple[KeyGroupCopy, ...]
    missing: str
    whole: timedelta
    in_target: timedelta
    lookup: timedelta


def explanation_from_proto(message: query_pb2.ExplainResponse, codec: StateCodec, whole_seconds: float) -> Explanation:
    """Field by field; the value decoded. Raises StaleDescriptor, ValueMismatch: The codec can't read it."""
    answer = None
    if message.WhichOneof("outcome") == "answer":
        of = message.answer
        row = codec.decode_row(of.value) if of.found else None
        answer = Answer(of.found, row, convert.source_from_proto(of.source))
    return Explanation(
        descriptor=codec.descriptor,
        key_group=message.key_group,
        answer=answer,
        error=from_proto(message.error) if answer is None else None,
        hops=tuple(_hop(hop) for hop in message.hops),
        hops_left_out=message.hops_left_out,
        copies=tuple(_copy(copy) for copy in message.copies),
        missing=message.missing,
        whole=timedelta(seconds=whole_seconds),
        in_target=timedelta(microseconds=message.micros),
        lookup=timedelta(microseconds=message.lookup_micros),
    )


def _hop(message: query_pb2.Hop) -> Hop:
    return Hop(
        address=message.address,
        began=timedelta(microseconds=message.began_micros),
        took=timedelta(microseconds=message.took_micros) if message.took_micros else None,
        in_server=timedelta(microseconds=message.server_micros) if message.server_micros else None,
        overdue=message.overdue,
        error=from_proto(message.error) if message.HasField("error") else None,
    )


def _copy(message: query_pb2.KeyGroupCopy) -> KeyGroupCopy:
    return KeyGroupCopy(
        server=message.server,
        address=message.address,
        owner=message.owner,
        ready=message.ready,
        source=convert.source_from_proto(message.source) if message.HasField("source") else None,
        replica=message.replica,
        draining=message.draining,
        silent=message.silent,
        unreachable=message.unreachable,
        restored_records=message.restored_records,
        records_to_restore=message.records_to_restore,
    )
