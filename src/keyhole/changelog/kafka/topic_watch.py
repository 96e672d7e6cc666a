"""Notices that a topic was deleted or made anew: a consumer would wait for its return, or go on in the new one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from types import MappingProxyType

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import TopicDescription

from keyhole.changelog.kafka.absences import APART_SECONDS, Absences
from keyhole.changelog.kafka.admin_client import Admin, answer
from keyhole.changelog.kafka.clients import error_of

_EVERY_SECONDS = APART_SECONDS
_REQUEST_SECONDS = 5.0


class TopicWatch:
    """Looks now and then, and never waits for an answer. One thread at a time.

    Args:
        ids: By topic, what it must be, where that is known; of others the first look counts.
    """

    def __init__(self, bootstrap_servers: str, ids: Mapping[str, str] = MappingProxyType({})) -> None:
        self._admin = Admin(bootstrap_servers)
        self._known = ids
        self._ids: dict[str, str] = {}
        self._absences = Absences()
        self._asked: dict[str, Future[TopicDescription]] = {}
        self._asked_monotonic = float("-inf")

    def lost(self, topics: Iterable[str]) -> list[str]:
        """Those of them that are gone, or are not those they were when first looked at, or must be.

        Each is returned once. One that was never there is not lost.
        """
        wanted = set(topics)
        self._ids.update((topic, found) for topic, found in self._known.items() if topic in wanted)
        for topic in self._ids.keys() - wanted:
            self._forget(topic)
        if self._asked:
            return self._answered() if all(future.done() for future in self._asked.values()) else []
        if wanted and time.monotonic() - self._asked_monotonic >= _EVERY_SECONDS:
            self._asked_monotonic = time.monotonic()
            self._asked = self._admin.client.describe_topics(
                TopicCollection(sorted(wanted)), request_timeout=_REQUEST_SECONDS
            )
        return []

    def close(self) -> None:
        self._admin.close()

    def _answered(self) -> list[str]:
        asked, self._asked = self._asked, {}
        lost = [topic for topic, future in asked.items() if self._is_lost(topic, future)]
        for topic in lost:
            self._forget(topic)
        return lost

    def _is_lost(self, topic: str, future: Future[TopicDescription]) -> bool:
        try:
            found = str(answer(future).topic_id)
        except KafkaException as exception:
            absent = error_of(exception).code() == KafkaError.UNKNOWN_TOPIC_OR_PART and topic in self._ids
            return absent and self._absences.is_gone(topic, self._asked_monotonic)
        self._absences.found(topic)
        return self._ids.setdefault(topic, found) != found

    def _forget(self, topic: str) -> None:
        self._ids.pop(topic, None)
        self._absences.found(topic)
