"""One QueryHost on the in-memory changelog, and what a coordinator would say to it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from keyhole.changelog.base import Changelog
from keyhole.model.epoch import EpochStamp, Run
from keyhole.model.state import StateDescriptor
from keyhole.protocol.failpoints import NoObserver, StepObserver
from keyhole.protocol.receipts import GroupReceipt
from keyhole.stores.base import StoreEngine
from keyhole.stores.memory import MemoryEngine
from keyhole.testing.changelog import MemoryChangelog, MemoryKafka
from keyhole.testing.clock import ManualClock
from services.state_server.host import QueryHost
from services.state_server.host_settings import HostSettings
from services.state_server.read.table import Table
from services.state_server.replica.follower import Follower, MakeFollower
from services.state_server.replica.restore import AtOnce
from services.state_server.replica.take_over import StateShare
from services.state_server.write.attempts import Attempt
from services.state_server.write.commit import EpochToCommit, GroupCommitted, StateToCommit
from services.state_server.write.spill import StagingRoom
from services.state_server.write.staged import StagedAttempt
from tests.support.states import KEY_GROUPS, descriptor
from tests.support.waiting import PATIENCE_SECONDS

INCARNATION = "incarnation-1"


@dataclass
class Hosted:
    """A host, its tables, and the run that speaks to it."""

    kafka: MemoryKafka = field(default_factory=MemoryKafka)
    engine: StoreEngine = field(default_factory=MemoryEngine)
    observer: StepObserver = field(default_factory=NoObserver)
    changelog: Changelog | None = None
    room: StagingRoom = field(default_factory=lambda: StagingRoom(1 << 30, 1 << 30, Path(tempfile.gettempdir())))
    make_follower: MakeFollower = Follower
    at_once: AtOnce = field(default_factory=AtOnce)
    clock: ManualClock = field(default_factory=ManualClock)
    of: StateDescriptor = field(default_factory=descriptor)
    feeds_by_itself: bool = True

    def __post_init__(self) -> None:
        self.tables: dict[tuple[str, str], Table] = {}
        self.run = Run("app", "main", 1, "run-1")
        self.version = 0
        changelog = self.changelog or MemoryChangelog(self.kafka, "app")
        changelog.admin().ensure(self.of, 5)
        settings = HostSettings(
            server="server-a",
            incarnation=INCARNATION,
            engine=self.engine,
            clock=self.clock,
            observer=self.observer,
            lease_seconds=3.0,
            room=self.room,
            kafka_deadline_seconds=5.0,
            restore_deadline_seconds=5.0,
            changed=lambda: None,
            make_follower=self.make_follower,
            at_once=self.at_once,
            feeds_by_itself=self.feeds_by_itself,
        )
        self.host = QueryHost("app", "main", changelog, self.tables, settings)

    @property
    def table(self) -> Table:
        return self.tables["app", "counts"]

    async def open(self, generation: int = 1, grant: str = "grant-1") -> None:
        self.run = Run("app", "main", generation, f"run-{generation}")
        await self.host.open_run(self.run, INCARNATION, grant)

    async def assign(
        self, groups: Iterable[int] = range(KEY_GROUPS), complete: int = 0, wait: float = PATIENCE_SECONDS
    ) -> bool:
        self.version += 1
        stamp = EpochStamp(complete, self.run.generation, 1000 * complete, 0)
        return await self.host.assign(self.run, self.version, [StateShare(self.of, frozenset(groups))], stamp, wait)

    async def own(self, generation: int = 1, complete: int = 0) -> None:
        """A new run, all key groups."""
        await self.open(generation, f"grant-{generation}")
        assert await self.assign(complete=complete)

    async def stage(
        self,
        epoch: int,
        rows: Mapping[bytes, bytes | None],
        round_: int = 0,
        *,
        replaces: bool | None = False,
        watermark_ms: int | None = 0,
    ) -> list[GroupReceipt]:
        name = Attempt("counts", epoch, round_, 0, epoch * 100 + round_)
        attempt = self.host.begin_attempt(self.run, INCARNATION, self.version, name, replaces, watermark_ms)
        await self.host.add_rows(attempt, lambda: (list(rows), list(rows.values())))
        return await self.host.stage(name, attempt, self.run)

    def begin(self, epoch: int, attempt_id: int, round_: int = 0) -> StagedAttempt:
        name = Attempt("counts", epoch, round_, 0, attempt_id)
        return self.host.begin_attempt(self.run, INCARNATION, self.version, name)

    async def commit(
        self,
        epoch: int,
        receipts: Sequence[GroupReceipt],
        round_: int = 0,
        *,
        replace: bool = False,
        watermark_ms: int = 0,
    ) -> list[GroupCommitted]:
        winners = [(0, epoch * 100 + round_)] if receipts else []
        attempts = self.host.attempts.winners("counts", epoch, round_, winners)
        part = StateToCommit(attempts, receipts, replace)
        stamp = EpochStamp(epoch, self.run.generation, 1000 * epoch, watermark_ms)
        asked = EpochToCommit(stamp, epoch, {"counts": part})
        return await self.host.commit(self.run, INCARNATION, self.version, asked, 5.0)

    async def apply(
        self, epoch: int, rows: Mapping[bytes, bytes | None], *, replace: bool = False
    ) -> list[GroupCommitted]:
        """Stage and commit."""
        return await self.commit(epoch, await self.stage(epoch, rows, replaces=replace), replace=replace)

    def read(self, *keys: bytes) -> list[bytes | None]:
        return list(self.table.lookup(keys).rows)
