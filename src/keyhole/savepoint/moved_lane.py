"""How a query of the batch lane goes on in the real-time lane, by a savepoint: which rows of its source count. Pure.

    complete.offsets of the savepoint    {"orders": {"0": 991900, "1": 990012}}
    each key group's marker              feed: rows of orders below these offsets count as seen

The topic is read from its start by the first real-time query or `keyhole feed`, and owners pass over what the savepoint
has. Its rows stand under the names that either of the two would give them (keyhole.protocol.fed_sources).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import NamedTuple

from keyhole.errors import SavepointMismatch
from keyhole.model.state import StateDescriptor, StateKind
from keyhole.protocol.fed_sources import source_of_branch
from keyhole.protocol.seen import FeedPosition, SeenPartition
from keyhole.savepoint.manifest import SavedQuery, Savepoint
from keyhole.savepoint.spark_log import says_all, source_offsets

_KINDS = frozenset(
    (StateKind.VALUE, StateKind.MAP, StateKind.LIST, StateKind.REDUCING, StateKind.BROADCAST),
)


class QueriedTopic(NamedTuple):
    """The topic that a query reads, as Kafka has it now.

    Attributes:
        topic_id: Kafka's id of it.
        starts: By partition, the first offset that is still there.
    """

    topic_id: str
    starts: Mapping[int, int]


def source_topic_of(savepoint: Savepoint, query: str) -> str:
    """The topic that the query reads.

    Raises:
        SavepointMismatch: There is no such query, or it can't go on in the real-time lane.
    """
    topic, _ = _topic_and_ends(_saved(savepoint, query))
    return topic


def position_from(query: SavedQuery, name: str, source: QueriedTopic) -> FeedPosition:
    """From where each key group goes on: at the start of its updates, with the savepoint's rows seen.

    Args:
        name: Of the query from now on: a real-time query of that name gives it to its rows.

    Raises:
        SavepointMismatch: As source_topic_of.
    """
    _, ends = _topic_and_ends(query)
    seen = {partition: SeenPartition(end, 0, 0, []) for partition, end in ends.items()}
    names = (source.topic_id, source_of_branch(source.topic_id, name))
    return FeedPosition(seen={of: dict(seen) for of in names})


def check_source(query: SavedQuery, source: QueriedTopic) -> None:
    """Passes where the topic has all that the savepoint lacks. Of a restore that has ended it is asked no more.

    Raises:
        SavepointMismatch: The topic has lost records that the savepoint has not; or it has fewer than that.
    """
    topic, ends = _topic_and_ends(query)
    for partition, start in source.starts.items():
        if start > ends.get(partition, 0):
            raise SavepointMismatch(
                f"topic {topic} has lost the records of partition {partition} from offset {ends.get(partition, 0)} to "
                f"{start}, which savepoint and topic would both lack: take a newer savepoint, or feed the state from "
                "the start",
                query=query.query,
            )
    if gone := sorted(ends.keys() - source.starts.keys()):
        raise SavepointMismatch(
            f"topic {topic} has no partition {gone[0]}, of which the savepoint has rows: it is another topic than the "
            "one that the query has read",
            query=query.query,
        )


def check_states(states: Collection[StateDescriptor], query: str) -> None:
    """Raises SavepointMismatch: one of the states can't be fed by updates, or there are several."""
    if len(states) != 1:
        names = ", ".join(sorted(of.state for of in states)) or "none"
        raise SavepointMismatch(
            f"query {query!r} can't go on in real time: it feeds {len(states)} states ({names}), and a real-time query "
            "feeds one",
            query=query,
        )
    (of,) = states
    why = ""
    if of.kind not in _KINDS:
        why = f"is of kind {of.kind}, which only a job's own classes can merge"
    elif of.ttl_ms:
        why = "has entries that expire, by times that the batches gave them"
    if why:
        raise SavepointMismatch(
            f"query {query!r} can't go on in real time: state {of.state!r} {why}. Restore it for a batch job",
            query=query,
        )


def _saved(savepoint: Savepoint, query: str) -> SavedQuery:
    for saved in savepoint.queries:
        if saved.query == query:
            return saved
    known = ", ".join(sorted(saved.query for saved in savepoint.queries))
    raise SavepointMismatch(f"the savepoint has no query {query!r}; it has {known}", name=query)


def _topic_and_ends(query: SavedQuery) -> tuple[str, dict[int, int]]:
    entry = query.complete.offsets
    topics: dict[str, dict[int, int]] = {}
    sources = source_offsets(entry) or ()
    if query.record.stateful:
        why = "Spark keeps state of its own for it, which no real-time query can have"
    elif not says_all(entry):
        why = "its sources are not Kafka topics alone"
    else:
        for offsets in sources:
            for topic, ends in json.loads(offsets).items():
                topics[topic] = {int(partition): end for partition, end in ends.items()}
        if len(topics) == 1 and len(sources) == 1:
            return next(iter(topics.items()))
        why = f"it reads {len(sources)} sources, and the names of their rows in real time are not known"
    raise SavepointMismatch(f"query {query.query!r} can't go on in real time: {why}", query=query.query)
