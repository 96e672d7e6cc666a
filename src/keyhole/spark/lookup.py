"""Rows of a job with the live state of another application beside them."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_type

from keyhole.client import Client
from keyhole.client.bounds import Duration, StalePolicy
from keyhole.errors import InvalidConfiguration, KeyMismatch
from keyhole.model.read import Stale
from keyhole.model.state import StateDescriptor, StateKind
from keyhole.model.state_path import state_path
from keyhole.security.credentials import PLAIN, Credentials
from keyhole.spark.declaration.argument_types import Columns, columns, wrong_names
from keyhole.spark.declaration.batch_columns import case_sensitive, check_all_columns
from keyhole.spark.declaration.spark_types import value_schema
from keyhole.spark.driver.arrow_map import map_in_arrow
from keyhole.spark.driver.data_frames import classic
from keyhole.spark.driver.first_batch import check_workers_once
from keyhole.spark.worker.looking_up import looked_up


def lookup(
    data: DataFrame,
    state: str,
    *,
    key: Columns,
    proxy: str,
    into: str | None = None,
    stale: StalePolicy = Stale.WHEN_NEEDED,
    timeout: Duration = 30.0,
    credentials: Credentials = PLAIN,
) -> DataFrame:
    """Each row with the state's value of its key, as of when its task asks: a stream's rows, or a batch's.

    The tasks ask, with many keys at a time. What they get is what is committed then: a batch that is run again may get
    something newer, so what must be exactly once can't depend on it. A broadcast state can be read so that it does not
    change: see BroadcastReader.

    Args:
        state: APPLICATION/STATE.
        key: The columns of `data` that are the key, in the order of the state's; of a map state then those of the map
            key. They may have other names, but must be of the same types. Rows in which one is null find nothing.
        proxy: host:port of a client proxy, or of several, separated by commas.
        into: The name of the column with the value, a struct, null where there is none; default: the state's name.
        stale, timeout: As for Client.get; the timeout is that of one request.
        credentials: As for Client; their files must be there on each executor.

    The first of a session, where Spark's workers are not those of this machine and interpreter, also runs a task of one
    row, which finds out whether they have Keyhole.

    Raises:
        UnknownApplication, UnknownState: Now; what the tasks meet ends the query, also a KeyMismatch where a key has a
            date or timestamp outside the years 1 to 9999.
        KeyMismatch: The key's columns don't fit.
        InvalidConfiguration: `state` is no APPLICATION/STATE, or a list; `key` names no columns; or there is a column
            `into` already; or Spark's Python workers can't load Keyhole.
        Unsupported: `data` is of Spark Connect.
    """
    application, name = state_path(state)
    names, target = columns(key), into or name
    for problem in wrong_names("key", names):
        raise InvalidConfiguration(problem, state=name)
    check_workers_once(classic(data).sparkSession.sparkContext)
    with Client(proxy, timeout=timeout, credentials=credentials) as client:
        descriptor = client.describe_state(application, name)
    _check_lookup(data, descriptor, names, target)
    value = value_schema(descriptor)
    schema = spark.StructType([*data.schema.fields, spark.StructField(target, value)])
    task = functools.partial(
        looked_up,
        (application, name),
        proxy,
        names,
        target,
        to_arrow_type(value, timezone="UTC"),
        stale,
        timeout,
        credentials,
    )
    return map_in_arrow(data, task, schema)


def _check_lookup(data: DataFrame, descriptor: StateDescriptor, key: Sequence[str], target: str) -> None:
    """Refuses, as `lookup` says, a state that has no one value of a key, and rows that can't have it beside them."""
    path = descriptor.path
    if descriptor.kind is StateKind.LIST:
        raise InvalidConfiguration(
            f"state {path} is a list, which has no one value of a key; look up a state of another kind, or scan the "
            "list with a Client",
            state=descriptor.state,
        )
    _check_key(data, descriptor, key)
    check_all_columns(f"lookup of {path}", data)
    taken = [
        name for name in data.columns if name == target or (name.lower() == target.lower() and not case_sensitive(data))
    ]
    if taken:
        raise InvalidConfiguration(f"there is a column {taken[0]!r} already; name another one with into=")


def _check_key(data: DataFrame, descriptor: StateDescriptor, names: Sequence[str]) -> None:
    wanted = (*descriptor.key, *descriptor.map_key)
    given = {field.name: field.dataType.simpleString() for field in data.schema.fields}
    missing = [name for name in names if name not in given]
    if missing:
        raise KeyMismatch(f"the rows have no column {', '.join(missing)}; they have {', '.join(given)}")
    if [given[name] for name in names] != [column.type.value for column in wanted]:
        raise KeyMismatch(
            f"state {descriptor.path} is looked up by "
            f"{', '.join(f'{column.name} {column.type}' for column in wanted)}; the columns that are given are "
            f"{', '.join(f'{name} {given[name]}' for name in names)}. Cast them"
        )
