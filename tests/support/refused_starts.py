"""All that can refuse a start, each beside a query that runs well: what provokes it, and what it is refused with."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from keyhole.changelog.base import TopicRight
from keyhole.changelog.settings import CONTROL, ids_prefix, topic_name
from keyhole.errors import (
    ChangelogRecreated,
    CheckpointMismatch,
    EpochFailed,
    InvalidConfiguration,
    KafkaUnreachable,
    KeyholeError,
    PermissionDenied,
    ProtocolMismatch,
    SavepointMismatch,
    ServerLost,
    StateChanged,
    StateConflict,
    TopicMismatch,
    Unauthenticated,
    ValueMismatch,
)
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.protocol.control import SavepointRecord, record
from keyhole.protocol.epoch_of_batch import OnNewCheckpoint
from keyhole.protocol.epochs import EpochBatch, StatePlan
from keyhole.protocol.membership import Sighting
from keyhole.rpc.version import PROTOCOL_VERSION, check
from keyhole.testing.changelog import MemoryChangelog
from tests.support.simulation import SimulatedFleet, SimulatedLink, World
from tests.support.states import KEY_GROUPS, descriptor
from tests.support.sums import KEYS, ONE, SUM

Arrange = Callable[[World], contextlib.AbstractContextManager[None]]

NEW = descriptor(state="new")
OTHERS = descriptor(state="others", query="another")


@dataclass(frozen=True)
class Refusal:
    """A start that is refused.

    Attributes:
        says: What the message has, as a regular expression.
        arrange: What is otherwise in the world meanwhile, and is not afterwards.
        describe: What a server answers the second driver with, where it isn't who it is.
        also: States that the job declares beside the one that it feeds.
    """

    name: str
    error: type[KeyholeError]
    says: str
    arrange: Arrange = lambda world: contextlib.nullcontext()
    describe: Callable[[], KeyholeError | None] = lambda: None
    may_write: bool = True
    state: StateDescriptor = SUM
    also: tuple[StateDescriptor, ...] = ()
    spark_query_id: str = "spark-1"
    behind: int = 0
    offsets_hash: int | None = None
    bootstrap: str = ""
    on_new_checkpoint: OnNewCheckpoint = "refuse"
    options: dict[str, Any] = field(default_factory=dict)


def healthy() -> World:
    """A query that has completed two epochs on two servers. Another one of the application feeds a state of its own."""
    world = World(SUM, "ab")
    for batch_id in range(2):
        world.run_epoch(batch_id, ONE)
    changelog = MemoryChangelog(world.kafka, "app")
    with contextlib.closing(changelog.control("another")) as log:
        log.open(1)
        of = msgspec.structs.replace(OTHERS, topic_id=changelog.admin().ensure(OTHERS, 1))
        log.append(record("state", "others", of), 1)
    return world


def start(world: World, refusal: Refusal, batch_id: int) -> None:
    """The second driver's first batch, which would be the query's next one.

    Raises:
        KeyholeError: What it was refused with.
        AssertionError: It ran its batch.
    """
    plans = tuple(StatePlan(of) for of in (refusal.state, *refusal.also))

    def stage(order: object) -> Any:
        raise AssertionError("a start that is to be refused runs its batch")

    batch = EpochBatch(
        spark_query_id="" if refusal.bootstrap else refusal.spark_query_id,
        batch_id=batch_id - refusal.behind,
        offsets_hash=batch_id - refusal.behind if refusal.offsets_hash is None else refusal.offsets_hash,
        watermark_ms=0,
        states=plans,
        partitions=1,
        stage=stage,
        bootstrap=refusal.bootstrap,
    )
    fleet = _Fleet(world, refusal.describe, refusal.may_write)
    driver = world.another_driver(refusal.on_new_checkpoint, fleet=fleet, **refusal.options)
    with contextlib.closing(driver):
        driver.run_epoch(batch)


def snapshot(world: World) -> dict[str, object]:
    """All that a start which was refused must leave as it was: Kafka's topics and ids, and the servers."""
    kafka = world.kafka
    found: dict[str, object] = {
        "topics": {name: (of.id, copy.deepcopy(of.partitions)) for name, of in kafka._topics.items()},
        "ids": dict(kafka._epochs),
    }
    for name, server in world.servers.items():
        for key, host in server._registry.hosts.items():
            lease = (host.lease.confirmed_monotonic, host.lease.confirmed_ms)
            found[f"{name}/{key}"] = (*vars(host.fence).values(), host._grant.name, lease, host.states)
        for key, table in server.tables.items():
            with contextlib.closing(table.store.snapshot()) as of:
                held = dict(of.positions()), {group: list(of.items(group)) for group in of.positions()}
            found[f"{name}/{key}/table"] = (table.descriptor, table.given.assigned, table.groups, held)
    return found


