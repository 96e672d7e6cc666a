"""The control topic of an application."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing, suppress

from keyhole.backoff import Backoff
from keyhole.changelog.kafka.admin import Topics
from keyhole.changelog.kafka.clients import Deadline, unreachable
from keyhole.changelog.kafka.offsets import TopicOffsets
from keyhole.changelog.kafka.reader import CommittedLog
from keyhole.changelog.kafka.transactions import PartitionAppend, Transactions
from keyhole.changelog.settings import (
    CONTROL,
    CONTROL_TRANSACTION_MOST_SECONDS,
    CONTROL_TRANSACTION_TIMEOUT_MS,
    topic_name,
    transactional_id,
)
from keyhole.errors import KafkaUnreachable

_PARTITION = 0
_FIRST_RETRY_SECONDS, _MOST_RETRY_SECONDS = 0.01, 0.5


class KafkaControlLog:
    """ControlLog on one compacted partition, under the transactional.id of the query's coordinator."""

    def __init__(self, bootstrap_servers: str, application: str, query: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._topic = topic_name(application, CONTROL)
        self._log = CommittedLog(bootstrap_servers)
        self._transactions = Transactions(
            bootstrap_servers, transactional_id(application, query), CONTROL_TRANSACTION_TIMEOUT_MS
        )
        self._appended_offset = -1

    def open(self, deadline_seconds: float) -> None:
        deadline = Deadline(deadline_seconds)
        with closing(Topics(self._bootstrap_servers)) as topics:
            topics.ensure(self._topic, 1, deadline)
        self._transactions.open(deadline.left)

    def read(self, deadline_seconds: float) -> Mapping[str, bytes]:
        return self._read(self._appended_offset + 1, Deadline(deadline_seconds))

    def read_decided(self, deadline_seconds: float) -> Mapping[str, bytes]:
        deadline = Deadline(deadline_seconds)
        part = (self._topic, _PARTITION)
        self._log.ends([part], deadline.left)  # which says so where the topic doesn't exist
        with closing(TopicOffsets(self._bootstrap_servers)) as offsets:
            # Also of transactions that are open: what is committed ends before the first of them.
            written = offsets.ends({self._topic: [_PARTITION]}, deadline.left)
        return self._read(written.get(part, 0), deadline)

    def _read(self, least_end: int, deadline: Deadline) -> Mapping[str, bytes]:
        part = (self._topic, _PARTITION)
        end = self._end(least_end, deadline)
        latest: dict[str, bytes] = {}
        for run in self._log.read({part: (0, end)}, deadline.left):
            for message in run.records:
                name, value = message.key(), message.value()
                assert isinstance(name, bytes)
                if value is None:
                    latest.pop(name.decode(), None)
                else:
                    assert isinstance(value, bytes)
                    latest[name.decode()] = value
        return latest

    def append(self, records: Mapping[str, bytes | None], deadline_seconds: float) -> None:
        encoded = [(name.encode(), value) for name, value in records.items()]
        batches = [PartitionAppend(self._topic, _PARTITION, encoded[:-1], encoded[-1])] if encoded else []
        for offset in self._transactions.write(batches, deadline_seconds):
            self._appended_offset = offset

    def _end(self, least: int, deadline: Deadline) -> int:
        """The end, once it is as far as that: Kafka answers a commit before readers see it."""
        part = (self._topic, _PARTITION)
        end = self._log.ends([part], deadline.left)[part]
        backoff = Backoff(_FIRST_RETRY_SECONDS, _MOST_RETRY_SECONDS)
        while end < least:
            if deadline.passed:
                why = (
                    "what was written last is not readable: a transaction, begun before it, is still open, because a "
                    "driver died in it, or was suspended. Kafka ends it at most "
                    f"{CONTROL_TRANSACTION_MOST_SECONDS} s after it began: start the query again then. If that doesn't "
                    "help, see docs/changelog.md"
                )
                raise unreachable(self._bootstrap_servers, f"complete a transaction on {self._topic}", why)
            time.sleep(backoff.next())
            with suppress(KafkaUnreachable):  # at the deadline, or shortly away: what is waited for is in the error
                end = self._log.ends([part], deadline.left)[part]
        return end

    def close(self) -> None:
        self._transactions.close()
