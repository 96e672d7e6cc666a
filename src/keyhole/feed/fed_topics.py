"""What a feeder reads and writes: the topic that is fed, the one that it is fed into, the dead letters, and the lease.

On Kafka they are in keyhole.feed.kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from keyhole.feed.positions import SourceDescription
from keyhole.feed.rows import SourceRecord

Done = Callable[[], None]


class SourceTopic(Protocol):
    """The topic that is fed. One thread."""

    def describe(self) -> SourceDescription:
        """As it is now. Raises KeyholeError: there is none, or it can't be known."""

    def look(self) -> tuple[str, int]:
        """Its id, and how many partitions it has. Cheaper than `describe`."""

    def read_from(self, positions: Mapping[int, int]) -> None:
        """These partitions are read from there on, beside those that are read already."""

    def poll(self, seconds: float) -> Sequence[SourceRecord]:
        """The next records, each partition's in its order; none, where none comes in that time.

        Raises:
            ChangelogRecreated: The next one of a partition was deleted.
        """


class UpdatesTopic(Protocol):
    """The topic that is fed into. One thread, on which `done` is called too, within `poll`."""

    @property
    def topic_id(self) -> str:
        """Kafka's id of it when it was opened."""

    def look(self) -> str:
        """Its id now: another one, if it was made anew. What is sent goes by its name, and so to that one.

        Raises KeyholeError: there is none any more, or it can't be known.
        """

    @property
    def partitions(self) -> int:
        """As many as the state has key groups."""

    @property
    def most_bytes(self) -> int:
        """A record's value can't be larger."""

    def bounds(self, partition: int) -> tuple[int, int]:
        """The first offset that is there, and the one behind the last."""

    def read(self, partition: int, start: int, end: int) -> Iterable[bytes | None]:
        """The values of the records between."""

    def send(self, partition: int, value: bytes, done: Done) -> None:
        """On its way; `done` once it is acknowledged. Records of a partition stand there in the order of these calls.

        Raises KeyholeError, here or in `poll`: one was not taken. None of this partition behind it is.
        """

    def poll(self, seconds: float) -> None:
        """Calls what is done; waits for that at most so long."""


class DeadLetterTopic(Protocol):
    """Where records go that can't be fed. The same thread, and the same way to say what is done, within `poll`."""

    def send(self, record: SourceRecord, reason: str, done: Done) -> None:
        """On its way, with the reason."""

    def poll(self, seconds: float) -> None:
        """See UpdatesTopic.poll: what is done is called within it."""


class FeederLease(Protocol):
    """At most one feeder of a topic into a state keeps it. It saves work, and tells whoever was started by mistake."""

    def take(self) -> None:
        """From now on it is ours."""

    def keep(self, ends: Mapping[int, int]) -> None:
        """Raises Fenced: somebody else has taken it. `ends`: up to where the source is fed, for people to see."""
