"""Writes epochs into changelog topics of Kafka, each in one transaction: all of its records are read, or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from keyhole.changelog.base import Partition, PartitionChanges
from keyhole.changelog.kafka.transactions import PartitionAppend, Transactions
from keyhole.changelog.records import MARKER_KEY, encode_marker
from keyhole.changelog.settings import topic_name


class KafkaWriter:
    """ChangelogWriter on transactions whose id is the grant."""

    def __init__(self, application: str, transactions: Transactions) -> None:
        self._application = application
        self._transactions = transactions

    def open(self, deadline_seconds: float) -> None:
        self._transactions.open(deadline_seconds)

    def commit(self, epoch: Sequence[PartitionChanges], deadline_seconds: float) -> Mapping[Partition, int]:
        offsets = self._transactions.write([self._appending(changed) for changed in epoch], deadline_seconds)
        return {changed.partition: offset for changed, offset in zip(epoch, offsets, strict=True)}

    def close(self) -> None:
        self._transactions.close()

    def _appending(self, changed: PartitionChanges) -> PartitionAppend:
        state, key_group = changed.partition
        # The marker is the last record of the epoch in its partition: whoever has read it has read them all.
        marker = MARKER_KEY, encode_marker(changed.marker)
        return PartitionAppend(topic_name(self._application, state), key_group, changed.changes, marker)
