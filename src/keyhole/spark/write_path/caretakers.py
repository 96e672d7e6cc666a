"""Who has a caretaker made: for each streaming query that is started, and has no first batch within a few seconds.

Which sink a query feeds is not known before its first batch. What the control topic has of the sink's states under the
query's name, with Spark's id of it, decides that: see keyhole.coordinator.caretaker.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from py4j.java_gateway import JavaObject
from pyspark import SparkContext

from keyhole.config import JobConfig
from keyhole.coordinator.fleet import Addresses
from keyhole.spark.driver.executors import addresses_of
from keyhole.spark.driver.query_starts import QueryStart, hear_starts

_log = logging.getLogger(__name__)

FIRST_BATCH_SECONDS = 3.0
"""For so long a query that was started has time for its first batch: the lease of its last run, by default."""


class QueryCaretaker(Protocol):
    """What is needed of a Caretaker."""

    def run(self, alive: Callable[[], bool]) -> bool: ...

    def leave(self) -> None: ...

    def close(self) -> None: ...


MakeCaretaker = Callable[[JobConfig, str, Mapping[str, int], str, Addresses], QueryCaretaker]
"""(configuration, the query's stable name, the states' standbys by name, Spark's id of the query, servers) -> its
caretaker. Must not block."""


class CaredFor(Protocol):
    """What is needed of a sink."""

    @property
    def config(self) -> JobConfig: ...

    @property
    def make_caretaker(self) -> MakeCaretaker | None: ...

    @property
    def standbys(self) -> Mapping[str, int]:
        """Of its states, by name."""

    def name_in(self, name: str | None) -> str:
        """The stable name of a query that it feeds. `name`: Spark's."""

    def feeds_another(self, run_id: str) -> bool:
        """Whether it is a running query's already."""


class CaredName(NamedTuple):
    """A query, for all sinks of a process."""

    kafka: str
    application: str
    query: str

    @classmethod
    def of(cls, config: JobConfig, query: str) -> CaredName:
        """The one of this name in the configuration's application."""
        return cls(config.bootstrap_servers, config.application, query)


class Caretakers:
    """See the module's text. Any thread.

    Args:
        first_batch_seconds: See FIRST_BATCH_SECONDS.
        addresses: Where a configuration's servers are.
    """

    def __init__(
        self,
        first_batch_seconds: float = FIRST_BATCH_SECONDS,
        addresses: Callable[[JobConfig], Addresses | None] | None = None,
    ) -> None:
        self._first_batch_seconds = first_batch_seconds
        self._addresses = addresses or _addresses
        self._lock = threading.Lock()
        self._sinks: weakref.WeakSet[CaredFor] = weakref.WeakSet()
        self._begun: dict[CaredName, str] = {}
        self._caring: dict[CaredName, QueryCaretaker] = {}

    def watch(self, sink: CaredFor) -> None:
        """The sink may be one of a query that is started from now on, as long as anybody has it."""
        with self._lock:
            self._sinks.add(sink)
        hear_starts(self.started)

    def hear(self, session: JavaObject) -> None:
        """Queries are started in this session of the JVM's, too."""
        hear_starts(self.started, session)

    def started(self, start: QueryStart) -> None:
        """A query was started. Returns at once."""
        threading.Thread(target=self._care, args=(start,), name="keyhole-caretakers", daemon=True).start()

    def first_batch(self, name: CaredName, run_id: str) -> None:
        """The query's first batch of a run is here: from now on nobody takes the query from it.

        Returns as Caretaker.leave.
        """
        with self._lock:
            self._begun[name] = run_id
            caretaker = self._caring.pop(name, None)
        if caretaker is not None:
            caretaker.leave()

    def _care(self, start: QueryStart) -> None:
        time.sleep(self._first_batch_seconds)
        for name, sink in self._candidates(start).items():
            thread = f"keyhole-caretaker-{name.query}"
            threading.Thread(target=self._care_for, args=(start, name, sink), name=thread, daemon=True).start()

    def _candidates(self, start: QueryStart) -> dict[CaredName, CaredFor]:
        """The sinks that the query may feed, one for each name: of several the one with the most states, as sinks are
        put together to one, or are made of another, and stay."""
        found: dict[CaredName, CaredFor] = {}
        with self._lock:
            sinks, begun = list(self._sinks), dict(self._begun)
        for sink in sinks:
            name = CaredName.of(sink.config, sink.name_in(start.name))
            if begun.get(name) == start.run_id or sink.feeds_another(start.run_id):
                continue
            if name not in found or len(found[name].standbys) < len(sink.standbys):
                found[name] = sink
        return found

    def _care_for(self, start: QueryStart, name: CaredName, sink: CaredFor) -> None:
        try:
            while start.alive() and self._cared(start, name, sink):
                pass
        except Exception:  # noqa: BLE001 - the top of a thread; the first batch finds out what is wrong, if it is
            _log.warning("the query has no owners before its first batch", extra={"query": name.query}, exc_info=True)

    def _cared(self, start: QueryStart, name: CaredName, sink: CaredFor) -> bool:
        """Returns once a caretaker has done what it could, with whether another one is to begin."""
        addresses = self._addresses(sink.config)
        if addresses is None or sink.make_caretaker is None:
            return False
        caretaker = sink.make_caretaker(sink.config, name.query, sink.standbys, start.query_id, addresses)
        if not self._admitted(start, name, caretaker):
            caretaker.close()
            return False
        try:
            return caretaker.run(start.alive)
        finally:
            with self._lock:
                if self._caring.get(name) is caretaker:
                    del self._caring[name]

    def _admitted(self, start: QueryStart, name: CaredName, caretaker: QueryCaretaker) -> bool:
        """Whether the first batch has not come. From then on the caretaker is left to `first_batch`."""
        with self._lock:
            if self._begun.get(name) == start.run_id:
                return False
            before, self._caring[name] = self._caring.get(name), caretaker
        if before is not None:
            before.leave()  # of an earlier start, which has ended
        return True


def _addresses(config: JobConfig) -> Addresses | None:
    context = SparkContext._active_spark_context
    return addresses_of(context, config.servers) if context is not None else None


CARETAKERS = Caretakers()
"""Of this process."""
