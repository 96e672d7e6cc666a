"""A whole write path in one thread: the real coordinator and the real state servers, without sockets, Kafka or Spark.

Each message between them is a step at which something can go wrong (Fault). A message is delivered at most once, at
once or later, as TCP would; only Commit and Stage are also delivered twice, to whoever still listens.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
import itertools
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from keyhole.changelog.base import Changelog, ChangelogTail
from keyhole.changelog.control_topic import ControlTail
from keyhole.clock import Clock
from keyhole.config import JobConfig
from keyhole.coordinator.coordinator import Coordinator
from keyhole.coordinator.fleet import Fleet
from keyhole.coordinator.server_link import ServerLink, ServerShare
from keyhole.encoding.codec import StateCodec
from keyhole.errors import ConflictError, Draining, KeyholeError, RequestError, ServerLost
from keyhole.model.epoch import Run
from keyhole.model.state import StateDescriptor
from keyhole.protocol.control import CompleteRecord
from keyhole.protocol.epoch_of_batch import OnNewCheckpoint
from keyhole.protocol.epochs import EpochBatch, EpochResult, StatePlan
from keyhole.protocol.failpoints import NoObserver, Step
from keyhole.protocol.membership import Sighting
from keyhole.protocol.receipts import PartitionReceipt, ServerReceipt, StageOrder, Target
from keyhole.protocol.replacement import Patience
from keyhole.rpc.convert_writes import effect_to_proto, receipt_from_proto, run_to_proto
from keyhole.stores.base import StoreEngine
from keyhole.stores.memory import MemoryEngine
from keyhole.testing.changelog import MemoryChangelog, MemoryControlLog, MemoryKafka, NextCommit
from keyhole.testing.clock import ManualClock
from keyhole.v1 import state_server_pb2 as pb
from services.state_server.host_settings import HostSettings
from services.state_server.read.table import Table
from services.state_server.registry import Registry
from services.state_server.replica.follower import Delivery, Follower, Prepare
from services.state_server.servicers.state_server import StateServerServicer
from services.state_server.write.spill import StagingRoom
from tests.support.observed_groups import GroupWatch

_Result = TypeVar("_Result")

PARTITIONS = 2
MAX_KEY_BYTES = 511
_AMPLE_SECONDS = 60.0
Rows = Mapping[bytes, bytes | None]
"""A batch's rows by storage key; None deletes."""


class Fault(enum.Enum):
    """What happens at a step."""

    DRIVER_DIES = enum.auto()
    DRIVER_DIES_AFTER = enum.auto()
    MESSAGE_IS_LATE = enum.auto()
    ANSWER_IS_LOST = enum.auto()
    SERVER_IS_CUT_OFF = enum.auto()
    SERVER_DIES = enum.auto()
    SERVER_DIES_AFTER = enum.auto()
    SERVER_LOSES_ITS_STORE = enum.auto()
    LATE_MESSAGES_ARRIVE = enum.auto()
    COMMITS_AND_IS_NOT_ANSWERED = enum.auto()
    LOSES_THE_TRANSACTION_AND_IS_NOT_ANSWERED = enum.auto()
    KAFKA_IS_DOWN = enum.auto()
    SERVER_IS_ASKED_TO_END = enum.auto()
    SERVER_IS_ASKED_TO_DRAIN = enum.auto()
    SERVER_FORGETS_THE_QUERY = enum.auto()
    COPIES_CATCH_UP = enum.auto()
    OLD_DRIVERS_WAKE = enum.auto()
    HEARTBEATS_COME = enum.auto()


class DriverDiedError(BaseException):
    """Ends the coordinator where it is; nothing of it may run on."""


class Context:
    """Of a call."""

    def time_remaining(self) -> float:
        return 5.0


@dataclass
class Letter:
    """A message to one incarnation of a server."""

    server: str
    servicer: StateServerServicer
    method: str
    request: Any


