"""Admin clients of librdkafka that end in the thread that closes them.

A client answers in a thread of its own, which then runs Python, and at times Python's garbage collection with it. Where
that collects the client itself, librdkafka finds that it is ended in its own thread, and aborts the process
(confluent-kafka 2.16, whose client has no `close`). So nobody but `Admin` refers to one. No frame that a traceback
keeps has it in a variable. A failed answer is not raised itself: its traceback would lead back to the client through
its future.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import TypeVar

from confluent_kafka.admin import AdminClient

from keyhole.changelog.kafka.clients import common_settings

_Answer = TypeVar("_Answer")


class Admin:
    """One client. One thread at a time."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._client: AdminClient | None = AdminClient(common_settings(bootstrap_servers))

    @property
    def client(self) -> AdminClient:
        """The client itself: to be called at once, and not to be kept in a variable."""
        assert self._client is not None, "it is closed"
        return self._client

    def close(self) -> None:
        """Ends it here, in this thread; what it has not answered is never answered. Idempotent."""
        self._client = None


def answer(future: Future[_Answer], timeout_seconds: float | None = None) -> _Answer:
    """What a client has answered. Blocks until then, or at most so long.

    Raises:
        KafkaException: Made anew, as the future has it.
        TimeoutError: There is no answer yet.
    """
    error = future.exception(timeout_seconds)
    if error is not None:
        raise type(error)(*error.args)
    return future.result()
