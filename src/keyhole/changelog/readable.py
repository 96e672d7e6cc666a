"""Waiting until what was committed can be read: Kafka acknowledges a commit a moment before that."""

from __future__ import annotations

from collections.abc import Mapping

from keyhole.changelog.base import Changelog, Partition, by_state
from keyhole.clock import Clock

_RETRY_SECONDS = 0.01


def await_readable(
    changelog: Changelog, ends: Mapping[Partition, int], clock: Clock, deadline_seconds: float
) -> list[Partition]:
    """Returns once readers get all before these ends; or after the deadline, with those of which they don't.

    Raises:
        ChangelogRecreated, KafkaUnreachable: See ChangelogReader.ends.
    """
    asked = by_state(ends)
    until = clock.monotonic() + deadline_seconds
    reader = changelog.reader()
    try:
        while True:
            behind = [part for part, end in reader.ends(asked, deadline_seconds).items() if end < ends[part]]
            if not behind or clock.monotonic() > until:
                return behind
            clock.sleep(_RETRY_SECONDS)
    finally:
        reader.close()
