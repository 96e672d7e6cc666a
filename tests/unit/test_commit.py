"""One epoch on one server: what reaches the changelog and the store, and what happens when something fails."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from keyhole.changelog.base import Partition
from keyhole.changelog.records import MARKER_KEY, decode_marker
from keyhole.errors import Fenced, KafkaUnreachable, NotOwner, OutcomeUnknown, StageLost, StoreFull
from keyhole.model.epoch import START, EpochStamp
from keyhole.model.state import StateDescriptor, StateKind
from keyhole.protocol.failpoints import NoObserver, Step
from keyhole.stores.base import Batch
from keyhole.testing.changelog import NextCommit
from services.state_server.write.commit import EpochToCommit, GroupCommitted, StateToCommit, commit_epoch
from services.state_server.write.merge import merge_of
from services.state_server.write.merging import EntryChange
from services.state_server.write.spill import Spool, StagingRoom
from services.state_server.write.staged import StagedAttempt
from tests.support.bench import Bench
from tests.support.states import (
    KEY_GROUPS,
    content,
    descriptor,
    encoded,
    epoch,
    group,
    hosted,
    key,
    memory_changelog,
    names_in,
    open_writer,
    row,
)

A, A2, A3 = names_in(0)
B = names_in(1)[0]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_an_epoch_is_in_the_changelog_with_its_marker_last_and_in_the_store(bench: Bench) -> None:
    committed = bench.commit(epoch(1, {A: 1.0, B: 2.0}))
    assert content(bench.state.store) == encoded({A: 1.0, B: 2.0})
    (record, (marker_key, marker_value)) = bench.log(0)
    assert record == (key(A), row(1.0))
    assert marker_key == MARKER_KEY
    marker = decode_marker(marker_value, Partition("counts", 0), 1)
    assert marker.stamp == EpochStamp(1, 1, 1000, 500)
    assert committed[0] == GroupCommitted("counts", 0, 1, marker.checksum, already=False)
    assert bench.steps == [Step.SERVER_BEFORE_TRANSACTION, Step.SERVER_TRANSACTION_COMMITTED, Step.SERVER_STORE_WRITTEN]


def test_the_stores_position_is_the_one_after_the_marker(bench: Bench) -> None:
    bench.commit(epoch(1, {A: 1.0}))
    snapshot = bench.state.store.snapshot()
    assert snapshot.positions() == {0: bench.state.position(0)}
    assert bench.state.position(0)[:3] == (2, 1, 1)
    assert bench.state.position(0)[4:] == (1000, 500)


def test_key_groups_without_rows_are_not_in_the_transaction(bench: Bench) -> None:
    committed = bench.commit(epoch(1, {A: 1.0}))
    assert set(committed) == {0}
    assert bench.ends()[1:] == [0] * (KEY_GROUPS - 1)


def test_an_epoch_without_rows_costs_no_transaction(bench: Bench) -> None:
    bench.kafka.down = True
    assert bench.commit(epoch(1, {})) == {}
    assert bench.steps == []


def test_deletions_reach_both(bench: Bench) -> None:
    bench.commit(epoch(1, {A: 1.0, A2: 1.0}))
    bench.commit(epoch(2, {A: None, A3: None}))
    assert content(bench.state.store) == encoded({A2: 1.0})
    assert dict(bench.log(0))[key(A)] is None


def test_all_states_of_an_epoch_are_one_transaction() -> None:
    other = descriptor(state="others")
    kafka, changelog = memory_changelog(descriptor(), other)
    transactions: list[int] = []
    kafka.before_commit = lambda: transactions.append(1)
    both = {"counts": hosted(), "others": hosted(of=other)}
    one, two = epoch(1, {A: 1.0}), epoch(1, {A: 2.0, B: 2.0}, of=other)
    part = dataclasses.replace(one, states={**one.states, **two.states})
    commit_epoch(part, both, open_writer(changelog), NoObserver(), 1.0)
    assert len(transactions) == 1
    assert content(both["counts"].store) == encoded({A: 1.0})
    assert content(both["others"].store) == encoded({A: 2.0, B: 2.0})


class TestReplay:
    """The same epoch again."""

    def test_what_is_committed_is_left_as_it_is(self, bench: Bench) -> None:
        first = bench.commit(epoch(1, {A: 1.0, B: 2.0}))
        before = bench.ends()
        again = bench.commit(epoch(1, {A: 1.0, B: 2.0}, generation=2))
        assert bench.ends() == before
        assert all(item.already and not item.differs for item in again.values())
        assert {g: (i.marker_offset, i.checksum) for g, i in again.items()} == {
            g: (i.marker_offset, i.checksum) for g, i in first.items()
        }

    def test_a_replay_that_differs_is_told_and_changes_nothing(self, bench: Bench) -> None:
        first = bench.commit(epoch(1, {A: 1.0, B: 2.0}))
        again = bench.commit(epoch(1, {A: 9.0, B: 2.0}))
        assert [again[0].differs, again[1].differs] == [True, False]
        assert again[0].checksum == first[0].checksum
        assert content(bench.state.store) == encoded({A: 1.0, B: 2.0})

    def test_a_replay_that_lacks_all_rows_of_a_key_group_differs(self, bench: Bench) -> None:
        bench.commit(epoch(1, {A: 1.0, B: 2.0}))
        again = bench.commit(epoch(1, {A: 1.0}))
        assert again[1].already
        assert again[1].differs

    def test_a_key_group_that_lacks_the_epoch_takes_it_beside_those_that_have_it(self, bench: Bench) -> None:
        bench.commit(epoch(1, {A: 1.0}))
        again = bench.commit(epoch(1, {A: 1.0, B: 2.0}))
        assert (again[0].already, again[1].already) == (True, False)
        assert content(bench.state.store) == encoded({A: 1.0, B: 2.0})

    def test_an_older_epoch_changes_nothing_and_does_not_differ(self, bench: Bench) -> None:
        bench.commit(epoch(1, {A: 1.0}))
        bench.commit(epoch(2, {A: 2.0}))
        late = bench.commit(epoch(1, {A: 1.0}))
        assert (late[0].already, late[0].differs) == (True, False)
        assert content(bench.state.store) == encoded({A: 2.0})


class TestReplayInAnotherOrder:
    """Sums of floats depend on the order in which rows come: what is compared must not."""

    VALUES = (1e16, 1.0, -1e16, 0.1)

    def test_a_sum_with_other_last_digits_is_the_same_epoch(self) -> None:
        of = descriptor(kind=StateKind.REDUCING, reducers=("sum",))
        bench = Bench(of)
        there, back = (self.attempt(of, order) for order in (self.VALUES, self.VALUES[::-1]))
        assert there.groups[key(A)[:2]].merged() != back.groups[key(A)[:2]].merged(), "the order shows in the sum"
        assert there.receipts() == back.receipts()
        bench.commit(self.epoch(there))
        before = content(bench.state.store)
        again = bench.commit(self.epoch(back))
        assert [(item.already, item.differs) for item in again.values()] == [(True, False)]
        assert content(bench.state.store) == before

    def test_another_summand_is_another_epoch(self) -> None:
        of = descriptor(kind=StateKind.REDUCING, reducers=("sum",))
        bench = Bench(of)
        bench.commit(self.epoch(self.attempt(of, self.VALUES)))
        again = bench.commit(self.epoch(self.attempt(of, (*self.VALUES[:-1], 0.2))))
        assert [item.differs for item in again.values()] == [True]

    def attempt(self, of: StateDescriptor, values: Sequence[float]) -> StagedAttempt:
        attempt = StagedAttempt("app/counts", KEY_GROUPS, 511, merge_of(of))
        for value in values:
            attempt.add([key(A)], [row(value)])
        return attempt

    def epoch(self, attempt: StagedAttempt) -> EpochToCommit:
        states = {"counts": StateToCommit([attempt], attempt.receipts(), replace=False)}
        return EpochToCommit(EpochStamp(1, 1, 1000, 500), offsets_hash=1, states=states)


class TestCompleteMode:
    """An epoch's rows are all that there is from then on."""

    def test_key_groups_without_rows_are_emptied(self, bench: Bench) -> None:
        bench.commit(epoch(1, {A: 1.0, B: 2.0}, replace=True))
        bench.commit(epoch(2, {A: 3.0}, replace=True))
        assert content(bench.state.store) == encoded({A: 3.0})
        assert dict(bench.log(1))[key(B)] is None

    def test_rows_that_stay_are_not_written_again(self, bench: Bench) -> None:
        bench.commit(epoch(1, {A: 1.0, B: 2.0}, replace=True))
        before = bench.ends()
        bench.commit(epoch(2, {A: 1.0, B: 3.0}, replace=True))
        assert bench.ends()[0] == before[0]
        assert bench.ends()[1] > before[1]

    def test_a_replay_writes_nothing(self, bench: Bench) -> None:
        bench.commit(epoch(1, {A: 1.0, B: 2.0}, replace=True))
        bench.commit(epoch(2, {A: 3.0}, replace=True))
        before = bench.ends()
        again = bench.commit(epoch(2, {A: 3.0}, replace=True))
        assert bench.ends() == before
        assert not any(item.differs for item in again.values())


