"""What everyone holds at the end: each server's copies, asked one by one, and the changelog, read past Keyhole."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import grpc
import msgspec
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from keyhole.changelog.records import MARKER_KEY
from keyhole.codec import StateCodec
from keyhole.rpc.channels import sync_channel
from keyhole.rpc.status import from_rpc_error
from keyhole.v1 import query_pb2_grpc
from tests.fault.history import CHANGELOG, Asked, Held
from tests.fault.readers import claim, get_many, row
from tests.fault.states import descriptors
from tests.fault.workload import KEY_GROUPS, Row, names

_TIMEOUT_SECONDS = 5.0
_NOT_HERE = frozenset({"NOT_OWNER", "NOT_READY", "UNKNOWN_APPLICATION", "UNKNOWN_STATE"})


def held_by(holder: str, address: str, application: str, states: Sequence[str]) -> Iterator[Held]:
    """The copies of one server or replica, by state, role and epoch.

    Raises:
        KeyholeError: It can't be asked.
    """
    with sync_channel(address) as channel:
        stub = query_pb2_grpc.QueryStub(channel)
        for state in states:
            found: dict[tuple[str, int], dict[str, Row]] = defaultdict(dict)
            for key in names():
                try:
                    request = get_many(application, state, [key], Asked(0, "always"))
                    answer = stub.GetMany(request, timeout=_TIMEOUT_SECONDS).answers[0]
                except grpc.RpcError as error:
                    cause = from_rpc_error(error, address)
                    if type(cause).reason in _NOT_HERE:
                        continue
                    raise cause from error
                told = claim(answer.source)
                found[told.role, told.epoch][key] = row(answer)
            for (role, epoch), rows in found.items():
                yield Held(holder, role, state, epoch, rows)


def held_by_changelog(bootstrap_servers: str, application: str, states: Sequence[str], epoch: int) -> Iterator[Held]:
    """The last committed record of each key.

    Raises:
        KafkaException: It can't be read.
    """
    for of in descriptors(application, ""):
        if of.state not in states:
            continue
        codec = StateCodec(of)
        latest = _latest(bootstrap_servers, of.topic)
        rows: dict[str, Row] = {}
        for key in names():
            stored = latest.get(codec.storage_key(key))
            rows[key] = None if stored is None else tuple(msgspec.msgpack.decode(stored)[1:])
        yield Held(CHANGELOG, CHANGELOG, of.state, epoch, rows)


def _latest(bootstrap_servers: str, topic: str) -> dict[bytes | None, bytes | None]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "fault-recount",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    latest: dict[bytes | None, bytes | None] = {}
    try:
        consumer.assign([TopicPartition(topic, group, OFFSET_BEGINNING) for group in range(KEY_GROUPS)])
        unread = set(range(KEY_GROUPS))
        while unread:
            message = consumer.poll(30)
            if message is None:
                raise KafkaException(f"{topic} can't be read to its end")
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                unread.discard(message.partition())
            elif error is not None:
                raise KafkaException(error)
            elif message.key() != MARKER_KEY:
                latest[message.key()] = message.value()
    finally:
        consumer.close()
    return latest
