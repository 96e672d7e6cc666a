"""What every changelog must do: the one on Kafka, and the shipped fake."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator

import pytest

from keyhole.changelog.base import Changelog, Partition, TopicRight
from keyhole.changelog.settings import MAX_RECORD_BYTES, MAX_ROW_BYTES, ids_prefix
from keyhole.errors import (
    ChangelogRecreated,
    Fenced,
    InvalidConfiguration,
    StageLost,
    TooLarge,
    TopicMismatch,
)
from keyhole.model.epoch import START, Position
from tests.support.changelogs import (
    DEADLINE,
    Cluster,
    changes,
    commit,
    descriptor,
    grant,
    key,
    marker,
    read_all,
    rows,
)


def test_an_epoch_is_read_back_with_its_marker_and_the_position_after_it(changelog: Changelog) -> None:
    writer = changelog.writer(grant())
    writer.open(DEADLINE)
    offsets = commit(changelog, writer, [changes(1, 7, {"x": b"1", "y": b"2"})])
    (piece,) = read_all(changelog)
    writer.close()

    assert piece.partition == Partition("a", 1)
    assert piece.changes == [(key(1, "x"), b"1"), (key(1, "y"), b"2")]
    assert piece.marker == marker(7)
    assert piece.records == 3
    assert offsets == {Partition("a", 1): 2}
    assert piece.position == Position(3, 7, 1, (1 << 63) + 7, 1_007, 507)


def test_one_commit_may_touch_many_partitions_and_several_states(cluster: Cluster, changelog: Changelog) -> None:
    changelog.admin().ensure(descriptor(cluster, "b"), DEADLINE)
    writer, reader = changelog.writer(grant()), changelog.reader()
    writer.open(DEADLINE)
    offsets = commit(
        changelog,
        writer,
        [changes(0, 1, {"x": b"1"}), changes(2, 1, {}), changes(0, 1, {"y": b"2"}, state="b")],
    )
    ends = reader.ends({"a": [0, 1, 2], "b": [0]}, DEADLINE)
    pieces = list(reader.read(dict.fromkeys(ends, START), ends, DEADLINE))
    reader.close()
    writer.close()

    assert offsets == {Partition("a", 0): 1, Partition("a", 2): 0, Partition("b", 0): 1}
    assert {piece.partition: piece.changes for piece in pieces} == {
        Partition("a", 0): [(key(0, "x"), b"1")],
        Partition("a", 2): [],
        Partition("b", 0): [(key(0, "y"), b"2")],
    }


def test_an_untouched_partition_ends_at_0_and_has_no_pieces(changelog: Changelog) -> None:
    reader = changelog.reader()
    ends = reader.ends({"a": [0, 1]}, DEADLINE)
    assert ends == {Partition("a", 0): 0, Partition("a", 1): 0}
    assert list(reader.read(dict.fromkeys(ends, START), ends, DEADLINE)) == []
    reader.close()


def test_a_deletion_is_read_back_as_none_and_an_empty_row_is_not_one(changelog: Changelog) -> None:
    writer = changelog.writer(grant())
    writer.open(DEADLINE)
    commit(changelog, writer, [changes(0, 1, {"x": b"1", "y": b"2"})])
    commit(changelog, writer, [changes(0, 2, {"x": None, "y": b""})])
    pieces = read_all(changelog)
    writer.close()

    assert [change for piece in pieces for change in piece.changes][-2:] == [(key(0, "x"), None), (key(0, "y"), b"")]
    assert rows(pieces) == {key(0, "y"): b""}


def test_each_epoch_is_read_back_by_itself_from_wherever_one_begins(changelog: Changelog) -> None:
    writer, reader = changelog.writer(grant()), changelog.reader()
    writer.open(DEADLINE)
    for epoch in (1, 2, 3):
        commit(changelog, writer, [changes(group, epoch, {"x": b"%d" % epoch, f"y{epoch}": b""}) for group in (0, 1)])
    ends = reader.ends({"a": [0, 1]}, DEADLINE)
    pieces = list(reader.epochs(dict.fromkeys(ends, START), ends, DEADLINE))
    for group in (0, 1):
        mine = [piece for piece in pieces if piece.partition.key_group == group]
        assert [piece.position.epoch for piece in mine] == [1, 2, 3]
        assert [piece.changes for piece in mine] == [
            [(key(group, "x"), b"%d" % epoch), (key(group, f"y{epoch}"), b"")] for epoch in (1, 2, 3)
        ]
    part = Partition("a", 0)
    second = next(piece for piece in pieces if piece.partition == part and piece.position.epoch == 2)
    (last,) = reader.epochs({part: second.position}, {part: ends[part]}, DEADLINE)
    assert last.position.epoch == 3
    reader.close()
    writer.close()


def test_reading_resumes_at_a_position_and_finds_nothing_at_the_end(changelog: Changelog) -> None:
    writer = changelog.writer(grant())
    writer.open(DEADLINE)
    commit(changelog, writer, [changes(0, 1, {"x": b"1"})])
    (first,) = read_all(changelog)
    assert read_all(changelog, {first.partition: first.position}) == []

    commit(changelog, writer, [changes(0, 2, {"y": b"2"})])
    (second,) = read_all(changelog, {first.partition: first.position})
    writer.close()
    assert second.changes == [(key(0, "y"), b"2")]
    assert second.position.epoch == 2


def test_changes_that_can_not_be_read_are_not_written_and_the_writer_may_try_again(changelog: Changelog) -> None:
    def broken() -> Iterator[tuple[bytes, bytes | None]]:
        yield key(1, "x"), b"never"
        raise StageLost("the disk is gone")

    writer = changelog.writer(grant())
    writer.open(DEADLINE)
    whole = changes(0, 1, {"x": b"1"})
    torn = dataclasses.replace(changes(1, 1, {}), changes=broken())
    with pytest.raises(StageLost):
        writer.commit([whole, torn], DEADLINE)
    commit(changelog, writer, [whole])
    assert rows(read_all(changelog)) == {key(0, "x"): b"1"}
    writer.close()


def test_a_position_beyond_the_end_reads_nothing(changelog: Changelog) -> None:
    writer = changelog.writer(grant())
    writer.open(DEADLINE)
    commit(changelog, writer, [changes(0, 1, {"x": b"1"})])
    writer.close()
    assert read_all(changelog, {Partition("a", 0): Position(1_000, 9, 1, 0)}) == []


def test_what_is_committed_after_the_ends_were_taken_is_not_read(changelog: Changelog) -> None:
    writer, reader = changelog.writer(grant()), changelog.reader()
    writer.open(DEADLINE)
    commit(changelog, writer, [changes(0, 1, {"x": b"1"})])
    ends = reader.ends({"a": [0]}, DEADLINE)
    commit(changelog, writer, [changes(0, 2, {"x": b"2"})])
    pieces = list(reader.read(dict.fromkeys(ends, START), ends, DEADLINE))
    reader.close()
    writer.close()
    assert rows(pieces) == {key(0, "x"): b"1"}


def test_pieces_are_bounded_and_each_ends_at_a_marker(changelog: Changelog) -> None:
    writer = changelog.writer(grant())
    writer.open(DEADLINE)
    size, epochs = 30_000, 5  # more than one piece, for every implementation
    for epoch in range(1, epochs + 1):
        commit(changelog, writer, [changes(0, epoch, {f"{n}": b"%d" % epoch for n in range(size)})])
    pieces = read_all(changelog)
    writer.close()

    assert len(pieces) > 1
    position = START
    for piece in pieces:
        assert piece.marker is not None
        assert piece.position.epoch == piece.marker.stamp.epoch > position.epoch
        # A whole number of epochs: a record too few or too many would not be.
        assert len(piece.changes) == size * (piece.position.epoch - position.epoch)
        assert {row for _, row in piece.changes} == {
            b"%d" % n for n in range(position.epoch + 1, piece.position.epoch + 1)
        }
        position = piece.position
    assert position.epoch == epochs
    assert sum(piece.records for piece in pieces) == (size + 1) * epochs


def test_an_epoch_without_partitions_writes_nothing(changelog: Changelog) -> None:
    writer = changelog.writer(grant())
    writer.open(DEADLINE)
    assert writer.commit([], DEADLINE) == {}
    writer.close()
    assert read_all(changelog) == []


def test_a_fenced_writer_is_told_and_its_records_never_appear(changelog: Changelog) -> None:
    held = grant()
    old = changelog.writer(held)
    old.open(DEADLINE)
    commit(changelog, old, [changes(0, 1, {"x": b"1"})])
    changelog.admin().fence(held, DEADLINE)
    with pytest.raises(Fenced):
        old.commit([changes(0, 2, {"x": b"2"})], DEADLINE)
    with pytest.raises(Fenced):
        old.commit([changes(0, 2, {"x": b"2"})], DEADLINE)
    old.close()

    assert rows(read_all(changelog)) == {key(0, "x"): b"1"}


def test_the_second_writer_under_a_grant_fences_the_first(changelog: Changelog) -> None:
    held = grant()
    first, second = changelog.writer(held), changelog.writer(held)
    first.open(DEADLINE)
    second.open(DEADLINE)
    with pytest.raises(Fenced):
        first.commit([changes(0, 1, {"x": b"first"})], DEADLINE)
    commit(changelog, second, [changes(0, 1, {"x": b"second"})])
    first.close()
    second.close()
    assert rows(read_all(changelog)) == {key(0, "x"): b"second"}


def test_fencing_one_grant_leaves_the_others_alone(changelog: Changelog) -> None:
    writer = changelog.writer(grant())
    writer.open(DEADLINE)
    changelog.admin().fence(grant(), DEADLINE)
    commit(changelog, writer, [changes(0, 1, {"x": b"1"})])
    writer.close()
    assert rows(read_all(changelog)) == {key(0, "x"): b"1"}


def test_a_row_that_is_too_large_is_refused_and_its_epoch_with_it_but_the_writer_goes_on(
    cluster: Cluster, changelog: Changelog
) -> None:
    writer = changelog.writer(grant())
    writer.open(DEADLINE)
    whole = MAX_ROW_BYTES - len(key(0, "y"))
    # With what Kafka puts around the second one it is too large to a broker, not to the client.
    for size in (MAX_ROW_BYTES, whole - 40):
        says = (
            f"state {cluster.application}/a takes {size + len(key(0, 'y')):,} bytes .* {MAX_RECORD_BYTES:,} is the most"
        )
        with pytest.raises(TooLarge, match=says) as refused:
            commit(changelog, writer, [changes(0, 1, {"x": b"1", "y": os.urandom(size)})])
        assert refused.value.facts["limit"] == str(MAX_RECORD_BYTES)
    assert rows(read_all(changelog)) == {}
    largest = os.urandom(whole - 256)
    commit(changelog, writer, [changes(0, 1, {"x": b"1", "y": largest})])
    writer.close()
    assert rows(read_all(changelog)) == {key(0, "x"): b"1", key(0, "y"): largest}


def test_closing_a_writer_twice_or_unopened_is_no_error(changelog: Changelog) -> None:
    writer = changelog.writer(grant())
    writer.close()
    writer.open(DEADLINE)
    writer.close()
    writer.close()


def test_a_topic_is_made_once_and_keeps_its_id(cluster: Cluster) -> None:
    admin = cluster.changelog().admin()
    made = admin.ensure(descriptor(cluster), DEADLINE)
    assert made
    assert admin.ensure(descriptor(cluster), DEADLINE) == made
    assert cluster.changelog().admin().ensure(descriptor(cluster, topic_id=made), DEADLINE) == made


def test_a_topic_with_another_number_of_partitions_is_refused_with_both_numbers(cluster: Cluster) -> None:
    admin = cluster.changelog().admin()
    admin.ensure(descriptor(cluster, key_groups=3), DEADLINE)
    with pytest.raises(TopicMismatch, match=r"it has 3 partitions, the state has 4 key groups"):
        admin.ensure(descriptor(cluster, key_groups=4), DEADLINE)


def test_a_topic_that_is_gone_or_made_anew_is_refused(cluster: Cluster) -> None:
    admin = cluster.changelog().admin()
    known = descriptor(cluster, topic_id=admin.ensure(descriptor(cluster), DEADLINE))
    cluster.delete_topic(known.topic)
    with pytest.raises(ChangelogRecreated, match=known.topic):
        admin.ensure(known, DEADLINE)

    admin.ensure(descriptor(cluster), DEADLINE)
    with pytest.raises(ChangelogRecreated, match=known.topic):
        admin.ensure(known, DEADLINE)


@pytest.mark.parametrize("state", ["control", "no spaces", "ümlaut", "long" * 100])
def test_a_name_that_kafka_or_keyhole_has_no_place_for_is_refused(cluster: Cluster, state: str) -> None:
    admin = cluster.changelog().admin()
    for ask in (admin.ensure, admin.check):
        with pytest.raises(InvalidConfiguration):
            ask(descriptor(cluster, state), DEADLINE)


def test_a_topic_is_looked_at_without_being_made(cluster: Cluster) -> None:
    admin, wanted = cluster.changelog().admin(), descriptor(cluster, key_groups=3)
    for _ in range(2):
        assert not admin.check(wanted, DEADLINE)
    made = admin.ensure(wanted, DEADLINE)
    assert admin.check(wanted, DEADLINE)
    assert admin.check(descriptor(cluster, key_groups=3, topic_id=made), DEADLINE)
    with pytest.raises(TopicMismatch, match=r"it has 3 partitions, the state has 4 key groups"):
        admin.check(descriptor(cluster, key_groups=4), DEADLINE)
    with pytest.raises(ChangelogRecreated, match=wanted.topic):
        admin.check(descriptor(cluster, key_groups=3, topic_id="another"), DEADLINE)
    cluster.delete_topic(wanted.topic)
    with pytest.raises(ChangelogRecreated, match=wanted.topic):
        admin.check(descriptor(cluster, key_groups=3, topic_id=made), DEADLINE)
    assert not admin.check(wanted, DEADLINE)


def test_who_has_all_rights_is_told_of_none_that_lacks_and_nothing_is_made(cluster: Cluster) -> None:
    admin, wanted = cluster.changelog().admin(), descriptor(cluster)
    admin.check_rights(dict.fromkeys([wanted.topic], TopicRight.WRITE), DEADLINE)
    assert not admin.check(wanted, DEADLINE)
    admin.ensure(wanted, DEADLINE)
    admin.check_rights({wanted.topic: TopicRight.DELETE, f"{wanted.topic}.updates": TopicRight.WRITE}, DEADLINE)


def test_who_tries_its_transactional_ids_fences_nobody(cluster: Cluster) -> None:
    changelog = cluster.changelog()
    with contextlib.closing(changelog.control("main")) as well:
        well.open(DEADLINE)
        # Also where another one tries them at the same time.
        for _ in range(2):
            changelog.admin().check_ids([ids_prefix(cluster.application, "main")], DEADLINE)
        well.append({"opened/main": b"{}"}, DEADLINE)


def test_a_name_that_kafka_can_not_tell_from_another_is_refused_with_both(cluster: Cluster) -> None:
    """As those of two applications may be: a_b with state c, and a with b_c."""
    admin = cluster.changelog().admin()
    admin.ensure(descriptor(cluster, "a_b"), DEADLINE)
    for ask in (admin.check, admin.ensure):
        with pytest.raises(
            InvalidConfiguration, match=r"a\.b' collides with existing topic: .*a_b\. .*choose another"
        ) as caught:
            ask(descriptor(cluster, "a.b"), DEADLINE)
        assert not caught.value.retryable


def test_the_control_log_keeps_the_last_value_of_each_key(cluster: Cluster) -> None:
    control = cluster.changelog().control("q")
    control.open(DEADLINE)
    assert control.read(DEADLINE) == {}
    control.append({"generation/q": b"1", "grant/q/a": b"x"}, DEADLINE)
    control.append({"generation/q": b"2", "grant/q/a": None, "grant/q/b": b"y"}, DEADLINE)
    control.append({}, DEADLINE)
    assert control.read(DEADLINE) == {"generation/q": b"2", "grant/q/b": b"y"}
    control.close()


def test_the_control_logs_of_two_queries_share_their_records_and_do_not_fence_each_other(cluster: Cluster) -> None:
    first, second = (cluster.changelog().control(query) for query in ("q1", "q2"))
    for control in (first, second):
        control.open(DEADLINE)
    first.append({"generation/q1": b"1"}, DEADLINE)
    second.append({"generation/q2": b"1"}, DEADLINE)
    first.append({"generation/q1": b"2"}, DEADLINE)
    assert first.read(DEADLINE) == second.read(DEADLINE) == {"generation/q1": b"2", "generation/q2": b"1"}
    first.close()
    second.close()


def test_what_is_decided_is_read_without_opening_the_log_and_nobody_is_fenced(cluster: Cluster) -> None:
    first, reader = (cluster.changelog().control("q") for _ in range(2))
    with pytest.raises(ChangelogRecreated):  # there is no such topic
        reader.read_decided(DEADLINE)
    first.open(DEADLINE)
    assert reader.read_decided(DEADLINE) == {}
    for number in (b"1", b"2"):
        first.append({"generation/q": number}, DEADLINE)
        assert reader.read_decided(DEADLINE) == {"generation/q": number}
    first.close()
    reader.close()


def test_of_two_coordinators_of_a_query_the_later_one_wins(cluster: Cluster) -> None:
    first, second = (cluster.changelog().control("q") for _ in range(2))
    first.open(DEADLINE)
    first.append({"generation/q": b"1"}, DEADLINE)
    second.open(DEADLINE)
    with pytest.raises(Fenced):
        first.append({"generation/q": b"2 of the first"}, DEADLINE)
    second.append({"generation/q": b"2 of the second"}, DEADLINE)
    assert second.read(DEADLINE) == {"generation/q": b"2 of the second"}
    first.close()
    second.close()
