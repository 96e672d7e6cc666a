"""The labels of metrics, what each means, and how many values it can have. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from keyhole import errors
from keyhole.metrics.cardinality import (
    MOST_INDEXES,
    MOST_QUERIES,
    MOST_QUERIES_OF_ALL,
    MOST_STATES,
    MOST_STATES_OF_ALL,
    MOST_TOPICS,
    OTHER,
    RANGES,
)

REASONS = frozenset(errors.by_reason())
"""Why something was refused, as in the proto's enum Reason."""

PHASES = ("converge", "stage", "commit", "complete")
"""Of an epoch, as the coordinator runs it."""

SPARK_PHASES = (
    "addBatch",
    "commitBatch",
    "commitOffsets",
    "getBatch",
    "latestOffset",
    "queryPlanning",
    "triggerExecution",
    "walCommit",
)
"""Of a batch, as Spark names them in its progress."""

REFUSALS = ("unauthenticated", "denied", "limit")
"""Why a caller was turned away before its request was looked at."""


READ_LIMITS = ("caller_calls", "calls", "caller_keys", "keys", "caller_rate", "rate")
"""Which limit a read was refused by, as rpc/read_admission.py names them: of one caller, and of all together."""


CONTAINERS = ("spark-executor", "state-server", "driver", "client-proxy", "metrics-exporter", "feed", "source", "kafka")
"""Of the chart's pods, by name; any other one is OTHER."""


@dataclass(frozen=True, slots=True)
class Label:
    """`bound`: how many values one process gives it at most; 0: it is counted with another label of the metric's.

    `text` says it for a person.
    """

    meaning: str
    bound: int
    text: str


LABELS: Mapping[str, Label] = MappingProxyType(
    {
        "server": Label("the state server's id", 1, "the servers"),
        "proxy": Label(
            "the client proxy's host and port; of several processes each has its number behind it, as `/0`",
            1,
            "the processes of proxies",
        ),
        "application": Label("the application", 0, "the applications; with `state` and `query`: their bound"),
        "state": Label(
            "the state's name",
            MOST_STATES + 1,
            f"{MOST_STATES} per process, {MOST_STATES_OF_ALL} in the exporter, then `{OTHER}`",
        ),
        "query": Label(
            "the query's name",
            MOST_QUERIES + 1,
            f"{MOST_QUERIES} per process, {MOST_QUERIES_OF_ALL} in the exporter, then `{OTHER}`",
        ),
        "role": Label("`owner` or `standby`", 2, "2"),
        "reason": Label("as in the proto's enum `Reason`", len(REASONS), str(len(REASONS))),
        "refusal": Label(f"one of {', '.join(f'`{one}`' for one in REFUSALS)}", len(REFUSALS), str(len(REFUSALS))),
        "limit": Label(
            f"one of {', '.join(f'`{one}`' for one in READ_LIMITS)}", len(READ_LIMITS), str(len(READ_LIMITS))
        ),
        "phase": Label("of an epoch or a batch", len(SPARK_PHASES) + 1, str(len(SPARK_PHASES) + 1)),
        "status": Label("`reached`, `silent` or `lost`", 3, "3"),
        "where": Label("`memory` or `disk`", 2, "2"),
        "topic": Label(
            "a source's topic",
            MOST_TOPICS + 1,
            f"{MOST_TOPICS}, each with its query if that is a label, then `{OTHER}`",
        ),
        "field": Label(
            "the indexed field's name",
            MOST_INDEXES + 1,
            f"{MOST_INDEXES} per state, in the order in which it names them, then `{OTHER}`",
        ),
        "range": Label(f"key groups, `first-last`; {RANGES} of them", RANGES, str(RANGES)),
        "component": Label("`state_server`, `client_proxy` or `job`", 3, "3"),
        "target": Label("host:port that the exporter asks", 0, "the processes discovered"),
        "container": Label("a container of the chart's, or `other`", len(CONTAINERS) + 1, str(len(CONTAINERS) + 1)),
        "cause": Label("`memory`: killed for it; or `error`", 2, "2"),
        "version": Label("Keyhole's version", 1, "1 per process"),
    }
)