class _Link(SimulatedLink):
    def __init__(self, world: World, server: str, describe: Callable[[], KeyholeError | None], may_write: bool) -> None:
        super().__init__(world, server)
        self._described = describe
        self._may_write = may_write

    def describe(self, writes: str = "", query: str = "", states: Collection[str] = ()) -> Sighting:
        error = self._described()
        if error is not None:
            raise error
        if writes and not self._may_write:
            raise PermissionDenied(f"token:other may not write {writes}/*")
        return super().describe(writes, query, states)

    def open_run(self, *arguments: Any) -> None:
        if not self._may_write:
            raise PermissionDenied("token:other may not write app/*")
        super().open_run(*arguments)


class _Fleet(SimulatedFleet):
    def __init__(self, world: World, describe: Callable[[], KeyholeError | None], may_write: bool) -> None:
        super().__init__(world)
        self._links = {f"{name}:1": _Link(world, name, describe, may_write) for name in world.servers}

    def _start_one(self) -> None:
        """Here it is the second driver's fault that no server answers it."""


# --- what is otherwise in the world -----------------------------------------------------------------------------------


@contextlib.contextmanager
def _kafka_as_it_was(world: World) -> Iterator[None]:
    before = copy.deepcopy(world.kafka._topics)
    try:
        yield
    finally:
        world.kafka._topics = before


def _recorded(kind: str, name: str, value: msgspec.Struct) -> Arrange:
    @contextlib.contextmanager
    def arranged(world: World) -> Iterator[None]:
        with _kafka_as_it_was(world), contextlib.closing(MemoryChangelog(world.kafka, "app").control("test")) as log:
            log.open(1)
            log.append(record(kind, name, value), 1)
            yield

    return arranged


def _topic(of: StateDescriptor, *, partitions: int = KEY_GROUPS, records: bool = False) -> Arrange:
    """The state's topic is there, made (anew) by somebody else."""

    @contextlib.contextmanager
    def arranged(world: World) -> Iterator[None]:
        with _kafka_as_it_was(world):
            world.kafka._topics.pop(of.topic, None)
            world.kafka.ensure(of.topic, partitions)
            if records:
                epoch = world.kafka.bump("foreign")
                world.kafka.commit("foreign", epoch, [(of.topic, 0, [(KEYS[0], b"row")])])
            yield

    return arranged


@contextlib.contextmanager
def _deleted(world: World) -> Iterator[None]:
    with _kafka_as_it_was(world):
        world.kafka.delete_topic(SUM.topic)
        yield


@contextlib.contextmanager
def _truncated(world: World) -> Iterator[None]:
    with _kafka_as_it_was(world):
        world.kafka.truncate(SUM.topic, 1, world.kafka.end(SUM.topic, 1) - 2)
        yield


@contextlib.contextmanager
def _kafka_is_down(world: World) -> Iterator[None]:
    world.kafka.down = True
    try:
        yield
    finally:
        world.kafka.down = False


