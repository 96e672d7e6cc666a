"""Records that go to every partition of an updates topic, as boundaries and ends of topics do."""

from __future__ import annotations

from keyhole.clock import Clock
from keyhole.errors import KafkaUnreachable
from keyhole.feed.fed_topics import UpdatesTopic
from keyhole.protocol.updates import Record, encode

WRITE_SECONDS = 30.0
_WAIT_SECONDS = 0.1


class WholeTopic:
    """Writes to all partitions, and knows how many have not acknowledged it. One thread, as the topic has.

    Attributes:
        unwritten: Sends that wait for their acknowledgement.
    """

    def __init__(self, updates: UpdatesTopic, clock: Clock) -> None:
        self._updates = updates
        self._clock = clock
        self.unwritten = 0

    def write(self, record: Record) -> None:
        """On its way to each. Raises as UpdatesTopic.send."""
        value = encode(record)
        self.unwritten += self._updates.partitions
        for partition in range(self._updates.partitions):
            self._updates.send(partition, value, self._written)

    def wait(self, what: str) -> None:
        """Returns once all that was written is acknowledged.

        Args:
            what: Was written, as in "a boundary of topic orders".

        Raises:
            KafkaUnreachable: Kafka has not taken it within 30 s: it answers and takes nothing where replicas lack.
            KeyholeError: As UpdatesTopic.poll.
        """
        until = self._clock.monotonic() + WRITE_SECONDS
        while self.unwritten:
            if self._clock.monotonic() >= until:
                raise KafkaUnreachable(
                    f"Kafka has not taken {what} within {WRITE_SECONDS:g} s in all partitions of the updates topic "
                    f"({self.unwritten} lack): has it the replicas that it needs?"
                )
            self._updates.poll(_WAIT_SECONDS)

    def _written(self) -> None:
        self.unwritten -= 1
