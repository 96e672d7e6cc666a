"""The descriptors of the workload's states, and its rows as tasks get them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.columnar import OP, SEQUENCE
from keyhole.encoding.columnar_keys import key_groups
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, TtlClock, ValueField, ValueSchema
from tests.fault.chain import RESULT
from tests.fault.workload import (
    ALERTS,
    BY_CLOCK,
    CHAINS,
    GUESTS,
    KEY_GROUPS,
    LEASE_MS,
    LEASES,
    LEDGERS,
    LOANS,
    MAX_LENGTH,
    NOTICES,
    OPERATORS,
    PLACES,
    ROSTERS,
    ROUTES,
    SPANS,
    STAY_MS,
    STOPS,
    STREAKS,
    SUMS,
    TALLIES,
    TRAILS,
    VALUES,
    Change,
)

AMOUNTS = ("amount",)
NAMED = ("batch", "number")
REDUCERS = {"total": "sum", "count": "count", "highest": "max"}
FIELDS: dict[str, tuple[str, ...]] = {
    VALUES: NAMED,
    SUMS: tuple(REDUCERS),
    TALLIES: tuple(REDUCERS),
    SPANS: NAMED,
    TRAILS: NAMED,
    CHAINS: AMOUNTS,
    NOTICES: NAMED,
    LEASES: tuple(REDUCERS),
    LOANS: NAMED,
    GUESTS: NAMED,
    STREAKS: tuple(REDUCERS),
    LEDGERS: AMOUNTS,
    ROSTERS: AMOUNTS,
    ALERTS: (*NAMED, "notice"),
    PLACES: NAMED,
    ROUTES: NAMED,
    STOPS: NAMED,
}
"""By state: the columns of its rows, apart from the keys'."""

INDEXED: dict[str, tuple[str, ...]] = {VALUES: NAMED[:1], SPANS: NAMED[:1]}
"""By state that has indexes: the fields that they are of."""

_KEY = (KeyColumn("k", KeyType.STRING),)
_MAP_KEY = (KeyColumn("m", KeyType.BIGINT),)
_SUBTASK = (KeyColumn("subtask", KeyType.INT),)


def descriptors(application: str, query: str) -> tuple[StateDescriptor, ...]:
    """As one query feeds them. Those of workload.OF_SPARK are as Spark makes them, and as nobody else can."""

    def of(
        state: str, kind: StateKind, *, map_key: bool = False, max_length: int = 0, ttl_ms: int = 0
    ) -> StateDescriptor:
        names = RESULT if kind is StateKind.AGGREGATING else FIELDS[state]
        return StateDescriptor(
            application,
            state,
            query,
            kind,
            1 if kind is StateKind.BROADCAST else KEY_GROUPS,
            _SUBTASK if state in OPERATORS else _KEY,
            ValueSchema(1, tuple(ValueField(name, "bigint") for name in names)),
            reducers=tuple(REDUCERS.values()) if kind is StateKind.REDUCING else (),
            map_key=_MAP_KEY if map_key else (),
            max_length=max_length,
            ttl_ms=ttl_ms,
            ttl_clock=TtlClock.PROCESSING_TIME if state in BY_CLOCK else TtlClock.EVENT_TIME,
            index=INDEXED.get(state, ()),
        )

    return (
        of(VALUES, StateKind.VALUE),
        of(SUMS, StateKind.REDUCING),
        of(TALLIES, StateKind.REDUCING, map_key=True),
        of(SPANS, StateKind.MAP, map_key=True),
        of(TRAILS, StateKind.LIST, max_length=MAX_LENGTH),
        of(CHAINS, StateKind.AGGREGATING),
        of(NOTICES, StateKind.BROADCAST),
        of(LEASES, StateKind.REDUCING, map_key=True, ttl_ms=LEASE_MS),
        of(LOANS, StateKind.VALUE, ttl_ms=LEASE_MS),
        of(GUESTS, StateKind.VALUE, ttl_ms=STAY_MS),
        of(STREAKS, StateKind.REDUCING, ttl_ms=STAY_MS),
        of(LEDGERS, StateKind.AGGREGATING),
        of(ROSTERS, StateKind.AGGREGATING),
        of(ALERTS, StateKind.VALUE),
        of(PLACES, StateKind.VALUE),
        of(ROUTES, StateKind.LIST),
        of(STOPS, StateKind.MAP, map_key=True),
    )


CODECS = {of.state: StateCodec(of) for of in descriptors("", "")}
"""By state. Their descriptors are nobody's, but keys and rows are encoded alike."""


def rows_of(of: StateDescriptor, changes: Sequence[Change], partition: int, partitions: int) -> pa.RecordBatch:
    """The rows of one partition, as Spark hands them to a task."""
    columns = {
        "k": pa.array([change.key for change in changes], pa.string()),
        OP: pa.array([str(change.op) for change in changes], pa.string()),
        SEQUENCE: pa.array(range(len(changes)), pa.int64()),
    }
    if of.map_key:
        columns["m"] = pa.array([change.map_key for change in changes], pa.int64())
    for at, name in enumerate(FIELDS[of.state]):
        columns[name] = pa.array([change.fields[at] if change.fields else None for change in changes], pa.int64())
    groups = key_groups([columns["k"]], [KeyType.STRING], of.key_groups)
    return pa.record_batch(columns).filter(pa.array(groups % partitions == partition))
