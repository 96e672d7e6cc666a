"""One episode of the real-time lane: a source that rows come to, a feeder, owners, faults, readers, and a rest."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import msgspec
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from keyhole.changelog.kafka.admin import Topics
from keyhole.changelog.kafka.clients import Deadline
from keyhole.changelog.settings import updates_topic_name
from keyhole.errors import KeyholeError
from keyhole.rpc.channels import aio_channel
from keyhole.v1 import query_pb2_grpc
from tests.fault.cluster import Machine, Plan
from tests.fault.copies import held_by_changelog
from tests.fault.episode import ask_all, contradictions
from tests.fault.fed_cluster import PARTITIONS, TOPIC, FedCluster, Source
from tests.fault.fed_recount import FedRecount, Logged, of_source
from tests.fault.fed_rules import FedHistory
from tests.fault.history import OWNER, Event, Held, History, Read
from tests.fault.inject import Injector
from tests.fault.processes import Watch
from tests.fault.readers import Readers
from tests.fault.schedule import Fault, Kind, schedule
from tests.fault.tempers import TEMPERS, Temper
from tests.fault.workload import KEY_GROUPS, SUMS, names
from tests.support.waiting import LONG_SECONDS

_BOUNDARIES_SECONDS = 300.0
_REST_SECONDS = 300.0
_LOOK_SECONDS = 0.5
_MOST_KEYS = 4
PER_SECOND = 200
BOUNDARIES_BETWEEN = 3
"""So many are written before faults strike again: a feeder has settled, and owners have committed."""

# There are no epochs of a query here, and so none that is asked for, and nothing staged.
_TEMPERS = tuple(of for of in TEMPERS if not (of.earlier or of.snapshot or of.latest))


class FedReaders(Readers):
    """See Readers. An epoch is one of a key group: whoever names one asks for one key."""

    async def _run(self) -> None:
        async with aio_channel(self._target) as channel:
            stub = query_pb2_grpc.QueryStub(channel)
            await asyncio.gather(*(self._read(stub, temper) for temper in _TEMPERS))

    async def _read(self, stub: object, temper: Temper) -> None:
        draw = self._shared.draw(temper.name)
        seen = dict.fromkeys(names(SUMS), 0)
        while not self._shared.closed.is_set():
            keys = tuple(draw.sample(names(SUMS), 1 if temper.monotonic else _MOST_KEYS))
            event = await self._ask(stub, temper.name, SUMS, keys, temper.asked(seen[keys[0]]))
            if isinstance(event, Read):
                for key, claim in zip(keys, event.claims, strict=True):
                    seen[key] = max(seen[key], claim.epoch)
            self._shared.note(event)
            await self._shared.pause(draw)


def run_fed_episode(
    plan: Plan,
    blows: Sequence[Sequence[Fault]] | None,
    directory: Path,
    machine: Machine,
    *,
    rewound: Sequence[int] = (),
    settings: Mapping[str, str] | None = None,
) -> FedHistory:
    """Runs it from the first process to the last one's end.

    Args:
        blows: Faults that strike together, each at its time after BOUNDARIES_BETWEEN; None: as `plan.seed` has them, in
            `plan.seconds`.
        rewound: See FedCluster; empty: as by default.
        settings: Further environment variables of the state servers.

    Raises:
        MachineError: The machine, or Kafka, not Keyhole.
        AssertionError: No boundaries were written, before the faults or between them.
    """
    cluster = FedCluster(plan, directory, machine)
    cluster.rewound = tuple(rewound) or cluster.rewound
    cluster.settings |= dict.fromkeys((*cluster.servers, cluster.spare), settings or {})
    events: list[Event] = []
    lock = threading.Lock()

    def note(event: Event) -> None:
        with lock:
            events.append(event)

    injector = Injector(cluster)
    ending: list[Callable[[], None]] = [cluster.close]
    try:
        cluster.start()
        watch = Watch(list(cluster.processes.values()), note)
        ending.append(watch.close)
        source = Source(cluster.kafka.bootstrap_servers, plan.seed, PER_SECOND)
        ending.append(source.close)
        readers = FedReaders(cluster.proxy, cluster.application, (SUMS,), plan.seed, note, plan.reader_pause_seconds)
        ending.append(readers.close)
        for blow in [_schedule(plan, cluster)] if blows is None else blows:
            _await_boundaries(cluster)
            injector.run(blow, plan.seconds if blows is None else 0.0, lambda _: None)
        source.close()
        ending.pop(2)
        rows = _log(cluster, TOPIC, PARTITIONS)
        held = _rest(cluster, rows)
        ending.pop()()
        updates = _updates(cluster)
        events += [*(held or ()), *injector.injected, *contradictions(cluster)]
    finally:
        for end in reversed(ending):
            end()
    wall_ms = 1000 * (time.time() - time.monotonic())
    return FedHistory(History(plan.seed, -1 if held is None else 0, (SUMS,), events), updates, rows, wall_ms)


def _schedule(plan: Plan, cluster: FedCluster) -> list[Fault]:
    """Clocks don't jump: they say how old answers are."""
    return schedule(plan.seed, plan.seconds, cluster.targets, [of for of in plan.kinds if of is not Kind.CLOCK_JUMP])


