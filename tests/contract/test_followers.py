"""What everything that follows a changelog must do: on Kafka, and in the shipped fake."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing

import pytest

from keyhole.changelog.base import (
    Changelog,
    ChangelogTail,
    ChangelogWriter,
    Partition,
    Reached,
    ReplicaGroup,
    RestoredEpochs,
)
from keyhole.changelog.control_topic import ControlTail
from keyhole.errors import ChangelogRecreated
from keyhole.model.epoch import START
from tests.support.changelogs import DEADLINE, GROUPS, Cluster, changes, commit, descriptor, grant, key, rows
from tests.support.waiting import LONG_SECONDS

A0, A1, A2 = (Partition("a", group) for group in range(GROUPS))
STATES = {"a": GROUPS, "b": 4}


class Followed:
    """A tail, and all that it has handed out since it was told what to follow."""

    def __init__(self, tail: ChangelogTail) -> None:
        self.tail = tail
        self.items: list[RestoredEpochs | Reached] = []

    @property
    def pieces(self) -> list[RestoredEpochs]:
        return [item for item in self.items if isinstance(item, RestoredEpochs)]

    @property
    def reached(self) -> list[Partition]:
        return [item.partition for item in self.items if isinstance(item, Reached)]

    def epoch(self, partition: Partition) -> int:
        """The last one that was handed out; 0: none."""
        return max((piece.position.epoch for piece in self.pieces if piece.partition == partition), default=0)

    def until(self, done: Callable[[], bool]) -> None:
        until = time.monotonic() + DEADLINE
        while not done():
            assert time.monotonic() < until, f"it only got {self.items}"
            self.items += self.tail.poll(0.2)

    def quiet(self) -> None:
        """Nothing comes any more."""
        for _ in range(3):
            self.items += self.tail.poll(0.1)


@pytest.fixture
def followed(changelog: Changelog) -> Iterator[Followed]:
    with closing(changelog.tail()) as tail:
        yield Followed(tail)


@pytest.fixture
def writer(changelog: Changelog) -> Iterator[ChangelogWriter]:
    with closing(changelog.writer(grant())) as opened:
        opened.open(DEADLINE)
        yield opened


class TestChangelogTail:
    """Committed epochs as they come, cut at markers."""

    def test_an_empty_changelog_is_reached_at_once(self, followed: Followed) -> None:
        followed.tail.follow({A0: START, A1: START})
        followed.until(lambda: len(followed.reached) == 2)
        assert set(followed.items) == {Reached(A0, 0), Reached(A1, 0)}

    def test_what_was_there_comes_before_the_end_is_told_and_what_is_new_after_it(
        self, changelog: Changelog, writer: ChangelogWriter, followed: Followed
    ) -> None:
        commit(changelog, writer, [changes(0, 1, {"x": b"1"})])
        followed.tail.follow({A0: START})
        followed.until(lambda: A0 in followed.reached)
        assert [type(item) for item in followed.items] == [RestoredEpochs, Reached]
        for epoch in (2, 3):
            writer.commit([changes(0, epoch, {"x": b"%d" % epoch})], DEADLINE)
            followed.until(lambda epoch=epoch: followed.epoch(A0) == epoch)  # type: ignore[misc]
            assert rows(followed.pieces) == {key(0, "x"): b"%d" % epoch}
        followed.until(lambda: len(followed.reached) > 1)

    def test_a_small_epoch_is_not_held_back_until_a_piece_is_full(
        self, writer: ChangelogWriter, followed: Followed
    ) -> None:
        followed.tail.follow({A0: START})
        followed.until(lambda: A0 in followed.reached)
        writer.commit([changes(0, 1, {"x": b"1"})], DEADLINE)
        followed.until(lambda: followed.epoch(A0) == 1)
        (piece,) = followed.pieces
        assert (piece.records, piece.position.offset) == (2, 2)

    def test_every_prefix_of_what_it_hands_out_is_a_state_that_existed(
        self, changelog: Changelog, writer: ChangelogWriter, followed: Followed
    ) -> None:
        def write() -> None:
            for epoch in range(1, 41):
                # Both keys have the epoch's number, with much between them: half an epoch would show.
                of_epoch = {"first": b"%d" % epoch, **{f"{n}": b"" for n in range(500)}, "last": b"%d" % epoch}
                commit(changelog, writer, [changes(group, epoch, of_epoch) for group in (0, 1)])

        writing = threading.Thread(target=write)
        writing.start()
        followed.tail.follow({A0: START, A1: START})
        followed.until(lambda: followed.epoch(A0) == followed.epoch(A1) == 40)
        writing.join()
        for part in (A0, A1):
            state: dict[bytes, bytes | None] = {}
            seen = []
            for piece in (piece for piece in followed.pieces if piece.partition == part):
                state.update(piece.changes)
                assert piece.marker is not None
                names = (key(part.key_group, "first"), key(part.key_group, "last"))
                assert [state[name] for name in names] == [b"%d" % piece.position.epoch] * 2
                seen.append(piece.position.epoch)
            assert seen == sorted(set(seen))

    def test_pieces_are_of_bounded_size_where_much_has_come(
        self, changelog: Changelog, writer: ChangelogWriter, followed: Followed
    ) -> None:
        size, epochs = 5_000, 12
        for epoch in range(1, epochs + 1):
            commit(changelog, writer, [changes(0, epoch, {f"{n}": b"%d" % epoch for n in range(size)})])
        followed.tail.follow({A0: START})
        followed.until(lambda: followed.epoch(A0) == epochs)
        assert max(piece.records for piece in followed.pieces) <= 25_000
        assert sum(piece.records for piece in followed.pieces) == (size + 1) * epochs

    def test_aborted_transactions_are_not_seen_and_the_end_is_reached_behind_them(
        self, cluster: Cluster, writer: ChangelogWriter, followed: Followed
    ) -> None:
        topic = descriptor(cluster).topic
        cluster.abort(topic, 0, 3)
        followed.tail.follow({A0: START})
        followed.until(lambda: Reached(A0, 4) in followed.items)
        cluster.abort(topic, 0, 1)
        writer.commit([changes(0, 1, {"x": b"1"})], DEADLINE)
        cluster.abort(topic, 0, 2)
        followed.until(lambda: Reached(A0, 12) in followed.items)
        assert rows(followed.pieces) == {key(0, "x"): b"1"}
        assert followed.pieces[-1].position.offset == 8

    def test_what_is_followed_can_be_replaced_and_what_stays_goes_on_where_it_was(
        self, changelog: Changelog, writer: ChangelogWriter, followed: Followed
    ) -> None:
        commit(changelog, writer, [changes(group, 1, {"x": b"1"}) for group in range(GROUPS)])
        followed.tail.follow({A0: START, A1: START})
        followed.until(lambda: len(set(followed.reached)) == 2)
        after = {piece.partition: piece.position for piece in followed.pieces}
        followed.items.clear()

        followed.tail.follow({A1: after[A1], A2: START})
        commit(changelog, writer, [changes(group, 2, {"x": b"2"}) for group in range(GROUPS)])
        followed.until(lambda: followed.epoch(A1) == followed.epoch(A2) == 2)
        followed.quiet()
        assert followed.epoch(A0) == 0
        assert [change for piece in followed.pieces if piece.partition == A1 for change in piece.changes] == [
            (key(1, "x"), b"2")
        ]
        assert [row for piece in followed.pieces if piece.partition == A2 for _, row in piece.changes] == [b"1", b"2"]

    def test_one_that_is_given_another_position_begins_anew_there(
        self, changelog: Changelog, writer: ChangelogWriter, followed: Followed
    ) -> None:
        commit(changelog, writer, [changes(0, 1, {"x": b"1"})])
        commit(changelog, writer, [changes(0, 2, {"x": b"2"})])
        followed.tail.follow({A0: START})
        followed.until(lambda: A0 in followed.reached)
        followed.items.clear()
        followed.tail.follow({A0: START})
        followed.until(lambda: A0 in followed.reached)
        assert [row for piece in followed.pieces for _, row in piece.changes] == [b"1", b"2"]

    def test_the_end_is_told_again_to_whoever_follows_again(self, followed: Followed) -> None:
        for _ in range(3):
            followed.tail.follow({A0: START})
            followed.until(lambda: A0 in followed.reached)
            followed.quiet()
            assert followed.items == [Reached(A0, 0)]
            followed.items.clear()

    def test_nothing_followed_brings_nothing(
        self, changelog: Changelog, writer: ChangelogWriter, followed: Followed
    ) -> None:
        commit(changelog, writer, [changes(0, 1, {"x": b"1"})])
        followed.quiet()
        followed.tail.follow({A0: START})
        followed.tail.follow({})
        followed.quiet()
        assert followed.items == []

    def test_a_topic_that_is_gone_is_told(self, cluster: Cluster, followed: Followed) -> None:
        followed.tail.follow({A0: START})
        followed.until(lambda: A0 in followed.reached)
        cluster.delete_topic(descriptor(cluster).topic)
        with pytest.raises(ChangelogRecreated, match=descriptor(cluster).topic):
            followed.until(lambda: False)

    def test_a_topic_that_was_made_anew_and_is_shorter_is_told(
        self, cluster: Cluster, changelog: Changelog, writer: ChangelogWriter, followed: Followed
    ) -> None:
        for epoch in range(1, 4):
            commit(changelog, writer, [changes(0, epoch, {"x": b"1"})])
        followed.tail.follow({A0: START})
        followed.until(lambda: followed.epoch(A0) == 3)
        cluster.delete_topic(descriptor(cluster).topic)
        changelog.admin().ensure(descriptor(cluster), DEADLINE)
        with pytest.raises(ChangelogRecreated, match=descriptor(cluster).topic):
            followed.until(lambda: False)

    def test_it_can_be_closed_while_another_thread_polls_and_then_says_nothing(self, followed: Followed) -> None:
        followed.tail.follow({A0: START})
        followed.until(lambda: A0 in followed.reached)
        assert_closing_ends(followed.tail, lambda: followed.tail.poll(10 * DEADLINE))
        assert list(followed.tail.poll(0)) == []


def assert_closing_ends(closed: ChangelogTail | ControlTail, poll: Callable[[], object]) -> None:
    polling = threading.Thread(target=poll)
    polling.start()
    time.sleep(0.2)
    closed.close()
    polling.join(LONG_SECONDS)
    assert not polling.is_alive()
    closed.close()


class Control:
    """A control tail, and what it says in all."""

    def __init__(self, tail: ControlTail) -> None:
        self.tail = tail
        self.polled: list[Mapping[str, bytes | None]] = []

    def latest(self) -> dict[str, bytes]:
        merged = {name: value for changes in self.polled for name, value in changes.items()}
        return {name: value for name, value in merged.items() if value is not None}

    def until(self, done: Callable[[], bool]) -> None:
        until = time.monotonic() + DEADLINE
        while not done():
            assert time.monotonic() < until, f"it only got {self.polled}"
            changes = self.tail.poll(0.2)
            if changes is not None:
                self.polled.append(changes)


@pytest.fixture
def control(cluster: Cluster) -> Iterator[Control]:
    with closing(cluster.changelog().control_tail()) as tail:
        yield Control(tail)


class TestControlTail:
    """The control topic's records as they change."""

    def test_nothing_is_told_before_the_topic_exists_and_an_empty_one_is_told_as_such(
        self, cluster: Cluster, control: Control
    ) -> None:
        assert control.tail.poll(0.3) is None
        with closing(cluster.changelog().control("q")) as log:
            log.open(DEADLINE)
            control.until(lambda: bool(control.polled))
        assert control.polled == [{}]

    def test_the_first_answer_has_the_last_values_and_later_ones_what_changes(self, cluster: Cluster) -> None:
        with closing(cluster.changelog().control("q")) as log:
            log.open(DEADLINE)
            log.append({"a": b"0", "b": b"1", "c": b"1"}, DEADLINE)
            log.append({"a": b"1", "c": None}, DEADLINE)
            log.read(DEADLINE)  # until readers see it
            with closing(cluster.changelog().control_tail()) as tail:
                control = Control(tail)
                control.until(lambda: bool(control.polled))
                assert control.polled == [{"a": b"1", "b": b"1"}]

                log.append({"a": b"2"}, DEADLINE)
                control.until(lambda: len([changes for changes in control.polled if changes]) == 2)
                log.append({"b": None, "d": b"1"}, DEADLINE)
                control.until(lambda: "d" in control.latest())
        assert [changes for changes in control.polled[1:] if changes] == [{"a": b"2"}, {"b": None, "d": b"1"}]

    def test_what_was_appended_together_is_told_together(self, cluster: Cluster, control: Control) -> None:
        with closing(cluster.changelog().control("q")) as log:
            log.open(DEADLINE)

            def append() -> None:
                for number in range(20):
                    log.append({f"key-{n}": b"%d" % number for n in range(50)}, DEADLINE)

            appending = threading.Thread(target=append)
            appending.start()
            control.until(lambda: control.latest().get("key-0") == b"19")
            appending.join()
        for together in filter(None, control.polled):
            assert len(together) == 50
            assert len(set(together.values())) == 1

    def test_all_queries_of_the_application_are_told(self, cluster: Cluster, control: Control) -> None:
        with closing(cluster.changelog().control("q1")) as first, closing(cluster.changelog().control("q2")) as second:
            for log, name in ((first, "q1"), (second, "q2")):
                log.open(DEADLINE)
                log.append({f"generation/{name}": b"1"}, DEADLINE)
            control.until(lambda: control.latest() == {"generation/q1": b"1", "generation/q2": b"1"})

    def test_a_topic_that_was_made_anew_is_read_anew_and_what_it_lacks_is_told_as_deleted(
        self, cluster: Cluster, control: Control
    ) -> None:
        with closing(cluster.changelog().control("q")) as log:
            log.open(DEADLINE)
            log.append({"a": b"1", "b": b"1"}, DEADLINE)
            log.append({"a": b"2"}, DEADLINE)
            control.until(lambda: control.latest() == {"a": b"2", "b": b"1"})
        cluster.delete_topic(f"keyhole.{cluster.application}.control")
        with closing(cluster.changelog().control("q")) as log:
            log.open(DEADLINE)
            log.append({"a": b"3"}, DEADLINE)
            control.until(lambda: control.latest() == {"a": b"3"})

    def test_it_can_be_closed_while_another_thread_polls_and_then_says_nothing(
        self, cluster: Cluster, control: Control
    ) -> None:
        assert_closing_ends(control.tail, lambda: control.tail.poll(10 * DEADLINE))
        assert control.tail.poll(0) is None