class SteppedFollower(Follower):
    """A follower without a thread: it goes on when the world says so."""

    def __init__(
        self,
        changelog: Changelog,
        query: str,
        prepare: Prepare,
        deliver: Callable[[Delivery], None],
        clock: Clock,
    ) -> None:
        super().__init__(changelog, query, prepare, deliver, clock)
        self._tails: tuple[ControlTail, ChangelogTail | None] | None = None

    def start(self) -> None:
        """Nothing to start."""

    def join(self) -> None:
        """It is never under way."""

    def step(self) -> None:
        """Reads all that there is. Off the event loop's thread, which takes it in meanwhile."""
        try:
            control, tail = self._tails or (self._changelog.control_tail(), None)
            self._tails = control, tail
            if self._wanted.number != self._current.number:
                tail = self._begin(self._wanted, tail)
                self._tails = control, tail
            self._hand_over(tail.poll(0) if tail is not None else (), control.poll(0))
        except KeyholeError:
            self._tails = None
            self._begin_anew()


class SimulatedServer:
    """A state server's process: what `die` forgets and what it keeps."""

    def __init__(self, name: str, kafka: MemoryKafka, loop: asyncio.AbstractEventLoop, clock: ManualClock) -> None:
        self.name = name
        self._kafka = kafka
        self._loop = loop
        self._clock = clock
        self._engine: StoreEngine = MemoryEngine()
        self._incarnations = itertools.count(1)
        self.servicer: StateServerServicer | None = None
        self._registry: Registry
        self.tables: dict[tuple[str, str], Table] = {}
        self.cut_off = False
        self.start()

    def start(self) -> None:
        """And connects it again. Idempotent."""
        self.cut_off = False
        if self.servicer is not None and self._registry.ending:
            self.die()  # it was told to
        if self.servicer is not None:
            return
        self.incarnation = f"{self.name}-{next(self._incarnations)}"
        self._follower: SteppedFollower | None = None
        registry = Registry(self.name, self.incarnation, lambda: f"{self.name}:1", 0, MAX_KEY_BYTES)
        settings = HostSettings(
            server=self.name,
            incarnation=self.incarnation,
            engine=self._engine,
            clock=self._clock,
            observer=NoObserver(),
            lease_seconds=3.0,
            room=StagingRoom(1 << 30, 1 << 30, Path(tempfile.gettempdir())),
            kafka_deadline_seconds=5.0,
            restore_deadline_seconds=5.0,
            changed=registry.changed,
            make_follower=self._make_follower,
            feeds_by_itself=False,
        )
        self._registry, self.tables = registry, registry.tables
        self.servicer = StateServerServicer(registry, partial(MemoryChangelog, self._kafka), settings)

    def _make_follower(
        self, changelog: Changelog, query: str, prepare: Prepare, deliver: Callable[[Delivery], None], clock: Clock
    ) -> SteppedFollower:
        self._follower = SteppedFollower(changelog, query, prepare, deliver, clock)
        return self._follower

    def follow(self) -> None:
        """Its standby copies catch up, and it reads the control topic: it has stepped down where that says so."""
        if self.servicer is not None and self._follower is not None:
            self._loop.run_until_complete(self._loop.run_in_executor(None, self._follower.step))
            for host in self._registry.hosts.values():
                self._loop.run_until_complete(host._ownership.stepped_down())

    def apply_updates(self, *, commit: bool) -> None:
        """What it owns of states that are fed by updates is applied up to now; and committed, if that can be."""
        for host in self._registry.hosts.values() if self.servicer is not None else ():
            for _ in range(2):
                with contextlib.suppress(KeyholeError):
                    self._loop.run_until_complete(host.feeding.step(0))
            if commit:
                with contextlib.suppress(KeyholeError):
                    self._loop.run_until_complete(host.feeding.commit())

    def look_at_key_groups(self, watch: GroupWatch) -> None:
        """See World."""
        if self.servicer is not None:
            for host in self._registry.hosts.values():
                watch.check_at_rest(host)

    def end(self) -> None:
        """As SIGTERM does. Idempotent."""
        if self.servicer is not None:
            self._registry.end()

    def unend(self) -> None:
        """As if it had not been told to end."""
        self._registry.ending = self._registry.draining = False

    def drain(self, *, undo: bool = False) -> None:
        """As `keyhole drain` does; where it is to end, nothing comes of it. Idempotent."""
        if self.servicer is not None:
            with contextlib.suppress(Draining):
                self._registry.drain(undo=undo)

    def move(self, state: str, *key_groups: int, undo: bool = False) -> None:
        """As `keyhole move` does; where it drains, nothing comes of it. Idempotent."""
        if self.servicer is not None:
            with contextlib.suppress(Draining):
                self._registry.move("app", "main", state, frozenset(key_groups), undo=undo)

    def forget(self) -> None:
        """It retires what it has, as the run itself might ask it to. Nothing is under way when it is called."""
        if self.servicer is not None:
            for (application, query), host in list(self._registry.hosts.items()):
                self._loop.run_until_complete(self._registry.retire(application, query, host.fence.run))

    @property
    def may_end(self) -> bool:
        """It was told to end, and nobody would miss it."""
        return self.servicer is not None and self._registry.ending and not self._registry.owning

    def die(self, *, lose_store: bool = False) -> None:
        """Idempotent. Nothing is under way when it is called."""
        if self.servicer is None:
            return
        self.servicer = None
        self._loop.run_until_complete(self._registry.close())
        if lose_store:
            self._engine = MemoryEngine()


