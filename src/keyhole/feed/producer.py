"""Writes to a state from any Python program, without Spark.

    with Producer("kafka:9092", "shop/totals") as producer:
        producer.add("c1", {"amount": 12.5})
        token = producer.flush()
    client.get("shop", "totals", "c1", min_epoch=token.epochs)    # sees the write

Each write counts once, however often it is sent. Those of a process that dies before `flush` may be there, or not.
docs/feed.md says how to read what was written, docs/updates.md what is sent.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Message

from keyhole.changelog.kafka.clients import Deadline, unreachable
from keyhole.changelog.kafka.consumer import offset_of
from keyhole.changelog.kafka.sending import Acknowledged
from keyhole.changelog.settings import updates_topic_name
from keyhole.clock import Clock, SystemClock
from keyhole.errors import (
    ChangelogRecreated,
    ClientClosed,
    InvalidConfiguration,
    KeyholeError,
    TooLarge,
)
from keyhole.feed.kafka.recorded import recorded_state
from keyhole.feed.kafka.updates_topic import KafkaUpdates
from keyhole.feed.mapping import RoutedUpdate
from keyhole.feed.writes import UpdateWrites, WriteToken
from keyhole.model.state import StateDescriptor
from keyhole.model.state_path import state_path
from keyhole.protocol.fed_sources import FEED_AGAIN
from keyhole.protocol.updates import BoundaryRecord, EndRecord, Record, encode

_log = logging.getLogger(__name__)

_CLOSE_SECONDS = 10.0
_ROOM_SECONDS = 30.0
_SLICE_SECONDS = 0.05
_BOUNDARY_SECONDS = 5.0


class Producer:
    """Puts, adds and deletes in one state that is fed by updates. Any thread; close it, or use it in `with`.

    Writes of one key count in the order of the calls. A write returns at once, while there is room for what Kafka has
    not taken yet (64 MB); `flush` waits until all are durable, and holds no other thread up.

    Args:
        bootstrap_servers: As keyhole.changelog.kafka.brokers has it.
        state: `application/state`.

    Raises:
        UnknownApplication, UnknownState: There is none.
        InvalidConfiguration: The state is not fed by updates, or nobody has begun to feed it.
        ChangelogRecreated: Its updates topic was deleted and made anew.
        KafkaUnreachable: Kafka does not answer.
    """

    def __init__(self, bootstrap_servers: str, state: str, *, clock: Clock | None = None) -> None:
        application, name = state_path(state)
        descriptor = recorded_state(bootstrap_servers, application, name)
        self._bootstrap_servers = bootstrap_servers
        self._topic = updates_topic_name(application, name)
        self._clock = SystemClock() if clock is None else clock
        self._updates = KafkaUpdates(bootstrap_servers, self._topic)
        with ExitStack() as unfit:
            unfit.callback(self._updates.close)
            self._check_updates(descriptor)
            unfit.pop_all()
        self._source = uuid.uuid4().hex
        self._writes = UpdateWrites(descriptor, self._source)
        self._lock = threading.RLock()
        # Of what acknowledgements change, which come in whichever thread asks for them. Held for a moment, and never
        # while the other lock is waited for.
        self._acknowledging = threading.Lock()
        self._epochs: dict[int, int] = {}
        self._sends = 0
        # The numbers of the sends under way, in their order.
        self._waiting: dict[int, None] = {}
        # How many rows are known to be durable, and how many a boundary says.
        self._durable = self._bounded = 0
        self._bounded_at = self._clock.monotonic()
        self._bounding: threading.Timer | None = None
        self._closed = False
        self._given_up = threading.Event()

    def put(self, key: object, value: Mapping[str, Any]) -> None:
        """A row of a value, map or broadcast state: it replaces the one of the key, or of the key and the map key.

        Args:
            key: One value, or a tuple of one for each column of the key, then of the map key.
            value: By field, as docs/values.md has the types in Python; a field that lacks is null.

        Raises:
            MalformedRequest: The state is of a kind that has another method.
            KeyMismatch, NullKey, ValueMismatch, TooLarge: It does not fit the state. Nothing was sent.
            KafkaUnreachable: There was no room within 30 s. Nothing was sent.
            ClientClosed: After `close`.
            KeyholeError: Kafka has refused an earlier write. This producer takes no more.
        """
        self._write("put", key, value)

    def add(self, key: object, value: Mapping[str, Any]) -> None:
        """A row of a reducing state, which is merged field by field. Arguments and errors as of `put`.

        Of a field that is counted 1 is one more, -1 takes one back, and one that lacks is 0.
        """
        self._write("add", key, value)

    def append(self, key: object, value: Mapping[str, Any]) -> None:
        """An element of a list state, behind those there are. Arguments and errors as of `put`."""
        self._write("append", key, value)

    def delete(self, key: object, *, order: Any = None) -> None:
        """Deletes a key with all that it has; of a map, with the map key in `key`, that entry alone.

        Args:
            key: As of `put`; the map key may be left out.
            order: Of states that remember deletions by order, and of no others: the order of this one.

        Raises:
            MalformedRequest: `order` lacks, or the state has none.
            KeyholeError: As `put`.
        """
        with self._lock:
            self._check_open()
            self._send(self._writes.delete(key, order))

    def key_group(self, key: object) -> int:
        """By which WriteToken.min_epoch is asked. Raises KeyMismatch, NullKey."""
        return self._writes.key_group(key)

    def flush(self, timeout: float = 30.0) -> WriteToken:
        """Waits until all writes so far are durable. Blocks.

        Returns:
            What a reader needs to see them, and all that this producer has written before.

        Raises:
            KafkaUnreachable: They are not within that many seconds; they may be later. May be called again.
            KeyholeError: Kafka refuses one. This producer takes no more writes.
            ClientClosed: After `close`, or it is closed meanwhile, and gives them up.
        """
        with self._lock:
            self._check_open()
            sends, rows = self._sends, self._writes.next
        # Without the lock: others write meanwhile, which is not waited for.
        self._wait(sends, Deadline(timeout))
        with self._acknowledging:
            token = WriteToken(dict(self._epochs))
        with self._lock:
            self._check_open()
            self._durable = max(self._durable, rows)
            if self._clock.monotonic() - self._bounded_at >= _BOUNDARY_SECONDS:
                self._bound()
            elif self._bounded < self._durable and self._bounding is None:
                # One that writes no more for now has its boundary all the same: owners remember all rows above it.
                self._bounding = threading.Timer(_BOUNDARY_SECONDS, self._bound_later)
                self._bounding.name, self._bounding.daemon = "keyhole-producer-boundary", True
                self._bounding.start()
        return token

    def _bound(self) -> None:
        """Says that all durable rows stand in the topic. With the lock held."""
        if self._bounded == self._durable:
            return
        rows, now_ms = self._durable, self._clock.now_ms()
        # In a topic that was made anew meanwhile these rows are not: by its id the boundary is refused there.
        updates_id = self._updates.topic_id
        self._send_everywhere(BoundaryRecord(self._source, now_ms, {0: rows}, "", updates_id))
        self._bounded, self._bounded_at = rows, self._clock.monotonic()

    def _bound_later(self) -> None:
        with self._lock:
            self._bounding = None
            if self._closed:
                return
            try:
                self._bound()
                self._updates.poll(0.0)
            except KeyholeError as error:
                _log.warning(
                    "a producer could not write its boundary", extra={"topic": self._topic, "why": error.message}
                )

    def close(self) -> None:
        """Waits for what is under way, and tells the state's owners that no more comes. Idempotent; blocks.

        What Kafka has not taken within ten seconds is given up, which is logged: call `flush` before, which raises it.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._bounding is not None:
                self._bounding.cancel()
            try:
                deadline = Deadline(_CLOSE_SECONDS)
                self._wait(self._sends, deadline)
                # Never where a write is under way: it would come behind the end, and not count.
                self._send_everywhere(EndRecord(self._source), deadline)
                self._wait(self._sends, deadline)
            except KeyholeError as error:
                _log.warning(
                    "a producer gives up what is under way", extra={"topic": self._topic, "why": error.message}
                )
            finally:
                self._given_up.set()
                self._updates.close()

    def _check_updates(self, descriptor: StateDescriptor) -> None:
        """Passes where it is the topic that the state is fed by, and each partition has rules: somebody feeds it."""
        if descriptor.updates_topic_id not in ("", self._updates.topic_id):
            raise ChangelogRecreated(
                f"topic {self._topic} was deleted and made anew (its id is {self._updates.topic_id}, it was "
                f"{descriptor.updates_topic_id}), and nobody applies it: {FEED_AGAIN}",
                topic=self._topic,
            )
        # All of them: a feed that is starting writes them one by one, and may end in between.
        ends = self._updates.ends()
        if bare := [group for group in range(descriptor.key_groups) if not ends[group]]:
            raise InvalidConfiguration(
                f"topic {self._topic} has no rules yet in {len(bare)} of {descriptor.key_groups} partitions, and "
                "updates ahead of them are refused: start the state's feed, and wait until it feeds",
                topic=self._topic,
            )

    def _write(self, method: str, key: object, value: Mapping[str, Any]) -> None:
        with self._lock:
            self._check_open()
            self._send(self._writes.write(method, key, value))

    def _send(self, update: RoutedUpdate) -> None:
        encoded = encode(update.record)
        if len(encoded) > self._updates.most_bytes:
            raise TooLarge(
                f"an update takes {len(encoded)} bytes, and the updates topic takes {self._updates.most_bytes}",
                bytes=len(encoded),
                limit=self._updates.most_bytes,
            )

        def written(message: Message) -> None:
            # Threads that poll may hear of one partition in another order than it was written.
            group = update.key_group
            self._epochs[group] = max(self._epochs.get(group, 0), offset_of(message) + 1)

        self._send_to(update.key_group, encoded, written, Deadline(_ROOM_SECONDS))
        self._updates.poll(0.0)

    def _send_everywhere(self, record: Record, deadline: Deadline | None = None) -> None:
        value, deadline = encode(record), deadline or Deadline(_ROOM_SECONDS)
        for partition in range(self._updates.partitions):
            self._send_to(partition, value, lambda _: None, deadline)

    def _send_to(self, partition: int, value: bytes, written: Acknowledged, deadline: Deadline) -> None:
        """`written` is called with the lock of acknowledgements held."""
        with self._acknowledging:
            number, self._sends = self._sends, self._sends + 1
            self._waiting[number] = None

        def taken(message: Message) -> None:
            with self._acknowledging:
                del self._waiting[number]
                written(message)

        try:
            self._updates.send_record(partition, value, taken, deadline)
        except BaseException:
            # It is not under way: nobody must wait for it.
            with self._acknowledging:
                self._waiting.pop(number, None)
            raise

    def _wait(self, sends: int, deadline: Deadline) -> None:
        """Until so many of the first sends are acknowledged."""
        while left := self._left(sends):
            if self._given_up.is_set():
                raise ClientClosed("the producer was closed")
            self._updates.poll(min(_SLICE_SECONDS, deadline.left))
            if deadline.passed and (left := self._left(sends)):
                raise unreachable(
                    self._bootstrap_servers, f"take {left} updates for {self._topic}", "no answer in time"
                )

    def _left(self, sends: int) -> int:
        with self._acknowledging:
            if next(iter(self._waiting), sends) >= sends:
                return 0
            return sum(number < sends for number in self._waiting)

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("the producer was closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
