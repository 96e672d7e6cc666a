"""Feeding states without Spark: records of a Kafka topic become updates, each counted once, whoever dies.

    with Producer("kafka:9092", "shop/totals") as producer:     # public: a program's own writes
        producer.add("c1", {"amount": 12.5})

    feed_options.py     what a feeder is given: key, value columns, reducers -> the state's descriptor
    preview.py          the last records of a topic                          -> whether they can be fed so
    record_encoding.py  the bytes of a record, as JSON                       -> values in the forms that JSON has
    registry/           the bytes of a record in Avro, by a schema registry  -> the same
    rows.py             a record that is a row                               -> what becomes of which row
    connect.py          values with the schema that Kafka Connect wrote      -> in the forms that a state has
    debezium.py         a change of a database's table, as Debezium tells it -> the same
    mapping.py          what becomes of rows                                 -> updates, and their key groups

    source_progress.py  what was sent and not acknowledged                   -> up to where all was
    positions.py        boundaries in the updates topic                      -> from where a feeder sends
    whole_topic.py      a boundary, or an end                                -> in every partition, and acknowledged
    feeder.py           the loop that reads, maps, sends and writes boundaries: exactly once, and its text says how

    fed_topics.py       what it reads and writes, and its lease, as interfaces
    kafka/              these interfaces on Kafka
    topic_feed.py       a feeder on Kafka, through outages
    rates.py            how many records there were, now and then            -> records per second
    process.py          a feed run and a feeder: what `keyhole feed` is

    writes.py           what a program puts, adds and deletes                -> updates, and a token for who reads them
    producer.py         sends these to Kafka

Only kafka/, registry/client.py, topic_feed.py and producer.py do I/O. docs/updates.md has the records of an updates
topic, docs/adr/real-time-updates.md the reasons. Importing this loads nothing else: the producer comes with its first
use, and needs the extra `kafka`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keyhole.feed.producer import Producer
    from keyhole.feed.writes import WriteToken

__all__ = ["Producer", "WriteToken"]

_HOMES = {"Producer": "keyhole.feed.producer", "WriteToken": "keyhole.feed.writes"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'keyhole.feed' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
