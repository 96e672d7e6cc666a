"""What serves states on this machine, as one thing: Kafka, state servers, a client proxy and a metrics exporter."""

from __future__ import annotations

import contextlib
import functools
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from keyhole.caches import cache_dir
from keyhole.changelog.kafka.record_topics import make_topics
from keyhole.errors import MachineError
from keyhole.local.failures import reason, tell
from keyhole.local.java import Java
from keyhole.local.kafka import LocalKafka
from keyhole.local.ports import Reservations
from keyhole.local.processes import Child
from keyhole.local.services import (
    answers,
    exposes,
    serves,
    spawn_client_proxy,
    spawn_metrics_exporter,
    spawn_state_server,
)
from keyhole.local.stack_ports import HOST, StackPorts
from keyhole.temporary import temporary_directory

KEPT_LOGS = "logs"
_SERVER = "server-"
_TOPICS_SECONDS = 30.0
_START_TIMEOUT_SECONDS = 180
# So often a process may end by itself within so many seconds, and is started again.
_RESTARTS, _RESTARTS_SECONDS = 3, 600.0


@dataclass(frozen=True)
class StopSeconds:
    """How long each kind of process has for an orderly end before it is killed. `others`: of those not named here."""

    kafka: float
    server: float
    proxy: float
    exporter: float
    others: float


