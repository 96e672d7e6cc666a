"""A small state for tests of the read path: sensor (string) -> celsius, count."""

from __future__ import annotations

import msgspec

from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema

APPLICATION = "weather"
STATE = "readings"
KEY_GROUPS = 16


def descriptor(
    state: str = STATE,
    *,
    application: str = APPLICATION,
    topic_id: str = "topic-1",
    key: KeyType = KeyType.STRING,
    query: str = "main",
    updates_topic_id: str = "",
) -> StateDescriptor:
    """`key` is the type of the only key column, named sensor."""
    return StateDescriptor(
        application=application,
        state=state,
        query=query,
        kind=StateKind.VALUE,
        key_groups=KEY_GROUPS,
        key=(KeyColumn("sensor", key),),
        value=ValueSchema(1, (ValueField("celsius", "double"), ValueField("count", "bigint"))),
        topic_id=topic_id,
        updates_topic_id=updates_topic_id,
    )


def row(celsius: float, count: int = 1) -> bytes:
    """As stored: schema version, then the fields."""
    return msgspec.msgpack.encode([1, celsius, count])


def rows(count: int, celsius: float = 0.0) -> dict[str, bytes]:
    """sensor-0 ... with celsius from this on, in steps of one."""
    return {key: row(value) for key, value in values(count, celsius).items()}


def values(count: int, celsius: float = 0.0) -> dict[str, float]:
    """The same as readers know them: celsius by sensor."""
    return {f"sensor-{number}": celsius + number for number in range(count)}
