"""What a broker that stops, is killed or hangs does to those who write and read."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
import pytest

from keyhole.changelog.base import Changelog, Marker, Partition, PartitionChanges
from keyhole.changelog.kafka.changelog import KafkaChangelog
from keyhole.changelog.kafka.clients import Deadline
from keyhole.changelog.kafka.transactions import Transactions
from keyhole.changelog.kafka.writer import KafkaWriter
from keyhole.errors import KafkaUnreachable, OutcomeUnknown
from keyhole.local.java import Java
from keyhole.local.kafka import LocalKafka
from keyhole.local.ports import free_ports
from keyhole.model.epoch import START, EpochStamp
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueSchema
from tests.support.holding_relay import HoldingRelay
from tests.support.waiting import LONG_SECONDS, until

DEADLINE = LONG_SECONDS
# What is told to end sooner has ended by then, also on a busy machine; by itself Kafka's client would try for longer.
ENDED_SECONDS = 30.0
PART = Partition("a", 0)
DESCRIPTOR = StateDescriptor("app", "a", "q", StateKind.VALUE, 1, (KeyColumn("k", KeyType.STRING),), ValueSchema(1, ()))


@pytest.fixture(scope="module")
def relay() -> HoldingRelay:
    return HoldingRelay(*free_ports(2))


@pytest.fixture(scope="module")
def broker(
    tmp_path_factory: pytest.TempPathFactory, jars: list[Path], java: Java, relay: HoldingRelay
) -> Iterator[LocalKafka]:
    """A broker of this module's own: it is stopped and killed. Runs again before each test."""
    directory = tmp_path_factory.mktemp("broker")
    with LocalKafka(directory, jars, java, relayed={relay.target: relay.port}) as started, relay:
        yield started


@pytest.fixture
def changelog(broker: LocalKafka) -> Changelog:
    if broker.pid is None:
        broker.start()
    made = KafkaChangelog(broker.bootstrap_servers, "app")
    made.admin().ensure(DESCRIPTOR, DEADLINE)
    return made


def changes(epoch: int, row: bytes) -> PartitionChanges:
    return PartitionChanges(PART, [(b"\x00\x00x", row)], Marker(EpochStamp(epoch, 1, 0, 0), 0, 0))


def last_epoch_and_row(changelog: Changelog) -> tuple[int, bytes | None]:
    reader = changelog.reader()
    ends = reader.ends({"a": [0]}, DEADLINE)
    pieces = list(reader.read({PART: START}, ends, DEADLINE))
    reader.close()
    # Nothing is there before readers see the first commit, which is a moment after it.
    return (pieces[-1].position.epoch, pieces[-1].changes[-1][1]) if pieces else (0, None)


CALLS: dict[str, Callable[[Changelog, float], object]] = {
    "writer.open": lambda changelog, deadline: changelog.writer("g").open(deadline),
    "reader.ends": lambda changelog, deadline: changelog.reader().ends({"a": [0]}, deadline),
    "reader.read": lambda changelog, deadline: list(changelog.reader().read({PART: START}, {PART: 1}, deadline)),
    "admin.ensure": lambda changelog, deadline: changelog.admin().ensure(DESCRIPTOR, deadline),
    "admin.fence": lambda changelog, deadline: changelog.admin().fence("g", deadline),
    "control.open": lambda changelog, deadline: changelog.control("q").open(deadline),
    "control.read": lambda changelog, deadline: changelog.control("q").read(deadline),
}


@pytest.mark.core
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_where_no_broker_listens_every_call_says_so_within_its_deadline(
    call: Callable[[Changelog, float], object], capfd: pytest.CaptureFixture[str]
) -> None:
    servers = f"127.0.0.1:{free_ports(1)[0]}"
    began = time.monotonic()
    with pytest.raises(KafkaUnreachable, match=servers):
        call(KafkaChangelog(servers, "app"), 1.0)
    assert time.monotonic() - began < ENDED_SECONDS
    assert capfd.readouterr().err == ""


def test_a_commit_without_a_broker_is_unreachable_and_the_same_writer_goes_on_when_it_is_back(
    broker: LocalKafka, changelog: Changelog
) -> None:
    writer = changelog.writer(f"grant-{uuid.uuid4().hex}")
    writer.open(DEADLINE)
    writer.commit([changes(1, b"1")], DEADLINE)
    broker.stop()
    began = time.monotonic()
    for _ in range(2):
        with pytest.raises(KafkaUnreachable, match=broker.bootstrap_servers):
            writer.commit([changes(2, b"never")], 1.0)
    assert time.monotonic() - began < ENDED_SECONDS
    broker.start()
    writer.commit([changes(2, b"2")], DEADLINE)
    changelog.admin().fence("somebody else", DEADLINE)
    writer.close()
    until(lambda: last_epoch_and_row(changelog) == (2, b"2"), LONG_SECONDS)


