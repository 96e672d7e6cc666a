"""All that can refuse a start, looked at before it takes the query over from an earlier run.

Nobody is fenced by it, and nothing is made or recorded: where a start is refused the world is as it was, and a run that
is well goes on. docs/protocol.md, "Starting a run".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from keyhole.changelog.base import Changelog
from keyhole.clock import Clock
from keyhole.config import JobConfig
from keyhole.coordinator.fleet import Fleet
from keyhole.coordinator.new_states import look_for_another
from keyhole.coordinator.run import QueryRun
from keyhole.coordinator.topics import check_complete, check_rights, check_topic
from keyhole.coordinator.waiting import await_server
from keyhole.errors import ConflictError
from keyhole.model.state import StateDescriptor
from keyhole.protocol.control import QueryControl
from keyhole.protocol.epoch_of_batch import OnNewCheckpoint
from keyhole.protocol.start import Start

_Result = TypeVar("_Result")


def agreed(run: QueryRun, judge: Callable[[QueryControl], _Result]) -> _Result:
    """What is made of the records of the control topic, without taking the query over.

    Args:
        judge: Called once more where it refuses what was read at once: behind a transaction that is open, as that of a
            driver which died in it, records may be missing. Those that it lets through are judged again by whoever has
            taken the query.

    Raises:
        ConflictError: What `judge` raises of all that is on record.
        KafkaUnreachable: That can't be read.
    """
    try:
        return judge(run.known())
    except ConflictError:
        return judge(run.known(decided=True))


class Admission:
    """See the module's text.

    Args:
        run: Has not taken the query yet.
    """

    def __init__(
        self,
        config: JobConfig,
        query: str,
        changelog: Changelog,
        fleet: Fleet,
        run: QueryRun,
        clock: Clock,
        on_new_checkpoint: OnNewCheckpoint,
    ) -> None:
        self._config = config
        self._query = query
        self._changelog = changelog
        self._fleet = fleet
        self._run = run
        self._clock = clock
        self._on_new_checkpoint = on_new_checkpoint

    def check(self, decide: Callable[[QueryControl], Start]) -> None:
        """Returns once nothing is known that would refuse the start.

        Raises:
            ConflictError: What `decide` raises; topics, or servers, that are not as they must be.
            RequestError: The servers don't let it write.
            InvalidConfiguration: Kafka doesn't let it, or the servers.
            EpochFailed: No server takes a run; not before the epoch's deadline.
            KafkaUnreachable: Nobody could be asked.
        """
        states = self.check_records(decide)
        if await_server(self._config, self._query, states, self._fleet, self._clock):
            # Others have not stood still meanwhile.
            self.check_records(decide)

    def check_records(self, decide: Callable[[QueryControl], Start]) -> list[str]:
        """As `check`, of the records and the topics alone. Raises as it does, but for what servers say.

        Returns:
            The states of the query.
        """
        deadline = self._config.kafka_deadline_seconds
        control, start, kept = agreed(self._run, lambda control: self._known_topics(control, decide(control)))
        new = [of for of in start.states if of.state not in control.states]
        application = self._config.application
        check_rights(self._changelog, application, self._query, start, deadline, declares=bool(new))
        self._check_new(new)
        check_complete(self._changelog, control.complete, kept, self._clock, deadline)
        return [of.state for of in start.states]

    def _known_topics(self, control: QueryControl, start: Start) -> tuple[QueryControl, Start, list[str]]:
        """The states of which the topic on record is there, beside what was given."""
        known = [of for of in start.states if of.state in control.states]
        return control, start, [of.state for of in known if self._check_topic(of)]

    def _check_new(self, states: list[StateDescriptor]) -> None:
        try:
            for of in states:
                self._check_topic(of)
        except ConflictError:
            look_for_another(states, lambda: self._run.known().states, self._clock)
            raise

    def _check_topic(self, descriptor: StateDescriptor) -> bool:
        deadline = self._config.kafka_deadline_seconds
        return check_topic(self._changelog, descriptor, self._on_new_checkpoint, deadline)