class World:
    """Servers, Kafka, and a driver at a time.

    Attributes:
        faults: By the number of the step (`steps` is the last one's).
        faults_at: By server and method, for the next such message.
        meanwhile: By server and method, what happens before the next such message is delivered.
        after_each: Called after each message that was delivered.
        groups: What was seen of the servers' key groups.
        late: Messages that are still under way.
        sent: Commit and Stage messages that were delivered.
        answered: All messages whose receiver did what they ask for.
        suspended: Drivers that were replaced without knowing it, and what they were at.
        kafka_deadline_seconds: Of the next driver.
        watermark_ms: Of the next batches.
    """

    def __init__(self, descriptor: StateDescriptor, servers: Sequence[str] = ("a", "b"), standbys: int = 0) -> None:
        self.descriptor = descriptor
        self.standbys = standbys
        self.codec = StateCodec(descriptor)
        self.kafka = MemoryKafka()
        self.kafka.before_commit = self._before_transaction
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.groups = GroupWatch()
        self.groups.begin()
        self.servers = {name: SimulatedServer(name, self.kafka, self.loop, self.clock) for name in servers}
        self.coordinator: Coordinator | None = None
        self.faults: dict[int, Fault] = {}
        self.faults_at: dict[tuple[str, str], Fault] = {}
        self.meanwhile: dict[tuple[str, str], Callable[[], None]] = {}
        self.after_each: Callable[[], None] = lambda: None
        self.steps = 0
        self.late: list[Letter] = []
        self.sent: list[Letter] = []
        self.answered: list[Letter] = []
        self.suspended: list[tuple[Coordinator, EpochBatch]] = []
        self.kafka_deadline_seconds = 5.0
        self.watermark_ms = 0
        self._attempts = itertools.count(1)
        self._driver_thread = threading.get_ident()

    # --- the driver -----------------------------------------------------------------------------------------------

    def run_epoch(
        self,
        batch_id: int,
        rows: Rows,
        *,
        replace: bool = False,
        spark_query_id: str = "spark-1",
        offsets_hash: int | None = None,
        on_new_checkpoint: OnNewCheckpoint = "refuse",
        strict: bool = False,
        bootstrap: str = "",
    ) -> EpochResult:
        """Runs the batch in the running driver, or in a new one. Raises as Coordinator.run_epoch, or DriverDied."""
        if self.coordinator is None:
            self.coordinator = self.another_driver(on_new_checkpoint, strict=strict)
        self._last_batch = self.batch(batch_id, rows, replace, spark_query_id, offsets_hash)
        if bootstrap:
            self._last_batch = dataclasses.replace(self._last_batch, spark_query_id="", bootstrap=bootstrap)
        driver = self.coordinator
        try:
            return driver.run_epoch(self._last_batch)
        except (DriverDiedError, KeyholeError):
            # A query that ends with an error is a driver that is started again.
            driver.close()
            if self.coordinator is driver:
                self.coordinator = None
            raise

    def batch(
        self,
        batch_id: int,
        rows: Rows,
        replace: bool = False,
        spark_query_id: str = "spark-1",
        offsets_hash: int | None = None,
    ) -> EpochBatch:
        """As the sink makes it."""
        return EpochBatch(
            spark_query_id=spark_query_id,
            batch_id=batch_id,
            offsets_hash=batch_id if offsets_hash is None else offsets_hash,
            watermark_ms=self.watermark_ms,
            states=(StatePlan(self.descriptor, replace, self.standbys),),
            partitions=PARTITIONS,
            stage=lambda order: [self._stage(order, partition, rows) for partition in range(PARTITIONS)],
        )

    def beat(self, seconds: float = _AMPLE_SECONDS) -> None:
        """A heartbeat of the running driver, if there is one. `seconds`: how long it may take; below 0: one try."""
        if self.coordinator is None:
            return
        try:
            self.coordinator.beat(seconds)
        except DriverDiedError:
            self.driver_dies()
        except KeyholeError:
            pass  # logged, and tried again at the next one

    def beats_meanwhile(self, count: int = 2, seconds: float = _AMPLE_SECONDS) -> None:
        """Heartbeats of the running driver's other thread, in the middle of whatever the driver does. See `beat`."""
        driver = self.coordinator
        if driver is None:
            return
        for _ in range(count):
            with contextlib.suppress(KeyholeError):
                driver.beat(seconds)

    def follow(self) -> None:
        """All servers' copies catch up."""
        for server in self.servers.values():
            server.follow()

    def look_at_key_groups(self) -> None:
        """Notes in `groups` where what a server shows contradicts the states of its key groups."""
        for server in self.servers.values():
            server.look_at_key_groups(self.groups)

    def settle(self) -> None:
        """Copies catch up and heartbeats come, until there is nothing left to hand over."""
        before = None
        while self.coordinator is not None and before != (before := self.coordinator.membership):
            self.follow()
            self.beat()

    def suspend_driver(self) -> None:
        """It stands still, knowing nothing; the next epoch is another one's."""
        if self.coordinator is not None:
            self.suspended.append((self.coordinator, self._last_batch))
            self.coordinator = None

    def old_drivers_wake(self, expects: type[KeyholeError] = KeyholeError) -> None:
        """Each goes on with its batch, but for those that nobody has replaced yet, as the next driver only looks on.

        Raises AssertionError where one gets through with it.
        """
        replaced = [of for of in self.suspended if self._is_replaced(of[0])]
        woken, self.suspended = replaced, [of for of in self.suspended if of not in replaced]
        for coordinator, batch in woken:
            try:
                coordinator.run_epoch(batch)
            except expects:
                continue
            except DriverDiedError:
                continue
            finally:
                coordinator.close()
            raise AssertionError("a driver that was replaced has completed an epoch")

    def _is_replaced(self, driver: Coordinator) -> bool:
        log = driver._control
        assert isinstance(log, MemoryControlLog)
        return self.kafka._epochs.get(log._id) != log._epoch

    def driver_dies(self) -> None:
        """Idempotent. What was sent late may still arrive."""
        if self.coordinator is not None:
            self.coordinator.close()
            self.coordinator = None

    @property
    def config(self) -> JobConfig:
        """Of the next driver."""
        return JobConfig(
            application=self.descriptor.application,
            servers=tuple(f"{name}:1" for name in self.servers),
            bootstrap_servers="memory",
            epoch_deadline_seconds=5.0,
            server_wait_seconds=0.0,
            kafka_deadline_seconds=self.kafka_deadline_seconds,
        )

    def another_driver(
        self,
        on_new_checkpoint: OnNewCheckpoint,
        *,
        strict: bool = False,
        allow_dropped_states: bool = False,
        fleet: Fleet | None = None,
    ) -> Coordinator:
        """A driver of the same query, beside the one that runs."""
        return Coordinator(
            self.config,
            self.descriptor.query,
            MemoryChangelog(self.kafka, self.descriptor.application),
            self.clock,
            on_new_checkpoint=on_new_checkpoint,
            strict=strict,
            allow_dropped_states=allow_dropped_states,
            observer=_Observer(self),
            fleet=fleet or SimulatedFleet(self),
            heartbeat_seconds=1e6,
            patience=Patience(lost=0.0, ending=0.0),
        )

    def _stage(self, order: StageOrder, partition: int, rows: Rows) -> PartitionReceipt:
        """As staging.stage_partition: the partition's rows to their owners, and what became of them."""
        by_target: dict[int, dict[bytes, bytes | None]] = {}
        for key, row in rows.items():
            group = int.from_bytes(key[:2], "big")
            if group % PARTITIONS == partition:
                by_target.setdefault(order.routes[self.descriptor.state][group], {})[key] = row
        attempt, receipts = next(self._attempts), []
        for index, its in by_target.items():
            target = order.targets[index]
            header = pb.StageHeader(
                run=run_to_proto(order.run),
                incarnation=target.incarnation,
                assignment_version=order.assignment_version,
                state=self.descriptor.state,
                epoch=order.stamp.epoch,
                round=order.round,
                partition=partition,
                attempt_id=attempt,
                effect=effect_to_proto(order.replaces(self.descriptor.state)),
                watermark_ms=order.stamp.watermark_ms,
            )
            try:
                answer: pb.StageResponse = self.deliver(target.server, "Stage", (header, ipc(its)))
            except (RequestError, ConflictError) as error:
                failure = (error.reason, error.message, error.facts)
                return PartitionReceipt(self.descriptor.state, partition, attempt, failure=failure)
            except KeyholeError as error:
                receipts.append(ServerReceipt(target.server, target.incarnation, error=(error.reason, error.message)))
            else:
                groups = tuple(map(receipt_from_proto, answer.receipts))
                receipts.append(ServerReceipt(target.server, target.incarnation, groups))
        return PartitionReceipt(self.descriptor.state, partition, attempt, tuple(receipts))

    # --- messages -------------------------------------------------------------------------------------------------

    def step(self) -> Fault | None:
        """The fault of the next step. Raises DriverDiedError where that is it."""
        self.steps += 1
        fault = self.faults.pop(self.steps, None)
        if fault is Fault.DRIVER_DIES:
            raise DriverDiedError
        return fault

    def _before_transaction(self) -> None:
        if threading.get_ident() == self._driver_thread:
            self.step()

    def deliver(self, server: str, method: str, request: Any) -> Any:
        """Sends a message, with whatever goes wrong at this step, and returns its answer."""
        self.meanwhile.pop((server, method), lambda: None)()
        fault, to = self.step() or self.faults_at.pop((server, method), None), self.servers[server]
        if fault is Fault.LATE_MESSAGES_ARRIVE:
            self.late_messages_arrive()
        if fault is Fault.OLD_DRIVERS_WAKE:
            self.old_drivers_wake()
        if fault is Fault.COPIES_CATCH_UP:
            self.follow()
        if fault is Fault.SERVER_IS_ASKED_TO_END:
            to.end()
        if fault is Fault.SERVER_IS_ASKED_TO_DRAIN:
            to.drain()
        if fault is Fault.SERVER_FORGETS_THE_QUERY:
            to.forget()
        if fault is Fault.HEARTBEATS_COME:
            self.beats_meanwhile()
        if fault in (Fault.SERVER_DIES, Fault.SERVER_LOSES_ITS_STORE):
            to.die(lose_store=fault is Fault.SERVER_LOSES_ITS_STORE)
        if to.servicer is None:
            raise ServerLost(f"{server} is down")
        letter = Letter(server, to.servicer, method, request)
        if fault is Fault.DRIVER_DIES:
            raise DriverDiedError
        to.cut_off |= fault is Fault.SERVER_IS_CUT_OFF
        if fault is Fault.MESSAGE_IS_LATE or to.cut_off:
            self.late.append(letter)
            raise ServerLost(f"no answer from {server}")
        if fault is Fault.COMMITS_AND_IS_NOT_ANSWERED:
            self.kafka.next_commit = NextCommit.IS_COMMITTED_BUT_NOT_ANSWERED
        if fault is Fault.LOSES_THE_TRANSACTION_AND_IS_NOT_ANSWERED:
            self.kafka.next_commit = NextCommit.IS_LOST_AND_NOT_ANSWERED
        self.kafka.down = fault is Fault.KAFKA_IS_DOWN
        if method in ("Commit", "Stage"):
            self.sent.append(letter)
        try:
            answer = self.call(letter)
        finally:
            self.kafka.down = False
            if method == "Commit":
                self.kafka.next_commit = NextCommit.SUCCEEDS
        self.answered.append(letter)
        self.look_at_key_groups()
        self.after_each()
        if fault is Fault.SERVER_DIES_AFTER:
            to.die()
        if fault in (Fault.SERVER_DIES_AFTER, Fault.ANSWER_IS_LOST):
            raise ServerLost(f"no answer from {server}")
        if fault is Fault.DRIVER_DIES_AFTER:
            raise DriverDiedError
        return answer

    def call(self, letter: Letter) -> Any:
        """Delivers a message to the incarnation that it was sent to."""
        return self.run(self.calling(letter))

    def calling(self, letter: Letter) -> Coroutine[Any, Any, Any]:
        """As `call`, for whoever does not wait for it."""
        request = letter.request
        if letter.method == "Stage":
            header, chunk = request
            request = _stream([pb.StageRequest(header=header), pb.StageRequest(chunk=chunk)])
        answer: Coroutine[Any, Any, Any] = getattr(letter.servicer, letter.method)(request, Context())
        return answer

    def late_messages_arrive(self) -> None:
        """All of them, in the order in which they were sent; nobody waits for the answers."""
        late, self.late = self.late, []
        for letter in late:
            self.arrives_again(letter)

    def arrives_again(self, letter: Letter) -> None:
        """A message whose answer nobody waits for, where its receiver still lives."""
        if any(server.servicer is letter.servicer for server in self.servers.values()):
            with contextlib.suppress(KeyholeError):
                self.call(letter)

    def run(self, call: Coroutine[Any, Any, _Result]) -> _Result:
        return self.loop.run_until_complete(call)

    def close(self) -> None:
        self.faults.clear()
        self.suspend_driver()
        for coordinator, _ in self.suspended:
            coordinator.close()
        for server in self.servers.values():
            server.die()
        self.groups.end()
        self.loop.close()
        # Else a test would be of nothing.
        assert not self.faults_at.keys() | self.meanwhile.keys(), "these messages have never been sent"


