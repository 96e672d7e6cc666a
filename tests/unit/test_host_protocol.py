"""What a query's host on one server says yes and no to: runs, grants, rounds, assignments, leases.

What happens where two of them meet is in test_host.py.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from keyhole.changelog.base import Partition
from keyhole.errors import (
    Fenced,
    KafkaUnreachable,
    KeyholeError,
    NotOwner,
    NotReady,
    OutcomeUnknown,
    Overloaded,
    StageLost,
)
from keyhole.model.epoch import EpochStamp, Run
from keyhole.model.read import ReadBounds, Stale
from keyhole.protocol.failpoints import NoObserver
from keyhole.protocol.receipts import GroupReceipt
from keyhole.stores.memory import MemoryEngine
from keyhole.testing.changelog import MemoryReader, NextCommit
from keyhole.testing.clock import ManualClock
from keyhole.v1.state_pb2 import ROLE_OWNER, ROLE_STANDBY
from services.state_server.host import QueryHost
from services.state_server.host_settings import HostSettings
from services.state_server.read.table import Table
from services.state_server.replica.take_over import StateShare
from services.state_server.write.attempts import Attempt
from services.state_server.write.commit import EpochToCommit, GroupCommitted, StateToCommit
from services.state_server.write.spill import StagingRoom
from tests.support.states import KEY_GROUPS, descriptor, group, key, memory_changelog, names_in, row
from tests.support.waiting import LONG_SECONDS

ALL = frozenset(range(KEY_GROUPS))
FIRST = Run("app", "main", 1, "run-1")
SECOND = Run("app", "main", 2, "run-2")
A = names_in(0)[0]
B = names_in(1)[0]
Rows = Mapping[str, float | None]


class Server:
    """A host with a changelog, and the calls that a coordinator makes of it."""

    def __init__(self, memory_bytes: int = 1 << 20, disk_bytes: int = 1 << 20) -> None:
        self.kafka, changelog = memory_changelog()
        self.clock = ManualClock()
        self.tables: dict[tuple[str, str], Table] = {}
        self.room = StagingRoom(memory_bytes, disk_bytes, Path(tempfile.gettempdir()))
        settings = HostSettings(
            server="server-a",
            incarnation="i",
            engine=MemoryEngine(),
            clock=self.clock,
            observer=NoObserver(),
            lease_seconds=3.0,
            room=self.room,
            kafka_deadline_seconds=5.0,
            restore_deadline_seconds=5.0,
            changed=lambda: None,
        )
        self.host = QueryHost("app", "main", changelog, self.tables, settings)
        self.changelog = changelog

    async def begin(
        self, run: Run = FIRST, grant: str = "grant-1", version: int = 1, groups: Iterable[int] = ALL, complete: int = 0
    ) -> None:
        await self.host.open_run(run, "i", grant)
        await self.assign(run, version, groups, complete)

    async def assign(
        self, run: Run = FIRST, version: int = 1, groups: Iterable[int] = ALL, complete: int = 0, wait: float = 10.0
    ) -> bool:
        states = [StateShare(descriptor(), frozenset(groups))]
        return await self.host.assign(
            run, version, states, EpochStamp(complete, run.generation, 1000 * complete, 0), wait
        )

    async def stage(
        self, rows: Rows, epoch: int = 1, round_: int = 1, attempt: int = 1, run: Run = FIRST, version: int = 1
    ) -> list[GroupReceipt]:
        name = Attempt("counts", epoch, round_, 0, attempt)
        arriving = self.host.begin_attempt(run, "i", version, name)
        values = [None if n is None else row(n) for n in rows.values()]
        try:
            await self.host.add_rows(arriving, lambda: ([key(k) for k in rows], values))
        except KeyholeError:
            self.host.attempts.discard(arriving)
            raise
        return await self.host.stage(name, arriving, run)

    async def commit(
        self,
        receipts: list[GroupReceipt],
        epoch: int = 1,
        round_: int = 1,
        attempt: int = 1,
        run: Run = FIRST,
        version: int = 1,
    ) -> list[GroupCommitted]:
        winners = [(0, attempt)] if receipts else []
        part = StateToCommit(self.host.attempts.winners("counts", epoch, round_, winners), receipts, replace=False)
        to_commit = EpochToCommit(EpochStamp(epoch, run.generation, 1000 * epoch, 0), epoch, {"counts": part})
        return await self.host.commit(run, "i", version, to_commit, 1.0)

    async def apply(self, rows: Rows, epoch: int = 1, run: Run = FIRST, version: int = 1) -> list[GroupCommitted]:
        receipts = await self.stage(rows, epoch, run=run, version=version)
        return await self.commit(receipts, epoch, run=run, version=version)

    def read(self, *names: str, min_epoch: int = 0) -> list[bytes | None]:
        table, bounds = self.tables["app", "counts"], ReadBounds(min_epoch=min_epoch)
        return list(table.lookup([key(name) for name in names], bounds).rows)


class SlowRestore:
    """Every restore waits at its beginning until `go_on`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.count = 0
        ends = MemoryReader.ends

        def slow(
            reader: MemoryReader, states: Mapping[str, Sequence[int]], deadline_seconds: float
        ) -> Mapping[Partition, int]:
            self.count += 1
            self.reached.set()
            self.go_on.wait(LONG_SECONDS)
            return ends(reader, states, deadline_seconds)

        monkeypatch.setattr(MemoryReader, "ends", slow)