class Replicas:
    """The members of a group; a death is a member that is no longer polled, or closed."""

    def __init__(self, changelog: Changelog) -> None:
        self._changelog = changelog
        self._name = f"replicas-{grant()}"
        self.members: list[ReplicaGroup] = []
        self.shares: dict[int, frozenset[Partition]] = {}

    def join(self) -> None:
        self.members.append(self._changelog.replicas(self._name))

    def leave(self, member: int) -> None:
        self.members.pop(member).close()

    def settle(self, states: Mapping[str, int] = STATES) -> list[frozenset[Partition]]:
        """Polls all until together they have every key group once, balanced within one."""
        wanted = sorted(Partition(state, group) for state, groups in states.items() for group in range(groups))
        until = time.monotonic() + DEADLINE
        while True:
            shares = [member.poll(states, 0.05) for member in self.members]
            known = [share for share in shares if share is not None]
            sizes = [len(share) for share in known]
            all_once = len(known) == len(shares) and sorted(part for share in known for part in share) == wanted
            if all_once and max(sizes) - min(sizes) <= 1:
                return known
            assert time.monotonic() < until, f"not settled: {shares}"

    def close(self) -> None:
        for member in self.members:
            member.close()


@pytest.fixture
def replicas(cluster: Cluster, changelog: Changelog) -> Iterator[Replicas]:
    changelog.admin().ensure(descriptor(cluster, "b", STATES["b"]), DEADLINE)
    with closing(Replicas(changelog)) as made:
        yield made


