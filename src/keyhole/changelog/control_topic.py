"""What the control topic is: the durable log of an application's decisions, beside the changelogs of its states.

Coordinators write it, each the records of its own query, and servers follow it. docs/changelog.md lists the records.

Threads: every object here blocks, and is used by one thread at a time. Deadlines are in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class ControlLog(Protocol):
    """The control topic of one application, seen by one query's coordinator: one partition, compacted, transactional.

    Keys are paths ("generation/<query>", "grant/<query>/<server>/..."), values JSON; docs/changelog.md lists them.
    """

    def open(self, deadline_seconds: float) -> None:
        """Makes or checks the topic, then fences every earlier coordinator of this query: their `append` fails."""

    def read(self, deadline_seconds: float) -> Mapping[str, bytes]:
        """The last committed value by key, of all queries of the application. Deleted keys are missing.

        What others have written behind a transaction that is still open is missing, too; nothing of one's own is.
        """

    def read_decided(self, deadline_seconds: float) -> Mapping[str, bytes]:
        """As `read`, but nothing is missing that was written before the call, by whomever. Writes and fences nothing.

        Raises:
            KafkaUnreachable: Also where one of these transactions stays open for longer.
        """

    def append(self, records: Mapping[str, bytes | None], deadline_seconds: float) -> None:
        """Writes all in one transaction; None deletes. When it returns they are committed.

        Raises:
            Fenced: A newer run of this query exists; nothing was written.
            KafkaUnreachable: Nothing was written. May be called again.
            OutcomeUnknown: It may or may not have been written.
        """

    def close(self) -> None: ...


class ControlTail(Protocol):
    """Follows the control topic of one application, from its start. `close` may come from another thread."""

    def poll(self, seconds: float) -> Mapping[str, bytes | None] | None:
        """What has changed since the last call, by key (None: deleted), at most `seconds` later; empty: nothing yet.

        The first result that is not None comes when the whole topic has been read once, and holds its last values. None
        until then, and while the topic does not exist.
        """

    def close(self) -> None: ...
