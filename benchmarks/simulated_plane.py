"""The control plane of one query in one process: the real coordinator, the real state servers, on the tests' simulated
network and Kafka. It counts what each step sends and what it takes.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from keyhole.changelog.settings import CONTROL, topic_name
from keyhole.errors import ServerLost
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.protocol.epochs import EpochBatch, StatePlan
from keyhole.protocol.receipts import PartitionReceipt
from tests.support.simulation import Letter, Rows, World

APPLICATION = "plane"
QUERY = "main"


@dataclass(frozen=True)
class PlaneSize:
    """How large it is. `key_groups`: of all states together, at least one each."""

    servers: int
    key_groups: int
    states: int
    standbys: int = 1

    def descriptors(self) -> list[StateDescriptor]:
        """Of states that share the key groups evenly."""
        share, larger = divmod(self.key_groups, self.states)
        return [_descriptor(f"state-{number:03d}", share + (number < larger)) for number in range(self.states)]

    def server_names(self) -> list[str]:
        return [f"server-{number:04d}" for number in range(self.servers)]


def _descriptor(state: str, key_groups: int) -> StateDescriptor:
    return StateDescriptor(
        application=APPLICATION,
        state=state,
        query=QUERY,
        kind=StateKind.VALUE,
        key_groups=key_groups,
        key=(KeyColumn("sensor", KeyType.STRING),),
        value=ValueSchema(1, (ValueField("temperature", "double"), ValueField("readings", "bigint"))),
    )


@dataclass
class Step:
    """What one thing that happened has taken.

    Attributes:
        messages: By call, to all servers.
        sent_bytes: In both directions.
        control_bytes: That were added to the control topic.
        driver_seconds: Processor time of the coordinator, without that of the servers, which have the rest.
    """

    messages: Counter[str] = field(default_factory=Counter)
    sent_bytes: int = 0
    control_bytes: int = 0
    driver_seconds: float = 0.0
    servers_seconds: float = 0.0


class Plane(World):
    """See the module's text. One thread's."""

    def __init__(self, size: PlaneSize) -> None:
        self.descriptors = size.descriptors()
        super().__init__(self.descriptors[0], size.server_names(), size.standbys)
        self.groups.end()  # what it looks at would take longer than what is measured
        self._step = Step()
        self._in_servers = 0.0

    def batch(
        self,
        batch_id: int,
        rows: Rows,
        replace: bool = False,
        spark_query_id: str = "spark-1",
        offsets_hash: int | None = None,
    ) -> EpochBatch:
        """Without a row: what is counted is what an epoch takes for being one."""
        attempts = itertools.count(1)
        return EpochBatch(
            spark_query_id=spark_query_id,
            batch_id=batch_id,
            offsets_hash=batch_id,
            watermark_ms=0,
            states=tuple(StatePlan(of, replace, self.standbys) for of in self.descriptors),
            partitions=1,
            stage=lambda order: [PartitionReceipt(of.state, 0, next(attempts), ()) for of in self.descriptors],
        )

    def deliver(self, server: str, method: str, request: Any) -> Any:
        """Counts it, and lets the server answer."""
        to = self.servers[server]
        if to.servicer is None:
            raise ServerLost(f"{server} is down")
        began = time.thread_time()
        answer = self.call(Letter(server, to.servicer, method, request))
        self._step.messages[method] += 1
        self._step.sent_bytes += request.ByteSize() + answer.ByteSize()
        self._in_servers += time.thread_time() - began
        return answer

    @contextlib.contextmanager
    def measured(self) -> Iterator[Step]:
        """What happens meanwhile; it is all there once this ends."""
        step = self._step = Step()
        set_apart()
        self._in_servers, log_bytes = 0.0, self._control_bytes()
        own, all_of_it = time.thread_time(), time.process_time()
        yield step
        step.driver_seconds = time.thread_time() - own - self._in_servers
        step.servers_seconds = time.process_time() - all_of_it - step.driver_seconds
        step.control_bytes = self._control_bytes() - log_bytes

    def _control_bytes(self) -> int:
        """Of all records that were ever appended."""
        topic = topic_name(APPLICATION, CONTROL)
        if self.kafka.topic_id(topic) is None:
            return 0
        records = self.kafka.records(topic, 0, 0, self.kafka.end(topic, 0))
        return sum(len(key) + len(value or b"") for _, key, value in records)

    def lose(self, server: str) -> None:
        """It ends without a word; returns once others own what it owned."""
        self.servers[server].die()
        self.beat()

    def restart(self, server: str) -> None:
        """As SIGTERM and a new process do; returns once all is even again."""
        self.servers[server].end()
        while not self.servers[server].may_end:
            self.follow()
            self.beat()
        self.servers[server].die()
        self.beat()
        self.servers[server].start()
        self.settle()

    def ownership(self) -> list[bytes]:
        """What each server says to each proxy, by server."""
        return [server._registry.ownership().SerializeToString() for server in self.servers.values()]


def set_apart() -> None:
    """All objects that there are, from the garbage collector: here they are those of a whole cluster, which no process
    of one has to look through.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
