"""What all hosts of a server share: its settings, its clock, its store engine and its counters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from keyhole.clock import Clock
from keyhole.protocol.failpoints import StepObserver
from keyhole.stores.base import StoreEngine
from services.state_server.counts import ServerCounts
from services.state_server.read.table import Table
from services.state_server.replica.follower import Follower, MakeFollower
from services.state_server.replica.restore import AtOnce
from services.state_server.write.fed_room import FedRoom
from services.state_server.write.spill import StagingRoom


@dataclass(frozen=True)
class HostSettings:
    """What all hosts of a server share."""

    server: str
    incarnation: str
    engine: StoreEngine
    clock: Clock
    observer: StepObserver
    lease_seconds: float
    room: StagingRoom
    kafka_deadline_seconds: float
    restore_deadline_seconds: float
    # Called on the event loop whenever ownership or readiness has changed.
    changed: Callable[[], None]
    make_follower: MakeFollower = Follower
    # Updates are applied in the background; else whoever tests it calls OwnerLoop.step.
    feeds_by_itself: bool = True
    # Of all states that are fed by updates, whatever query they are of.
    fed_room: FedRoom = field(default_factory=lambda: FedRoom(512 << 20))
    at_once: AtOnce = field(default_factory=AtOnce)
    counts: ServerCounts = field(default_factory=ServerCounts)
    # Called on the event loop, in the same step, when what readers of a table are answered has changed and its copies
    # don't tell. It is opened, it has another descriptor, or its lease was confirmed.
    shown: Callable[[Table], None] = lambda table: None
