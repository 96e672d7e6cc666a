"""The reconcile loop's calls to the state servers, each to all of them at once, with their errors sorted.

A server that has just come, and refuses what it is given, is left out until it is restarted; every other error is the
caller's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from keyhole.clock import Clock
from keyhole.coordinator.fleet import Fleet
from keyhole.coordinator.server_link import Confirmed, ServerShare
from keyhole.errors import ConflictError, EpochFailed, KeyholeError, RequestError, ServerLost
from keyhole.model.epoch import Run
from keyhole.model.epoch_times import EpochTimes
from keyhole.model.state import StateDescriptor
from keyhole.protocol.control import AssignmentRecord, CompleteRecord, GrantRecord
from keyhole.protocol.membership import Held, Member, Membership, Sighting, all_followed, all_owned, takers
from keyhole.protocol.plan import Needs
from keyhole.protocol.receipts import Target
from keyhole.rpc.convert_epochs import epoch_times_to_proto

_log = logging.getLogger(__name__)

_RESTORE_WAIT_SECONDS = 2.0


class Desired(NamedTuple):
    """What the servers are to hold, and of which run."""

    run: Run
    descriptors: Mapping[str, StateDescriptor]
    needs: Mapping[str, Needs]
    complete: CompleteRecord | None


class ServerCalls:
    """See the module's text. Not thread-safe but for `confirm`.

    Each call takes `newcomers`, the servers without whom the query was well. Where one of them refuses it raises
    ServerLost, and leaves it out; where another server failed it raises what that one said.
    """

    def __init__(self, query: str, fleet: Fleet, clock: Clock) -> None:
        self._query = query
        self._fleet = fleet
        self._clock = clock
        # By server, the incarnation that has refused what it was given, and owned nothing.
        self._left_out: dict[str, str] = {}

    def look(self) -> Mapping[str, Sighting]:
        """The servers that answer now, by id, but for those left out, unless there are no others. See Fleet."""
        seen = self._fleet.observe()
        wanted = {name: of for name, of in seen.items() if self._left_out.get(name) != of.target.incarnation}
        return wanted if takers(wanted) else seen

    def confirm(
        self,
        run: Run,
        membership: Membership,
        complete: CompleteRecord | None,
        able: Collection[str],
        recent: Sequence[EpochTimes],
    ) -> dict[str, Held]:
        """Renews the members' leases. Returns those that confirm it, and which of their copies are warm. Any thread.

        Args:
            able: The servers that could take over from one that is about to end.
            recent: What the last epochs took, which all of them are sent.
        """
        recent_times = [epoch_times_to_proto(times) for times in recent]
        version = membership.assignment.version
        calls = {}
        could = frozenset(able)
        for name, member in membership.members.items():
            link = self._fleet.link(member.target)
            alone = could <= {name}
            calls[name] = link, partial(link.confirm, run, version, complete, alone=alone, epochs=recent_times)
        answers = self._fleet.ask("Confirm", calls)
        return {
            name: answer.warm
            for name, answer in answers.items()
            if isinstance(answer, Confirmed) and answer.incarnation == membership.members[name].target.incarnation
        }

    def open_run(
        self,
        run: Run,
        granted: Mapping[str, GrantRecord],
        targets: Mapping[str, Target],
        timeout: float,
        newcomers: Mapping[str, Sighting],
    ) -> None:
        """Lets servers take their grants."""
        links = {name: self._fleet.link(targets[name]) for name in granted}
        self._all(
            {
                name: partial(links[name].open_run, run, targets[name], grant.grant, timeout)
                for name, grant in granted.items()
            },
            newcomers,
        )

    def release(
        self,
        run: Run,
        membership: Membership,
        release: Mapping[str, Mapping[str, Sequence[int]]],
        timeout: float,
        newcomers: Mapping[str, Sighting],
    ) -> None:
        """Lets members give key groups up, by server and state; each answers once nothing of them is in flight."""

        def give_up(name: str) -> None:
            link = self._fleet.link(membership.members[name].target)
            for state, groups in release[name].items():
                link.release(run, state, groups, membership.assignment.version, timeout)

        self._all({name: partial(give_up, name) for name in release}, newcomers)

    def assign(
        self,
        desired: Desired,
        members: Mapping[str, Member],
        assignment: AssignmentRecord,
        deadline_monotonic: float,
        newcomers: Mapping[str, Sighting],
    ) -> None:
        """Gives the members their key groups; returns when all are ready.

        Raises:
            EpochFailed: One has not restored what it owns by the deadline.
        """

        owned, followed = all_owned(assignment), all_followed(assignment)

        def give(member: Member) -> None:
            server = member.target.server
            states = [
                ServerShare(descriptor, owned.get((server, name), ()), sorted(followed.get((server, name), ())))
                for name, descriptor in desired.descriptors.items()
            ]
            link = self._fleet.link(member.target)
            while True:
                # No longer than the deadline: a heartbeat that waits renews no leases.
                wait = max(0.0, min(_RESTORE_WAIT_SECONDS, deadline_monotonic - self._clock.monotonic()))
                ready, restored, total = link.assign(desired.run, assignment.version, states, desired.complete, wait)
                if ready:
                    return
                _log.info(
                    "waiting for a restore",
                    extra={"server": server, "restored": restored, "records": total},
                )
                if self._clock.monotonic() > deadline_monotonic:
                    raise EpochFailed(
                        f"server {server} has restored {restored} of {total} changelog records; "
                        "give epochs a longer deadline (KEYHOLE_JOB_EPOCH_DEADLINE_SECONDS)"
                    )

        self._all({name: partial(give, member) for name, member in members.items()}, newcomers)

    def _all(self, calls: Mapping[str, Callable[[], None]], newcomers: Mapping[str, Sighting]) -> None:
        """Raises what kept one of them from it. ServerLost: one that has just come, and is left out from now on."""
        failed = {name: of for name, of in self._fleet.each(calls).items() if isinstance(of, KeyholeError)}
        # No waiting makes them take what they are given.
        refused = {
            name: of
            for name, of in failed.items()
            if isinstance(of, (ConflictError, RequestError)) and name in newcomers
        }
        for name, error in refused.items():
            self._left_out[name] = newcomers[name].target.incarnation
            _log.warning(
                "a server that has come refuses what it is given: it is left out until it is restarted",
                extra={"query": self._query, "server": name, "why": error.message},
            )
        for name in failed.keys() - refused.keys():
            raise failed[name]
        for name, error in refused.items():
            raise ServerLost(f"server {name} is left out: {error.message}")
