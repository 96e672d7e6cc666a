"""A real Kafka on this machine: one broker that is its own controller (KRaft), from Maven jars, in a directory of ours.

For the demo and for tests, not for anything that must last: one copy of everything, on loopback, no authentication.
"""

from __future__ import annotations

import base64
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from keyhole.errors import MachineError, PortTaken
from keyhole.local.java import Java
from keyhole.local.ports import accepts, free_ports, is_free
from keyhole.local.processes import Child

_HOST = "127.0.0.1"
_STARTED = "Kafka Server started"
_EXPIRED = "because its session has timed out"
_SESSION_SECONDS = 3
_START_TIMEOUT_SECONDS = 60
_PORT_ATTEMPTS = 3

_SETTINGS: Mapping[str, str] = {
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    # One broker: one copy. Few partitions: each costs files, and time at the first transaction.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    # The cleaner's buffer (128 MiB by default) is taken from the heap at once.
    "log.cleaner.dedupe.buffer.size": str(16 << 20),
    # A killed broker can come back when its session has ended: after 9 s by default.
    "broker.session.timeout.ms": str(_SESSION_SECONDS * 1000),
    "broker.heartbeat.interval.ms": "500",
    # So that a test that asks for compaction need not wait 15 s for the cleaner to look.
    "log.cleaner.backoff.ms": "500",
    "log.segment.delete.delay.ms": "1000",
}

_LOG4J = """\
<Configuration status="WARN">
  <Appenders>
    <Console name="out"><PatternLayout pattern="%d{HH:mm:ss.SSS} %p %c{1}: %m%n"/></Console>
  </Appenders>
  <Loggers>
    <!-- 300 lines of settings at every start. -->
    <Logger name="org.apache.kafka.common.config.AbstractConfig" level="WARN"/>
    <Root level="INFO"><AppenderRef ref="out"/></Root>
  </Loggers>
</Configuration>
"""


class LocalKafka:
    """A broker, and its data in `directory`. Blocks; not thread-safe.

    Args:
        directory: Its data, settings and log (`kafka.log`). Made if absent; removing it is the caller's task.
        jars: What `jars.fetch(JarSet.KAFKA, ...)` returned.
        port: Where clients connect; 0: a free one, the same for the life of this object.
        heap_megabytes: The Java heap's maximum.
        settings: Broker settings that come before the built-in ones.
        relayed: Further ports to listen on, each with the port that clients who come there are told to come back to:
            that of a relay in between, which leads here.
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
    ) -> None:
        self._directory = directory
        self._java = java
        self._command = [
            str(java.executable),
            f"-Xmx{heap_megabytes}m",
            # Small footprint, and nothing to tune on a machine that runs everything else too.
            "-XX:+UseSerialGC",
            # What it unpacks goes with its directory, even after a SIGKILL.
            f"-Djava.io.tmpdir={directory}",
            "-XX:-UsePerfData",
            f"-Dlog4j2.configurationFile={directory / 'log4j2.xml'}",
            "-cp",
            ":".join(map(str, jars)),
        ]
        self._wanted_port = port
        self._port = port
        self._settings = dict(settings or {})
        self._relayed = dict(relayed or {})
        self._child: Child | None = None

    @property
    def bootstrap_servers(self) -> str:
        """host:port for clients; known once it has been started."""
        return f"{_HOST}:{self._port}"

    @property
    def log(self) -> Path:
        """What the broker prints."""
        return self._directory / "kafka.log"

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
        settings = {
            **_SETTINGS,
            "controller.quorum.voters": f"1@{_HOST}:{controller}",
            "log.dirs": str(self._directory / "data"),
            **self._settings,
        }
        listener = f"CONTROLLER://{_HOST}:{controller}"
        brokers = {"PLAINTEXT": (self._port, self._port)}
        brokers |= {f"RELAYED{port}": (port, relay) for port, relay in self._relayed.items()}
        both = {
            "process.roles": "broker,controller",
            "listeners": ",".join([*(f"{name}://{_HOST}:{port}" for name, (port, _) in brokers.items()), listener]),
            "advertised.listeners": ",".join(f"{name}://{_HOST}:{relay}" for name, (_, relay) in brokers.items()),
            "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in (*brokers, "CONTROLLER")),
        }
        self._directory.mkdir(parents=True, exist_ok=True)
        (self._directory / "log4j2.xml").write_text(_LOG4J)
        self._write("server.properties", {**settings, **both})
        self._write("controller.properties", {**settings, "process.roles": "controller", "listeners": listener})

    def _write(self, name: str, settings: Mapping[str, str]) -> None:
        (self._directory / name).write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    def _run(self) -> None:
        if not (self._directory / "data" / "meta.properties").exists():
            self._format()
        elif self._ended_badly():
            self._expire_session()
        child = self._spawn("server.properties")
        child.wait_healthy(lambda: _STARTED in child.output() and accepts(self._port, _HOST), _START_TIMEOUT_SECONDS)

    def _spawn(self, properties: str) -> Child:
        command = [*self._command, "kafka.Kafka", str(self._directory / properties)]
        self._child = Child("Kafka", command, log=self.log, environ={}, directory=self._directory)
        return self._child

    def _ended_badly(self) -> bool:
        data = self._directory / "data"
        return (data / "__cluster_metadata-0").exists() and not (data / ".kafka_cleanshutdown").exists()

    def _expire_session(self) -> None:
        """Lets the controller alone notice that the broker is gone, before the broker comes back.

        Else the two start together, and the broker takes up its old transactions while its old session is still to
        expire. When it does, no partition has a leader for a moment, and Kafka 4.3.1 takes those for deleted: it skips
        the end of a committed transaction there, for ever. (In a cluster the controller outlives the broker.)
        """
        child = self._spawn("controller.properties")
        child.wait_healthy(lambda: _STARTED in child.output(), _START_TIMEOUT_SECONDS)
        # A broker that was killed before it had registered has no session.
        until = time.monotonic() + 2 * _SESSION_SECONDS
        child.wait_healthy(lambda: _EXPIRED in child.output() or time.monotonic() > until, _START_TIMEOUT_SECONDS)
        self.stop()

    def _format(self) -> None:
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # It lives for a second: no time for the compiler that optimises.
        java, *arguments = self._command
        command = [java, "-XX:TieredStopAtLevel=1", *arguments, "kafka.tools.StorageTool", "format"]
        with self.log.open("ab") as log:
            done = subprocess.run(
                [*command, "--cluster-id", f"x{cluster[1:]}", "--config", self._directory / "server.properties"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=_START_TIMEOUT_SECONDS,
                check=False,
            )
        if done.returncode != 0:
            raise MachineError(f"Kafka's storage can't be formatted; see {self.log}", log=self.log)
