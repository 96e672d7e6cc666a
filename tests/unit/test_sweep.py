"""What has expired is removed, from the store and the changelog, by the epochs that come after; and only that."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from keyhole.changelog.base import Partition, PartitionChanges
from keyhole.changelog.records import MARKER_KEY, decode_marker
from keyhole.encoding.envelope import STAMP_BYTES, lifetime
from keyhole.errors import KafkaUnreachable, OutcomeUnknown
from keyhole.model.epoch import EpochStamp
from keyhole.model.state import TtlClock
from keyhole.stores.base import Snapshot
from keyhole.testing.changelog import NextCommit
from services.state_server.replica.hosted import StateReplica
from services.state_server.write import ttl_gc as sweep
from services.state_server.write.commit import EpochToCommit, StateToCommit
from services.state_server.write.merge import merge_of
from services.state_server.write.merging import EntryChange
from services.state_server.write.spill import SpooledRows, StagingRoom
from services.state_server.write.staged import StagedAttempt
from services.state_server.write.ttl_gc import SweepLimits
from tests.support.bench import Bench
from tests.support.states import KEY_GROUPS, content, descriptor, epoch, key, names_in, row

# Epoch N is committed at N seconds, at a watermark of N / 2 seconds.
OF = descriptor(ttl_ms=2500)
BY_WATERMARK = descriptor(ttl_ms=1250, ttl_clock=TtlClock.EVENT_TIME)
A, A2, A3 = names_in(0)
B = names_in(1)[0]


@pytest.fixture(params=[OF, BY_WATERMARK], ids=["by the clock", "by the watermark"])
def bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(request.param)


def stored(bench: Bench) -> dict[bytes, bytes]:
    """Without the stamps."""
    return {name: value[STAMP_BYTES:] for name, value in content(bench.state.store).items()}


def at(part: EpochToCommit, **changes: int) -> EpochToCommit:
    """The same rows, of an epoch whose stamp is another one."""
    return dataclasses.replace(part, stamp=msgspec.structs.replace(part.stamp, **changes))


def run(bench: Bench, number: int, rows: dict[str, float | None], **changes: int) -> dict[int, bool]:
    """Whether each key group had the epoch already."""
    committed = bench.commit(at(epoch(number, rows, of=bench.state.descriptor), **changes))
    assert not any(item.differs for item in committed.values())
    return {group: item.already for group, item in committed.items()}


def last_marker(bench: Bench, group: int) -> tuple[int, int]:
    """Its epoch and checksum."""
    name, value = bench.log(group)[-1]
    assert name == MARKER_KEY
    marker = decode_marker(value, Partition("counts", group), 1)
    return marker.stamp.epoch, marker.checksum


def test_the_epoch_as_of_which_an_entry_has_expired_removes_it_and_the_one_before_does_not(bench: Bench) -> None:
    run(bench, 1, {A: 1.0, B: 1.0})
    run(bench, 3, {B: 3.0})
    assert stored(bench) == {key(A): row(1.0), key(B): row(3.0)}
    run(bench, 4, {})
    assert stored(bench) == {key(B): row(3.0)}
    assert dict(bench.log(0))[key(A)] is None


def test_a_key_group_that_is_only_swept_has_the_epochs_marker_with_the_checksum_of_no_rows(bench: Bench) -> None:
    run(bench, 1, {A: 1.0})
    assert run(bench, 4, {B: 4.0}) == {0: False, 1: False}
    assert last_marker(bench, 0) == (4, 0)
    assert bench.state.position(0).epoch == 4


def test_a_key_that_the_epoch_writes_is_the_epochs(bench: Bench) -> None:
    run(bench, 1, {A: 1.0, A2: 1.0, A3: 1.0})
    run(bench, 4, {A: 4.0, A3: None})
    assert stored(bench) == {key(A): row(4.0)}
    names = [name for name, _ in bench.log(0)[4:]]
    assert sorted(names[:-1]) == sorted([key(A), key(A2), key(A3)])


def test_an_epoch_in_which_nothing_expires_costs_no_transaction_and_looks_at_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(bench, 1, {A: 1.0})
    run(bench, 2, {})  # a round passes everything, and knows when to look next
    looks: list[int] = []
    snapshot = bench.state.store.snapshot

    def watched() -> Snapshot:
        taken = snapshot()
        items = taken.items
        taken.items = lambda group, *bounds, **options: (looks.append(group), items(group, *bounds, **options))[1]  # type: ignore[method-assign, func-returns-value]
        return taken

    monkeypatch.setattr(bench.state.store, "snapshot", watched)
    bench.kafka.down = True
    assert run(bench, 3, {}) == {}
    assert not looks
    bench.kafka.down = False
    run(bench, 4, {})
    assert set(looks) == set(range(KEY_GROUPS))


class TestReplays:
    """An epoch that sweeps is run again."""

    def test_what_was_only_swept_is_committed_and_does_not_differ(self, bench: Bench) -> None:
        run(bench, 1, {A: 1.0})
        run(bench, 4, {B: 4.0})
        before = bench.ends()
        assert run(bench, 4, {B: 4.0}, generation=2, commit_time_ms=9000) == {0: True, 1: True}
        assert bench.ends() == before

    def test_a_replay_sweeps_nothing_itself(self, bench: Bench) -> None:
        run(bench, 1, {A: 1.0})
        run(bench, 3, {B: 3.0})
        before = bench.ends()
        assert run(bench, 3, {B: 3.0}, commit_time_ms=9000, watermark_ms=9000) == {1: True}
        assert bench.ends() == before

    def test_rows_that_a_replay_has_more_for_a_key_group_that_was_only_swept_differ(self, bench: Bench) -> None:
        run(bench, 1, {A: 1.0})
        run(bench, 4, {B: 4.0})
        again = bench.commit(epoch(4, {B: 4.0, A2: 4.0}, of=bench.state.descriptor))
        assert (again[0].differs, again[1].differs) == (True, False)

    @pytest.mark.parametrize("fate", [NextCommit.IS_COMMITTED_BUT_NOT_ANSWERED, NextCommit.IS_LOST_AND_NOT_ANSWERED])
    def test_after_an_unknown_outcome_the_marker_decides(self, bench: Bench, fate: NextCommit) -> None:
        run(bench, 1, {A: 1.0})
        bench.kafka.next_commit = fate
        with pytest.raises(OutcomeUnknown):
            run(bench, 4, {B: 4.0})
        bench.restore_under("grant-2")
        was_committed = fate is NextCommit.IS_COMMITTED_BUT_NOT_ANSWERED
        assert run(bench, 4, {B: 4.0}) == {0: was_committed, 1: was_committed}
        assert stored(bench) == {key(B): row(4.0)}
        run(bench, 5, {})
        assert [name for name, _ in bench.log(0)].count(MARKER_KEY) == 2

    def test_what_kafka_did_not_take_is_swept_by_the_next_try(self, bench: Bench) -> None:
        run(bench, 1, {A: 1.0})
        bench.kafka.down = True
        with pytest.raises(KafkaUnreachable):
            run(bench, 4, {})
        bench.kafka.down = False
        assert stored(bench) == {key(A): row(1.0)}
        assert run(bench, 4, {}) == {0: False}
        assert stored(bench) == {}


def test_each_entry_is_removed_when_its_own_time_has_come(bench: Bench) -> None:
    run(bench, 1, {A: 1.0})
    run(bench, 3, {B: 3.0})
    run(bench, 4, {A2: 4.0})
    run(bench, 6, {})
    assert stored(bench) == {key(A2): row(4.0)}
    run(bench, 7, {})
    assert stored(bench) == {}


def test_what_was_written_while_the_clock_was_behind_is_removed_in_its_own_time_too() -> None:
    bench = Bench(OF)
    run(bench, 1, {A: 1.0}, commit_time_ms=10_000)
    run(bench, 2, {B: 2.0}, commit_time_ms=1_000)
    run(bench, 3, {}, commit_time_ms=3_500)
    assert stored(bench) == {key(A): row(1.0)}
    run(bench, 4, {}, commit_time_ms=12_500)
    assert stored(bench) == {}


def test_what_another_owner_has_written_is_removed_in_its_own_time_too(bench: Bench) -> None:
    """Although nothing that this owner knew of before expires so soon."""
    run(bench, 1, {B: 1.0})
    bench.state.forget([1], "another owner has written it")
    bench.state.groups.retain(bench.state.groups.owned - {1})
    bench.state.sweeper = StateReplica.open(bench.state.descriptor, bench.state.store, bench.state.table).sweeper
    run(bench, 3, {A: 3.0})
    run(bench, 4, {})
    bench.restore_under("grant-2")
    assert stored(bench) == {key(A): row(3.0), key(B): row(1.0)}
    run(bench, 5, {})
    assert stored(bench) == {key(A): row(3.0)}


def test_what_a_reset_has_written_at_an_earlier_watermark_is_removed_in_its_own_time() -> None:
    bench = Bench(BY_WATERMARK)
    run(bench, 1, {A: 1.0}, watermark_ms=10_000)
    reset = epoch(2, {B: 2.0}, replace=True, of=BY_WATERMARK)
    bench.commit(at(reset, watermark_ms=1_000))
    run(bench, 3, {}, watermark_ms=2_249)
    assert stored(bench) == {key(B): row(2.0)}
    run(bench, 4, {}, watermark_ms=2_250)
    assert stored(bench) == {}


def test_entries_that_live_shorter_since_the_ttl_was_changed_are_removed_in_their_own_time() -> None:
    bench = Bench(descriptor(ttl_ms=10_000))
    run(bench, 1, {A: 1.0})
    bench.state.evolve(descriptor(ttl_ms=1_000))
    run(bench, 2, {B: 2.0})
    run(bench, 3, {})
    assert stored(bench) == {key(A): row(1.0)}
    run(bench, 11, {})
    assert stored(bench) == {}


def test_an_owner_that_has_restored_removes_what_expired_before(bench: Bench) -> None:
    run(bench, 1, {A: 1.0})
    run(bench, 4, {})
    run(bench, 5, {B: 5.0})
    bench.state.forget(range(KEY_GROUPS), "the test says so")
    bench.restore_under("grant-2")
    assert stored(bench) == {key(B): row(5.0)}
    run(bench, 9, {})
    assert stored(bench) == {}


def test_an_epoch_that_replaces_everything_leaves_nothing_expired_and_what_it_wrote_expires_later(bench: Bench) -> None:
    run(bench, 1, {A: 1.0, B: 1.0})
    part = epoch(4, {A: 4.0}, replace=True, of=bench.state.descriptor)
    bench.commit(part)
    assert stored(bench) == {key(A): row(4.0)}
    assert last_marker(bench, 1) == (4, 0)
    run(bench, 7, {})
    assert stored(bench) == {}


def test_rows_on_disk_and_what_is_swept_beside_them_are_one_epoch(bench: Bench, tmp_path: Path) -> None:
    of = bench.state.descriptor
    run(bench, 1, {A: 1.0, A2: 1.0, B: 1.0})
    room = StagingRoom(0, 1 << 20, tmp_path)
    attempt = StagedAttempt("app/counts", KEY_GROUPS, 511, merge_of(of), room)
    attempt.add([key(A)], [row(4.0)])
    attempt.spill()
    whole = epoch(4, {A: 4.0}, of=of)
    part = dataclasses.replace(whole.states["counts"], attempts=[attempt])
    bench.commit(dataclasses.replace(whole, states={"counts": part}))
    attempt.close()
    assert stored(bench) == {key(A): row(4.0)}
    bench.state.forget(range(KEY_GROUPS), "the test says so")
    bench.restore_under("grant-2")
    assert stored(bench) == {key(A): row(4.0)}
    assert room.disk_bytes == 0


def test_where_rows_are_on_disk_all_that_is_swept_is_written_there_too(tmp_path: Path) -> None:
    """It may be as much as the rows; memory holds that of one key group at a time."""
    bench = Bench(OF)
    everything = {name: 1.0 for group in range(KEY_GROUPS) for name in names_in(group, 9)}
    run(bench, 1, everything)
    room = StagingRoom(0, 1 << 20, tmp_path)
    attempt = StagedAttempt("app/counts", KEY_GROUPS, 511, merge_of(OF), room)
    last = names_in(3, 10)[9]
    attempt.add([key(last)], [row(4.0)])
    attempt.spill()
    whole = epoch(4, {last: 4.0}, of=OF)
    taken: list[bool] = []
    commit = bench.writer.commit

    def watched(parts: Sequence[PartitionChanges], deadline_seconds: float) -> Mapping[Partition, int]:
        taken.extend(isinstance(part.changes, SpooledRows) for part in parts)
        return commit(parts, deadline_seconds)

    bench.writer.commit = watched  # type: ignore[method-assign]
    part = dataclasses.replace(whole.states["counts"], attempts=[attempt])
    bench.commit(dataclasses.replace(whole, states={"counts": part}))
    attempt.close()
    assert taken == [True] * KEY_GROUPS
    assert stored(bench) == {key(last): row(4.0)}
    assert room.disk_bytes == 0


class TestBeforeTheFirstWatermark:
    """By event time nothing expires that was written before there was any."""

    def test_the_time_of_such_entries_begins_with_the_first_watermark(self) -> None:
        bench = Bench(BY_WATERMARK)
        run(bench, 1, {A: 1.0, A2: 1.0}, watermark_ms=0)
        run(bench, 2, {B: 2.0}, watermark_ms=0)
        assert {value[:STAMP_BYTES] for value in content(bench.state.store).values()} == {bytes(STAMP_BYTES)}
        run(bench, 3, {A2: 3.0})
        lives = lifetime(BY_WATERMARK)
        assert lives is not None
        assert {value[:STAMP_BYTES] for value in content(bench.state.store).values()} == {
            (1500 + 1250).to_bytes(STAMP_BYTES, "big")
        }
        assert stored(bench) == {key(A): row(1.0), key(A2): row(3.0), key(B): row(2.0)}
        run(bench, 5, {})
        assert len(stored(bench)) == 3
        run(bench, 6, {})
        assert stored(bench) == {}

    def test_while_there_is_none_nothing_is_looked_at_or_written(self) -> None:
        bench = Bench(BY_WATERMARK)
        run(bench, 1, {A: 1.0}, watermark_ms=0)
        before = bench.ends()
        for number in range(2, 9):
            run(bench, number, {}, watermark_ms=0)
        assert bench.ends() == before


class TestBounds:
    """How much an epoch does of it."""

    MANY: Sequence[str] = [f"key-{number}" for number in range(300)]

    SMALL = SweepLimits(entries=40, key_group=0)

    def bench(self, **limits: int) -> Bench:
        made = Bench(OF)
        assert made.state.sweeper is not None
        made.state.sweeper.limits = dataclasses.replace(self.SMALL, **limits)
        return made

    def left(self, **limits: int) -> list[int]:
        """How many entries there are after each epoch from the one on as of which all have expired."""
        bench, left = self.bench(**limits), list[int]()
        run(bench, 1, dict.fromkeys(self.MANY, 1.0))
        for number in range(4, 40):
            run(bench, number, {})
            left.append(len(content(bench.state.store)))
        return left

    def test_an_epoch_looks_at_so_many_entries_and_the_next_goes_on_there(self) -> None:
        assert self.left()[:8] == [260, 220, 180, 140, 100, 60, 20, 0]

    def test_or_at_so_many_bytes(self) -> None:
        size = STAMP_BYTES + len(row(1.0))
        assert self.left(bytes=10 * size)[:2] == [290, 280]

    def test_a_large_state_is_passed_in_a_number_of_epochs(self) -> None:
        assert self.left(parts=3)[:5] == [260, 174, 88, 2, 0]
        assert self.left(parts=3, most_of_parts=60)[:4] == [260, 200, 140, 80]

    def test_what_has_not_expired_is_passed_and_not_looked_at_again_in_the_round(self) -> None:
        bench = self.bench()
        names = sorted(names_in(0, 100), key=key)
        run(bench, 1, dict.fromkeys(names, 1.0))
        # All but the last ones of the key group are written again.
        run(bench, 3, dict.fromkeys(names[:90], 3.0))
        for number in (4, 5, 6):
            run(bench, number, {}, commit_time_ms=4_000)
        assert stored(bench).keys() == set(map(key, names[:90]))

    def test_a_round_of_several_epochs_remembers_what_expires_first(self) -> None:
        bench = self.bench()
        names = sorted(names_in(0, 100), key=key)
        run(bench, 1, {names[99]: 1.0})
        run(bench, 2, {names[0]: 2.0})
        run(bench, 3, dict.fromkeys(names[1:99], 3.0))
        # Three epochs of one moment pass all of it, the first of them what expires at 4.5 s.
        for number in (4, 5, 6):
            run(bench, number, {}, commit_time_ms=4_000)
        assert len(stored(bench)) == 99
        run(bench, 7, {}, commit_time_ms=4_500)
        assert len(stored(bench)) == 98

    def test_an_epoch_looks_at_twice_what_it_writes(self) -> None:
        bench = self.bench()
        run(bench, 1, dict.fromkeys(self.MANY, 1.0))
        run(bench, 4, {f"new-{number}": 4.0 for number in range(100)})
        assert len(content(bench.state.store)) == 300 - 200 + 100

    def test_so_what_has_expired_never_outgrows_the_rest(self) -> None:
        bench = self.bench()
        for number in range(1, 60):
            run(bench, number, {f"{number}-{n}": 1.0 for n in range(100)})
            # Those of three epochs live.
            assert len(content(bench.state.store)) <= 2 * 300 + 100

    def test_few_partitions_are_in_the_transaction_for_it_alone(self) -> None:
        bench = self.bench(partitions=1)
        names = [name for group in range(KEY_GROUPS) for name in names_in(group)]
        run(bench, 1, dict.fromkeys(names, 1.0))
        other = names_in(0, 4)[3]
        assert set(run(bench, 4, {other: 4.0})) == {0, 1}
        assert set(run(bench, 5, {})) == {2}
        assert set(run(bench, 6, {})) == {3}
        assert stored(bench) == {key(other): row(4.0)}

    def test_key_groups_with_nothing_in_them_count_too(self) -> None:
        bench = self.bench(key_group=20)
        last = names_in(3)[0]
        run(bench, 1, {last: 1.0})
        assert run(bench, 4, {}) == {}
        assert run(bench, 5, {}) == {3: False}


def test_of_two_changes_of_a_key_the_epochs_own_counts_and_all_are_ascending() -> None:
    own: list[EntryChange] = [(b"b", b"1"), (b"d", None)]
    assert sweep.beside(own, [(b"a", None), (b"b", None), (b"c", None), (b"d", b"2")]) == [
        (b"a", None),
        (b"b", b"1"),
        (b"c", None),
        (b"d", None),
    ]
    assert sweep.beside(own, []) is own


def test_states_without_a_ttl_have_no_sweeper() -> None:
    assert Bench(descriptor()).state.sweeper is None


def test_a_state_that_was_not_committed_with_others_is_swept_on_its_own() -> None:
    bench = Bench(OF)
    run(bench, 1, {A: 1.0})
    assert bench.commit(
        EpochToCommit(EpochStamp(4, 1, 4000, 0), 0, {"counts": StateToCommit([], [], False)})
    ).keys() == {0}
