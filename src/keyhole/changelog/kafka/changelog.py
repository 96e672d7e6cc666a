"""The changelog on Kafka: puts readers, writers, followers and the rest together."""

from __future__ import annotations

from collections.abc import Mapping

from keyhole.changelog.kafka.admin import KafkaAdmin
from keyhole.changelog.kafka.control_log import KafkaControlLog
from keyhole.changelog.kafka.control_tail import KafkaControlTail
from keyhole.changelog.kafka.reader import KafkaReader
from keyhole.changelog.kafka.replica_group import KafkaReplicaGroup
from keyhole.changelog.kafka.tail import KafkaTail
from keyhole.changelog.kafka.transactions import Transactions
from keyhole.changelog.kafka.updates_tail import KafkaUpdatesTail
from keyhole.changelog.kafka.updates_topics import KafkaUpdatesTopics
from keyhole.changelog.kafka.writer import KafkaWriter


class KafkaChangelog:
    """Changelog (see base.py) of one application. Makes things; talks to nobody itself.

    Args:
        bootstrap_servers: host:port of some brokers, separated by commas.
    """

    def __init__(self, bootstrap_servers: str, application: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._application = application

    def writer(self, grant: str) -> KafkaWriter:
        return KafkaWriter(self._application, Transactions(self._bootstrap_servers, grant))

    def reader(self) -> KafkaReader:
        return KafkaReader(self._bootstrap_servers, self._application)

    def admin(self) -> KafkaAdmin:
        return KafkaAdmin(self._bootstrap_servers, self._application)

    def control(self, query: str) -> KafkaControlLog:
        return KafkaControlLog(self._bootstrap_servers, self._application, query)

    def tail(self) -> KafkaTail:
        return KafkaTail(self._bootstrap_servers, self._application)

    def control_tail(self) -> KafkaControlTail:
        return KafkaControlTail(self._bootstrap_servers, self._application)

    def updates_topics(self) -> KafkaUpdatesTopics:
        return KafkaUpdatesTopics(self._bootstrap_servers, self._application)

    def updates_tail(self, topic_ids: Mapping[str, str]) -> KafkaUpdatesTail:
        return KafkaUpdatesTail(self._bootstrap_servers, self._application, topic_ids)

    def replicas(self, group: str) -> KafkaReplicaGroup:
        return KafkaReplicaGroup(self._bootstrap_servers, self._application, group)