def _await_boundaries(cluster: FedCluster) -> None:
    """Raises AssertionError: none came any more."""
    until, wanted = time.monotonic() + _BOUNDARIES_SECONDS, 0
    while True:
        records = _updates(cluster)[0] if _is_fed(cluster) else []
        found = sum(json.loads(record.value)[0] == 0 for record in records)
        wanted = wanted or found + BOUNDARIES_BETWEEN
        if found >= wanted:
            return
        if time.monotonic() > until:
            raise AssertionError(f"{found} boundaries were written, and no more; {cluster.directory}")
        time.sleep(_LOOK_SECONDS)


def _is_fed(cluster: FedCluster) -> bool:
    with closing(Topics(cluster.kafka.bootstrap_servers)) as topics:
        return topics.describe(updates_topic_name(cluster.application, SUMS), Deadline(LONG_SECONDS)) is not None


def _updates(cluster: FedCluster) -> dict[int, list[Logged]]:
    return _log(cluster, updates_topic_name(cluster.application, SUMS), KEY_GROUPS)


def _rest(cluster: FedCluster, source: Mapping[int, Sequence[Logged]]) -> list[Held] | None:
    """All copies, once all of the source is sent and they are at the end of the updates, or after a while as they are.
    None: they can't be asked.
    """
    wanted = of_source(source).keys()
    until = time.monotonic() + _REST_SECONDS
    while True:
        late = time.monotonic() > until
        counts = FedRecount(_updates(cluster))
        try:
            held = [*ask_all(cluster)]
            copies = [(copy.epoch, key) for copy in held for key in copy.rows]
            at_end = all(epoch == counts.ends[counts.group_of.get(key, 0)] for epoch, key in copies)
            owned = sorted(key for copy in held if copy.role == OWNER for key in copy.rows)
            whole = wanted <= counts.counted.keys() and at_end and owned == sorted(names(SUMS))
            if whole or late:
                return [*held, *_changelog(cluster)]
        except (KeyholeError, KafkaException):
            if late:
                return None
        time.sleep(_LOOK_SECONDS)


def _changelog(cluster: FedCluster) -> Iterator[Held]:
    yield from held_by_changelog(cluster.kafka.bootstrap_servers, cluster.application, (SUMS,), 1)


def _log(cluster: FedCluster, topic: str, partitions: int) -> dict[int, list[Logged]]:
    """All records of a topic, by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.kafka.bootstrap_servers,
            "group.id": "fault-log",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    found: dict[int, list[Logged]] = {partition: [] for partition in range(partitions)}
    unread = set(found)
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in found])
        while unread:
            message = consumer.poll(LONG_SECONDS)
            if message is None:
                raise KafkaException(f"{topic} can't be read to its end")
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                unread.discard(message.partition())
            elif error is not None:
                raise KafkaException(error)
            else:
                logged = Logged(message.offset(), message.timestamp()[1], message.value())
                found[message.partition()].append(logged)
    finally:
        consumer.close()
    return found


def save(history: FedHistory, path: Path) -> None:
    path.write_bytes(msgspec.msgpack.encode(history))