class BaseStack:
    """These processes, and more of a subclass's. Use as a context manager: at the end no process is left. Not
    thread-safe.

    Each child dies with this process, even if that is killed. The log of a process that has failed is also kept, in
    KEPT_LOGS of this user's cache.

    Args:
        kafka_jars: What Kafka's JVM loads.
        java: What it runs on.
        environ: The base of the children's environments; KEYHOLE_* in it are left out: they are set here.
        say: Is called with each step, in words for a person.
        stop_seconds: Also how long the end takes at most.
        directory: For all data, found again by the next one; None: a temporary one, which goes at the end, and where
            this process was killed by the next one's start.
        logs: A folder for what the processes print; None: beside the data.
        uninterrupted: Entered while a child is started and taken note of: a KeyboardInterrupt between the two would
            leave a child that nobody ends before this process has ended.
    """

    # Of a subclass's children: those whose end by itself is the end of all.
    _once: ClassVar[frozenset[str]] = frozenset()

    def __init__(
        self,
        kafka_jars: Sequence[Path],
        java: Java,
        environ: Mapping[str, str],
        say: Callable[[str], None],
        stop_seconds: StopSeconds,
        directory: Path | None = None,
        logs: Path | None = None,
        uninterrupted: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        self._kafka_jars = kafka_jars
        self._java = java
        self._environ = {name: value for name, value in environ.items() if not name.startswith("KEYHOLE_")}
        self._say = say
        self._stop_seconds = stop_seconds
        self._given_directory = directory
        self._given_logs = logs
        self._uninterrupted = uninterrupted
        self._cleanup = contextlib.ExitStack()
        self._kafka: LocalKafka | None = None
        self._children: dict[str, Child] = {}
        self._restarts: dict[str, list[float]] = {}
        self._server_ports: list[int] = []
        self._coordinators: Sequence[str] = ()

    def __enter__(self) -> Self:
        self.directory = self._given_directory or self._cleanup.enter_context(temporary_directory())
        self._logs = self._given_logs or self.directory
        self._ports = self._cleanup.enter_context(Reservations())
        # All that the children and their JVMs put in the system's temporary directory goes with ours.
        scratch = self.directory / "tmp"
        shutil.rmtree(scratch, ignore_errors=True)
        for folder in (scratch, self._logs):
            folder.mkdir(parents=True, exist_ok=True)
        options = f'"-Djava.io.tmpdir={scratch}" -XX:-UsePerfData'
        self._environ |= {
            "TMPDIR": str(scratch),
            "JAVA_HOME": str(self._java.home),
            "JAVA_TOOL_OPTIONS": f"{self._environ.get('JAVA_TOOL_OPTIONS', '')} {options}".strip(),
        }
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    @property
    def ports(self) -> StackPorts:
        """Where they listen; known once they are started."""
        assert self._kafka is not None
        return StackPorts(
            self._kafka.port, tuple(self._server_ports), self._proxy_port, self._http_port, self._exporter_port
        )

    @property
    def proxy(self) -> str:
        """Where readers find the client proxy, as host:port."""
        return f"{HOST}:{self._proxy_port}"

    @property
    def http(self) -> str:
        """host:port of the proxy's reads over HTTP."""
        return f"{HOST}:{self._http_port}"

    @property
    def server(self) -> str:
        """host:port of the state server, or of all of them, with commas between."""
        return ",".join(self._servers)

    @property
    def exporter(self) -> str:
        """host:port of the metrics exporter."""
        return f"{HOST}:{self._exporter_port}"

    @property
    def bootstrap_servers(self) -> str:
        """Where clients find Kafka, as host:port."""
        assert self._kafka is not None
        return self._kafka.bootstrap_servers

    @property
    def processes(self) -> dict[str, int]:
        """The ids of those that have been started, by name. Each is also the id of a process group."""
        kafka = self._kafka.pid if self._kafka is not None else None
        return ({} if kafka is None else {"kafka": kafka}) | {name: child.pid for name, child in self._children.items()}

    def serve(self, wanted: StackPorts, topics: Mapping[str, int]) -> None:
        """Starts all, each once the one before it is healthy.

        Args:
            wanted: As many state servers as there are ports for. Another port is taken where one is not free.
            topics: Are made in Kafka, if they aren't there, with so many partitions.

        Raises:
            MachineError: One of them did not come up; the message has the end of its log.
        """
        self._choose(wanted)
        self._start_chosen(topics)

    def _choose(self, wanted: StackPorts) -> None:
        """Where all will listen. Nothing runs yet; what a subclass starts from now on ends with the rest."""
        self._kafka = self._kafka_on(self._ports.choose(wanted.kafka, HOST))
        self._cleanup.callback(self._kafka.stop, self._stop_seconds.kafka)
        self._cleanup.callback(self._stop_children)
        self._server_ports += [self._ports.choose(port, HOST) for port in wanted.servers]
        self._proxy_port = self._ports.choose(wanted.proxy, HOST)
        self._http_port = self._ports.choose(wanted.http, HOST)
        self._exporter_port = self._ports.choose(wanted.exporter, HOST)

    def _start_chosen(self, topics: Mapping[str, int]) -> None:
        """What `serve` starts, where `_choose` has said."""
        self._start_kafka()
        if topics:
            make_topics(self.bootstrap_servers, topics, _TOPICS_SECONDS)
        for number, address in enumerate(self._servers):
            self._say(f"state server on {address}")
            self._start(f"{_SERVER}{number}", functools.partial(answers, address))
        self._say(f"client proxy on {self.proxy}, HTTP on http://{self.http}, console on http://{self.http}/console/")
        self._start("proxy", lambda: serves(self.proxy))
        self._say(f"metrics on http://{self.exporter}/metrics")
        self._start("exporter", lambda: exposes(self.exporter))

    def kill(self, name: str) -> None:
        """SIGKILL to a child ("server-0", "proxy", "exporter" and so on), and all that it started. `supervise` starts
        it again.
        """
        self._children[name].kill()

    def check(self) -> None:
        """Passes where all children run. Raises MachineError, with the end of its log, where one has ended by
        itself.
        """
        self._check(self._children)

    def _check(self, names: Iterable[str]) -> None:
        if self._kafka is None or self._kafka.pid is None:
            raise self._kafka_failed("Kafka has ended")
        for name in names:
            child = self._children[name]
            if child.exit_code is not None:
                raise self._ended(name, child)

    def supervise(self) -> None:
        """Starts what has ended again, without waiting until it is healthy.

        Raises:
            MachineError: Kafka has ended, or a child that is started once alone, or one of the others too often. The
                message has the end of its log.
        """
        for name in self._children.keys() - self._once:
            child = self._children[name]
            if child.exit_code is None:
                continue
            now = time.monotonic()
            recent = [at for at in self._restarts.get(name, []) if now - at < _RESTARTS_SECONDS]
            self._restarts[name] = [*recent, now]
            if len(recent) == _RESTARTS:
                raise self._ended(name, child)
            why = reason(child.output(), child.exit_code)
            self._say(f"{name} again: it ended with exit code {child.exit_code}{why}")
            self._spawn(name)
        # One that has ended again by now has its next turn at the next call.
        self._check(self._children.keys() & self._once)

    def said(self, name: str) -> str:
        """All that a child has printed since it was started last."""
        return self._children[name].output()

    def failed(self, name: str, what: str) -> MachineError:
        """The error that says what has happened, why by the child's log, and where that is kept from now on."""
        child = self._children[name]
        return MachineError(tell(what, child.exit_code, child.output(), child.log, self._keep_in), name=name)

    def _ended(self, name: str, child: Child) -> MachineError:
        return self.failed(name, f"{name} ended with exit code {child.exit_code}")

    def _kafka_failed(self, what: str) -> MachineError:
        assert self._kafka is not None
        log = self._kafka.log
        return MachineError(tell(what, None, log.read_text(errors="replace"), log, self._keep_in), name="kafka")

    @property
    def _keep_in(self) -> Path:
        return cache_dir(self._environ, KEPT_LOGS)

    @property
    def _servers(self) -> list[str]:
        return [f"{HOST}:{port}" for port in self._server_ports]

    def _start(self, name: str, healthy: Callable[[], bool]) -> None:
        child = self._spawn(name)
        try:
            child.wait_healthy(healthy, _START_TIMEOUT_SECONDS)
        except MachineError as error:
            ended = child.exit_code is not None
            what = (
                f"ended with exit code {child.exit_code}" if ended else f"was not healthy in {_START_TIMEOUT_SECONDS} s"
            )
            raise self.failed(name, f"{name} {what}") from error

    def _kafka_on(self, port: int) -> LocalKafka:
        return LocalKafka(
            self.directory / "kafka",
            self._kafka_jars,
            self._java,
            port,
            log=self._logs / "kafka.log" if self._given_logs else None,
            uninterrupted=self._uninterrupted,
        )

    def _start_kafka(self) -> None:
        assert self._kafka is not None
        self._say(f"Kafka on {self.bootstrap_servers}")
        try:
            self._kafka.start()
        except MachineError as error:
            if not self._kafka.log.exists():
                raise
            raise self._kafka_failed("Kafka did not start") from error

    def _spawn(self, name: str) -> Child:
        with self._uninterrupted():
            child = self._children[name] = self._start_child(name)
        return child

    def _start_child(self, name: str) -> Child:
        if name == "proxy":
            return spawn_client_proxy(
                name,
                self._proxy_port,
                servers=self._servers,
                directory=self._logs,
                environ={**self._environ, "KEYHOLE_CLIENT_PROXY_HTTP": self.http},
            )
        if name == "exporter":
            return spawn_metrics_exporter(
                name,
                self._exporter_port,
                servers=self._servers,
                proxies=[self.proxy],
                coordinators=self._coordinators,
                bootstrap_servers=self.bootstrap_servers,
                directory=self._logs,
                environ=self._environ,
            )
        return spawn_state_server(
            name,
            self._server_ports[int(name.removeprefix(_SERVER))],
            bootstrap_servers=self.bootstrap_servers,
            directory=self.directory,
            environ=self._environ,
            logs=self._logs,
        )

    def _stop_children(self) -> None:
        """What reads ends before what it reads from."""
        patience = {"proxy": self._stop_seconds.proxy, "exporter": self._stop_seconds.exporter}
        for name, child in reversed(self._children.items()):
            of_its_kind = self._stop_seconds.server if name.startswith(_SERVER) else self._stop_seconds.others
            child.terminate(patience.get(name, of_its_kind))
