"""Waiting for state servers: what is logged of it meanwhile, and when it is given up."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from keyhole.clock import Clock
from keyhole.config import JobConfig
from keyhole.coordinator.fleet import Fleet
from keyhole.errors import EpochFailed, KeyholeError, NoServer
from keyhole.protocol.membership import Sighting, takers_of_runs

_log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.25
_PROGRESS_SECONDS = 5.0


class Waiting:
    """One wait, which begins when this is made.

    Args:
        consequence: Of its going on, for the log; empty: the query ends at the deadline.
    """

    def __init__(
        self,
        config: JobConfig,
        query: str,
        fleet: Fleet,
        clock: Clock,
        deadline_monotonic: float,
        consequence: str = "",
    ) -> None:
        self._config = config
        self._query = query
        self._fleet = fleet
        self._clock = clock
        self._deadline = deadline_monotonic
        self._consequence = consequence
        self._told = clock.monotonic()

    def go_on(self, seen: Mapping[str, Sighting], waiting_for: KeyholeError | None) -> None:
        """Returns when it is time to look once more. Now and then the wait is logged.

        Args:
            seen: The servers that answer now.
            waiting_for: Why that is not enough; None: others may come.

        Raises:
            EpochFailed: The deadline has passed.
        """
        reason = waiting_for.message if waiting_for else self._incomplete(seen)
        self._tell(reason, seen)
        if self._clock.monotonic() > self._deadline:
            raise EpochFailed(f"gave up waiting for the state servers: {reason}") from waiting_for
        self._clock.sleep(_RETRY_SECONDS)

    def nobody(self, seen: Mapping[str, Sighting]) -> NoServer:
        """What is waited for where none of those that answer can be given anything."""
        known = self._fleet.addresses()
        if seen:
            return NoServer(
                f"{', '.join(sorted(seen))} are shutting down, or are replicas, and no other state server answers at "
                f"{', '.join(known)}"
            )
        if known:
            return NoServer(f"no state server answers at {', '.join(known)}")
        return NoServer(
            f"no state server was found yet (KEYHOLE_JOB_SERVERS={','.join(self._config.servers)}): executors with a "
            "state server beside them, or replicas, have not started, or have other labels or another name"
        )

    def _incomplete(self, seen: Mapping[str, Sighting]) -> str:
        known = self._fleet.addresses()
        return f"{len(seen)} of {len(known)} answers ({', '.join(sorted(seen))}), of those at {', '.join(known)}"

    def _tell(self, reason: str, seen: Mapping[str, Sighting]) -> None:
        now = self._clock.monotonic()
        if now - self._told < _PROGRESS_SECONDS:
            return
        self._told = now
        left = max(0, round(self._deadline - now))
        # Of a job that has set up no logging, people see warnings alone, and of these nothing but the text.
        _log.warning(
            "waiting for the state servers: %s; %s",
            reason,
            self._consequence or f"the query ends in {left} s if that stays so",
            extra={
                "query": self._query,
                "found": self._fleet.addresses(),
                "answering": sorted(seen),
                "seconds_left": left,
            },
        )


def await_server(config: JobConfig, query: str, states: Collection[str], fleet: Fleet, clock: Clock) -> bool:
    """Returns once a server answers that takes a run, and all who do let the application be written, and may write the
    query's states to Kafka.

    Returns:
        Whether it had to wait.

    Raises:
        ProtocolMismatch, Unauthenticated, PermissionDenied: Those that answer refuse this driver.
        InvalidConfiguration: Kafka refuses one of them.
        EpochFailed: None takes a run; not before the epoch's deadline.
    """
    waiting = Waiting(config, query, fleet, clock, clock.monotonic() + config.epoch_deadline_seconds)
    waited = False
    while True:
        seen = fleet.observe()
        able = takers_of_runs(seen)
        refusing = fleet.refusing(config.application, able, query, states) if able else fleet.refused.values()
        for refusal in refusing:
            raise refusal
        if able:
            return waited
        waiting.go_on(seen, waiting.nobody(seen))
        waited = True
