"""What everyone holds at the end: each server's copies, asked one by one, and the changelog, read past Keyhole."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import grpc
import msgspec
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from keyhole.changelog.records import MARKER_KEY
from keyhole.encoding.envelope import Moment, visible
from keyhole.rpc.channels import sync_channel
from keyhole.rpc.status import from_rpc_error
from keyhole.v1 import query_pb2_grpc
from tests.fault.history import CHANGELOG, Asked, Claim, Held
from tests.fault.questions import claim, entries_of, get_many, row_of, scan
from tests.fault.recount import SHAPES, Question, ScanOf, Shown, whole
from tests.fault.states import CODECS
from tests.fault.workload import names, watermark_ms
from tests.support.waiting import LONG_SECONDS

_NOT_HERE = frozenset({"NOT_OWNER", "NOT_READY", "UNKNOWN_APPLICATION", "UNKNOWN_STATE"})


def held_by(holder: str, address: str, application: str, states: Sequence[str]) -> Iterator[Held]:
    """The copies of one server or replica, by state, role and epoch.

    Raises:
        KeyholeError: It can't be asked.
    """
    with sync_channel(address) as channel:
        stub = query_pb2_grpc.QueryStub(channel)
        for state in states:
            found: dict[tuple[str, int], dict[str, Shown]] = defaultdict(dict)
            began = time.monotonic()
            for key in names(state):
                try:
                    answer, by = _ask(stub, application, state, whole(state, key))
                except grpc.RpcError as error:
                    cause = from_rpc_error(error, address)
                    if type(cause).reason in _NOT_HERE:
                        continue
                    raise cause from error
                found[by.role, by.epoch][key] = answer
            for (role, epoch), rows in found.items():
                yield Held(holder, role, state, epoch, rows, began, time.monotonic())


def held_by_changelog(bootstrap_servers: str, application: str, states: Sequence[str], epoch: int) -> Iterator[Held]:
    """The last committed record of each key.

    Raises:
        KafkaException: It can't be read.
    """
    for state in states:
        latest = _latest(bootstrap_servers, f"keyhole.{application}.{state}", CODECS[state].descriptor.key_groups)
        began = time.monotonic()
        entries = {name: [] for name in names(state)} if SHAPES[state].entries else {}
        rows: dict[str, Shown] = dict.fromkeys(names(state))
        for name, map_key, row in _stored(state, latest, epoch):
            if map_key:
                entries[name].append((*map_key, *row))
            else:
                rows[name] = row
        rows |= {name: tuple(held) for name, held in entries.items()}
        yield Held(CHANGELOG, CHANGELOG, state, epoch, rows, began, time.monotonic())


def _ask(stub: Any, application: str, state: str, question: Question) -> tuple[Shown, Claim]:
    asked = Asked(0, "always")
    if isinstance(question, ScanOf):
        pages = list(stub.Scan(scan(application, state, question, asked), timeout=LONG_SECONDS))
        return entries_of(state, pages), claim(pages[0].source)
    answer = stub.GetMany(get_many(application, state, [question], asked), timeout=LONG_SECONDS).answers[0]
    return row_of(answer), claim(answer.source)


def _stored(
    state: str, latest: Mapping[bytes, bytes], epoch: int
) -> Iterator[tuple[str, tuple[Any, ...], tuple[int, ...]]]:
    """Ascending: the key, the map key (empty: there is none), and the fields, of what has not expired."""
    moment = Moment(int(1000 * time.time()), watermark_ms(epoch - 1))
    codec = CODECS[state]
    shown = visible(codec.descriptor)
    for storage_key, stored in sorted(latest.items()):
        key, map_key = codec.entry(storage_key)
        row = stored if shown is None else shown(moment).row(stored)
        if row is None:
            continue
        # The entries of a broadcast state are keys.
        name, map_key = (key[0], map_key) if key else (map_key[0], ())
        yield str(name), map_key, tuple(msgspec.msgpack.decode(row)[1:])


def _latest(bootstrap_servers: str, topic: str, partitions: int) -> dict[bytes, bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "fault-recount",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    latest: dict[bytes, bytes | None] = {}
    try:
        consumer.assign([TopicPartition(topic, group, OFFSET_BEGINNING) for group in range(partitions)])
        unread = set(range(partitions))
        while unread:
            message = consumer.poll(LONG_SECONDS)
            if message is None:
                raise KafkaException(f"{topic} can't be read to its end")
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                unread.discard(message.partition())
            elif error is not None:
                raise KafkaException(error)
            elif (key := message.key()) != MARKER_KEY:
                assert key is not None
                latest[key] = message.value()
    finally:
        consumer.close()
    return {key: value for key, value in latest.items() if value is not None}