def _denied(topic: str, right: TopicRight) -> Arrange:
    @contextlib.contextmanager
    def arranged(world: World) -> Iterator[None]:
        world.kafka.denied = {(topic, right)}
        try:
            yield
        finally:
            world.kafka.denied = set()

    return arranged


@contextlib.contextmanager
def _ids_denied(world: World) -> Iterator[None]:
    world.kafka.denied_ids = {ids_prefix("app", "main")}
    try:
        yield
    finally:
        world.kafka.denied_ids = set()


@contextlib.contextmanager
def _ending(world: World) -> Iterator[None]:
    for server in world.servers.values():
        server.end()
    try:
        yield
    finally:
        for server in world.servers.values():
            server.unend()


def _of_another_version() -> KeyholeError:
    try:
        check(PROTOCOL_VERSION + 1, "state server a (a:1)")
    except ProtocolMismatch as error:
        return error
    raise AssertionError("that is this version")


def _sum(**changes: object) -> StateDescriptor:
    return msgspec.structs.replace(SUM, **changes)


_CODEC = ValueSchema(1, (ValueField("value", "binary", nullable=False),))
_SECOND = descriptor(state="mine", kind=StateKind.AGGREGATING, class_version=2)
_PLAIN = descriptor(state="mine")
_LONG, _COLOUR = ValueField("n", "bigint"), ValueField("s", "colour")
_FINISHED = SavepointRecord("saved", "fingerprint", ("counts", "dropped"), finished=True)

