"""Entries of Spark's offset and commit logs, as they stand in a checkpoint's files. Pure.

    offsets/<batch>     v1, metadata as JSON (watermark, settings), then one line per source: its offset
    commits/<batch>     v1, {"nextBatchWatermarkMs": ...}

Written by Spark 4.2's OffsetSeqLog and CommitLog.
"""

from __future__ import annotations

import json
import re

_UNIQUE_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def source_offsets(entry: str) -> tuple[str, ...] | None:
    """The sources' offsets in an entry of the offset log; None: it is of a kind that this version can't read."""
    version, *lines = entry.strip().split("\n")
    return tuple(line.strip() for line in lines[1:]) if version == "v1" and len(lines) >= 2 else None


def says_all(entry: str) -> bool:
    """Whether a stateless query can go on from the entry alone, without the rest of its checkpoint.

    So it is where every source is Kafka: its offset names the next record of each partition. Others keep notes of their
    own beside it (files already seen, the time at which the source began).
    """
    offsets = source_offsets(entry)
    return bool(offsets) and all(map(_is_of_kafka, offsets or ()))


def _is_of_kafka(offset: str) -> bool:
    """{"topic": {"0": 12, "1": 7}}"""
    try:
        topics = json.loads(offset)
    except ValueError:
        return False
    return (
        isinstance(topics, dict)
        and bool(topics)
        and all(
            isinstance(partitions, dict)
            and all(number.isdecimal() and type(end) is int for number, end in partitions.items())
            for partitions in topics.values()
        )
    )


def checkpoint_of(spark_query_id: str, batch: int, entry: str, watermark_ms: int) -> dict[str, bytes]:
    """The files of a checkpoint from which a stateless query goes on after the batch.

    Spark wants two entries of the offset log. Of the one before it only looks whether it is there, as the batch is
    committed.
    """
    text = entry.encode()
    commit = f'v1\n{{"nextBatchWatermarkMs":{watermark_ms}}}'.encode()
    before = {f"offsets/{batch - 1}": text} if batch > 0 else {}
    return {
        **before,
        f"offsets/{batch}": text,
        f"commits/{batch}": commit,
        "metadata": json.dumps({"id": spark_query_id}).encode(),
    }


def query_id(metadata: bytes) -> str | None:
    """Spark's id of the query that a checkpoint belongs to, out of its file `metadata`; None: it holds none."""
    try:
        return str(json.loads(metadata)["id"])
    except (ValueError, KeyError, TypeError):
        return None


def unique_ids(commit: str) -> frozenset[str]:
    """The ids that an entry of the commit log gives the files of the state stores' version (checkpoint format 2)."""
    return frozenset(_UNIQUE_ID.findall(commit))
