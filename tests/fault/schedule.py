"""Which faults happen when, as a function of a seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What can go wrong. The values stand in histories and summaries."""

    KILL = "kill"  # SIGKILL, and a restart after a while
    SUSPEND = "suspend"  # SIGSTOP, and SIGCONT after a while
    USURP = "usurp"  # the driver is suspended, another one is started, and then the first one wakes
    DRAIN = "drain"  # SIGTERM, and a new start after a while
    JOIN = "join"  # a server more, for a while
    LOSE_STORE = "lose_store"  # killed, its directory deleted, restarted
    FULL_DISK = "full_disk"  # every write to a file fails
    CUT = "cut"  # nothing passes a link, in one direction or both
    SLOW = "slow"  # everything that passes a link takes longer
    RESET = "reset"  # a link's connections break
    LOSE_ANSWERS = "lose_answers"  # what is asked gets through a link; in place of its answer the connection breaks
    LOSE_EXECUTOR = "lose_executor"  # one of Spark's executors is killed together with a server
    CLOCK_JUMP = "clock_jump"  # a process's wall clock goes wrong, and right again
    KILL_KAFKA = "kill_kafka"  # SIGKILL to the broker, and a restart


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong.

    Attributes:
        at_seconds: After the episode's beginning.
        targets: Processes, or links.
        seconds: How long it lasts, apart from what a restart takes.
        amount: CLOCK_JUMP: seconds; SLOW: seconds; CUT: 0 both ways, 1 there, 2 back.
    """

    at_seconds: float
    kind: Kind
    targets: tuple[str, ...]
    seconds: float
    amount: float = 0.0


@dataclass(frozen=True)
class Targets:
    """What there is. `spare`: a server that is not started at first; `executors`: whether Spark has some."""

    servers: tuple[str, ...]
    replicas: tuple[str, ...]
    spare: str
    links: tuple[str, ...]
    driver: str = "driver"
    proxy: str = "proxy"
    kafka: str = "kafka"
    executors: bool = False


_WEIGHTS: Mapping[Kind, int] = {
    Kind.KILL: 12,
    Kind.SUSPEND: 8,
    Kind.USURP: 3,
    Kind.DRAIN: 5,
    Kind.JOIN: 3,
    Kind.LOSE_STORE: 3,
    Kind.FULL_DISK: 3,
    Kind.LOSE_EXECUTOR: 10,
    Kind.CUT: 8,
    Kind.SLOW: 3,
    Kind.RESET: 3,
    Kind.LOSE_ANSWERS: 4,
    Kind.CLOCK_JUMP: 4,
    Kind.KILL_KAFKA: 2,
}
# Longer than a lease, and shorter; a broker's restart and a driver's take several seconds by themselves.
_SHORT, _LONG = (0.2, 2.5), (3.5, 9.0)


def schedule(seed: int, seconds: float, targets: Targets, kinds: Sequence[Kind] = tuple(Kind)) -> list[Fault]:
    """A random schedule; the same for the same arguments. At most two faults at a time, never two on one target."""
    draw = random.Random(f"schedule {seed}")
    kinds = [kind for kind in kinds if targets.executors or kind is not Kind.LOSE_EXECUTOR]
    faults: list[Fault] = []
    at = draw.uniform(1.0, 4.0)
    while at < seconds:
        fault = _fault(draw, at, targets, kinds)
        others = [other for other in faults if _overlap(other, fault)]
        if len(others) < 2 and not any(set(_touched(other)) & set(_touched(fault)) for other in others):
            faults.append(fault)
        # Mostly one after the other's end; sometimes right into it.
        at += draw.choice((draw.uniform(0.1, 1.5), draw.uniform(2.0, 6.0), draw.uniform(3.0, 10.0)))
    return faults


def _fault(draw: random.Random, at: float, targets: Targets, kinds: Sequence[Kind]) -> Fault:
    kind = draw.choices(kinds, [_WEIGHTS[kind] for kind in kinds])[0]
    seconds = draw.uniform(*draw.choice((_SHORT, _LONG)))
    server = draw.choice(targets.servers)
    processes = (*targets.servers, *targets.servers, *targets.replicas, targets.driver, targets.driver, targets.proxy)
    match kind:
        case Kind.KILL:
            return Fault(at, kind, (draw.choice(processes),), draw.uniform(0.0, 5.0))
        case Kind.SUSPEND:
            both = (targets.driver, *draw.sample(targets.servers, draw.randint(1, len(targets.servers))))
            return Fault(at, kind, draw.choice(((draw.choice(processes),), both)), seconds)
        case Kind.USURP:
            return Fault(at, kind, (targets.driver,), draw.uniform(*_LONG))
        case Kind.DRAIN | Kind.LOSE_STORE | Kind.FULL_DISK | Kind.LOSE_EXECUTOR:
            return Fault(at, kind, (server,), seconds)
        case Kind.JOIN:
            return Fault(at, kind, (targets.spare,), draw.uniform(8.0, 20.0))
        case Kind.CUT:
            return Fault(at, kind, (draw.choice(targets.links),), seconds, float(draw.choice((0, 0, 1, 2))))
        case Kind.SLOW:
            return Fault(at, kind, (draw.choice(targets.links),), seconds, draw.uniform(0.01, 0.2))
        case Kind.RESET:
            return Fault(at, kind, (draw.choice(targets.links),), 0.0)
        case Kind.LOSE_ANSWERS:
            return Fault(at, kind, (draw.choice(targets.links),), draw.uniform(*_LONG))
        case Kind.CLOCK_JUMP:
            who = draw.choice((*targets.servers, *targets.replicas, targets.driver))
            return Fault(at, kind, (who,), seconds, draw.choice((-1, 1)) * 10 ** draw.uniform(0, 5))
        case Kind.KILL_KAFKA:
            return Fault(at, kind, (targets.kafka,), draw.uniform(0.0, 4.0))


def _overlap(one: Fault, other: Fault) -> bool:
    return one.at_seconds <= other.at_seconds + _lasts(other) and other.at_seconds <= one.at_seconds + _lasts(one)


def _lasts(fault: Fault) -> float:
    """About, with what it takes to come back."""
    restart = {
        Kind.KILL: 3.0,
        Kind.DRAIN: 8.0,
        Kind.LOSE_STORE: 3.0,
        Kind.LOSE_EXECUTOR: 6.0,
        Kind.USURP: 3.0,
        Kind.KILL_KAFKA: 12.0,
    }
    return fault.seconds + restart.get(fault.kind, 0.5)


def _touched(fault: Fault) -> tuple[str, ...]:
    """The targets, for a link also its ends: a process that is killed while it is cut off tells little."""
    return tuple(part for target in fault.targets for part in target.split(">"))
