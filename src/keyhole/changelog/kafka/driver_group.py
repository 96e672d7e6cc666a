"""Which of several drivers of a job leads: a consumer group on the control topic, used for its membership alone.

    driver A   joins the group, gets the topic's only partition, starts its queries
    driver B   joins the group, gets nothing, and waits
    A dies     Kafka misses it after six seconds, and gives the partition to B; where A ends in order, at once

Nothing is as safe as the run's fencing token, which each start takes: two that lead at once do no harm, the newer one
fences the other.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from keyhole.changelog.kafka.admin import Topics
from keyhole.changelog.kafka.clients import Deadline, as_ours, error_of
from keyhole.changelog.kafka.group_members import member_settings, take_paused
from keyhole.changelog.settings import CONTROL, topic_name
from keyhole.errors import KeyholeError

_log = logging.getLogger(__name__)

SESSION_SECONDS = 6.0
"""A driver that dies is missed after so long: brokers take no less by default (`group.min.session.timeout.ms`)."""

_HEARTBEAT_SECONDS = 0.5
_POLL_SECONDS = 0.5
_LOOK_SECONDS = 0.2
_TOPIC_SECONDS = 30.0
_CLOSE_SECONDS = 5.0
_REFUSED = (
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    # Somebody else's group has this name, or the broker takes no session of six seconds: no wait would end.
    KafkaError.INCONSISTENT_GROUP_PROTOCOL,
    KafkaError.INVALID_GROUP_ID,
    KafkaError.INVALID_SESSION_TIMEOUT,
)


class KafkaDriverGroup:
    """See the module's text. A thread of its own is a member for as long as this is open.

    Args:
        group: The job's name among the application's: its drivers stand by for each other.
    """

    def __init__(self, bootstrap_servers: str, application: str, group: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._name = f"keyhole.{application}.{group}.drivers"
        self._topic = topic_name(application, CONTROL)
        self._leading = threading.Event()
        self._closed = threading.Event()
        self._failure: KeyholeError | None = None
        self._told: int | None = None
        self._thread = threading.Thread(target=self._run, name=f"keyhole-drivers-{group}", daemon=True)

    def join(self) -> None:
        """Becomes a member. Once.

        Raises:
            KafkaUnreachable: No broker answers.
            InvalidConfiguration: Kafka refuses this driver, or to make the control topic for it.
        """
        with contextlib.closing(Topics(self._bootstrap_servers)) as topics:
            topics.ensure(self._topic, 1, Deadline(_TOPIC_SECONDS))
        self._thread.start()

    def await_lead(self, given_up: Callable[[], bool], on_waiting: Callable[[], object]) -> bool:
        """Returns once this driver leads, or `given_up` says so: which of both.

        Args:
            given_up: Asked a few times a second.
            on_waiting: Called once, where another driver leads.

        Raises:
            InvalidConfiguration: Kafka refuses this driver as a member of the group.
            KafkaUnreachable: The group is left for another error; the message has it.
        """
        waited, tell = Deadline(SESSION_SECONDS), True
        while not self._leading.wait(_LOOK_SECONDS):
            if self._failure is not None:
                raise self._failure
            if given_up():
                return False
            # An empty group takes its time, too.
            if tell and waited.passed:
                tell = False
                on_waiting()
        return True

    @property
    def failed(self) -> bool:
        """It is left, by an error that another one, made later, need not meet."""
        return self._failure is not None

    def close(self) -> None:
        """Leaves the group: another driver leads at once. Idempotent."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        try:
            times = {"session_seconds": SESSION_SECONDS, "heartbeat_seconds": _HEARTBEAT_SECONDS}
            consumer = Consumer(member_settings(self._bootstrap_servers, self._name, **times))
            with contextlib.closing(consumer):
                consumer.subscribe([self._topic], self._assigned, on_lost=self._lost)
                while not self._closed.is_set() and self._failure is None:
                    # Callbacks come in here; there are no messages but of errors.
                    if (message := consumer.poll(_POLL_SECONDS)) is not None:
                        self._heed(message)
        except KafkaException as exception:
            self._fail(error_of(exception))
        except Exception:  # noqa: BLE001 - the top of a thread: who leads goes on, and who waits would wait for ever
            _log.exception("the group of drivers is left", extra={"group": self._name})
            self._fail(KafkaError(KafkaError._FAIL, "the log has the cause"))

    def _heed(self, message: Message) -> None:
        error = message.error()
        if error is None:
            return
        if error.fatal() or error.code() in _REFUSED:
            self._fail(error)
        elif error.code() != self._told:
            # Once, and not each time that it is tried again.
            self._told = error.code()
            extra = {"group": self._name, "code": error.name(), "reason": error.str()}
            _log.warning("the group of drivers can't be joined for now", extra=extra)

    def _fail(self, error: KafkaError) -> None:
        if self._leading.is_set():
            extra = {"group": self._name, "code": error.name(), "reason": error.str()}
            _log.warning("another driver may lead: this one is no member any more", extra=extra)
        self._failure = as_ours(error, self._bootstrap_servers, f"join group {self._name}")

    def _assigned(self, consumer: Consumer, added: list[TopicPartition]) -> None:
        take_paused(consumer, added)
        if added:
            self._leading.set()

    def _lost(self, consumer: Consumer, removed: list[TopicPartition]) -> None:
        """Suspended, or without Kafka, for too long. If another driver leads by now, it has fenced the queries."""
        _log.warning("another driver may lead: Kafka has not heard of this one", extra={"group": self._name})