def kept(before: Sequence[frozenset[Partition]], after: Sequence[frozenset[Partition]]) -> int:
    """How many key groups are where they were."""
    return sum(len(old & new) for old, new in zip(before, after, strict=False))


class TestReplicaGroup:
    """Every key group once, balanced, and few move."""

    def test_one_replica_has_all_and_none_is_given_what_it_did_not_ask_for(self, replicas: Replicas) -> None:
        replicas.join()
        assert replicas.members[0].poll({}, 0.1) == frozenset()
        assert [len(share) for share in replicas.settle()] == [7]
        assert replicas.settle({"b": 4}) == [frozenset(Partition("b", group) for group in range(4))]

    def test_those_that_join_share_the_load_and_few_key_groups_move(self, replicas: Replicas) -> None:
        replicas.join()
        alone = replicas.settle()
        replicas.join()
        two = replicas.settle()
        assert kept(alone, two) == len(two[0])
        replicas.join()
        three = replicas.settle()
        assert kept(two, three) == len(three[0]) + len(three[1])

    def test_the_others_take_over_from_one_that_leaves_and_keep_what_they_have(self, replicas: Replicas) -> None:
        for _ in range(3):
            replicas.join()
        before = replicas.settle()
        replicas.leave(0)
        after = replicas.settle()
        assert kept(before[1:], after) == len(before[1]) + len(before[2])

    def test_a_state_that_is_added_is_shared_too(self, replicas: Replicas) -> None:
        replicas.join()
        replicas.join()
        before = replicas.settle({"a": GROUPS})
        assert kept(before, replicas.settle()) >= GROUPS - 1

    def test_two_groups_hold_two_copies(self, cluster: Cluster, changelog: Changelog, replicas: Replicas) -> None:
        with closing(Replicas(changelog)) as others:
            replicas.join()
            others.join()
            assert replicas.settle() == others.settle()
