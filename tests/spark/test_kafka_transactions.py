"""What only a real Kafka shows: transactions that are open, aborted, fenced or compacted while others read."""

from __future__ import annotations

import time
import uuid

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from keyhole.changelog.base import ChangelogWriter, Marker, Partition, PartitionChanges, RestoredEpochs
from keyhole.changelog.kafka.changelog import KafkaChangelog
from keyhole.changelog.kafka.clients import Deadline
from keyhole.changelog.kafka.transactions import Transactions
from keyhole.changelog.kafka.writer import KafkaWriter
from keyhole.changelog.settings import topic_settings
from keyhole.errors import ChangelogRecreated, Fenced, OutcomeUnknown, TopicMismatch
from keyhole.model.epoch import START, EpochStamp, Position
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueSchema
from tests.support.topics import alter_topic, make_topic
from tests.support.waiting import LONG_SECONDS, until

DEADLINE = LONG_SECONDS
PART = Partition("a", 0)


@pytest.fixture
def descriptor() -> StateDescriptor:
    return StateDescriptor(
        application=f"app-{uuid.uuid4().hex[:12]}",
        state="a",
        query="q",
        kind=StateKind.VALUE,
        key_groups=1,
        key=(KeyColumn("k", KeyType.STRING),),
        value=ValueSchema(1, ()),
    )


@pytest.fixture
def changelog(kafka: str, descriptor: StateDescriptor) -> KafkaChangelog:
    made = KafkaChangelog(kafka, descriptor.application)
    made.admin().ensure(descriptor, DEADLINE)
    return made


@pytest.fixture
def admin(kafka: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka})


@pytest.fixture
def open_transaction(kafka: str, descriptor: StateDescriptor, changelog: KafkaChangelog) -> str:
    """A transaction with one record on the broker, neither committed nor aborted; its transactional.id."""
    grant = f"grant-{uuid.uuid4().hex}"
    producer = transactional(kafka, grant)
    producer.init_transactions(DEADLINE)
    producer.begin_transaction()
    producer.produce(descriptor.topic, b"never", b"\x00\x00never", 0)
    assert producer.flush(DEADLINE) == 0
    return grant


def transactional(kafka: str, grant: str) -> Producer:
    """One whose transactions Kafka does not end by itself meanwhile, however slow the machine is."""
    settings: dict[str, str | int] = {"bootstrap.servers": kafka, "transaction.timeout.ms": 600_000}
    return Producer({**settings, "transactional.id": grant})


def changes(epoch: int, rows: dict[str, bytes | None]) -> PartitionChanges:
    named = [(b"\x00\x00" + name.encode(), row) for name, row in rows.items()]
    return PartitionChanges(PART, named, Marker(EpochStamp(epoch, 1, 0, 0), 0, 0))


def end(changelog: KafkaChangelog) -> int:
    reader = changelog.reader()
    try:
        return reader.ends({"a": [0]}, DEADLINE)[PART]
    finally:
        reader.close()


def read(changelog: KafkaChangelog, position: Position = START) -> list[RestoredEpochs]:
    reader = changelog.reader()
    try:
        return list(reader.read({PART: position}, {PART: end(changelog)}, DEADLINE))
    finally:
        reader.close()


def rows(pieces: list[RestoredEpochs]) -> dict[str, bytes | None]:
    return {name[2:].decode(): row for piece in pieces for name, row in piece.changes}


def test_an_open_transaction_holds_the_end_back_and_nothing_of_it_is_read(
    changelog: KafkaChangelog, open_transaction: str
) -> None:
    writer = changelog.writer(f"grant-{uuid.uuid4().hex}")
    writer.open(DEADLINE)
    writer.commit([changes(1, {"x": b"1"})], DEADLINE)
    writer.close()
    # It is committed, but behind the open one: whoever takes over must fence first, or would miss it.
    assert end(changelog) == 0
    assert read(changelog) == []


def test_fencing_decides_the_open_transaction_before_it_returns(
    changelog: KafkaChangelog, open_transaction: str
) -> None:
    writer = changelog.writer(f"grant-{uuid.uuid4().hex}")
    writer.open(DEADLINE)
    offsets = writer.commit([changes(1, {"x": b"1"})], DEADLINE)
    changelog.admin().fence(open_transaction, DEADLINE)
    writer.close()
    # No waiting: the end that is taken after fencing has all that was committed before.
    assert end(changelog) > offsets[PART]
    assert rows(read(changelog)) == {"x": b"1"}


