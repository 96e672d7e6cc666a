"""The grant of one query on this server: the transactional id under which it writes, and that fences whoever had it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from keyhole.changelog.base import Changelog, ChangelogWriter, Partition, PartitionChanges
from keyhole.errors import StageLost
from services.state_server.replica.hosted import StateReplica


class Grant:
    """See the module's text. Host thread, but for `name`, `check`, `given_up` and `commit`.

    Args:
        hosted: The query's states by name. What they may write depends on the grant: without it, nothing.
        deadline_seconds: How long Kafka may take to open it.

    Attributes:
        name: Of the last grant that was taken, given up or not; empty: none was.
    """

    def __init__(
        self, server: str, changelog: Changelog, hosted: Mapping[str, StateReplica], deadline_seconds: float
    ) -> None:
        self.name = ""
        self._server = server
        self._changelog = changelog
        self._hosted = hosted
        self._deadline_seconds = deadline_seconds
        self._writer: ChangelogWriter | None = None
        # Held by whoever uses the writer in another thread: it is not closed meanwhile.
        self._writing = threading.Lock()

    @property
    def given_up(self) -> bool:
        """Nothing can be written under it, or none was taken."""
        return self._writer is None

    def take(self, name: str) -> None:
        """Gives up the grant before, and opens this one.

        Raises:
            KafkaUnreachable: It was not taken; there is none now.
        """
        self.give_up()
        self.name = ""
        writer = self._changelog.writer(name)
        try:
            writer.open(self._deadline_seconds)
        except BaseException:
            writer.close()
            raise
        self._writer, self.name = writer, name

    def check(self) -> ChangelogWriter:
        """The writer under this grant.

        A grant is opened once: opening it again could take it back from whoever has fenced it.

        Raises:
            StageLost: The grant was given up.
        """
        if self._writer is None:
            raise StageLost(f"server {self._server} has no grant any more; it needs another one")
        return self._writer

    def commit(
        self, writer: ChangelogWriter, changes: Sequence[PartitionChanges], deadline_seconds: float
    ) -> Mapping[Partition, int]:
        """What ChangelogWriter.commit does, in any thread: the grant is not given up until it ends.

        Args:
            writer: As `check` gave it on the host thread when the changes were made: they are of that grant alone.

        Raises:
            StageLost: That grant was given up meanwhile; nothing was written.
        """
        with self._writing:
            if self._writer is not writer:
                raise StageLost(f"server {self._server} was given another grant")
            return writer.commit(changes, deadline_seconds)

    def give_up_of(self, writer: ChangelogWriter) -> None:
        """As `give_up`, if that is its writer still."""
        if self._writer is writer:
            self.give_up()

    def give_up(self) -> None:
        """Nothing more is written under it. Key groups must be restored before they are written under the next one."""
        self.close()
        for state in self._hosted.values():
            state.groups.lose_grant()
            state.read_positions()

    def close(self) -> None:
        """Closes the writer; the stores are about to be closed, too. Idempotent."""
        if self._writer is not None:
            with self._writing:
                self._writer.close()
                self._writer = None
