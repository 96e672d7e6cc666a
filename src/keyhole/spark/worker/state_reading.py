"""A state that Spark reads as a data frame: what of it, where from, and its entries as Arrow batches.

In the driver's planning, and in tasks; both are Python workers of Spark's.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from keyhole.client import Client
from keyhole.encoding.arrow_entries import entry_batch
from keyhole.encoding.predicate_text import parsed_where
from keyhole.errors import InvalidConfiguration
from keyhole.model.predicates import Predicate
from keyhole.model.state import StateDescriptor
from keyhole.model.state_path import state_path
from keyhole.security.credentials import PLAIN, Credentials
from keyhole.spark.declaration.spark_types import spark_type, value_schema
from keyhole.spark.worker.looking_up import client_of
from keyhole.spark.worker.worker_setup import hasten_rows

_TASKS = 8
_SECONDS = 60.0
_ROWS = 4_096
_OWN = ("path", "proxy", "as_of", "snapshot", "where", "tasks", "timeout")
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


@dataclass(frozen=True)
class ReadingOptions:
    """The options of a data frame, checked.

    Attributes:
        state: Application and state.
        as_of: The epoch to read; 0: the last one.
        snapshot: All key groups are read as of one epoch, the last one that all of them have.
        where: Comparisons that the servers test, all of which must hold.
        tasks: How many read, at most one for each key group.
        timeout: Seconds that a key group may take.
    """

    state: tuple[str, str]
    proxy: str
    as_of: int
    snapshot: bool
    where: tuple[str, ...]
    tasks: int
    timeout: float
    credentials: Credentials

    def described(self) -> StateDescriptor:
        """What the state is now. Raises as Client.describe_state."""
        return self.client().describe_state(*self.state)

    def columns(self) -> spark.StructType:
        """All that an entry has."""
        return _columns(self.described())

    def reading(self, schema: spark.StructType) -> StateToRead:
        """The state, ready to be read.

        Args:
            schema: Which columns.

        Raises:
            InvalidConfiguration: The state has no such column.
            MalformedRequest, ValueMismatch: `where` is no comparison, or not of a field of the state.
        """
        of = self.described()
        there = {column.name: column for column in _columns(of).fields}
        for column in schema.fields:
            found = there.get(column.name)
            if found is None or found.dataType != column.dataType:
                kind = column.dataType.simpleString()
                has = ", ".join(f"{name} {there[name].dataType.simpleString()}" for name in there)
                raise InvalidConfiguration(
                    f"state {'/'.join(self.state)} has no column {column.name} {kind}; it has {has}"
                )
        return StateToRead(self, of, schema, parsed_where(of, self.where))

    def client(self) -> Client:
        """Of this process, for as long as it lives."""
        return client_of(self.proxy, self.timeout, self.credentials)


@dataclass
class StateToRead:
    """A state as one data frame reads it. Goes to the tasks."""

    options: ReadingOptions
    descriptor: StateDescriptor
    schema: spark.StructType
    where: Predicate | None = None

    def planned(self) -> tuple[int, list[range]]:
        """As of which epoch, and the key groups of each task; epoch 0: the last one of each."""
        options, epoch = self.options, self.options.as_of
        if not epoch and options.snapshot and not self.descriptor.updates_topic_id:
            epoch = options.client().snapshot("/".join(options.state)).epoch
        count = self.descriptor.key_groups
        tasks = min(options.tasks, count)
        bounds = [count * task // tasks for task in range(tasks + 1)]
        return epoch, [range(first, stop) for first, stop in itertools.pairwise(bounds)]

    def batches(self, key_groups: range, epoch: int) -> Iterator[pa.RecordBatch]:
        """The entries of some key groups. Raises as Client.scan_all."""
        hasten_rows()
        of, names = self.descriptor, self.schema.names
        fields = [name for name in names if name in {of_value.name for of_value in of.value.fields}]
        schema = to_arrow_schema(self.schema, timezone="UTC")
        scan = self.options.client().scan_all(
            *self.options.state,
            key_groups=key_groups,
            as_of=epoch or None,
            timeout=self.options.timeout,
            where=self.where,
            fields=fields or None,
            keys_only=not fields,
        )
        with scan:
            while entries := scan.page():
                for first in range(0, len(entries), _ROWS):
                    yield entry_batch(entries[first : first + _ROWS], of, schema)


def options_of(given: Mapping[str, str]) -> ReadingOptions:
    """The options as a data frame was given them; Spark passes their names in small letters.

    Raises:
        InvalidConfiguration: One is missing, is none, or has another value than it can have; the message names it.
    """
    of_credentials = {one.name for one in msgspec.structs.fields(Credentials)}
    if unknown := sorted(given.keys() - {*_OWN, *of_credentials}):
        known = ", ".join((*_OWN[1:], *sorted(of_credentials)))
        raise InvalidConfiguration(f"the data source keyhole has no option {unknown[0]!r}; there are {known}")
    if not given.get("path"):
        raise InvalidConfiguration('no state is named: spark.read.format("keyhole").load("APPLICATION/STATE")')
    if not given.get("proxy"):
        raise InvalidConfiguration('the option proxy is missing: .option("proxy", "HOST:7400"), of a client proxy')
    security: dict[str, Any] = {name: given[name] for name in of_credentials & given.keys()}
    if "tls" in security:
        security["tls"] = _flag(given, "tls", default=True)
    credentials = Credentials(**security) if security else PLAIN
    as_of = _whole(given, "as_of", 0)
    return ReadingOptions(
        state_path(given["path"]),
        given["proxy"],
        as_of,
        _flag(given, "snapshot", default=True),
        tuple(line.strip() for line in given.get("where", "").splitlines() if line.strip()),
        max(1, _whole(given, "tasks", _TASKS)),
        _seconds(given),
        credentials,
    )


def _columns(of: StateDescriptor) -> spark.StructType:
    keys = {column.name: spark_type(column.type.value) for column in (*of.key, *of.entry_key)}
    fields = [spark.StructField(name, kind) for name, kind in keys.items()]
    return spark.StructType([*fields, *value_schema(of).fields])


def _flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = str(given.get(name, default)).lower()
    if text not in (*_TRUE, *_FALSE):
        raise InvalidConfiguration(f"the option {name} is {given[name]!r}; it must be true or false")
    return text in _TRUE


def _whole(given: Mapping[str, str], name: str, default: int) -> int:
    text = str(given.get(name, default))
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise InvalidConfiguration(f"the option {name} is {text!r}; it must be a whole number")
    return int(text)


def _seconds(given: Mapping[str, str]) -> float:
    try:
        seconds = float(given.get("timeout", _SECONDS))
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise InvalidConfiguration(f"the option timeout is {given['timeout']!r}; it must be a number of seconds")
    return seconds