def test_fencing_a_writer_that_has_just_committed_makes_its_epoch_readable(changelog: KafkaChangelog) -> None:
    for epoch in range(1, 11):
        grant = f"grant-{uuid.uuid4().hex}"
        writer = changelog.writer(grant)
        writer.open(DEADLINE)
        offsets = writer.commit([changes(epoch, {"x": b"%d" % epoch})], DEADLINE)
        changelog.admin().fence(grant, DEADLINE)
        assert end(changelog) > offsets[PART]
        with pytest.raises(Fenced):
            writer.commit([changes(epoch + 1, {"x": b"no"})], DEADLINE)
        writer.close()
    assert rows(read(changelog)) == {"x": b"10"}


def test_a_writer_closed_within_a_transaction_leaves_it_open_for_the_next_one_to_end(
    kafka: str, descriptor: StateDescriptor, changelog: KafkaChangelog
) -> None:
    class Interrupted(Transactions):
        """Its records are on the broker; the commit is not asked for."""

        def _commit(self, deadline: Deadline) -> None:
            raise OutcomeUnknown("interrupted")

    grant = f"grant-{uuid.uuid4().hex}"
    writer = KafkaWriter(descriptor.application, Interrupted(kafka, grant))
    writer.open(DEADLINE)
    for _ in range(2):
        with pytest.raises(OutcomeUnknown):
            writer.commit([changes(1, {"x": b"interrupted"})], DEADLINE)
    began = time.monotonic()
    writer.close()
    del writer
    assert time.monotonic() - began < 30.0
    # Neither committed nor aborted: an abort by us could come after a commit that we did not see.
    assert end(changelog) == 0

    successor = changelog.writer(grant)
    successor.open(DEADLINE)
    assert end(changelog) > 0
    assert read(changelog) == []
    successor.commit([changes(1, {"x": b"1"})], DEADLINE)
    changelog.admin().fence(grant, DEADLINE)
    successor.close()
    assert rows(read(changelog)) == {"x": b"1"}


def test_the_end_is_reached_where_the_last_records_were_aborted(
    changelog: KafkaChangelog, open_transaction: str
) -> None:
    changelog.admin().fence(open_transaction, DEADLINE)
    assert end(changelog) == 2  # the aborted record, and the note that it was
    assert read(changelog) == []


def commit_until_compacted(changelog: KafkaChangelog, writer: ChangelogWriter, first_epoch: int = 1) -> int:
    """Epochs that overwrite `x`, delete `gone` and add a row each, until the broker has compacted; the last of them."""
    epoch, deadline = first_epoch, time.monotonic() + 5 * LONG_SECONDS
    while True:
        # Only a segment that a later one has followed is compacted.
        rows = {"x": b"%d" % epoch, f"only-{epoch}": b"here", "gone": None}
        last = writer.commit([changes(epoch, rows)], DEADLINE)[PART]
        written = epoch - first_epoch + 1
        if written > 2 and sum(piece.records for piece in read(changelog)) < last - 2 * written:
            break
        assert time.monotonic() < deadline, "the broker did not compact"
        epoch += 1
        time.sleep(0.2)
    until(lambda: end(changelog) > last, LONG_SECONDS)
    return epoch


def test_a_compacted_log_restores_the_same_state(
    kafka: str, changelog: KafkaChangelog, descriptor: StateDescriptor
) -> None:
    compact_soon(kafka, descriptor.topic)
    writer = changelog.writer(f"grant-{uuid.uuid4().hex}")
    writer.open(DEADLINE)
    epoch = commit_until_compacted(changelog, writer)
    restored = rows(read(changelog))
    writer.close()
    assert restored.pop("x") == b"%d" % epoch
    assert restored.pop("gone", None) is None
    assert restored == {f"only-{n}": b"here" for n in range(1, epoch + 1)}


