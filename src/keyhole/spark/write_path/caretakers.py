"""Who has a caretaker made: for each streaming query that is started, and has no first batch within a few seconds.

Which sink a query feeds is not known before its first batch. What the control topic has of the sink's states under the
query's name, with Spark's id of it, decides that. A caretaker is of one run. It ends with the first batch of that, with
its query, or as another run takes the query from it, and by no other start.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from py4j.java_gateway import JavaObject
from pyspark import SparkContext

from keyhole.changelog.kafka.changelog import KafkaChangelog
from keyhole.config import JobConfig
from keyhole.coordinator.fleet import Addresses
from keyhole.coordinator.query_log import known
from keyhole.errors import KeyholeError
from keyhole.protocol.caretaking import start_without_batch
from keyhole.protocol.control import QueryControl
from keyhole.spark.driver.executors import addresses_of
from keyhole.spark.driver.query_starts import QueryStart, hear_starts

_log = logging.getLogger(__name__)

FIRST_BATCH_SECONDS = 3.0
"""For so long a query that was started has time for its first batch: the lease of its last run, by default."""

AGAIN_SECONDS = 10.0
"""Until it is tried again, where the record could not be read, or a caretaker could not take the query."""

_UNOWNED = "the query has no owners before its first batch"


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


@dataclass(eq=False)
class _StartedQuery:
    """One start of a query, until nobody cares for it any more.

    Attributes:
        begun: The names under which its first batch is here.
        caring: Its caretakers.
    """

    start: QueryStart
    begun: set[CaredName] = field(default_factory=set)
    caring: dict[CaredName, QueryCaretaker] = field(default_factory=dict)


ReadControl = Callable[[JobConfig, str, bool], QueryControl]
"""(configuration, the query's stable name, whether nothing may be missing) -> what the control topic has of it."""


class Caretakers:
    """See the module's text. Any thread.

    Args:
        first_batch_seconds: See FIRST_BATCH_SECONDS; `again_seconds`: see AGAIN_SECONDS.
        addresses: Where a configuration's servers are.
        read: Fences nobody.
    """

    def __init__(
        self,
        first_batch_seconds: float = FIRST_BATCH_SECONDS,
        addresses: Callable[[JobConfig], Addresses | None] | None = None,
        read: ReadControl | None = None,
        again_seconds: float = AGAIN_SECONDS,
    ) -> None:
        self._first_batch_seconds = first_batch_seconds
        self._addresses = addresses or _addresses
        self._read = read or _read
        self._again_seconds = again_seconds
        self._lock = threading.Lock()
        self._sinks: weakref.WeakSet[CaredFor] = weakref.WeakSet()
        self._runs: dict[str, _StartedQuery] = {}

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
        run = _StartedQuery(start)
        with self._lock:
            self._runs[start.run_id] = run
        threading.Thread(target=self._care, args=(run,), name="keyhole-caretakers", daemon=True).start()

    def first_batch(self, name: CaredName, run_id: str) -> None:
        """The first batch of a run is here: from now on no caretaker of that run takes the query from it.

        Returns as Caretaker.leave. Caretakers of other runs go on: the batch may still be refused.
        """
        caretaker = None
        with self._lock:
            if run_id in self._runs:
                self._runs[run_id].begun.add(name)
                caretaker = self._runs[run_id].caring.get(name)
        if caretaker is not None:
            caretaker.leave()

    def _care(self, run: _StartedQuery) -> None:
        """The thread of a start: ends once nobody cares for it."""
        try:
            time.sleep(self._first_batch_seconds)
            threads = []
            for name, sinks in self._candidates(run).items():
                thread = threading.Thread(target=self._care_for, args=(run, name, sinks), daemon=True)
                thread.name = f"keyhole-caretaker-{name.query}"
                thread.start()
                threads.append(thread)
            for thread in threads:
                thread.join()
        finally:
            with self._lock:
                self._runs.pop(run.start.run_id, None)

    def _candidates(self, run: _StartedQuery) -> dict[CaredName, list[CaredFor]]:
        """The sinks that the query may feed, by the name that it has then."""
        found: dict[CaredName, list[CaredFor]] = {}
        with self._lock:
            sinks, begun = list(self._sinks), set(run.begun)
        for sink in sinks:
            name = CaredName.of(sink.config, sink.name_in(run.start.name))
            if name not in begun and not sink.feeds_another(run.start.run_id):
                found.setdefault(name, []).append(sink)
        return found

    def _care_for(self, run: _StartedQuery, name: CaredName, sinks: Sequence[CaredFor]) -> None:
        last_said = ""
        try:
            while run.start.alive() and name not in run.begun:
                try:
                    if not self._cared(run, name, sinks):
                        return
                except KeyholeError as error:
                    if error.message != last_said:
                        last_said = error.message
                        _log.warning(_UNOWNED, extra={"query": name.query, "why": last_said})
                time.sleep(self._again_seconds)
        except Exception:  # noqa: BLE001 - the top of a thread; the first batch finds out what is wrong, if it is
            _log.warning(_UNOWNED, extra={"query": name.query}, exc_info=True)

    def _cared(self, run: _StartedQuery, name: CaredName, sinks: Sequence[CaredFor]) -> bool:
        """Returns once a caretaker has done what it could, or none is needed, with whether another one is to begin."""
        sink = self._chosen(run.start, name, sinks)
        addresses = self._addresses(sink.config) if sink is not None else None
        if sink is None or addresses is None or sink.make_caretaker is None:
            return False
        caretaker = sink.make_caretaker(sink.config, name.query, sink.standbys, run.start.query_id, addresses)
        # From then on it is left to `first_batch`.
        with self._lock:
            if needed := name not in run.begun:
                run.caring[name] = caretaker
        if not needed:
            caretaker.close()
            return False
        try:
            return caretaker.run(run.start.alive)
        finally:
            with self._lock:
                del run.caring[name]

    def _chosen(self, start: QueryStart, name: CaredName, sinks: Sequence[CaredFor]) -> CaredFor | None:
        """Of those sinks whose states are all on record as this query's the one with the most: sinks are put together
        to one, or are made of another, and stay. None: it feeds none of them yet."""
        # Behind a transaction that is open, records may be missing.
        for decided in (False, True):
            control = self._read(sinks[0].config, name.query, decided)
            of_query = [
                sink for sink in sinks if start_without_batch(name.query, control, start.query_id, sink.standbys)
            ]
            if of_query:
                return max(of_query, key=lambda sink: len(sink.standbys))
        return None


def _read(config: JobConfig, query: str, decided: bool) -> QueryControl:
    changelog = KafkaChangelog(config.bootstrap_servers, config.application)
    with contextlib.closing(changelog.control(query)) as control:
        return known(control, query, config.kafka_deadline_seconds, decided=decided)


def _addresses(config: JobConfig) -> Addresses | None:
    context = SparkContext._active_spark_context
    return addresses_of(context, config.servers) if context is not None else None


CARETAKERS = Caretakers()
"""Of this process."""
