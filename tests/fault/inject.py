"""Carries a schedule out: each fault on a thread of its own, begun and ended when it says."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

from keyhole.errors import MachineError
from tests.fault.cluster import Cluster
from tests.fault.history import Injected
from tests.fault.schedule import Fault, Kind

_DRAIN_SECONDS = 40.0
_KAFKA_STARTS = 3

Strike = Callable[[Cluster, Fault], AbstractContextManager[None]]


@contextmanager
def _kill(cluster: Cluster, fault: Fault) -> Iterator[None]:
    process = cluster.processes[fault.targets[0]]
    if fault.kind is Kind.LOSE_EXECUTOR:
        cluster.kill_executor()
    process.kill()
    yield
    if fault.kind is Kind.LOSE_STORE:
        cluster.delete_store(process.name)
    process.start()


@contextmanager
def _suspend(cluster: Cluster, fault: Fault) -> Iterator[None]:
    for target in fault.targets:
        cluster.processes[target].suspend()
    yield
    for target in fault.targets:
        cluster.processes[target].resume()


@contextmanager
def _usurp(cluster: Cluster, fault: Fault) -> Iterator[None]:
    driver = cluster.processes[fault.targets[0]]
    driver.suspend()
    driver.usurp()
    yield
    driver.resume()


@contextmanager
def _drain(cluster: Cluster, fault: Fault) -> Iterator[None]:
    process = cluster.processes[fault.targets[0]]
    process.terminate(_DRAIN_SECONDS)
    yield
    process.start()


@contextmanager
def _join(cluster: Cluster, fault: Fault) -> Iterator[None]:
    process = cluster.processes[fault.targets[0]]
    process.start()
    yield
    process.terminate(_DRAIN_SECONDS)


@contextmanager
def _fill_disk(cluster: Cluster, fault: Fault) -> Iterator[None]:
    process = cluster.processes[fault.targets[0]]
    process.limit_files(0)
    yield
    process.limit_files(None)


@contextmanager
def _cut(cluster: Cluster, fault: Fault) -> Iterator[None]:
    link, network = fault.targets[0], cluster.network
    if fault.kind is Kind.SLOW:
        network.slow(link, fault.amount)
    elif fault.kind is Kind.RESET:
        network.reset(link)
    elif fault.kind is Kind.LOSE_ANSWERS:
        network.lose_answers(link)
    else:
        network.cut(link, there=fault.amount != 2, back=fault.amount != 1)
    yield
    network.heal(link)


@contextmanager
def _jump(cluster: Cluster, fault: Fault) -> Iterator[None]:
    cluster.set_clock(fault.targets[0], fault.amount)
    yield
    cluster.set_clock(fault.targets[0], 0.0)


@contextmanager
def _kill_kafka(cluster: Cluster, fault: Fault) -> Iterator[None]:
    cluster.kafka.kill()
    yield
    for attempt in range(1, _KAFKA_STARTS + 1):
        try:
            cluster.kafka.start()
        except MachineError:
            if attempt == _KAFKA_STARTS:
                raise
        else:
            return


STRIKES: Mapping[Kind, Strike] = {
    Kind.KILL: _kill,
    Kind.LOSE_STORE: _kill,
    Kind.LOSE_EXECUTOR: _kill,
    Kind.SUSPEND: _suspend,
    Kind.USURP: _usurp,
    Kind.DRAIN: _drain,
    Kind.JOIN: _join,
    Kind.FULL_DISK: _fill_disk,
    Kind.CUT: _cut,
    Kind.SLOW: _cut,
    Kind.RESET: _cut,
    Kind.LOSE_ANSWERS: _cut,
    Kind.CLOCK_JUMP: _jump,
    Kind.KILL_KAFKA: _kill_kafka,
}


class Injector:
    """Strikes a cluster. `injected` has what was done, once it has ended."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        # What takes longer to come back than the schedule thought is not struck again before.
        self._targets: dict[str, threading.Lock] = defaultdict(threading.Lock)
        self._failed: list[BaseException] = []
        self.injected: list[Injected] = []

    def run(self, faults: Sequence[Fault], seconds: float, keep_pace: Callable[[float], None]) -> None:
        """Blocks until the time is over and the last fault has ended.

        Args:
            keep_pace: Called before each fault with its place among them, from 0 (the first) to 1 (the last). What it
                takes is added to the time of that fault and of all that follow.

        Raises:
            MachineError: What was struck could not be brought back, through no fault of Keyhole's (Kafka).
        """
        began = time.monotonic()
        threads = []
        for number, fault in enumerate(faults):
            _sleep_until(began + fault.at_seconds)
            due = time.monotonic()
            keep_pace(number / max(1, len(faults) - 1))
            began += time.monotonic() - due
            thread = threading.Thread(target=self._strike, args=(fault,), name=f"fault-{fault.kind}", daemon=True)
            thread.start()
            threads.append(thread)
        _sleep_until(began + seconds)
        for thread in threads:
            thread.join()
        if self._failed:
            raise self._failed[0]

    def _strike(self, fault: Fault) -> None:
        with contextlib.ExitStack() as held:
            for target in sorted(fault.targets):
                held.enter_context(self._targets[target])
            self._strike_held(fault)

    def _strike_held(self, fault: Fault) -> None:
        began = time.monotonic()
        detail = f"{fault.amount:g}" if fault.amount else ""
        try:
            with STRIKES[fault.kind](self._cluster, fault):
                time.sleep(fault.seconds)
        except MachineError as error:
            # A server that was started beside other faults may not come up at once: the watch tries again.
            detail = f"{detail} {error.message}".strip()
            if fault.kind is Kind.KILL_KAFKA:
                self._failed.append(error)
        except BaseException as error:
            self._failed.append(error)
            raise
        ended = time.monotonic()
        with self._lock:
            self.injected.append(
                Injected(fault.kind, fault.targets, began, ended, detail, harmless=_harmless(fault, self._cluster))
            )


def _harmless(fault: Fault, cluster: Cluster) -> bool:
    """Whether every key group has a copy that readers can reach, were there no other fault."""
    on_readers_way = {"proxy", "readers>proxy"} & set(fault.targets)
    return not on_readers_way and len(set(fault.targets) & set(cluster.servers)) <= cluster.plan.standbys


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))