def test_a_killed_broker_keeps_what_was_committed_and_the_writer_goes_on(
    broker: LocalKafka, changelog: Changelog
) -> None:
    writer = changelog.writer(f"grant-{uuid.uuid4().hex}")
    writer.open(DEADLINE)
    writer.commit([changes(1, b"before")], DEADLINE)
    broker.kill()
    broker.start()
    until(lambda: last_epoch_and_row(changelog) == (1, b"before"), LONG_SECONDS)
    writer.commit([changes(2, b"after")], DEADLINE)
    writer.close()
    until(lambda: last_epoch_and_row(changelog) == (2, b"after"), LONG_SECONDS)


def test_a_reader_waits_out_a_restart_of_the_broker(broker: LocalKafka, changelog: Changelog) -> None:
    writer, reader = changelog.writer(f"grant-{uuid.uuid4().hex}"), changelog.reader()
    writer.open(DEADLINE)
    offset = writer.commit([changes(1, b"1")], DEADLINE)[PART]
    until(lambda: reader.ends({"a": [0]}, DEADLINE)[PART] > offset, LONG_SECONDS)
    broker.stop()
    with pytest.raises(KafkaUnreachable):
        reader.ends({"a": [0]}, 1.0)
    broker.start()
    ends = reader.ends({"a": [0]}, DEADLINE)
    pieces = list(reader.read({PART: START}, ends, DEADLINE))
    assert pieces[-1].changes[-1] == (b"\x00\x00x", b"1")
    reader.close()
    writer.close()


def test_a_commit_that_is_not_answered_is_an_unknown_outcome_and_the_marker_decides(
    broker: LocalKafka, changelog: Changelog
) -> None:
    pid = broker.pid or 0
    assert pid

    class Hanging(Transactions):
        """The broker hangs after it has the records, before it hears of the commit."""

        def _commit(self, deadline: Deadline) -> None:
            os.kill(pid, signal.SIGSTOP)
            # On a busy machine some of its threads go on for a moment.
            until(lambda: threads_of(pid) == {"T"}, LONG_SECONDS)
            super()._commit(deadline)

    grant = f"grant-{uuid.uuid4().hex}"
    writer = KafkaWriter("app", Hanging(broker.bootstrap_servers, grant))
    writer.open(DEADLINE)
    try:
        with pytest.raises(OutcomeUnknown):
            writer.commit([changes(7, b"7")], 10.0)
        began = time.monotonic()
        writer.close()
        assert time.monotonic() - began < ENDED_SECONDS
    finally:
        os.kill(pid, signal.SIGCONT)
    changelog.admin().fence(grant, DEADLINE)
    decided = last_epoch_and_row(changelog)
    time.sleep(1)
    # Whichever it is, once the grant is fenced it stays.
    assert last_epoch_and_row(changelog) == decided


@pytest.mark.parametrize(
    ("record_seconds", "deadline", "why"),
    [(None, 3.0, "were not acknowledged within 3 s"), (5.0, 60.0, "timed out")],
    ids=["sent once more", "given up"],
)
def test_records_whose_answer_was_lost_are_not_taken_for_those_of_the_next_commit(
    broker: LocalKafka, relay: HoldingRelay, record_seconds: float | None, deadline: float, why: str
) -> None:
    application = f"app-{uuid.uuid4().hex[:8]}"
    changelog = KafkaChangelog(broker.bootstrap_servers, application)
    changelog.admin().ensure(msgspec.structs.replace(DESCRIPTOR, application=application), DEADLINE)
    transactions = Transactions(f"127.0.0.1:{relay.port}", f"grant-{application}", record_seconds=record_seconds)
    writer = KafkaWriter(application, transactions)
    writer.open(DEADLINE)
    committed(writer, 1)
    relay.lose()
    try:
        with pytest.raises(KafkaUnreachable, match=why):
            writer.commit([changes(2, b"never")], deadline)
        assert relay.lost.is_set(), "else the broker never had them"
    finally:
        relay.lose_no_more()
    offsets = [committed(writer, epoch) for epoch in (3, 4)][-1]
    writer.close()
    reader = changelog.reader()
    until(lambda: reader.ends({"a": [0]}, DEADLINE)[PART] > offsets[PART], LONG_SECONDS)
    pieces = list(reader.epochs({PART: START}, {PART: offsets[PART] + 1}, DEADLINE))
    reader.close()
    assert [(of.position.epoch, of.changes[-1][1]) for of in pieces] == [(1, b"1"), (3, b"3"), (4, b"4")]


def committed(writer: KafkaWriter, epoch: int) -> Mapping[Partition, int]:
    """On a slow machine a record may be given up that had no fault."""
    ends: dict[Partition, int] = {}

    def commit() -> bool:
        with contextlib.suppress(KafkaUnreachable):
            ends.update(writer.commit([changes(epoch, b"%d" % epoch)], DEADLINE))
        return bool(ends)

    until(commit, LONG_SECONDS)
    return ends


def threads_of(pid: int) -> set[str]:
    """The states that its threads are in, as proc(5) has them; T: stopped."""
    states = set()
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
            states.add(stat.read_text().rpartition(")")[2].split()[0])
    return states
