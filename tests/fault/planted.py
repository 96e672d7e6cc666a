"""Bugs that are planted into a state server, so that it is shown that the checker catches them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keyhole.changelog.base import PartitionChanges
from keyhole.changelog.transactions import Appending
from keyhole.changelog.writer import KafkaWriter
from keyhole.coordinator.receipts import GroupReceipt
from keyhole.types import Run, StateKind
from services.state_server import commit
from services.state_server.commit import EpochToCommit, StateToCommit
from services.state_server.copies import Answers
from services.state_server.host import Attempt, QueryHost
from services.state_server.hosted import HostedState
from services.state_server.staged import StagedAttempt
from services.state_server.table import Table


def drop_markers() -> None:
    """Epochs are written without their markers: whoever restores can't tell which of them it holds."""
    appending = KafkaWriter._appending

    def without(self: KafkaWriter, changed: PartitionChanges) -> Appending:
        whole = appending(self, changed)
        return whole if changed.marker.epoch % 10 else whole._replace(records=list(whole.records)[:-1])

    KafkaWriter._appending = without  # type: ignore[method-assign]


def apply_twice() -> None:
    """A replay is not taken for one: what was committed already is merged again."""
    plan_state = commit._plan_state

    def forgetful(plan: Any, epoch: EpochToCommit, state: HostedState, part: StateToCommit) -> None:
        positions, state.positions = state.positions, {}
        try:
            plan_state(plan, epoch, state, part)
        finally:
            state.positions = positions

    commit._plan_state = forgetful


def show_uncommitted() -> None:
    """Readers are shown what is staged, as if it were committed."""
    stage, lookup = QueryHost.stage, Table.lookup
    staged: dict[bytes, bytes | None] = {}

    def remembering(self: QueryHost, name: Attempt, attempt: StagedAttempt, run: Run) -> list[GroupReceipt]:
        if self._hosted[name.state].descriptor.kind is StateKind.VALUE:
            for group in attempt.groups.values():
                staged.update(group.rows)
        return stage(self, name, attempt, run)

    def showing(self: Table, keys: Sequence[bytes], *bounds: Any, **more: Any) -> Answers:
        answers = lookup(self, keys, *bounds, **more)
        if self.descriptor.kind is not StateKind.VALUE:
            return answers
        rows = [staged.get(key, row) for key, row in zip(keys, answers.rows, strict=True)]
        return dataclasses.replace(answers, rows=rows)

    QueryHost.stage = remembering  # type: ignore[method-assign]
    Table.lookup = showing  # type: ignore[method-assign]


PLANTS: Mapping[str, Callable[[], None]] = {
    "dropped marker": drop_markers,
    "double apply": apply_twice,
    "uncommitted answer": show_uncommitted,
}


def plant(name: str) -> None:
    """Changes the state server of this process. Empty: nothing."""
    if name:
        PLANTS[name]()
