"""What a real-time query can't do with a state, by its declaration and options: refused by name. Pure.

queryable.aggregating(...)     Unsupported: ... a Python aggregator ...: use queryable.reducing ...
{"kafka.acks": "1"}            InvalidConfiguration: ... acks ...
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from keyhole.encoding.columnar import OPS, Op
from keyhole.errors import InvalidConfiguration, Unsupported
from keyhole.model.state import StateKind, TtlClock
from keyhole.spark.declaration.declared import Declaration
from keyhole.spark.driver.data_frames import quoted
from keyhole.spark.sink import Sink
from keyhole.spark.write_path.sink_states import SinkState

_BATCHES = "or a job by micro-batches (foreachBatch)"
_KAFKA = "kafka."
_REQUEST, _MEMORY = "kafka.max.request.size", "kafka.buffer.memory"
_LARGEST_REQUEST, _MEMORY_BYTES = 17 * 1024 * 1024, 32 * 1024 * 1024
_LEAST_BYTES = 1024 * 1024
# Of the record, of its batch, and of a compression that makes its content no smaller.
_AROUND_BYTES = 64 * 1024
_ORDER = "else a row may stand ahead of older ones of its key"
_FIXED = {
    # By the setting in lower case: what it must be, and why.
    "kafka.acks": (("all", "-1"), "what Kafka has acknowledged must be in all in-sync copies"),
    "kafka.enable.idempotence": (("true",), _ORDER),
    # Of a row that Kafka is given up on, those behind it may have been taken, and it comes again behind them.
    "kafka.delivery.timeout.ms": ((str(2**31 - 1),), _ORDER),
    "kafka.retries": ((str(2**31 - 1),), _ORDER),
    # For how long a task waits for room in the producer's memory, and for what it must know of the topic: by default a
    # minute, and then the query ends.
    "kafka.max.block.ms": ((str(2**31 - 1),), "else the query ends where Kafka is away for that long"),
}
_OURS = ("kafka.bootstrap.servers", "kafka.transactional.id", "kafka.key.serializer", "kafka.value.serializer")


class RowActions(NamedTuple):
    """What rows do beside putting, as SQL over their columns. As keyhole.spark.write_path.update_records takes it."""

    delete_when: str = "false"
    clear_when: str = "false"
    refuse_when: str = "false"


def real_time_part(state: object) -> SinkState:
    """The one state of a sink, which real-time mode can feed.

    Raises:
        Unsupported: It can't; the message says what can't be, and what to use instead.
        InvalidConfiguration: It is no sink.
    """
    if not isinstance(state, Sink):
        raise InvalidConfiguration(
            f"realtime takes a state, made by queryable.value and the like, and not a {type(state).__name__}: a "
            "function for foreachBatch, or another sink, can't be fed in real-time mode"
        )
    names = ", ".join(repr(part.declaration.state) for part in state.parts)
    for what, instead in _problems(state):
        raise Unsupported(f"state {names}: a real-time query has no {what}: use {instead}")
    return state.parts[0]


def _problems(sink: Sink) -> Iterator[tuple[str, str]]:
    """What can't be, and what to use instead."""
    first = sink.parts[0]
    if any(part.changes for part in sink.parts):
        yield "processor in Python (queryable.exposed)", f"SQL and queryable.reducing, {_BATCHES}"
    if len(sink.parts) > 1:
        yield "several states (queryable.together)", f"a real-time query for each, {_BATCHES}"
    if first.subtasks is not None:
        yield "operator state", f"queryable.value, {_BATCHES}"
    if first.aggregator is not None:
        yield "aggregator in Python", f"queryable.reducing, {_BATCHES}"
    if first.codec is not None:
        yield "codec", f"the columns as they are, {_BATCHES}"
    if first.select is not None:
        yield "rows made of a batch (Sink.of)", "a select on the rows that you give"
    declaration = first.declaration
    if declaration.ttl_ms and declaration.ttl_clock is TtlClock.EVENT_TIME:
        yield "watermark, so no ttl by event time", f"ttl_clock='processing_time', {_BATCHES}"
    if declaration.kind is StateKind.LIST and declaration.order_by is not None:
        yield "batch whose rows order_by sorts", f"a list in the order of the topic, {_BATCHES}"
    if declaration.replaces:
        yield "batch whose rows replace a list", f"mode='append', {_BATCHES}"
    if given := sorted(sink.options - {"query"}):
        yield f"option {', '.join(given)}", f"it without {given[0]}, {_BATCHES}"


def row_actions(declaration: Declaration) -> RowActions:
    """Of the column that says what a row does; nothing but puts, where there is none.

    What no update can do is refused by the state's owner, row by row: `replace` in a list, and what no kind knows.
    """
    if declaration.op is None:
        return RowActions()
    op = quoted(declaration.op)
    known = ", ".join(f"'{one}'" for one in OPS[declaration.kind] if one is not Op.REPLACE)
    # Null is neither among them nor not: it puts.
    refused = f"{op} NOT IN ({known})"
    if declaration.map_key:
        return RowActions(f"{op} = '{Op.DELETE}'", f"{op} = '{Op.CLEAR}'", refused)
    return RowActions(f"{op} IN ('{Op.DELETE}', '{Op.CLEAR}')", "false", refused)


def kafka_options(given: Mapping[str, str], java: Mapping[str, str]) -> dict[str, str]:
    """The options of Spark's Kafka sink, by which what is acknowledged stays, in its order.

    Args:
        given: The user's: settings of Kafka's producer, each with `kafka.` before its name.
        java: Settings of Kafka's Java clients, by which they come to the broker.

    Raises:
        InvalidConfiguration: One can't be chosen, or can't be this.
    """
    for name, value in given.items():
        lower = str(name).lower()
        if not lower.startswith(_KAFKA) or lower in _OURS:
            raise InvalidConfiguration(
                f"option {name} of a real-time query can't be chosen: options are settings of Kafka's producer, as "
                '{"kafka.compression.type": "lz4"}',
                option=name,
            )
        needed, why = _FIXED.get(lower, ((), ""))
        if needed and str(value).lower() not in needed:
            raise InvalidConfiguration(
                f"option {name} of a real-time query is {value}, and must be {needed[0]}: {why}", option=name
            )
        if lower in (_REQUEST, _MEMORY) and not (str(value).isdecimal() and int(value) >= _LEAST_BYTES):
            raise InvalidConfiguration(
                f"option {name} of a real-time query is {value}, and must be bytes, {_LEAST_BYTES} or more: "
                "an update that has no room there goes to the dead letters",
                option=name,
            )
    made = {f"{_KAFKA}{name}": value for name, value in java.items()}
    made |= {"kafka.linger.ms": "0", _REQUEST: str(_LARGEST_REQUEST), _MEMORY: str(_MEMORY_BYTES)}
    made |= {str(name).lower(): str(value) for name, value in given.items()}
    return made | {name: allowed[0] for name, (allowed, _) in _FIXED.items()}


def most_bytes(options: Mapping[str, str], topic: int) -> int:
    """How large an update may be. What is larger Kafka, or its producer, refuses for good, and that ends the query.

    Args:
        options: As `kafka_options` makes them.
        topic: The largest batch that the updates topic takes, in bytes.
    """
    return min(topic, int(options[_REQUEST]), int(options[_MEMORY])) - _AROUND_BYTES
