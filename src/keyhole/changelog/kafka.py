"""The changelog on Kafka: puts writer, reader, admin and control log together."""

from __future__ import annotations

from keyhole.changelog.admin import KafkaAdmin
from keyhole.changelog.control import KafkaControlLog
from keyhole.changelog.reader import KafkaReader
from keyhole.changelog.transactions import Transactions
from keyhole.changelog.writer import KafkaWriter


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
