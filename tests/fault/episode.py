"""One episode: a cluster, a schedule of faults, readers, a rest, and what was seen of all that."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from keyhole.errors import KeyholeError
from keyhole.protocol.failpoints import Step
from tests.fault.cluster import Cluster, Machine, Plan
from tests.fault.copies import held_by, held_by_changelog
from tests.fault.history import OWNER, Contradiction, Dealt, Ended, EpochStep, Event, Held, History, Pinned
from tests.fault.inject import Injector
from tests.fault.processes import Watch
from tests.fault.readers import Readers
from tests.fault.schedule import Fault, Kind, schedule
from tests.fault.workload import BY_CLOCK, names

# Generous: a busy machine takes minutes to start Spark, and to run the first batch with a processor.
_FIRST_EPOCH_SECONDS = 600.0
_REST_SECONDS = 600.0
# A look at all of them takes a minute on a busy machine, and the next one must not be the last.
_COPIES_SECONDS = 300.0
# All steps so far are read each time.
_LOOK_SECONDS = 0.5

_decoder = msgspec.json.Decoder(EpochStep | Pinned | Dealt | Ended)


def run_episode(
    plan: Plan,
    faults: Sequence[Fault] | None,
    directory: Path,
    machine: Machine,
    enough: Callable[[History], bool] = lambda _: True,
) -> History:
    """Runs it from the first process to the last one's end.

    Args:
        faults: None: as `plan.seed` has them.
        enough: Told what has been seen so far, without copies. Epochs and reads go on until it agrees, and for ten
            minutes at the most: then the history is as it is.

    Raises:
        MachineError: The machine, or Kafka, not Keyhole.
        AssertionError: Not even the first epoch came to be, or too few under the faults.
    """
    cluster = Cluster(plan, directory, machine)
    events: list[Event] = []
    lock = threading.Lock()

    def note(event: Event) -> None:
        with lock:
            events.append(event)

    def seen(final: int) -> History:
        steps = [event for event in _steps(cluster) if not isinstance(event, Ended)]
        noted = [*steps, *injector.injected, *contradictions(cluster)]
        with lock:
            return History(plan.seed, final, plan.states, [*noted, *events])

    injector = Injector(cluster)
    watch = readers = None
    try:
        cluster.start()
        watch = Watch(list(cluster.processes.values()), note)
        if not _await(lambda: _complete(cluster) >= 1, _FIRST_EPOCH_SECONDS):
            raise AssertionError(f"no epoch was completed within {_FIRST_EPOCH_SECONDS:g} s; {events} {directory}")
        asked = (cluster.application, plan.states, plan.seed)
        readers = Readers(cluster.proxy, *asked, note, plan.reader_pause_seconds, plan.selected)
        faults = _schedule(plan, cluster) if faults is None else faults
        injector.run(faults, plan.seconds, _Pace(cluster).keep)
        _await(lambda: enough(seen(0)), _REST_SECONDS)
        final = _rest(cluster)
        readers.close()
        readers = None
        for held in _copies(cluster, final):
            note(held)
    finally:
        if readers is not None:
            readers.close()
        if watch is not None:
            watch.close()
        cluster.close()
    return seen(final)


class _Pace:
    """Lets faults come no faster than epochs, so that as many as the plan wants are completed under them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._before = 0

    def keep(self, place: float) -> None:
        """See Injector.run."""
        wanted = self._cluster.plan.epochs_under_faults
        if place == 0:
            self._before = _complete(self._cluster)
        if not _await(lambda: _complete(self._cluster) >= self._before + int(place * wanted), _REST_SECONDS):
            completed = _complete(self._cluster) - self._before
            raise AssertionError(
                f"{completed} epochs were completed under faults, and then none within {_REST_SECONDS:g} s: an episode "
                f"is evidence from {wanted} on"
            )


def _schedule(plan: Plan, cluster: Cluster) -> list[Fault]:
    """Clocks don't jump where entries expire by them: nobody would know when."""
    without = {Kind.CLOCK_JUMP} if BY_CLOCK.keys() & set(plan.states) else set()
    return schedule(plan.seed, plan.seconds, cluster.targets, [of for of in plan.kinds if of not in without])


def _rest(cluster: Cluster) -> int:
    """Waits until epochs are completed again, and then until none is under way. Returns the last one; -1: never."""
    wanted = max(_complete(cluster) + 2, cluster.plan.epochs)
    if not _await(lambda: _complete(cluster) >= wanted, _REST_SECONDS):
        return -1
    cluster.pause_driver()
    driver = cluster.processes["driver"]
    if not _await(lambda: cluster.paused_driver() == driver.pid, _REST_SECONDS):
        return -1
    return _complete(cluster)


def _copies(cluster: Cluster, final: int) -> list[Held]:
    """Everyone's copies, once all are at the last epoch, or after a while as they are.

    Servers are asked one after the other, and the driver goes on handing key groups over to those that came back: a
    look in the middle of that may find a key group with two owners, or with none, and another is taken.
    """
    if final < 0:
        return []
    until = time.monotonic() + _COPIES_SECONDS
    while True:
        late = time.monotonic() > until
        try:
            held = list(ask_all(cluster))
        except KeyholeError:
            if late:
                raise
            held = []
        states = cluster.plan.states
        owned_once = _owners(held) == Counter((state, key) for state in states for key in names(state))
        if late or (all(copy.epoch == final for copy in held) and owned_once):
            return held + list(held_by_changelog(cluster.kafka.bootstrap_servers, cluster.application, states, final))
        time.sleep(0.5)


def _owners(held: Sequence[Held]) -> Counter[tuple[str, str]]:
    """How many have each key of each state as its owner."""
    return Counter((copy.state, key) for copy in held if copy.role == OWNER for key in copy.rows)


def ask_all(cluster: Cluster) -> Iterator[Held]:
    for holder in (*cluster.servers, *cluster.replicas):
        yield from held_by(holder, cluster.address(holder), cluster.application, cluster.plan.states)


def _complete(cluster: Cluster) -> int:
    """The last epoch that is complete of all states."""
    last = dict.fromkeys(cluster.plan.states, 0)
    for event in _steps(cluster):
        if isinstance(event, EpochStep) and event.step == Step.DRIVER_COMPLETE:
            last |= {state: max(last[state], event.epoch) for state in event.states}
    return min(last.values())


def _steps(cluster: Cluster) -> list[EpochStep | Pinned | Dealt | Ended]:
    if not cluster.steps.exists():
        return []
    # A driver that was killed may have left half a line.
    whole, _, _ = cluster.steps.read_bytes().rpartition(b"\n")
    found = []
    for line in whole.splitlines():
        try:
            found.append(_decoder.decode(line))
        except msgspec.MsgspecError:
            continue
    return found


def contradictions(cluster: Cluster) -> list[Contradiction]:
    """What servers have noted. A killed one may have left half a line."""
    assert len(cluster.watched) >= cluster.plan.servers, "no server has watched its key groups"
    lines = [line for file in cluster.watched for line in file.read_bytes().splitlines() if line.endswith(b"}")]
    return [msgspec.json.decode(line, type=Contradiction) for line in lines]


def _await(done: Callable[[], bool], timeout_seconds: float) -> bool:
    """Whether it came true in time. Looks take a fifth of it at the most: readers are threads of this process."""
    until = time.monotonic() + timeout_seconds
    while (began := time.monotonic()) < until:
        if done():
            return True
        time.sleep(max(_LOOK_SECONDS, 4 * (time.monotonic() - began)))
    return False
