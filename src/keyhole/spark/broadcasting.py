"""Broadcast states as a job reads them: whole, and the same again when a batch is run again."""

from __future__ import annotations

import functools
import json
import logging
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from keyhole.backoff import JITTER
from keyhole.changelog.kafka.admin import Topics
from keyhole.changelog.kafka.clients import Deadline
from keyhole.changelog.settings import topic_name
from keyhole.client import Client
from keyhole.client.bounds import Duration, seconds_of
from keyhole.config import JobConfig, job_config
from keyhole.encoding.arrow_entries import as_arrow
from keyhole.encoding.columnar import Op, ipc_stream
from keyhole.errors import InvalidConfiguration, KeyholeError, NotReady, UnknownApplication, UnknownState
from keyhole.model.read import Entries
from keyhole.model.state import StateDescriptor, StateKind
from keyhole.model.state_path import state_path
from keyhole.protocol.batch_decisions import Pin, broadcast_folder
from keyhole.security.credentials import PLAIN, Credentials
from keyhole.spark.declaration.given_schema import struct
from keyhole.spark.declaration.spark_types import spark_type, value_schema
from keyhole.spark.driver.data_frames import renamed_columns
from keyhole.spark.driver.micro_batch import current
from keyhole.spark.driver.pins import BatchPins, batch_pins

_log = logging.getLogger(__name__)

# For each question to a proxy; and how long before the next one.
_CALL_SECONDS, _RETRY_SECONDS = 30.0, 1.0
_EPOCH = b"keyhole_epoch"
_KEY = b"keyhole_key"
OP = "op"
"""The column of `updates` that says what became of an entry."""


class _SharedFrame(NamedTuple):
    """A content as a data frame of one session: it changes seldom, and is made once for the batches that share it."""

    sha256: str
    session: str
    rows: DataFrame


