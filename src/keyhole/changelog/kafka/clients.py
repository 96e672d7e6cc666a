"""How we talk to librdkafka: settings that all clients share, its errors as ours, its noise as log records."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from keyhole.changelog.kafka.brokers import client_settings
from keyhole.errors import Fenced, InvalidConfiguration, KafkaUnreachable, KeyholeError, OutcomeUnknown

_log = logging.getLogger(__name__)

Settings = dict[str, Any]

ONE_REQUEST: Mapping[str, Any] = MappingProxyType(
    {"enable.idempotence": True, "max.in.flight.requests.per.connection": 1, "linger.ms": 2}
)
"""For a producer without transactions: of several requests under way the first may be refused and lost where a later
one is taken (keyhole.changelog.kafka.offsets.await_partitions)."""

_FENCED = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})

# What an operator must change; trying again can't help.
_REFUSED = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError._INVALID_ARG,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.INCONSISTENT_GROUP_PROTOCOL,
        KafkaError.INVALID_GROUP_ID,
        KafkaError.INVALID_SESSION_TIMEOUT,
        KafkaError.INVALID_TRANSACTION_TIMEOUT,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.UNSUPPORTED_VERSION,
    }
)

# The answer was lost, not refused.
_UNANSWERED = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._TRANSPORT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.REQUEST_TIMED_OUT,
    }
)


class Deadline:
    """A moment to be done by, set once and asked on the way."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._since = time.monotonic()
        self._until = self._since + seconds

    @property
    def left(self) -> float:
        """Seconds left; never 0 or less, which librdkafka takes for "for ever" or "don't wait at all"."""
        return max(0.001, self._until - time.monotonic())

    @property
    def age(self) -> float:
        """Seconds since it was set."""
        return time.monotonic() - self._since

    @property
    def passed(self) -> bool:
        return time.monotonic() >= self._until


def common_settings(bootstrap_servers: str) -> Settings:
    """The settings that every client has. Raises as keyhole.changelog.kafka.brokers.client_settings."""
    return {
        # A broker's address may be one where nobody is any more, and nothing says so (a pod that is gone). By default
        # a client waits 30 s for it before it asks for the name again, and a follower is behind for as long.
        "socket.connection.setup.timeout.ms": 5000,
        **client_settings(bootstrap_servers),
        "error_cb": _on_error,
        # Without a logger, librdkafka prints fatal errors on standard error, whatever the level. The rest of what it
        # would log also comes to the callback above.
        "logger": _ClientLog(),
        "log_level": 0,
        # A broker that restarts on this machine is back within seconds; by default a client looks again after 10.
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1000,
    }


class _ClientLog:
    """What librdkafka takes for a logger. All at DEBUG: what matters also reaches us as an error."""

    def log(self, level: int, message: str, *arguments: object) -> None:
        _log.debug("Kafka client says", extra={"client_level": level, "client_message": message % arguments})


def _on_error(error: KafkaError) -> None:
    # Those that matter also end the call that they happen in; while a broker is away there are several a second.
    _log.debug("Kafka client reports an error", extra={"code": error.name(), "reason": error.str()})


class TopicNames:
    """Asks brokers for their topics, and knows why they let nobody in. Blocks; one thread.

    librdkafka reports a refusal beside the call, which only ends as one without an answer.
    """

    def __init__(self, bootstrap_servers: str) -> None:
        self._refusals: list[KafkaError] = []
        # Not a method: a client that leads back to itself would end at some time, in some thread.
        settings: Settings = {**common_settings(bootstrap_servers), "error_cb": _refusals_to(self._refusals)}
        self._client = AdminClient(settings)

    def ask(self, timeout_seconds: float) -> Collection[str]:
        """All of them: to ask for one by its name makes some brokers make it.

        Raises:
            KafkaException: As librdkafka says it; of the refusal, where there was one.
        """
        try:
            return self._client.list_topics(timeout=timeout_seconds).topics
        except KafkaException as exception:
            self._client.poll(0)
            if self._refusals and is_unanswered(error_of(exception)):
                raise KafkaException(self._refusals[-1]) from exception
            raise


def _refusals_to(refusals: list[KafkaError]) -> Callable[[KafkaError], None]:
    def on_error(error: KafkaError) -> None:
        _on_error(error)
        if error.code() in _REFUSED or error.code() == KafkaError._SSL:
            refusals[:] = [error]

    return on_error


def error_of(exception: KafkaException) -> KafkaError:
    """The error that librdkafka wrapped."""
    error = exception.args[0]
    assert isinstance(error, KafkaError)
    return error


def is_fenced(error: KafkaError) -> bool:
    """Whether somebody else took the transactional.id."""
    return error.code() in _FENCED


def is_unanswered(error: KafkaError) -> bool:
    """Whether a request may have been carried out all the same."""
    return error.code() in _UNANSWERED


def await_kafka(bootstrap_servers: str, wait_seconds: float, given_up: threading.Event) -> None:
    """Returns once a broker answers, or the caller has given up. Blocks; looks up every second whether it has.

    Raises:
        KafkaUnreachable: None has within the time.
        InvalidConfiguration: Kafka refuses us.
    """
    deadline = Deadline(wait_seconds)
    names = TopicNames(bootstrap_servers)
    while not given_up.is_set():
        try:
            names.ask(min(1.0, deadline.left))
        except KafkaException as exception:
            error = error_of(exception)
            if not is_unanswered(error) or deadline.passed:
                raise as_ours(error, bootstrap_servers, f"be reached within {wait_seconds:g} s") from exception
        else:
            return


def unreachable(bootstrap_servers: str, doing: str, why: object) -> KafkaUnreachable:
    """Nothing answers, or not in time."""
    return KafkaUnreachable(
        f"Kafka at {bootstrap_servers} could not {doing}: {why}. Is it running, and is this its address?",
        bootstrap_servers=bootstrap_servers,
    )


def fenced(transactional_id: str) -> Fenced:
    """Somebody else took the transactional.id."""
    return Fenced(
        f"{transactional_id} was taken over by a newer run or a newer owner; this one must stop",
        transactional_id=transactional_id,
    )


def outcome_unknown(transactional_id: str, why: object) -> OutcomeUnknown:
    """A transaction's end was not seen."""
    return OutcomeUnknown(
        f"whether the last transaction of {transactional_id} was committed is not known ({why}): read the topic to see",
        transactional_id=transactional_id,
    )


def as_ours(error: KafkaError, bootstrap_servers: str, doing: str) -> KeyholeError:
    """What an error of librdkafka's means, as one of ours: of a call that changes nothing, or may be repeated."""
    if error.code() in _REFUSED:
        return InvalidConfiguration(
            f"Kafka at {bootstrap_servers} refuses to {doing}: {error.str()} ({error.name()})",
            bootstrap_servers=bootstrap_servers,
            code=error.name(),
        )
    return unreachable(bootstrap_servers, doing, error.str())