class SlowCommit:
    """The next commit stands still on the host's thread until `go_on`."""

    def __init__(self, server: Server) -> None:
        self._reached, self.go_on = threading.Event(), threading.Event()
        server.kafka.before_commit = self._stand_still

    def _stand_still(self) -> None:
        self._reached.set()
        self.go_on.wait(LONG_SECONDS)

    async def under_way(self) -> None:
        assert await asyncio.to_thread(self._reached.wait, LONG_SECONDS)


async def all_wait_for_the_thread() -> None:
    """Of what was begun on the event loop, nothing gets any further while the host's thread stands still."""
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    yield server
    await server.host.close()


async def test_an_epoch_without_rows_here_is_the_one_that_answers_stand_for(server: Server) -> None:
    await server.begin()
    await server.commit([])
    assert server.read(A, min_epoch=1) == [None]


class TestRuns:
    """One run per generation; the highest counts."""

    async def test_a_run_that_was_superseded_is_fenced_whatever_it_asks(self, server: Server) -> None:
        await server.begin()
        receipts = await server.stage({A: 1.0})
        await server.begin(SECOND, "grant-2")
        with pytest.raises(Fenced):
            await server.host.open_run(FIRST, "i", "grant-3")
        with pytest.raises(Fenced):
            await server.assign(FIRST)
        with pytest.raises(Fenced):
            await server.stage({A: 1.0})
        with pytest.raises(Fenced):
            await server.host.release(FIRST, "counts", ALL, 1)
        with pytest.raises(Fenced):
            server.host.confirm(FIRST, 1)
        with pytest.raises((Fenced, StageLost)):
            await server.commit(receipts)
        assert server.read(A) == [None]

    async def test_another_run_of_the_same_generation_is_fenced(self, server: Server) -> None:
        await server.begin()
        twin = Run("app", "main", 1, "run-1b")
        with pytest.raises(Fenced, match="running twice"):
            await server.host.open_run(twin, "i", "grant-1b")
        with pytest.raises(Fenced):
            await server.stage({A: 1.0}, run=twin)

    async def test_a_run_that_was_not_opened_here_is_not_ready(self, server: Server) -> None:
        await server.begin()
        with pytest.raises(NotReady, match="not been opened"):
            await server.stage({A: 1.0}, run=SECOND)

    async def test_calls_meant_for_an_earlier_process_are_refused(self, server: Server) -> None:
        with pytest.raises(NotReady, match="restarted"):
            await server.host.open_run(FIRST, "before", "grant-1")
        await server.begin()
        with pytest.raises(NotReady, match="restarted"):
            server.host.begin_attempt(FIRST, "before", 1, Attempt("counts", 1, 1, 0, 1))

    async def test_a_new_run_drops_what_was_staged(self, server: Server) -> None:
        await server.begin()
        await server.stage({A: 1.0})
        await server.begin(SECOND, "grant-2")
        with pytest.raises(StageLost):
            server.host.attempts.winners("counts", 1, 1, [(0, 1)])


