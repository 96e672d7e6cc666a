"""Bugs that are planted into a state server, so that it is shown that the checker catches them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keyhole.changelog.base import PartitionChanges
from keyhole.changelog.transactions import Appending
from keyhole.changelog.writer import KafkaWriter
from services.state_server import commit
from services.state_server.commit import EpochToCommit, StateToCommit
from services.state_server.copies import Answers
from services.state_server.hosted import HostedState
from services.state_server.staged import StagedAttempt
from services.state_server.table import Table
from tests.fault.workload import VALUES


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
    add, lookup = StagedAttempt.add, Table.lookup
    staged: dict[bytes, bytes | None] = {}

    def remembering(self: StagedAttempt, keys: Sequence[bytes], rows: Sequence[bytes | None]) -> None:
        add(self, keys, rows)
        if self._name.endswith(f"/{VALUES}"):
            staged.update(zip(keys, rows, strict=True))

    def showing(self: Table, keys: Sequence[bytes], *bounds: Any, **more: Any) -> Answers:
        answers = lookup(self, keys, *bounds, **more)
        if self.descriptor.state != VALUES:
            return answers
        rows = [staged.get(key, row) for key, row in zip(keys, answers.rows, strict=True)]
        return dataclasses.replace(answers, rows=rows)

    StagedAttempt.add = remembering  # type: ignore[method-assign]
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
