"""A real Kafka on this machine: one broker that is its own controller (KRaft), from Maven jars, in a directory of ours.

For the demo and for tests, not for anything that must last: one copy of everything, on loopback, no authentication.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Self

from keyhole.class_archive import archive_path, reading
from keyhole.errors import MachineError, PortTaken
from keyhole.local.java import Java
from keyhole.local.kafka_node import (
    DATA,
    EXPIRED,
    SESSION_SECONDS,
    START_TIMEOUT_SECONDS,
    STARTED,
    KafkaNode,
    Listener,
)
from keyhole.local.ports import accepts, free_ports, is_free
from keyhole.local.processes import Child

_HOST = "127.0.0.1"
# Else Java could open no path but ASCII ones.
_ENVIRON = {"LC_ALL": "C.UTF-8"}
_PORT_ATTEMPTS = 3


class LocalKafka:
    """A broker, and its data in `directory`. Blocks; not thread-safe.

    Args:
        directory: Its data and settings. Made if absent; removing it is the caller's task.
        jars: What `jars.fetch(JarSet.KAFKA, ...)` returned.
        port: Where clients connect; 0: a free one, the same for the life of this object.
        heap_megabytes: The Java heap's maximum.
        settings: Broker settings that come before the built-in ones.
        relayed: Further ports to listen on, each with the port that the broker gives clients there to come back to:
            that of a relay in between, which leads here.
        more: Listeners beside those.
        log: What the file is that the broker's output goes to. Default: `kafka.log` in `directory`.
        options: Of its JVMs. Default: those by which they take their classes from this machine's archive, if it has
            one.
        uninterrupted: Entered while a JVM is started and taken note of: see Stack.
    """

    def __init__(
        self,
        directory: Path,
        jars: Sequence[Path],
        java: Java,
        port: int = 0,
        heap_megabytes: int = 512,
        settings: Mapping[str, str] | None = None,
        relayed: Mapping[int, int] | None = None,
        more: Sequence[Listener] = (),
        log: Path | None = None,
        options: Sequence[str] | None = None,
        uninterrupted: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        self._directory = directory
        self._log = log or directory / "kafka.log"
        if options is None:
            options = reading(archive_of_kafka(os.environ, java.executable, jars))
        # Relative to the directory, in which it runs: Kafka takes a path with a comma for two.
        settings = {"log.dirs": DATA, **(settings or {})}
        self._node = KafkaNode(directory, java.executable, jars, heap_megabytes, settings, options)
        self._wanted_port = port
        self._port = port
        self._relayed = dict(relayed or {})
        self._more = more
        self._uninterrupted = uninterrupted
        self._child: Child | None = None

    @property
    def bootstrap_servers(self) -> str:
        """host:port for clients; known once it has been started."""
        return f"{_HOST}:{self._port}"

    @property
    def port(self) -> int:
        """Where clients connect; known once it has been started."""
        return self._port

    @property
    def log(self) -> Path:
        """The file that the broker's output goes to."""
        return self._log

    @property
    def pid(self) -> int | None:
        """The broker's process id; None while it doesn't run."""
        return self._child.pid if self._child is not None and self._child.exit_code is None else None

    def start(self) -> None:
        """Starts the broker on what the directory holds (nothing: a new cluster) and waits until it serves.

        Raises:
            PortTaken: Somebody listens on the port that was asked for.
            MachineError: It can't be started; the message has the end of its log.
        """
        if self._port and not is_free(self._port, _HOST):
            raise PortTaken(
                f"another process listens on {_HOST}:{self._port}; choose another port for Kafka, or 0 for a free one",
                port=self._port,
            )
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            self._configure()
            try:
                self._run()
            except MachineError as error:
                self.kill()
                if self._wanted_port or "Address already in use" not in error.message or attempt == _PORT_ATTEMPTS:
                    raise
                # Somebody took the free port in the moment between our finding it and the broker's.
                self._port = 0
            except BaseException:
                self.kill()
                raise
            else:
                return

    def stop(self, timeout_seconds: float = 10) -> None:
        """An orderly end, or SIGKILL after the timeout. Idempotent."""
        if self._child is not None:
            self._child.terminate(timeout_seconds)
            self._child = None

    def kill(self) -> None:
        """SIGKILL. What the operating system had taken from it stays. Idempotent."""
        if self._child is not None:
            self._child.kill()
            self._child = None

    def restart(self) -> None:
        """An orderly end, if it still runs, then a start on the same data and port."""
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _configure(self) -> None:
        controller, *rest = free_ports(1 if self._port else 2)
        self._port = self._port or rest[0]
        listeners = [_listener("PLAINTEXT", self._port, self._port)]
        listeners += [_listener(f"RELAYED{port}", port, relay) for port, relay in self._relayed.items()]
        listeners += self._more
        self._node.configure(listeners, f"{_HOST}:{controller}")

    def _run(self) -> None:
        if not self._node.formatted:
            self._format()
        elif self._node.ended_badly:
            self._expire_session()
        child = self._spawn(self._node.command)
        child.wait_healthy(lambda: STARTED in child.output() and accepts(self._port, _HOST), START_TIMEOUT_SECONDS)

    def _spawn(self, command: list[str]) -> Child:
        with self._uninterrupted():
            child = self._child = Child("Kafka", command, log=self.log, environ=_ENVIRON, directory=self._directory)
        return child

    def _expire_session(self) -> None:
        child = self._spawn(self._node.controller_command)
        child.wait_healthy(lambda: STARTED in child.output(), START_TIMEOUT_SECONDS)
        until = time.monotonic() + 2 * SESSION_SECONDS
        child.wait_healthy(lambda: EXPIRED in child.output() or time.monotonic() > until, START_TIMEOUT_SECONDS)
        self.stop()

    def _format(self) -> None:
        code = self._spawn(self._node.format_command).wait(START_TIMEOUT_SECONDS)
        self.kill()
        if code != 0:
            raise MachineError(f"Kafka's storage can't be formatted; see {self.log}", log=self.log)


def archive_of_kafka(environ: Mapping[str, str], java: Path, jars: Sequence[Path]) -> Path:
    """The archive of the broker's classes (keyhole.class_archive)."""
    return archive_path(environ, "kafka", java, jars)


def _listener(name: str, port: int, advertised: int) -> Listener:
    return Listener(name, _HOST, port, f"{_HOST}:{advertised}")