class TestOrderBy:
    """The row that ranks highest stays."""

    def test_a_row_that_ranks_below_the_stored_one_is_not_written(self) -> None:
        of = descriptor(order_by="n")
        bench = Bench(of)
        bench.commit(epoch(1, {A: 5.0, A2: 5.0}, of=of))
        bench.commit(epoch(2, {A: 4.0, A2: 6.0}, of=of))
        assert content(bench.state.store) == encoded({A: 5.0, A2: 6.0})

    def test_a_key_group_of_which_no_row_wins_is_left_out(self) -> None:
        of = descriptor(order_by="n")
        bench = Bench(of)
        bench.commit(epoch(1, {A: 5.0}, of=of))
        before = bench.ends()
        assert bench.commit(epoch(2, {A: 4.0}, of=of)) == {}
        assert bench.ends() == before


class TestFailures:
    """What is left when it did not work."""

    def test_rows_that_are_not_those_of_the_receipts_are_lost_and_nothing_is_written(self, bench: Bench) -> None:
        right, wrong = epoch(1, {A: 1.0}), epoch(1, {A: 2.0})
        part = dataclasses.replace(right.states["counts"], attempts=wrong.states["counts"].attempts)
        with pytest.raises(StageLost):
            bench.commit(dataclasses.replace(right, states={"counts": part}))
        assert bench.ends() == [0] * KEY_GROUPS
        assert content(bench.state.store) == {}

    def test_rows_of_a_key_group_that_is_not_owned_are_refused_whole(self, bench: Bench) -> None:
        bench.state.groups.retain(bench.state.groups.owned - {group(B)})
        with pytest.raises(NotOwner, match="stage them again"):
            bench.commit(epoch(1, {A: 1.0, B: 2.0}))
        assert bench.ends() == [0] * KEY_GROUPS

    def test_a_fenced_owner_writes_nothing(self, bench: Bench) -> None:
        bench.changelog.admin().fence("grant-1", 1.0)
        with pytest.raises(Fenced):
            bench.commit(epoch(1, {A: 1.0}))
        assert bench.ends() == [0] * KEY_GROUPS
        assert content(bench.state.store) == {}

    def test_while_kafka_is_away_nothing_is_written_and_the_same_call_works_later(self, bench: Bench) -> None:
        part = epoch(1, {A: 1.0})
        bench.kafka.down = True
        with pytest.raises(KafkaUnreachable):
            bench.commit(part)
        bench.kafka.down = False
        assert content(bench.state.store) == {}
        assert not bench.commit(part)[0].already
        assert content(bench.state.store) == encoded({A: 1.0})

    @pytest.mark.parametrize(
        ("fate", "was_committed"),
        [(NextCommit.IS_COMMITTED_BUT_NOT_ANSWERED, True), (NextCommit.IS_LOST_AND_NOT_ANSWERED, False)],
    )
    def test_after_an_unknown_outcome_the_marker_decides(
        self, bench: Bench, fate: NextCommit, was_committed: bool
    ) -> None:
        bench.commit(epoch(1, {A: 1.0}))
        bench.kafka.next_commit = fate
        with pytest.raises(OutcomeUnknown):
            bench.commit(epoch(2, {A: 2.0, B: 2.0}))
        assert content(bench.state.store) == encoded({A: 1.0})
        bench.restore_under("grant-2")
        assert bench.state.position(0).epoch == (2 if was_committed else 1)
        again = bench.commit(epoch(2, {A: 2.0, B: 2.0}))
        assert [item.already for item in again.values()] == [was_committed] * 2
        assert content(bench.state.store) == encoded({A: 2.0, B: 2.0})
        markers = [name for name, _ in bench.log(0) if name == MARKER_KEY]
        assert len(markers) == 2

    def test_rows_that_can_not_be_read_back_after_the_transaction_are_restored_from_the_changelog(
        self, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        attempt = StagedAttempt(
            "app/counts", KEY_GROUPS, 511, merge_of(descriptor()), StagingRoom(0, 1 << 20, tmp_path)
        )
        attempt.add([key(A), key(B)], [row(1.0), row(2.0)])
        attempt.spill()
        whole = epoch(1, {A: 1.0, B: 2.0})
        part = dataclasses.replace(whole.states["counts"], attempts=[attempt])

        def unreadable(self: Spool, extents: object) -> Iterator[EntryChange]:
            raise StageLost("the disk is gone")

        with monkeypatch.context() as patch:
            bench.kafka.before_commit = lambda: patch.setattr(Spool, "read", unreadable)
            with pytest.raises(OutcomeUnknown, match="could not be written to a store"):
                bench.commit(dataclasses.replace(whole, states={"counts": part}))
        attempt.close()
        assert content(bench.state.store) == {}
        bench.restore_under("grant-2")
        assert content(bench.state.store) == encoded({A: 1.0, B: 2.0})

    def test_a_store_that_is_full_after_the_transaction_catches_up_from_the_changelog(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(batch: Batch) -> None:
            raise StoreFull("full")

        with monkeypatch.context() as patch:
            patch.setattr(bench.state.store, "apply", full)
            with pytest.raises(StoreFull):
                bench.commit(epoch(1, {A: 1.0}))
        assert bench.state.position(0) == START
        bench.restore_under("grant-2")
        assert content(bench.state.store) == encoded({A: 1.0})
        assert bench.commit(epoch(1, {A: 1.0}))[0].already