class _Observer:
    def __init__(self, world: World) -> None:
        self._world = world

    def reached(self, step: Step, epoch: int) -> None:
        self._world.step()


class _Stub:
    """The calls of a ServerLink, without a channel."""

    def __init__(self, world: World, server: str) -> None:
        self._world = world
        self._server = server

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return lambda request, timeout: self._world.deliver(self._server, method, request)


class SimulatedLink(ServerLink):
    """A ServerLink that reaches a simulated server."""

    def __init__(self, world: World, server: str) -> None:
        self.address = f"{server}:1"
        self.responsive = True
        self._stub = _Stub(world, server)  # type: ignore[assignment]

    def assign(
        self,
        run: Run,
        version: int,
        states: Sequence[ServerShare],
        complete: CompleteRecord | None,
        wait_seconds: float,
    ) -> tuple[bool, int, int]:
        """Waits for a restore to its end: servers wait by the machine's time, of which nothing here may depend."""
        return super().assign(run, version, states, complete, _AMPLE_SECONDS)

    def close(self) -> None:
        """Nothing to close."""


@dataclass
class SimulatedFleet(Fleet):
    """A Fleet that makes its calls one after the other."""

    world: World
    _links: dict[str, ServerLink] = field(init=False)

    def __post_init__(self) -> None:
        self._links = {f"{name}:1": SimulatedLink(self.world, name) for name in self.world.servers}
        self._note_refusals({})

    def addresses(self) -> list[str]:
        return list(self._links)

    def link(self, target: Target) -> ServerLink:
        return self._links[target.address]

    def observe(self) -> dict[str, Sighting]:
        """As ever; but where all servers are down one is started, so that nobody waits for a deadline to pass."""
        answers = self.each({address: link.describe for address, link in self._links.items()})
        self._note_refusals(answers)
        seen = {answer.target.server: answer for answer in answers.values() if isinstance(answer, Sighting)}
        if not seen:
            self._start_one()
        return seen

    def _start_one(self) -> None:
        next(iter(self.world.servers.values())).start()

    def ask(
        self, what: str, calls: Mapping[str, tuple[ServerLink, Callable[[], _Result]]]
    ) -> dict[str, _Result | KeyholeError]:
        return self.each({name: call for name, (_, call) in calls.items()})

    def each(self, calls: Mapping[str, Callable[[], _Result]]) -> dict[str, _Result | KeyholeError]:
        results: dict[str, _Result | KeyholeError] = {}
        for name, call in calls.items():
            try:
                results[name] = call()
            except KeyholeError as error:
                results[name] = error
        return results

    def close(self) -> None:
        """Nothing to close."""


async def _stream(messages: Sequence[pb.StageRequest]) -> AsyncIterator[pb.StageRequest]:
    for message in messages:
        yield message


def ipc(rows: Rows) -> bytes:
    """A chunk of Stage."""
    batch = pa.record_batch(
        {"storage_key": pa.array(list(rows), pa.binary()), "value": pa.array(list(rows.values()), pa.binary())}
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


__all__ = ["Fault", "Letter", "Target", "World"]