class BroadcastReader:
    """Gives each batch of a query the content of a broadcast state, and always the same to the same batch.

        thresholds = BroadcastReader("rules-app/thresholds", proxy="localhost:7400")

        def process(readings, batch_id):
            sink(alerts(readings, thresholds.read(readings)), batch_id)

    What a batch reads is written to its query's checkpoint before the batch's first stage, as Spark writes the offsets
    of its sources. A batch that is run again, by whichever driver, reads that. `updates` are what has changed since the
    batch before. Read-only.

    Args:
        state: APPLICATION/STATE, of kind broadcast.
        proxy: host:port of a client proxy, or of several, separated by commas.
        timeout: Seconds (or a timedelta) that a read may take. What may pass (no proxy yet, servers that restore) is
            waited for.
        credentials: As for Client; default: those of `config`, else none.
        or_empty: The columns of the key and of the value, as Spark writes a schema: a batch that runs before anything
            has been broadcast then reads no entries of these columns. Default: it can't be run. Servers that know of
            nothing may only have just started: where the state has a changelog, its content is waited for.
        config: Where that changelog would be, with `or_empty`; default: from the environment, as for a sink.
    """

    def __init__(
        self,
        state: str,
        *,
        proxy: str,
        timeout: Duration = 30.0,
        or_empty: str | StructType = "",
        config: JobConfig | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._credentials = credentials or (PLAIN if config is None else config.credentials)
        self._application, self._state = state_path(state)
        self._proxy = proxy
        self._timeout = seconds_of("timeout", timeout)
        self._or_empty = or_empty
        self._config = config
        # Only kept to be quicker: what reads find is the pin's.
        self._shown: _SharedFrame | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_shown": None}

    def read(self, data: DataFrame) -> DataFrame:
        """All entries, one row each: the key's columns, then the value's. On the thread that Spark calls.

        Args:
            data: As foreachBatch gave it, or made of that.

        Raises:
            UnknownApplication, UnknownState: Nothing has been broadcast yet, and there is no `or_empty`.
            NotReady: There is, and something has been, of which no server knows yet.
            EpochNotReached: No server has come as far as what the query's batches before this one have read.
            InvalidConfiguration: The state is of another kind; or called outside of foreachBatch.
            KeyholeError: The state can't be read now.
        """
        pins = self._pins(data)
        pin = self._pinned(pins)
        session = str(data.sparkSession._jsparkSession.sessionUUID())
        shown = self._shown
        if shown is None or (shown.sha256, shown.session) != (pin.sha256, session):
            table = _table_in(pins, pin).replace_schema_metadata(None)
            shown = self._shown = _SharedFrame(pin.sha256, session, data.sparkSession.createDataFrame(table))
        # So that a batch may join it twice.
        return renamed_columns(shown.rows, shown.rows.columns)

    def updates(self, data: DataFrame) -> DataFrame:
        """The entries that differ from what the query's batch before this one had read, one row each; and `op`.

        So each batch knows which updates are new to it, and each update is new to one batch only, also where that is
        run again, by whichever driver. A job that lets an update change the state of every key does so exactly once.
        The first batch has all entries. Of an entry that was changed several times between two batches there is the
        last change; one that is as it was before has none. As `read`, which each batch must call, or this.

        Returns:
            The columns of `read`, and `op`: "put", or "delete": the entry as it was before, where it had these columns.
        """
        pins = self._pins(data)
        last, read = pins.before(), self._pinned(pins)
        now = _table_in(pins, read)
        if OP in now.schema.names:
            raise InvalidConfiguration(
                f"state {self._application}/{self._state} has a column {OP!r} of its own, so its updates can't be told "
                "by one of that name; rename it where the state is broadcast"
            )
        schema = StructType([*from_arrow_schema(now.schema).fields, spark.StructField(OP, spark.StringType())])
        if last is not None and last.sha256 == read.sha256:
            changed = []
        else:
            changed = changes(None if last is None else _table_in(pins, last), now)
        rows = pa.Table.from_pylist(changed, to_arrow_schema(schema, timezone="UTC"))
        return data.sparkSession.createDataFrame(rows)

    def epoch(self, data: DataFrame) -> int:
        """The epoch of the broadcast state that the batch reads; 0: nothing had been broadcast. As `read`."""
        pins = self._pins(data)
        return _epoch_in(pins, self._pinned(pins))

    def _pinned(self, pins: BatchPins) -> Pin:
        """What the batch has read; it reads it now where it has read nothing yet."""
        if (now := pins.now()) is not None:
            return now
        before = pins.before()
        table = self._fetched(0 if before is None else _epoch_in(pins, before))
        # Of the epoch without its number: another one may have the same content.
        content = ipc_stream(table.replace_schema_metadata({_KEY: (table.schema.metadata or {})[_KEY]}))
        return pins.share(content, str(_epoch(table)), before)

    def _pins(self, data: DataFrame) -> BatchPins:
        return batch_pins(current(data), broadcast_folder(self._application, self._state))

    def _fetched(self, least: int) -> pa.Table:
        """As of an epoch that is no earlier than `least`: a copy that is behind takes nothing back."""
        deadline = time.monotonic() + self._timeout
        with _connecting:
            client = _client(self._proxy, min(self._timeout, _CALL_SECONDS), self._credentials)
        while True:
            try:
                return self._asked(client, least)
            except KeyholeError as error:
                # Once there was something, servers and proxies that know of nothing have only just started.
                unheard = least > 0 and isinstance(error, UnknownApplication | UnknownState)
                pause = JITTER.uniform(0.5, 1.0) * _RETRY_SECONDS
                if not (error.retryable or unheard) or time.monotonic() + pause > deadline:
                    raise
                _log.info(
                    "a broadcast state can't be read yet",
                    extra={"application": self._application, "state": self._state, "reason": error.reason},
                )
            time.sleep(pause)

    def _asked(self, client: Client, least: int) -> pa.Table:
        try:
            descriptor = client.describe_state(self._application, self._state)
        except (UnknownApplication, UnknownState) as error:
            if not self._or_empty or least > 0:
                raise
            self._check_never_broadcast(error)
            return _table_of(struct("or_empty", self._or_empty), [], [], 0)
        if descriptor.kind is not StateKind.BROADCAST:
            raise InvalidConfiguration(
                f"state {self._application}/{self._state} is of kind {descriptor.kind}; only a broadcast state can "
                "be read whole. Make it one with queryable.broadcast, or look its keys up with queryable.lookup"
            )
        return _table(descriptor, client.scan(self._application, self._state, (), min_epoch=least))

    def _check_never_broadcast(self, unheard: KeyholeError) -> None:
        """A state has its changelog before any server has any of it, and for as long as anyone may read it."""
        kafka = (self._config or job_config()).bootstrap_servers
        topic = topic_name(self._application, self._state)
        if Topics(kafka).describe(topic, Deadline(min(self._timeout, _CALL_SECONDS))) is not None:
            raise NotReady(
                f"no state server knows of {self._application}/{self._state} yet, though it has a changelog, {topic}: "
                "its servers may have only just started. Start the job that feeds it; if there is none any more, "
                "drop its query (keyhole drop)",
                topic=topic,
            ) from unheard


_connecting = threading.Lock()


@functools.cache
def _client(proxy: str, timeout_seconds: float, credentials: Credentials) -> Client:
    """One for all readers and batches of the process, until that ends: to connect anew takes longer than a read.

    It isn't closed with a reader: a finalizer runs in any thread, also in one that holds what closing waits for.
    """
    return Client(proxy, timeout=timeout_seconds, credentials=credentials)


def _table(descriptor: StateDescriptor, entries: Entries) -> pa.Table:
    key = [spark.StructField(column.name, spark_type(column.type.value)) for column in descriptor.key]
    single = len(descriptor.key) == 1
    keys = [(entry.map_key,) if single else entry.map_key for entry in entries]
    names = [field.name for field in key]
    # The value by its names: its fields may have changed since it was described.
    rows = [dict(zip(names, of, strict=True)) | as_arrow(entry.value) for of, entry in zip(keys, entries, strict=True)]
    return _table_of(spark.StructType([*key, *value_schema(descriptor).fields]), names, rows, entries.epoch)


def _table_of(schema: StructType, key: Sequence[str], rows: list[dict[str, Any]], epoch: int) -> pa.Table:
    columns = to_arrow_schema(schema, timezone="UTC")
    metadata = {_EPOCH: str(epoch).encode(), _KEY: json.dumps(list(key)).encode()}
    return pa.Table.from_pylist(rows, columns.with_metadata(metadata))


def changes(before: pa.Table | None, now: pa.Table) -> list[dict[str, Any]]:
    """What became of the entries: each that is new or another one, with the op "put", then each that is gone.

    Entries are compared by the columns that both have: a column that was added, or dropped, changes no entry.
    """
    key = _key(now) or _key(before)
    held, holds = _by_key(key, before), _by_key(key, now)
    names = now.schema.names if before is None else [name for name in now.schema.names if name in before.schema.names]

    def content(row: dict[str, Any]) -> str:
        return repr([row[name] for name in names])  # as text, in which NaN is NaN

    put = [row for key, row in holds.items() if key not in held or content(held[key]) != content(row)]
    gone = [row for key, row in held.items() if key not in holds]
    return [row | {OP: Op.PUT.value} for row in put] + [
        {name: row.get(name) for name in now.schema.names} | {OP: Op.DELETE.value} for row in gone
    ]


def _epoch(table: pa.Table) -> int:
    return int((table.schema.metadata or {})[_EPOCH])


def _key(table: pa.Table | None) -> list[str]:
    """The key's columns; none where nothing had been broadcast."""
    metadata = table.schema.metadata if table is not None else None
    names: list[str] = json.loads((metadata or {}).get(_KEY, b"[]"))
    return names


def _by_key(key: Sequence[str], table: pa.Table | None) -> dict[str, dict[str, Any]]:
    rows = table.to_pylist() if table is not None else []
    return {repr([row[name] for name in key]): row for row in rows}


def _table_in(pins: BatchPins, pin: Pin) -> pa.Table:
    return pa.ipc.open_stream(pins.content(pin)).read_all()


def _epoch_in(pins: BatchPins, pin: Pin) -> int:
    """Earlier versions wrote it into the table."""
    return int(pin.note) if pin.note else _epoch(_table_in(pins, pin))
