"""Whether a source has lost records that nobody has sent: a real-time query with a new checkpoint reads what there is.

    [0, "<id of orders>.spent", 17, {"0": 991900}, "orders", "<its id>"]    the last boundary in the updates topic
    orders, partition 0, begins at 995000    3,100 records are gone: refused

A query that goes on from its checkpoint is refused by Spark then. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from keyhole.errors import ChangelogRecreated
from keyhole.feed.fed_topics import UpdatesTopic
from keyhole.feed.positions import SourceDescription
from keyhole.feed.updates_search import last_boundary

_REMEDY = (
    "Start the query with the checkpoint that it had, if Spark lets it go on. Or feed the rows from the start into a "
    "state of another name. Or go on without the records that are gone, by from_earliest=True, if that is what you want"
)


class _UpdateOf(msgspec.Struct, frozen=True, array_like=True, tag=1):
    source: str


def check_unread(updates: UpdatesTopic, sources: Mapping[str, SourceDescription]) -> None:
    """Passes where each source still has all that was not read of it, as far as boundaries say.

    Args:
        updates: Of the state. Of a source without a boundary all of it is read.
        sources: By the name under which its rows stand in updates, each topic as it is now.

    Raises:
        ChangelogRecreated: Records were deleted before they were read. Or that is not known: updates of the source
            stand there without a boundary, and records of it are gone.
        KeyholeError: Kafka can't be reached, or refuses.
    """
    for source, described in sources.items():
        found = last_boundary(updates, described.topic, source)
        if found.ends is None:
            gone = [partition for partition, start in described.starts.items() if start]
            if gone and not (found.whole and not _was_sent(updates, source)):
                raise ChangelogRecreated(
                    f"how far topic {described.topic} was read is not known: the updates topic has no boundary of it, "
                    f"and partition {gone[0]} has lost its first records. {_REMEDY}",
                    topic=described.topic,
                )
            continue
        for partition, start in described.starts.items():
            if start > (end := found.ends.get(partition, 0)):
                raise ChangelogRecreated(
                    f"records of topic {described.topic} were deleted before they were read: offset {end} of partition "
                    f"{partition} is next, and it begins at {start}. Keep them longer. {_REMEDY}",
                    topic=described.topic,
                    partition=partition,
                )


def _was_sent(updates: UpdatesTopic, source: str) -> bool:
    """Whether any partition has an update of the source. A start that died before its first boundary has sent none."""
    decoder = msgspec.json.Decoder(_UpdateOf)
    return any(
        _is_of(source, updates.read(partition, *updates.bounds(partition)), decoder)
        for partition in range(updates.partitions)
    )


def _is_of(source: str, values: Iterable[bytes | None], decoder: msgspec.json.Decoder[_UpdateOf]) -> bool:
    for value in values:
        try:
            if decoder.decode(value or b"").source == source:
                return True
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # another record
            continue
    return False
