"""The write side of a query on one server: runs, grants, restores and epochs that meet each other at bad moments."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from keyhole.changelog.base import Partition, RestoredEpochs
from keyhole.changelog.settings import MAX_RECORD_BYTES
from keyhole.encoding.envelope import Moment
from keyhole.errors import (
    Fenced,
    KeyholeError,
    MalformedRequest,
    NotOwner,
    NotReady,
    OutcomeUnknown,
    Overloaded,
    StageLost,
    StateConflict,
    StoreFull,
    TooLarge,
)
from keyhole.model.epoch import NO_EPOCH, Position, Run
from keyhole.model.read import ReadBounds, Stale
from keyhole.model.state import StateKind
from keyhole.protocol.failpoints import Step
from keyhole.rpc.frames import MAX_VALUE_BYTES
from keyhole.stores.base import Advance, Batch
from keyhole.stores.memory import MemoryEngine
from keyhole.testing.changelog import MemoryChangelog, MemoryKafka, MemoryReader, NextCommit
from keyhole.v1 import state_server_pb2 as pb
from services.state_server.host import QueryHost
from services.state_server.registry import Registry
from services.state_server.replica.take_over import StateShare
from services.state_server.servicers.state_server import StateServerServicer
from services.state_server.write.merging import CommitContext
from services.state_server.write.spill import StagingRoom
from tests.support.hosts import INCARNATION, Hosted
from tests.support.models import DIGEST, aggregated
from tests.support.states import KEY_GROUPS, descriptor, group, key, names_in, row, table
from tests.support.waiting import LONG_SECONDS, PATIENCE_SECONDS

A, B = key(names_in(0)[0]), key(names_in(1)[0])


@pytest.fixture
async def hosted() -> AsyncIterator[Hosted]:
    made = Hosted()
    yield made
    await made.host.close()


class Gate:
    """Stops a thread at a step until it is let go."""

    def __init__(self, at: Step) -> None:
        self._at = at
        self.reached_it = threading.Event()
        self.open = threading.Event()

    def reached(self, step: Step, epoch: int) -> None:
        if step is self._at:
            self.reached_it.set()
            assert self.open.wait(LONG_SECONDS)

    async def wait(self) -> None:
        assert await asyncio.to_thread(self.reached_it.wait, 30)


# --- runs and grants --------------------------------------------------------------------------------------------------


async def test_an_epoch_is_read_once_it_is_committed(hosted: Hosted) -> None:
    await hosted.own()
    receipts = await hosted.stage(1, {A: row(1.0), B: row(2.0)})
    assert hosted.read(A, B) == [None, None]
    await hosted.commit(1, receipts)
    assert hosted.read(A, B) == [row(1.0), row(2.0)]


async def test_a_state_that_another_query_feeds_here_is_refused_by_both_names(hosted: Hosted) -> None:
    await hosted.own()
    await hosted.commit(1, await hosted.stage(1, {A: row(1.0)}))
    other = QueryHost("app", "other", MemoryChangelog(hosted.kafka, "app"), hosted.tables, hosted.host._settings)
    run = Run("app", "other", 1, "run-1")
    await other.open_run(run, INCARNATION, "grant-of-the-other")
    share = StateShare(descriptor(query="other"), frozenset(range(KEY_GROUPS)))
    with pytest.raises(StateConflict, match="is fed by query 'main'; query 'other' can't feed it too"):
        await other.assign(run, 1, [share], NO_EPOCH, 5.0)
    await other.close()
    assert hosted.read(A) == [row(1.0)]


@pytest.mark.parametrize(("generation", "run_id"), [(1, "run-1"), (2, "another")])
async def test_an_earlier_run_and_a_twin_of_this_one_are_fenced(hosted: Hosted, generation: int, run_id: str) -> None:
    await hosted.own(generation=2)
    other = type(hosted.run)("app", "main", generation, run_id)
    with pytest.raises(Fenced, match="superseded"):
        await hosted.host.open_run(other, INCARNATION, "another-grant")
    with pytest.raises(Fenced):
        hosted.host.confirm(other, hosted.version)


async def test_a_run_is_refused_from_the_moment_the_next_one_arrives(hosted: Hosted) -> None:
    """Also while the next one still waits for Kafka."""
    await hosted.own(generation=1)
    first = hosted.run
    hosted.kafka.down = True
    with pytest.raises(KeyholeError):
        await hosted.open(generation=2, grant="grant-2")
    with pytest.raises(Fenced):
        hosted.host.confirm(first, hosted.version)


async def test_a_grant_that_was_given_up_is_not_opened_again(hosted: Hosted) -> None:
    await hosted.own()
    receipts = await hosted.stage(1, {A: row(1.0)})
    hosted.kafka.next_commit = NextCommit.IS_LOST_AND_NOT_ANSWERED
    with pytest.raises(OutcomeUnknown):
        await hosted.commit(1, receipts)
    with pytest.raises(StageLost, match="another"):
        await hosted.open(grant="grant-1")
    await hosted.open(grant="grant-2")


async def test_what_was_published_is_read_while_the_next_run_takes_over() -> None:
    gate = Gate(Step.SERVER_STORE_WRITTEN)
    hosted = Hosted(observer=gate)
    await hosted.own()
    receipts = await hosted.stage(1, {A: row(1.0)})
    commit = asyncio.ensure_future(hosted.commit(1, receipts))
    await gate.wait()
    taking = asyncio.ensure_future(hosted.open(generation=2, grant="grant-2"))
    await asyncio.sleep(0)
    gate.open.set()
    await asyncio.gather(commit, taking)
    assert hosted.read(A, B) == [row(1.0), None]
    assert hosted.table.source().generation == 1
    await hosted.host.close()


async def test_released_key_groups_stay_released_when_an_epoch_was_under_way() -> None:
    gate = Gate(Step.SERVER_BEFORE_TRANSACTION)
    hosted = Hosted(observer=gate)
    await hosted.own()
    commit = asyncio.ensure_future(hosted.commit(1, await hosted.stage(1, {A: row(1.0)})))
    await gate.wait()
    release = asyncio.ensure_future(hosted.host.release(hosted.run, "counts", frozenset({1}), hosted.version))
    await asyncio.sleep(0)
    gate.open.set()
    await asyncio.gather(commit, release)
    assert hosted.read(A) == [row(1.0)]
    with pytest.raises(NotOwner):
        hosted.table.lookup([B], ReadBounds(stale=Stale.NEVER))
    await hosted.host.close()


# --- restores ---------------------------------------------------------------------------------------------------------


class SlowReader(MemoryReader):
    """Waits before each piece."""

    wait: Callable[[], object]

    def read(
        self, positions: Mapping[Partition, Position], ends: Mapping[Partition, int], deadline_seconds: float
    ) -> Iterator[RestoredEpochs]:
        for piece in super().read(positions, ends, deadline_seconds):
            self.wait()
            yield piece


class SlowChangelog(MemoryChangelog):
    """Whose restores wait at `gate`."""

    def __init__(self, kafka: MemoryKafka) -> None:
        super().__init__(kafka, "app")
        self._of = kafka
        self.gate = threading.Event()
        self.gate.set()
        self._entered = threading.Event()
        self.pieces = 0

    def _wait(self) -> None:
        self.pieces += 1
        self._entered.set()
        assert self.gate.wait(LONG_SECONDS)

    async def entered(self) -> None:
        """Returns when a restore waits."""
        assert await asyncio.to_thread(self._entered.wait, LONG_SECONDS)

    def reader(self) -> MemoryReader:
        reader = SlowReader(self._of, "app")
        reader.wait = self._wait
        return reader


@pytest.fixture
async def slow() -> AsyncIterator[tuple[Hosted, SlowChangelog]]:
    """A host without a store, whose changelog holds an epoch of every key group, and is slow to read."""
    before = Hosted()
    await before.own()
    await before.apply(1, {key(names_in(g)[0]): row(1.0) for g in range(KEY_GROUPS)})
    await before.host.close()
    changelog = SlowChangelog(before.kafka)
    hosted = Hosted(kafka=before.kafka, changelog=changelog)
    await hosted.open(generation=2, grant="grant-2")
    changelog.gate.clear()
    yield hosted, changelog
    changelog.gate.set()
    await hosted.host.close()


async def test_a_restore_is_waited_for_by_asking_again_and_says_not_ready_meanwhile(
    slow: tuple[Hosted, SlowChangelog],
) -> None:
    hosted, changelog = slow
    assert not await hosted.assign(complete=1, wait=0.01)
    await changelog.entered()
    with pytest.raises(NotReady, match="restoring"):
        hosted.read(A)
    changelog.gate.set()
    hosted.version -= 1
    assert await hosted.assign(complete=1)
    assert (hosted.read(A), changelog.pieces) == ([row(1.0)], KEY_GROUPS)


async def test_the_next_run_stops_a_restore(slow: tuple[Hosted, SlowChangelog]) -> None:
    hosted, changelog = slow
    assert not await hosted.assign(complete=1, wait=0.01)
    await changelog.entered()
    next_run = asyncio.ensure_future(hosted.open(generation=3, grant="grant-3"))
    await asyncio.sleep(0)
    changelog.gate.set()
    await next_run
    assert changelog.pieces < KEY_GROUPS


async def test_a_caller_that_goes_away_does_not_take_back_that_a_restore_is_to_stop(
    slow: tuple[Hosted, SlowChangelog],
) -> None:
    hosted, changelog = slow
    assert not await hosted.assign(complete=1, wait=0.01)
    await changelog.entered()
    gone = asyncio.ensure_future(hosted.assign(groups=[0], complete=1))
    await asyncio.sleep(0.01)
    gone.cancel()
    with suppress(asyncio.CancelledError):
        await gone
    changelog.gate.set()
    assert await hosted.assign(groups=[0, 1], complete=1)
    assert hosted.read(A, B) == [row(1.0), row(1.0)]
    assert changelog.pieces <= 1 + 2, "the restore that was given up went on"


async def test_one_that_waits_for_a_restore_that_was_given_up_is_told_to_ask_again(
    slow: tuple[Hosted, SlowChangelog],
) -> None:
    hosted, changelog = slow
    waiting = asyncio.ensure_future(hosted.assign(complete=1))
    await changelog.entered()
    other = asyncio.ensure_future(hosted.assign(groups=[0], complete=1))
    await asyncio.sleep(0)
    changelog.gate.set()
    with pytest.raises(NotReady):
        await waiting
    assert await other


# --- staged rows ------------------------------------------------------------------------------------------------------


async def test_staged_bytes_are_bounded_however_many_tasks_stage_at_once(tmp_path: Path) -> None:
    hosted = Hosted(room=StagingRoom(10_000, 5_000, tmp_path))
    await hosted.own()
    attempts = [hosted.begin(1, number) for number in range(20)]
    rows = [bytes([0]) * 1000]

    async def add(number: int, chunk: int) -> None:
        name = key(f"{number}-{chunk}")
        await hosted.host.add_rows(attempts[number], lambda: ([name], list(rows)))

    results = await asyncio.gather(*(add(number, 0) for number in range(20)), return_exceptions=True)
    assert 10 <= results.count(None) < 20
    assert all(isinstance(result, Overloaded) for result in results if result is not None)
    with pytest.raises(Overloaded, match="MAX_SPILLED_BYTES"):
        await add(0, 1)
    for attempt in attempts:
        hosted.host.attempts.discard(attempt)
    attempts = [hosted.begin(1, 100)]
    await add(0, 2)
    await hosted.host.close()


async def test_a_call_that_is_cancelled_while_its_chunk_is_taken_in_leaves_no_bytes_behind(hosted: Hosted) -> None:
    await hosted.own()
    attempt, let_go, entered = hosted.begin(1, 1), threading.Event(), threading.Event()

    def decode() -> tuple[list[bytes], list[bytes | None]]:
        entered.set()
        let_go.wait(LONG_SECONDS)
        return [A], [row(1.0)]

    call = asyncio.ensure_future(hosted.host.add_rows(attempt, decode))
    await asyncio.to_thread(entered.wait, LONG_SECONDS)
    call.cancel()
    with suppress(asyncio.CancelledError):
        await call
    hosted.host.attempts.discard(attempt)
    let_go.set()
    await hosted.stage(1, {A: row(1.0)})
    await hosted.host.open_run(type(hosted.run)("app", "main", 2, "run-2"), INCARNATION, "grant-2")
    assert not hosted.host.attempts.held()


async def test_an_older_round_that_ends_late_is_not_staged(hosted: Hosted) -> None:
    await hosted.own()
    late = hosted.begin(1, 1, round_=0)
    await hosted.stage(1, {A: row(1.0)}, round_=1)
    with pytest.raises(StageLost, match="superseded"):
        hosted.begin(1, 2, round_=0)
    name = hosted.host.attempts.names()[0]._replace(round=0)
    with pytest.raises(StageLost, match="superseded"):
        await hosted.host.stage(name, late, hosted.run)


# --- commits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fate", "outcome"),
    [(NextCommit.IS_COMMITTED_BUT_NOT_ANSWERED, row(1.0)), (NextCommit.IS_LOST_AND_NOT_ANSWERED, None)],
)
async def test_the_marker_decides_an_unknown_outcome(hosted: Hosted, fate: NextCommit, outcome: bytes | None) -> None:
    await hosted.own()
    receipts = await hosted.stage(1, {A: row(1.0)})
    hosted.kafka.next_commit = fate
    with pytest.raises(OutcomeUnknown):
        await hosted.commit(1, receipts)
    with pytest.raises(StageLost, match="grant"):
        await hosted.commit(1, receipts)
    await hosted.open(grant="grant-2")
    assert await hosted.assign()
    assert hosted.read(A) == [outcome]
    (answer,) = await hosted.apply(1, {A: row(1.0)})
    assert answer.already is (outcome is not None)
    assert not answer.differs
    assert hosted.read(A) == [row(1.0)]


async def test_a_full_store_loses_nothing_and_another_server_has_it_all() -> None:
    small = Hosted(engine=MemoryEngine(limit_bytes=100))
    await small.own()
    with pytest.raises(StoreFull):
        await small.apply(1, {A: bytes(200)})
    await small.host.close()
    other = Hosted(kafka=small.kafka)
    await other.own(generation=2)
    assert other.read(A) == [bytes(200)]
    await other.host.close()


async def test_a_key_group_that_is_ahead_after_a_crash_says_so_and_the_others_do_not() -> None:
    first = Hosted()
    await first.own()
    await first.apply(1, {A: row(1.0), B: row(1.0)})
    await first.apply(2, {A: row(2.0)})
    await first.host.close()
    second = Hosted(kafka=first.kafka)
    await second.own(generation=2, complete=1)
    answers = second.table.lookup([A, B])
    sources = {key: answers.sources[i] for key, i in zip((A, B), answers.source_of, strict=True)}
    assert (sources[A].epoch, sources[B].epoch) == (2, 1)
    assert {source.generation for source in sources.values()} == {2}
    await second.host.close()


async def test_a_state_that_is_not_here_is_refused_and_the_grant_kept(hosted: Hosted) -> None:
    await hosted.open()
    with pytest.raises(NotOwner, match="counts"):
        await hosted.commit(1, [])
    assert await hosted.assign()
    await hosted.apply(1, {A: row(1.0)})


async def test_a_caller_that_goes_away_does_not_stop_a_commit() -> None:
    gate = Gate(Step.SERVER_TRANSACTION_COMMITTED)
    hosted = Hosted(observer=gate)
    await hosted.own()
    commit = asyncio.ensure_future(hosted.commit(1, await hosted.stage(1, {A: row(1.0)})))
    await gate.wait()
    commit.cancel()
    with suppress(asyncio.CancelledError):
        await commit
    gate.open.set()
    await hosted.host.release(hosted.run, "counts", frozenset(), hosted.version)  # answers when nothing is in flight
    assert hosted.read(A) == [row(1.0)]
    await hosted.host.close()


async def test_complete_mode_empties_key_groups_without_rows(hosted: Hosted) -> None:
    await hosted.own()
    await hosted.apply(1, {A: row(1.0), B: row(1.0)}, replace=True)
    committed = await hosted.apply(2, {A: row(1.0)}, replace=True)
    assert hosted.read(A, B) == [row(1.0), None]
    assert [item.key_group for item in committed] == [group(names_in(1)[0])]  # what is unchanged is not written again


@pytest.mark.parametrize("malformed", [b"", b"\0", b"\0\0", b"\xff\xffkey"])
async def test_a_key_that_is_no_storage_key_has_no_base_and_is_told_so(malformed: bytes) -> None:
    hosted = Hosted(of=descriptor(kind=StateKind.AGGREGATING))
    await hosted.own()
    asked = CommitContext(3, Moment(0, 0), Moment(0, 0))
    with pytest.raises(MalformedRequest, match="no storage key of state app/counts"):
        await hosted.host.read_base(hosted.run, INCARNATION, hosted.version, "counts", asked, [A, malformed])
    await hosted.host.close()


async def test_bases_come_in_answers_that_a_message_carries_and_one_that_none_does_is_refused() -> None:
    hosted = Hosted(of=descriptor(kind=StateKind.AGGREGATING))
    await hosted.own()

    async def bases(*keys: bytes) -> list[bytes | None]:
        asked = CommitContext(3, Moment(0, 0), Moment(0, 0))
        found = await hosted.host.read_base(hosted.run, INCARNATION, hosted.version, "counts", asked, keys)
        return [base and base.accumulator for base in found]

    large, largest = bytes(5 << 20), bytes(MAX_RECORD_BYTES - 100)
    await hosted.apply(1, {A: aggregated(row(1.0), large), B: aggregated(row(2.0), largest)})
    assert await bases(A, A, A) == [large]
    assert await bases(A, B) == [large]
    assert await bases(B, A) == [largest]
    state = hosted.host._states.state("counts")
    assert state.table.name == "app/counts"
    too_large = aggregated(row(1.0), bytes(MAX_VALUE_BYTES + 1))[len(DIGEST) :]
    before = state.store.snapshot().positions()[group(names_in(0)[0])]
    state.store.apply(Batch([(A, too_large)], advances={0: Advance(before, before)}))
    with pytest.raises(TooLarge, match="an accumulator of state app/counts takes 16,777,217 bytes"):
        await bases(A)
    await hosted.host.close()


async def test_what_has_expired_is_no_base_for_the_tasks_of_an_aggregating_state_and_a_replay_is_told_the_same() -> (
    None
):
    hosted = Hosted(of=descriptor(kind=StateKind.AGGREGATING, ttl_ms=1000))
    await hosted.own()

    async def bases(epoch: int, at_ms: int) -> list[bytes | None]:
        moment = Moment(at_ms, watermark_ms=0)
        asked = CommitContext(epoch, moment, moment)
        found = await hosted.host.read_base(hosted.run, INCARNATION, hosted.version, "counts", asked, [A, B])
        return [base and base.accumulator for base in found]

    await hosted.apply(1, {A: aggregated(row(1.0), b"one")})  # at one second, as the epoch's number
    assert await bases(2, 1999) == [b"one", None]
    assert await bases(2, 2000) == [None, None]
    await hosted.apply(2, {A: aggregated(row(2.0), b"two"), B: aggregated(row(3.0), b"three")})
    assert await bases(2, 2000) == [None, None]
    assert await bases(3, 2999) == [b"two", b"three"]
    assert await bases(3, 3000) == [None, None]
    await hosted.host.close()


# --- who is told ------------------------------------------------------------------------------------------------------


async def test_a_change_while_another_is_told_is_told_too() -> None:
    registry = Registry("server-a", INCARNATION, lambda: "server-a:1", 0, 511)
    servicer = StateServerServicer(registry, lambda _: pytest.fail("unused"), Hosted().host._settings)
    stream = servicer.WatchOwnership(pb.WatchOwnershipRequest(), None)  # type: ignore[arg-type]  # it uses no context
    assert not (await anext(stream)).holdings
    # The stream stands where gRPC sends what it was given.
    registry.tables["app", "counts"] = table()
    registry.changed()
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert (await anext(stream)).holdings
