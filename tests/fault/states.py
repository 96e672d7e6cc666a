"""The descriptors of the workload's states."""

from __future__ import annotations

from keyhole.types import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema
from tests.fault.workload import KEY_GROUPS, SUMS, VALUES

_KEY = (KeyColumn("k", KeyType.STRING),)


def descriptors(application: str, query: str) -> tuple[StateDescriptor, ...]:
    """As one query feeds them."""

    def of(state: str, kind: StateKind, fields: tuple[str, ...], reducers: tuple[str, ...] = ()) -> StateDescriptor:
        schema = ValueSchema(1, tuple(ValueField(name, "bigint") for name in fields))
        return StateDescriptor(application, state, query, kind, KEY_GROUPS, _KEY, schema, reducers=reducers)

    return (
        of(VALUES, StateKind.VALUE, ("batch", "number")),
        of(SUMS, StateKind.REDUCING, ("total", "count", "highest"), ("sum", "count", "max")),
    )