class TestGrants:
    """A grant is taken once."""

    async def test_opening_a_run_again_under_its_grant_changes_nothing(self, server: Server) -> None:
        await server.begin()
        receipts = await server.stage({A: 1.0})
        await server.host.open_run(FIRST, "i", "grant-1")
        await server.commit(receipts)
        assert server.read(A) == [row(1.0)]

    async def test_a_grant_that_was_fenced_is_not_taken_back(self, server: Server) -> None:
        await server.begin()
        server.changelog.admin().fence("grant-1", 1.0)
        with pytest.raises(Fenced):
            await server.apply({A: 1.0})
        with pytest.raises(StageLost, match="no grant"):
            await server.host.open_run(FIRST, "i", "grant-1")
        assert server.read(A) == [None]

    async def test_a_grant_that_could_not_be_taken_can_be_taken_later(self, server: Server) -> None:
        server.kafka.down = True
        with pytest.raises(KafkaUnreachable):
            await server.host.open_run(FIRST, "i", "grant-1")
        server.kafka.down = False
        await server.begin()
        await server.apply({A: 1.0})
        assert server.read(A) == [row(1.0)]

    @pytest.mark.parametrize(
        ("fate", "committed"),
        [(NextCommit.IS_COMMITTED_BUT_NOT_ANSWERED, True), (NextCommit.IS_LOST_AND_NOT_ANSWERED, False)],
    )
    async def test_after_an_unknown_outcome_nothing_is_committed_before_a_new_grant_and_a_restore(
        self, server: Server, fate: NextCommit, committed: bool
    ) -> None:
        await server.begin()
        server.kafka.next_commit = fate
        with pytest.raises(OutcomeUnknown):
            await server.apply({A: 1.0})
        with pytest.raises(StageLost, match="no grant"):
            await server.apply({A: 1.0})
        await server.host.open_run(FIRST, "i", "grant-2")
        with pytest.raises(NotOwner):  # a grant alone is not enough: no assignment has followed it
            await server.apply({A: 1.0})
        await server.assign(version=2)
        assert server.read(A) == [row(1.0) if committed else None]
        (result,) = await server.apply({A: 1.0}, version=2)
        assert result.already == committed
        assert server.read(A) == [row(1.0)]

    async def test_while_kafka_is_away_the_grant_stays_good(self, server: Server) -> None:
        await server.begin()
        receipts = await server.stage({A: 1.0})
        server.kafka.down = True
        with pytest.raises(KafkaUnreachable):
            await server.commit(receipts)
        server.kafka.down = False
        await server.commit(receipts)
        assert server.read(A) == [row(1.0)]


class TestStaging:
    """Rows that wait for their commit."""

    async def test_an_older_round_is_refused_and_a_newer_one_drops_it(self, server: Server) -> None:
        await server.begin()
        await server.stage({A: 1.0}, round_=1)
        await server.stage({A: 2.0}, round_=2)
        with pytest.raises(StageLost, match="superseded"):
            await server.stage({A: 1.0}, round_=1)
        with pytest.raises(StageLost):
            server.host.attempts.winners("counts", 1, 1, [(0, 1)])
        assert server.host.attempts.winners("counts", 1, 2, [(0, 1)])

    async def test_of_two_attempts_of_one_partition_the_winner_is_committed(self, server: Server) -> None:
        await server.begin()
        await server.stage({A: 1.0}, attempt=1)
        receipts = await server.stage({A: 2.0}, attempt=2)
        await server.commit(receipts, attempt=2)
        assert server.read(A) == [row(2.0)]

    async def test_rows_for_another_assignment_are_refused(self, server: Server) -> None:
        await server.begin()
        with pytest.raises(NotOwner, match="version 1, not 2"):
            await server.stage({A: 1.0}, version=2)

    async def test_what_is_staged_is_gone_once_it_is_committed_or_another_run_begins(self, server: Server) -> None:
        await server.begin()
        await server.apply({A: 1.0})
        await server.stage({A: 2.0}, epoch=2)
        await server.begin(SECOND, "grant-2")
        for epoch in (1, 2):
            with pytest.raises(StageLost, match="not staged here"):
                server.host.attempts.winners("counts", epoch, 1, [(0, 1)])

    async def test_more_than_the_limit_is_refused_and_what_was_discarded_does_not_count(self) -> None:
        server = Server(memory_bytes=0, disk_bytes=50)
        await server.begin()
        await server.stage({A: 1.0})
        with pytest.raises(Overloaded, match="maxOffsetsPerTrigger"):
            await server.stage({A: 2.0}, attempt=2)
        await server.begin(SECOND, "grant-2")
        await server.apply({A: 3.0}, run=SECOND)
        assert server.read(A) == [row(3.0)]
        await server.host.close()

    async def test_rows_that_are_still_arriving_count_against_the_limit(self) -> None:
        server = Server(memory_bytes=0, disk_bytes=50)
        await server.begin()
        arriving = server.host.begin_attempt(FIRST, "i", 1, Attempt("counts", 1, 1, 0, 1))
        await server.host.add_rows(arriving, lambda: ([key(A)], [row(1.0)]))
        with pytest.raises(Overloaded):
            await server.host.add_rows(arriving, lambda: ([key(B)], [row(1.0)]))
        server.host.attempts.discard(arriving)
        await server.stage({A: 1.0}, attempt=2)
        await server.host.close()


class TestCommit:
    """The step from staged to visible."""

    async def test_a_second_delivery_is_told_that_it_is_committed(self, server: Server) -> None:
        await server.begin()
        receipts = await server.stage({A: 1.0})
        first, second = await asyncio.gather(server.commit(receipts), server.commit(receipts))
        assert [item.already for item in (*first, *second)] == [False, True]

    async def test_one_for_another_assignment_is_refused(self, server: Server) -> None:
        await server.begin()
        receipts = await server.stage({A: 1.0})
        await server.assign(version=2)
        with pytest.raises(NotOwner):
            await server.commit(receipts, version=1)