REFUSALS = [
    # Spark's checkpoint
    Refusal("another checkpoint", CheckpointMismatch, "another Spark checkpoint", spark_query_id="spark-2"),
    Refusal("a checkpoint that was set back", CheckpointMismatch, "it expects batch 1 or 2", behind=2),
    Refusal("a checkpoint that is ahead", CheckpointMismatch, "it expects batch 1 or 2", behind=-1),
    Refusal("a batch of other offsets", CheckpointMismatch, "other source offsets", behind=1, offsets_hash=99),
    # what the states are
    Refusal("another kind", StateChanged, "kind was", state=descriptor()),
    Refusal("other key groups", StateChanged, "key_groups was 4, is 8", state=_sum(key_groups=2 * KEY_GROUPS)),
    Refusal("another key", StateChanged, "key was", state=_sum(key=(KeyColumn("other", KeyType.STRING),))),
    Refusal("a ttl", StateChanged, "ttl was none", state=_sum(ttl_ms=1000)),
    Refusal("another type", StateChanged, "'n' was double and is", state=_sum(value=ValueSchema(1, (_LONG,)))),
    Refusal("another reducer", StateChanged, "was reduced by sum", state=_sum(reducers=("max",))),
    Refusal("a state of another query", StateConflict, "is fed by query 'another'", also=(descriptor(state="others"),)),
    Refusal(
        "an earlier version of a state's class",
        StateChanged,
        "app/mine has been written by version 2 of its class, and the job has version 1",
        _recorded("state", "mine", _SECOND),
        also=(msgspec.structs.replace(_SECOND, class_version=1),),
    ),
    Refusal(
        "a codec where rows are stored without",
        StateChanged,
        "app/mine can't be changed in place: codec was none, is set",
        _recorded("state", "mine", _PLAIN),
        also=(msgspec.structs.replace(_PLAIN, value=_CODEC, class_version=1),),
    ),
    # topics
    Refusal("a topic that is gone", ChangelogRecreated, "is gone", _deleted),
    Refusal("a topic that was made anew", ChangelogRecreated, "made anew", _topic(SUM)),
    Refusal(
        "a topic that was made anew, of other partitions",
        TopicMismatch,
        "5 partitions",
        _topic(SUM, partitions=5),
        on_new_checkpoint="continue",
    ),
    Refusal("a topic that lacks complete epochs", ChangelogRecreated, "lacks records that were complete", _truncated),
    Refusal(
        "a new state whose topic has other partitions",
        TopicMismatch,
        "5 partitions",
        _topic(NEW, partitions=5),
        also=(descriptor(state="made-if-not"), NEW),
    ),
    Refusal(
        "a new state whose topic holds records",
        ChangelogRecreated,
        "knows no state 'new'",
        _topic(NEW, records=True),
        also=(descriptor(state="made-if-not"), NEW),
    ),
    Refusal(
        "a state that is called as the control topic",
        InvalidConfiguration,
        "no state may be called 'control'",
        also=(descriptor(state="made-if-not"), descriptor(state="control")),
    ),
    Refusal(
        "a new state whose topic Kafka can't tell from another one",
        InvalidConfiguration,
        "collides with existing topic",
        also=(descriptor(state="made-if-not"), descriptor(state="oth.ers"), descriptor(state="oth_ers")),
        arrange=_topic(descriptor(state="oth_ers")),
    ),
    Refusal(
        "a new state that nobody could use",
        ValueMismatch,
        "new",
        also=(descriptor(state="made-if-not"), descriptor(state="new", value=ValueSchema(1, (_COLOUR,)))),
    ),
    # savepoints and bootstraps
    Refusal(
        "an application that is being restored",
        SavepointMismatch,
        "is being restored",
        _recorded("savepoint", "main", SavepointRecord("saved", "fingerprint", ("counts",), finished=False)),
    ),
    Refusal(
        "a state of the savepoint that is not declared",
        SavepointMismatch,
        "'dropped'",
        _recorded("savepoint", "main", _FINISHED),
    ),
    Refusal("a bootstrap that comes too late", StateConflict, "has completed epoch 2", bootstrap="history"),
    Refusal(
        "a user that Kafka lets read the control topic, and not write it",
        InvalidConfiguration,
        "don't let the user of this process WRITE topic keyhole.app.control",
        _denied(topic_name("app", CONTROL), TopicRight.WRITE),
    ),
    Refusal(
        "a user that Kafka lets write topics, and under none of its transactional.ids",
        InvalidConfiguration,
        r"don't let the user of this process write under transactional.ids that begin with keyhole\.app\.main\.",
        _ids_denied,
    ),
    # servers
    Refusal(
        "servers of another version",
        ProtocolMismatch,
        f"version {PROTOCOL_VERSION + 1}",
        describe=_of_another_version,
    ),
    Refusal(
        "servers that don't know it",
        Unauthenticated,
        "who are you",
        describe=lambda: Unauthenticated("who are you"),
    ),
    Refusal(
        "servers that know it, and let it see nothing",
        PermissionDenied,
        "not one of us",
        describe=lambda: PermissionDenied("not one of us"),
    ),
    Refusal("servers that don't let it write", PermissionDenied, "may not write", may_write=False),
    Refusal(
        "servers that Kafka doesn't let write a changelog",
        InvalidConfiguration,
        rf"of state server a: Kafka's rules don't let the user of this process WRITE topic {SUM.topic}",
        _denied(SUM.topic, TopicRight.WRITE),
    ),
    Refusal(
        "servers that Kafka doesn't let read a changelog",
        InvalidConfiguration,
        rf"of state server a: Kafka's rules don't let the user of this process READ topic {SUM.topic}",
        _denied(SUM.topic, TopicRight.READ),
    ),
    Refusal(
        "servers that Kafka doesn't let read the control topic",
        InvalidConfiguration,
        "of state server a: Kafka's rules don't let the user of this process READ topic keyhole.app.control",
        _denied(topic_name("app", CONTROL), TopicRight.READ),
    ),
    Refusal(
        "servers that it can't reach, or speaks TLS to where they don't",
        EpochFailed,
        "no state server answers",
        describe=lambda: ServerLost("does not speak TLS"),
    ),
    Refusal("servers that are all shutting down", EpochFailed, "a, b are shutting down", _ending),
    Refusal("no Kafka", KafkaUnreachable, "down", _kafka_is_down),
]
