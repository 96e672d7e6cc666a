"""Where the state servers are that run beside Spark's executors: addresses made from those executors that are alive."""

from __future__ import annotations

import functools
import logging
import string
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from py4j.protocol import Py4JError
from pyspark import SparkContext

from keyhole.addresses import host_of, is_host_port
from keyhole.discovery import discovery_of
from keyhole.errors import InvalidConfiguration

_log = logging.getLogger(__name__)

_CACHED_SECONDS = 1.0
_CHECK_SECONDS = 10.0
_DRIVER = "driver"
_FIELDS = ("executor", "host")


class Executor(NamedTuple):
    """A live executor: its number, which no other executor of the application ever has, and the host it runs on."""

    number: int
    host: str


def live_executors(context: SparkContext) -> list[Executor]:
    """The executors that the driver knows to be alive. In local mode the driver itself is executor 0.

    Not getExecutorMemoryStatus, which has no ids, and for a while still has executors that are gone.
    """
    summaries = context._jsc.sc().statusStore().executorList(True)
    found = [summaries.apply(index) for index in range(summaries.size())]
    hosts = {str(summary.id()): host_of(str(summary.hostPort())) for summary in found}
    # One that Spark has heard of before it has registered, or after it was removed, has no host.
    executors = [Executor(int(name), host) for name, host in hosts.items() if name.isdecimal() and host]
    if not executors and context._jsc.sc().isLocal():
        return [Executor(0, host) for name, host in hosts.items() if name == _DRIVER]
    return sorted(executors)


def addresses_of(context: SparkContext, servers: Sequence[str]) -> ServerAddresses:
    """Those of a job's state servers, by Spark's executors as they are each time that it is called.

    Args:
        servers: As ServerAddresses takes them, which also says what is raised.
    """
    return ServerAddresses(servers, functools.partial(live_executors, context))


class ServerAddresses:
    """host:port of each state server of a job, now. Call it; any thread. `close` it.

    Args:
        servers: As discovery_of takes them. An entry with {executor} or {host} in it (Python's format, "{host}:7410",
            "127.0.0.1:245{executor:02d}") stands for one server per executor.
        executors: Called at most once a second, and only where an entry names them.

    Raises:
        InvalidConfiguration: What an entry says can't be the address of a server; when called: nothing was ever found,
            and a discovery was refused its answer.
    """

    def __init__(
        self,
        servers: Sequence[str],
        executors: Callable[[], Sequence[Executor]],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._templates = [server for server in servers if _is_template(server)]
        others = [server for server in servers if server not in self._templates]
        self._others = discovery_of(others) if others or not self._templates else None
        self._executors = executors
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._known: frozenset[str] = frozenset()
        self._asked = -_CACHED_SECONDS
        for template in self._templates:
            _address(template, Executor(1, "host"))

    def __call__(self) -> frozenset[str]:
        others = self._others.known() if self._others is not None else frozenset()
        if not self._templates:
            return others
        with self._lock:
            if self._monotonic() - self._asked >= _CACHED_SECONDS:
                self._ask()
            return others | self._known

    def check(self, seconds: float = _CHECK_SECONDS) -> None:
        """Looks for servers; that there are none yet is no error.

        Raises:
            InvalidConfiguration: A discovery was refused its answer.
        """
        if self._others is not None:
            self._others.wait(seconds)

    def close(self) -> None:
        """Looks for no more. Idempotent."""
        if self._others is not None:
            self._others.close()

    def _ask(self) -> None:
        try:
            executors = self._executors()
        except (Py4JError, OSError):
            # Spark is stopping; the servers may live on, and are spoken to until the end.
            _log.debug("Spark can't tell its executors any more", exc_info=True)
        else:
            made = {_address(template, executor) for template in self._templates for executor in executors}
            self._known = frozenset(made)
        self._asked = self._monotonic()


def _is_template(server: str) -> bool:
    """Whether it has fields to fill in; raises where they are other ones than there are."""
    try:
        fields = [name for _, name, _, _ in string.Formatter().parse(server) if name is not None]
    except ValueError as error:
        raise _refused(server, str(error)) from error
    if unknown := [name for name in fields if name not in _FIELDS]:
        raise _refused(server, f"it has the field {{{unknown[0]}}}; the fields are {{executor}} and {{host}}")
    return bool(fields)


def _address(template: str, executor: Executor) -> str:
    try:
        address = template.format(executor=executor.number, host=executor.host)
    except ValueError as error:
        raise _refused(template, str(error)) from error
    if not is_host_port(address):
        raise _refused(template, f"executor {executor.number} on host {executor.host} would make it {address!r}")
    return address


def _refused(server: str, why: str) -> InvalidConfiguration:
    return InvalidConfiguration(
        f"state server {server!r} (KEYHOLE_JOB_SERVERS) is not host:port, with {{executor}} or {{host}} where there is "
        f"one beside each of Spark's executors: {why}",
        server=server,
    )