class TestOwnership:
    """Assign, Release, Confirm."""

    async def test_released_key_groups_are_not_written_and_are_read_as_a_standby_alone(self, server: Server) -> None:
        await server.begin()
        await server.apply({A: 1.0, B: 1.0})
        await server.host.release(FIRST, "counts", frozenset({group(B)}), 1)
        table = server.tables["app", "counts"]
        with pytest.raises(NotOwner):
            table.lookup([key(B)], ReadBounds(stale=Stale.NEVER))
        answers = table.lookup([key(A), key(B)])
        assert answers.rows == [row(1.0), row(1.0)]
        assert [answers.sources[i].role for i in answers.source_of] == [ROLE_OWNER, ROLE_STANDBY]
        with pytest.raises(NotOwner):
            await server.apply({B: 2.0}, epoch=2)
        await server.apply({A: 2.0}, epoch=2)
        with pytest.raises(NotOwner):
            table.lookup([key(B)], ReadBounds(stale=Stale.NEVER))

    async def test_release_answers_after_the_commit_that_is_under_way_which_publishes_nothing_of_it_again(
        self, server: Server
    ) -> None:
        await server.begin()
        await server.apply({A: 1.0, B: 1.0})
        commit = SlowCommit(server)
        committing = asyncio.ensure_future(server.apply({A: 2.0, B: 2.0}, epoch=2))
        await commit.under_way()
        releasing = asyncio.ensure_future(server.host.release(FIRST, "counts", frozenset({group(B)}), 1))
        await all_wait_for_the_thread()
        table = server.tables["app", "counts"]
        assert not releasing.done()
        assert table.lookup([key(B)], ReadBounds(stale=Stale.NEVER)).rows == [row(1.0)]
        commit.go_on.set()
        await releasing
        assert table.groups == ALL - {group(B)}
        answers = table.lookup([key(A), key(B)])
        assert answers.rows == [row(2.0), row(2.0)]
        assert [answers.sources[i].role for i in answers.source_of] == [ROLE_OWNER, ROLE_STANDBY]
        await committing
        assert table.groups == ALL - {group(B)}

    async def test_a_commit_does_not_publish_key_groups_again_that_were_given_away_meanwhile(
        self, server: Server
    ) -> None:
        await server.begin()
        commit = SlowCommit(server)
        committing = asyncio.ensure_future(server.apply({A: 1.0, B: 1.0}))
        await commit.under_way()
        meanwhile = threading.Event()
        server.host._thread.submit(meanwhile.wait, LONG_SECONDS)
        assigning = asyncio.ensure_future(server.assign(version=2, groups=ALL - {group(B)}))
        await all_wait_for_the_thread()
        commit.go_on.set()
        await committing
        assert group(B) not in server.tables["app", "counts"].groups
        meanwhile.set()
        assert await assigning
        assert server.tables["app", "counts"].groups == ALL - {group(B)}

    async def test_the_same_assignment_again_waits_for_the_same_restore(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        restore = SlowRestore(monkeypatch)
        await server.host.open_run(FIRST, "i", "grant-1")
        assert not await server.assign(wait=0.0)
        await asyncio.to_thread(restore.reached.wait, LONG_SECONDS)
        assert not server.host.ready
        with pytest.raises(NotReady):
            server.read(A)
        restore.go_on.set()
        assert await server.assign()
        assert server.host.ready
        assert restore.count == 1

    async def test_key_groups_that_are_still_being_restored_are_not_ready_though_others_are_read(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await server.begin(groups={group(A)})
        restore = SlowRestore(monkeypatch)
        assert not await server.assign(version=2, wait=0.0)
        await asyncio.to_thread(restore.reached.wait, LONG_SECONDS)
        assert server.read(A) == [None]
        with pytest.raises(NotReady):
            server.read(B)
        restore.go_on.set()
        assert await server.assign(version=2)
        assert server.read(A, B) == [None, None]

    async def test_a_restore_that_failed_is_told_and_begun_anew(self, server: Server) -> None:
        await server.host.open_run(FIRST, "i", "grant-1")
        server.kafka.down = True
        with pytest.raises(KafkaUnreachable):
            await server.assign()
        server.kafka.down = False
        assert await server.assign()
        assert server.read(A) == [None]

    async def test_the_lease_passes_without_a_coordinator_and_is_renewed_by_one(self, server: Server) -> None:
        await server.begin()
        table = server.tables["app", "counts"]
        assert not table.source().unconfirmed
        server.clock.advance(3.5)
        assert table.source().unconfirmed
        with pytest.raises(NotReady):
            server.host.confirm(FIRST, 2)
        assert table.source().unconfirmed
        server.host.confirm(FIRST, 1)
        assert not table.source().unconfirmed
