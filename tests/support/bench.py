"""One owner of a state on the in-memory changelog: commits epochs, and restores after whatever went wrong."""

from __future__ import annotations

import threading

from keyhole.model.state import StateDescriptor
from keyhole.protocol.failpoints import Step
from keyhole.stores.base import Store
from keyhole.testing.clock import ManualClock
from services.state_server.replica.hosted import StateReplica
from services.state_server.replica.restore import AtOnce, restore
from services.state_server.write.commit import EpochToCommit, GroupCommitted, commit_epoch
from tests.support.states import KEY_GROUPS, descriptor, hosted, memory_changelog, open_writer


class Bench:
    """One owner of all key groups of app/counts, its changelog, and its writer."""

    def __init__(self, of: StateDescriptor | None = None, store: Store | None = None) -> None:
        self.kafka, self.changelog = memory_changelog()
        self.state = hosted(of=of, store=store)
        self.writer = open_writer(self.changelog)
        self.steps: list[Step] = []

    def reached(self, step: Step, epoch: int) -> None:
        self.steps.append(step)

    def commit(self, part: EpochToCommit) -> dict[int, GroupCommitted]:
        committed = commit_epoch(part, {"counts": self.state}, self.writer, self, 1.0)
        assert len({item.key_group for item in committed}) == len(committed)
        return {item.key_group: item for item in committed}

    def restore_under(self, grant: str) -> None:
        """As a server does that lost its grant: the new one fences the old, then the changelog is read."""
        self.state.groups.lose_grant()
        self.state.read_positions()
        self.writer = open_writer(self.changelog, grant)
        self.read_into(self.state)

    def read_into(self, state: StateReplica) -> None:
        """Brings a copy to the changelog's end, from where it is."""
        restore(
            {"counts": state},
            {"counts": range(KEY_GROUPS)},
            self.changelog,
            ManualClock(0),
            away_limit_ms=10**9,
            deadline_seconds=5.0,
            stop=threading.Event(),
            at_once=AtOnce(),
        )

    def log(self, key_group: int) -> list[tuple[bytes, bytes | None]]:
        topic = descriptor().topic
        end = self.kafka.end(topic, key_group)
        return [(name, value) for _, name, value in self.kafka.records(topic, key_group, 0, end)]

    def ends(self) -> list[int]:
        return [self.kafka.end(descriptor().topic, number) for number in range(KEY_GROUPS)]
