"""The standby side of one query on this server: the copies that follow, and what they may be shown as.

A copy is shown once it has caught up for the first time. From then on every marker it reaches is a state that existed,
as long as the changelog is read before it is compacted. Where a copy has fallen further behind than that (its server
was suspended for long), the log has holes between the markers, and what was shown last stays until it has caught up.

Threads: coroutines run on the event loop; `_prepare`, `_take_in` and all of StateReplica on the host's thread.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple

from keyhole.changelog.base import Changelog, Partition, Reached, RestoredEpochs
from keyhole.changelog.settings import DELETE_RETENTION_MS, MIN_COMPACTION_LAG_MS
from keyhole.clock import Clock
from keyhole.model.epoch import Position
from keyhole.protocol.control import QueryControl
from keyhole.stores.base import Snapshot
from services.state_server.read.freshness import most_common, standings
from services.state_server.read.standing import Standing
from services.state_server.replica.ends_asking import FollowedUpdates
from services.state_server.replica.follower import Delivery, MakeFollower, Subscription
from services.state_server.replica.hosted import StateReplica
from services.state_server.replica.restore import drop_unusable
from services.state_server.replica.updates_ends import UpdatesEnds
from services.state_server.write.host_thread import HostThread

_log = logging.getLogger(__name__)


class StandbyView(NamedTuple):
    """The standby copy of a state as the host thread left it. Without a snapshot, what was shown stays."""

    state: StateReplica
    warm: frozenset[int]
    snapshot: Snapshot | None
    positions: Mapping[int, Position]


class TakenSubscription(NamedTuple):
    """What a subscription has made of a state, as the host thread left it.

    Attributes:
        shown: The key groups that the standby copy may answer for.
        view: None: what is shown is the same as before.
    """

    state: StateReplica
    shown: frozenset[int]
    view: StandbyView | None


class StandbyCopies:
    """See the module's text. Belongs to one QueryHost.

    Args:
        hosted: The host's states by name; the host adds and removes them.
        thread: The host's.
        heard: Is called with the query's records in the control topic, on the event loop, whenever they change.
        changed: Is called, on the event loop, when other key groups are shown, or have caught up.

    Attributes:
        ends: Of the updates of what is followed, where a state is fed by them.
    """

    def __init__(
        self,
        changelog: Changelog,
        query: str,
        hosted: Mapping[str, StateReplica],
        thread: HostThread,
        clock: Clock,
        heard: Callable[[QueryControl], Awaitable[None]],
        changed: Callable[[], None],
        make_follower: MakeFollower,
        kafka_deadline_seconds: float,
        *,
        asks_ends: bool = True,
    ) -> None:
        self._hosted = hosted
        self._thread = thread
        self._clock = clock
        self._heard = heard
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._subscription = Subscription(0, {})
        self._control: QueryControl | None = None
        self._told_ms, self._heard_monotonic = -1, 0.0
        self._shown: dict[str, tuple[Mapping[int, Position], Mapping[int, Standing]]] = {}
        self._follower = make_follower(changelog, query, self._prepare_from_follower, self._deliver, clock)
        self.ends = UpdatesEnds(changelog, query, clock, kafka_deadline_seconds, self._stand_fed, by_itself=asks_ends)
        self._closed = False
        # What the follower waits for: its delivery is taken in, or nothing is followed any more.
        self._go_on = threading.Event()

    def start(self) -> None:
        """Begins to follow the control topic."""
        self._follower.start()

    def wanted(self, state: str) -> frozenset[int]:
        """The key groups of a state that are followed."""
        return self._subscription.groups.get(state, frozenset())

    async def follow(
        self, groups: Mapping[str, frozenset[int]], at_once: Mapping[str, frozenset[int]] | None = None
    ) -> None:
        """Follows these key groups, and no others, from now on.

        Args:
            at_once: Those among them that this server owned until now: what they hold is a state that existed.
        """
        subscription = Subscription(
            self._subscription.number + 1, {state: wanted for state, wanted in groups.items() if wanted}
        )
        self._subscription = subscription
        taken = await self._thread.call_always(lambda: self._take_subscription(subscription, at_once or {}))
        self._show([of.view for of in taken if of.view is not None])
        for state, shown, _ in taken:
            name = state.descriptor.state
            if self._hosted.get(name) is state:
                state.table.given.follow(self.wanted(name), shown)
        self.ends.want(
            {
                name: FollowedUpdates(state.descriptor.updates_topic_id, self.wanted(name))
                for name, state in self._hosted.items()
                if state.descriptor.updates_topic_id
            }
        )
        self._follower.subscribe(subscription)

    def _take_subscription(
        self, subscription: Subscription, at_once: Mapping[str, frozenset[int]]
    ) -> list[TakenSubscription]:
        taken = []
        for name, state in self._hosted.items():
            wanted = subscription.groups.get(name, frozenset())
            others = state.groups.follow(wanted, state.table.given.assigned, at_once.get(name, frozenset()))
            taken.append(TakenSubscription(state, state.groups.shown, standby_view(state) if others else None))
        return taken

    def show_as_it_is(self, view: StandbyView) -> None:
        """What is followed of a state is shown as a view of now has it."""
        self._show([view])

    def told_within(self, seconds: float) -> bool:
        """Whether the query's driver has written to the control topic within that time, as far as is known."""
        return self._told_ms >= 0 and self._clock.monotonic() - self._heard_monotonic <= seconds

    def warm(self) -> dict[str, frozenset[int]]:
        """The key groups that have caught up, by state."""
        return {name: warm for name, state in self._hosted.items() if (warm := state.table.given.warm)}

    def _prepare_from_follower(
        self, number: int, ends: Mapping[Partition, int | None]
    ) -> Mapping[Partition, Position] | None:
        return None if self._closed else self._thread.submit(self._prepare, number, ends).result()

    def _prepare(self, number: int, ends: Mapping[Partition, int | None]) -> Mapping[Partition, Position] | None:
        if number != self._subscription.number or any(part.state not in self._hosted for part in ends):
            return None
        new = {part: end for part, end in ends.items() if end is not None}
        dropped = drop_unusable(self._hosted, new, self._clock.now_ms() - DELETE_RETENTION_MS // 2)
        for part in dropped:
            self._hosted[part.state].groups.fell_behind(part.key_group)
        return {part: self._hosted[part.state].position(part.key_group) for part in ends}

    def _deliver(self, delivery: Delivery) -> None:
        self._go_on.clear()
        taken = asyncio.run_coroutine_threadsafe(self._taken(delivery), self._loop)
        taken.add_done_callback(lambda _: self._go_on.set())
        if not self._closed:
            self._go_on.wait()
        if taken.done():
            taken.result()
        else:
            taken.cancel()

    async def _taken(self, delivery: Delivery) -> None:
        if self._closed:
            return
        if delivery.control is not None:
            await self._hear(delivery.control)
        if delivery.items:
            self._show(await self._thread.call_always(lambda: self._take_in(delivery)))

    def _take_in(self, delivery: Delivery) -> list[StandbyView]:
        if delivery.subscription != self._subscription.number:
            return []
        oldest_ms = self._clock.now_ms() - MIN_COMPACTION_LAG_MS // 2
        pieces: dict[str, list[RestoredEpochs]] = {}
        touched: dict[str, StateReplica] = {}
        for item in delivery.items:
            name, group = item.partition
            state = self._hosted.get(name)
            if state is None or not state.groups.is_followed(group):
                continue
            touched[name] = state
            if isinstance(item, Reached):
                state.groups.reached_the_end(group)
                continue
            pieces.setdefault(name, []).append(item)
            if item.marker is None or item.marker.stamp.commit_time_ms < oldest_ms:
                state.groups.fell_behind(group)
        for name, of in pieces.items():
            self._hosted[name].apply_pieces(of)
        return [standby_view(state) for state in touched.values()]

    async def _hear(self, control: QueryControl) -> None:
        self._control = control
        if control.complete is not None and control.complete.told_ms != self._told_ms:
            self._told_ms, self._heard_monotonic = control.complete.told_ms, self._clock.monotonic()
        for name, (positions, before) in self._shown.items():
            if name in self._hosted:
                self._stand(self._hosted[name], positions, before)
        await self._heard(control)

    def _show(self, views: Iterable[StandbyView]) -> None:
        different = False
        for view in views:
            name = view.state.descriptor.state
            table = view.state.table
            if self._hosted.get(name) is not view.state:
                if view.snapshot is not None:
                    view.snapshot.close()
                continue
            different |= table.given.caught_up(view.warm)
            if view.snapshot is None:
                continue
            _, before = self._shown.get(name, ({}, {}))
            groups = frozenset(view.positions)
            different |= groups != table.standby.groups
            table.standby.publish(view.snapshot, groups, table.standby.standing, {})
            self._stand(view.state, view.positions, before)
        if different:
            self._changed()

    def _stand(self, state: StateReplica, positions: Mapping[int, Position], before: Mapping[int, Standing]) -> None:
        name = state.descriptor.state
        if state.descriptor.updates_topic_id:
            found = {of: self.ends.standing(Partition(name, of), position) for of, position in positions.items()}
        else:
            complete = self._control.complete if self._control is not None else None
            found = standings(name, positions, complete, before, self._heard_monotonic)
        self._shown[name] = (positions, found)
        state.table.standby.stand(most_common(found), found)

    def _stand_fed(self) -> None:
        """More is known of where updates end."""
        for name, (positions, before) in self._shown.items():
            state = self._hosted.get(name)
            if state is not None and state.descriptor.updates_topic_id:
                self._stand(state, positions, before)

    def forget(self, state: str) -> None:
        """The state's store is being closed."""
        self._shown.pop(state, None)

    async def close(self) -> None:
        """Returns when nothing is followed any more."""
        self._closed = True
        self._go_on.set()
        self._follower.close()
        self.ends.close()
        await self._loop.run_in_executor(None, self._follower.join)
        await self._loop.run_in_executor(None, self.ends.join)


def standby_view(state: StateReplica) -> StandbyView:
    """What may be shown of the state now. Host thread."""
    groups = state.groups
    if not groups.settled:
        return StandbyView(state, groups.warm, None, {})
    positions = {group: state.position(group) for group in groups.shown}
    return StandbyView(state, groups.warm, state.store.snapshot(), positions)