def test_what_a_fenced_writer_had_under_way_replaces_nothing_when_the_log_is_compacted(
    kafka: str, changelog: KafkaChangelog, descriptor: StateDescriptor
) -> None:
    """Its records are later in the log than the committed ones of the same keys: compaction keeps the latest."""
    compact_soon(kafka, descriptor.topic)
    grant = f"grant-{uuid.uuid4().hex}"
    old = transactional(kafka, grant)
    old.init_transactions(DEADLINE)
    new = changelog.writer(f"grant-{uuid.uuid4().hex}")
    new.open(DEADLINE)
    new.commit([changes(1, {"kept": b"1", "deleted": b"1"})], DEADLINE)
    old.begin_transaction()
    old.produce(descriptor.topic, b"old", b"\x00\x00kept", 0)
    old.produce(descriptor.topic, None, b"\x00\x00deleted", 0)
    assert old.flush(DEADLINE) == 0

    changelog.admin().fence(grant, DEADLINE)
    with pytest.raises(KafkaException) as refused:
        old.commit_transaction(DEADLINE)
    assert refused.value.args[0].code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH)

    epoch = commit_until_compacted(changelog, new, first_epoch=2)
    restored = rows(read(changelog))
    new.close()
    assert (restored["kept"], restored["deleted"], restored["x"]) == (b"1", b"1", b"%d" % epoch)


def test_a_position_before_the_start_of_the_log_starts_there(
    kafka: str, changelog: KafkaChangelog, descriptor: StateDescriptor, admin: AdminClient
) -> None:
    alter_topic(
        kafka, descriptor.topic, {"cleanup.policy": "compact,delete"}
    )  # else Kafka deletes no records on request
    writer = changelog.writer(f"grant-{uuid.uuid4().hex}")
    writer.open(DEADLINE)
    writer.commit([changes(1, {"x": b"1"})], DEADLINE)
    writer.commit([changes(2, {"y": b"2"})], DEADLINE)
    changelog.admin().fence("another", DEADLINE)
    until(lambda: end(changelog) >= 6, LONG_SECONDS)
    [future] = admin.delete_records([TopicPartition(descriptor.topic, 0, 3)]).values()
    future.result(DEADLINE)
    (piece,) = read(changelog, Position(offset=1, epoch=0, generation=0, checksum=0))
    writer.close()
    assert piece.changes == [(b"\x00\x00y", b"2")]
    assert piece.position.epoch == 2


def test_each_setting_that_would_lose_data_is_named(kafka: str, descriptor: StateDescriptor) -> None:
    settings = {
        "cleanup.policy": "delete",
        "min.compaction.lag.ms": "1",
        "delete.retention.ms": "2",
        "unclean.leader.election.enable": "true",
    }
    make_topic(kafka, descriptor.topic, settings=settings)
    with pytest.raises(TopicMismatch) as caught:
        KafkaChangelog(kafka, descriptor.application).admin().ensure(descriptor, DEADLINE)
    for name, value in settings.items():
        assert name in caught.value.message
        assert value in caught.value.message
    assert descriptor.topic in caught.value.message


def test_a_topic_that_an_operator_made_with_the_right_settings_is_taken(
    kafka: str, descriptor: StateDescriptor
) -> None:
    make_topic(
        kafka, descriptor.topic, settings={**topic_settings(1), "retention.ms": "1000", "compression.type": "zstd"}
    )
    assert KafkaChangelog(kafka, descriptor.application).admin().ensure(descriptor, DEADLINE)


def test_a_new_topic_has_the_settings_that_are_documented(
    changelog: KafkaChangelog, descriptor: StateDescriptor, admin: AdminClient
) -> None:
    resource = ConfigResource(ResourceType.TOPIC, descriptor.topic)
    entries = admin.describe_configs([resource])[resource].result(DEADLINE)
    for name, value in topic_settings(1).items():
        assert entries[name].value == value


def test_the_end_of_a_topic_that_is_gone_is_refused(kafka: str) -> None:
    reader = KafkaChangelog(kafka, f"app-{uuid.uuid4().hex}").reader()
    with pytest.raises(ChangelogRecreated):
        reader.ends({"a": [0]}, DEADLINE)
    reader.close()


def test_what_something_else_wrote_into_a_changelog_is_refused_without_naming_its_key(
    kafka: str, descriptor: StateDescriptor, changelog: KafkaChangelog
) -> None:
    producer = Producer({"bootstrap.servers": kafka})
    producer.produce(descriptor.topic, b"secret value", b"secret key", 0)
    assert producer.flush(DEADLINE) == 0
    with pytest.raises(TopicMismatch, match="offset 0 was not written by Keyhole") as caught:
        read(changelog)
    assert "secret" not in str(caught.value)


def compact_soon(kafka: str, topic: str) -> None:
    settings = {"min.compaction.lag.ms": "0", "delete.retention.ms": "0"}
    alter_topic(kafka, topic, {**settings, "min.cleanable.dirty.ratio": "0.01", "segment.ms": "100"})
