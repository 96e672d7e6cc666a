"""The embedded default, on this machine, as one thing: Kafka, a state server, a proxy, metrics, a job, its source."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from keyhole.caches import cache_dir
from keyhole.changelog.kafka.record_topics import make_topics
from keyhole.config import (
    DEFAULT_EXPORTER_PORT,
    DEFAULT_HTTP_PORT,
    DEFAULT_PROXY_PORT,
    DEFAULT_STATE_SERVER_PORT,
)
from keyhole.errors import MachineError
from keyhole.local.failures import reason, tell
from keyhole.local.java import Java
from keyhole.local.job_spec import JobSpec
from keyhole.local.kafka import LocalKafka
from keyhole.local.ports import Reservations, free_ports
from keyhole.local.processes import Child
from keyhole.local.services import (
    answers,
    exposes,
    serves,
    spawn_client_proxy,
    spawn_metrics_exporter,
    spawn_state_server,
)
from keyhole.local.temporary import temporary_directory

_HOST = "127.0.0.1"
_TOPICS_SECONDS = 30.0
_START_TIMEOUT_SECONDS = 180
_LOOK_SECONDS = 0.2
_RESTARTS = 3
_STARTED_AGAIN = ("server", "proxy", "exporter", "job")
# Seconds that each has for an orderly end before it is killed, in the order of the end. Together, and with Kafka's,
# below the 10 s that a person is promised.
_STOP_SECONDS: Mapping[str, float] = {"source": 1.5, "job": 2.0, "exporter": 0.5, "proxy": 1.0, "server": 1.5}
_KAFKA_STOP_SECONDS = 2.5
KEPT_LOGS = "logs"


@dataclass(frozen=True)
class Jars:
    """The JVM jars, by path."""

    kafka: Sequence[Path]
    spark: Sequence[Path]


class Stack:
    """All processes of a demo, in one temporary directory. Use as a context manager: the end leaves nothing behind.

    Each child dies with this process, even if that is killed; the directory is then removed by the next stack. The log
    of a process that has failed is kept, in KEPT_LOGS of this user's cache. Not thread-safe.

    Args:
        jars: What the JVMs load.
        java: What they run on.
        environ: The base of the children's environments; KEYHOLE_* in it are left out: the stack sets them.
        say: Is called with each step, in words for a person.
        uninterrupted: Entered while a child is started and taken note of: a KeyboardInterrupt between the two would
            leave a child that nobody ends before this process has ended.
    """

    def __init__(
        self,
        jars: Jars,
        java: Java,
        environ: Mapping[str, str],
        say: Callable[[str], None],
        uninterrupted: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        self._jars = jars
        self._java = java
        self._environ = {name: value for name, value in environ.items() if not name.startswith("KEYHOLE_")}
        self._say = say
        self._uninterrupted = uninterrupted
        self._cleanup = contextlib.ExitStack()
        self._children: dict[str, Child] = {}
        self._restarts: dict[str, int] = {}

    def __enter__(self) -> Self:
        self.directory = self._cleanup.enter_context(temporary_directory())
        self._ports = self._cleanup.enter_context(Reservations())
        # All that the children and their JVMs put in the system's temporary directory goes with ours.
        scratch = self.directory / "tmp"
        scratch.mkdir()
        options = f"-Djava.io.tmpdir={scratch} -XX:-UsePerfData"
        self._environ |= {
            "TMPDIR": str(scratch),
            "JAVA_HOME": str(self._java.home),
            "JAVA_TOOL_OPTIONS": f"{self._environ.get('JAVA_TOOL_OPTIONS', '')} {options}".strip(),
        }
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    @property
    def proxy(self) -> str:
        """Where readers find the client proxy, as host:port."""
        return f"{_HOST}:{self._proxy_port}"

    @property
    def http(self) -> str:
        """host:port of the proxy's reads over HTTP."""
        return f"{_HOST}:{self._http_port}"

    @property
    def server(self) -> str:
        """host:port of the state server."""
        return f"{_HOST}:{self._server_port}"

    @property
    def exporter(self) -> str:
        """host:port of the metrics exporter."""
        return f"{_HOST}:{self._exporter_port}"

    @property
    def job_stats(self) -> str:
        """host:port of the job's figures."""
        return f"{_HOST}:{self._job_stats_port}"

    @property
    def bootstrap_servers(self) -> str:
        """Where clients find Kafka, as host:port."""
        return self._kafka.bootstrap_servers

    @property
    def checkpoint(self) -> Path:
        """The directory of the query's Spark checkpoint."""
        return self.directory / "checkpoint"

    def start(self, spec: JobSpec) -> None:
        """Starts all, each once the one before it is healthy. The job and its source are only started.

        Raises:
            MachineError: One of them did not come up; the message has the end of its log.
        """
        self._spec = spec
        self._start_kafka()
        self._cleanup.callback(self._stop_children)
        self._server_port = self._ports.choose(DEFAULT_STATE_SERVER_PORT, _HOST)
        self._say(f"state server on {self.server}")
        self._start("server", lambda: answers(self.server))
        self._proxy_port = self._ports.choose(DEFAULT_PROXY_PORT, _HOST)
        self._http_port = self._ports.choose(DEFAULT_HTTP_PORT, _HOST)
        self._say(f"client proxy on {self.proxy}, HTTP on http://{self.http}")
        self._start("proxy", lambda: serves(self.proxy))
        self._exporter_port = self._ports.choose(DEFAULT_EXPORTER_PORT, _HOST)
        # The job takes its own only once Spark has started: the usual one may be another stack's by then.
        (self._job_stats_port,) = free_ports(1)
        self._say(f"metrics on http://{self.exporter}/metrics")
        self._start("exporter", lambda: exposes(self.exporter))
        self._say(f"source {spec.source}")
        self._spawn("source")
        self._say(f"job {spec.job}")
        self._spawn("job")

    def stop_source(self) -> None:
        """Lets it send what it has. Nothing more comes after this."""
        self._children.pop("source").terminate(_STOP_SECONDS["source"])

    def run(self, name: str, module: str, arguments: Sequence[str], seconds: float) -> tuple[int | None, str]:
        """Runs one more module of Python to its end; what the job needs is kept up meanwhile.

        Returns:
            Its exit code, None where it has not ended in time; and what it has printed.

        Raises:
            MachineError: As `supervise`.
        """
        with contextlib.ExitStack() as ending:
            with self._uninterrupted():
                child = self._python(name, module, {}, arguments)
                ending.callback(child.kill)
            until = time.monotonic() + seconds
            while (code := child.wait(_LOOK_SECONDS)) is None and time.monotonic() < until:
                self.supervise()
            return code, child.output()

    def kill(self, name: str) -> None:
        """SIGKILL to "server", "proxy", "exporter" or "job", and all that it started. `supervise` starts it again."""
        self._children[name].kill()

    def check(self) -> None:
        """Passes where all children run. Raises MachineError, with the end of its log, where one has ended by
        itself.
        """
        self._check(self._children)

    def _check(self, names: Iterable[str]) -> None:
        if self._kafka.pid is None:
            raise self._kafka_failed("Kafka has ended")
        for name in names:
            child = self._children[name]
            if child.exit_code is not None:
                raise self._ended(name, child)

    def supervise(self) -> None:
        """Starts a server, proxy, exporter or job that has ended again, without waiting until it is healthy.

        Raises:
            MachineError: Kafka or the source has ended, or one of the others too often. The message has the end of its
                log.
        """
        for name in _STARTED_AGAIN:
            child = self._children[name]
            if child.exit_code is None:
                continue
            self._restarts[name] = self._restarts.get(name, 0) + 1
            if self._restarts[name] > _RESTARTS:
                raise self._ended(name, child)
            why = reason(child.output(), child.exit_code)
            self._say(f"{name} again: it ended with exit code {child.exit_code}{why}")
            self._spawn(name)
        # One that has ended again by now has its next turn at the next call.
        self._check(self._children.keys() - _STARTED_AGAIN)

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
        log = self._kafka.log
        return MachineError(tell(what, None, log.read_text(errors="replace"), log, self._keep_in), name="kafka")

    @property
    def _keep_in(self) -> Path:
        return cache_dir(self._environ, KEPT_LOGS)

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

    def _start_kafka(self) -> None:
        self._say("Kafka")
        self._kafka = LocalKafka(
            self.directory / "kafka", self._jars.kafka, self._java, uninterrupted=self._uninterrupted
        )
        self._cleanup.callback(self._kafka.stop, _KAFKA_STOP_SECONDS)
        try:
            self._kafka.start()
        except MachineError as error:
            if not self._kafka.log.exists():
                raise
            raise self._kafka_failed("Kafka did not start") from error
        make_topics(self.bootstrap_servers, self._spec.topics, _TOPICS_SECONDS)

    def _spawn(self, name: str) -> Child:
        with self._uninterrupted():
            child = self._children[name] = self._start_child(name)
        return child

    def _start_child(self, name: str) -> Child:
        spec = self._spec
        if name == "server":
            return spawn_state_server(
                "server-0",
                self._server_port,
                bootstrap_servers=self.bootstrap_servers,
                directory=self.directory,
                environ=self._environ,
            )
        if name == "proxy":
            return spawn_client_proxy(
                "proxy",
                self._proxy_port,
                servers=[self.server],
                directory=self.directory,
                environ={**self._environ, "KEYHOLE_CLIENT_PROXY_HTTP": self.http},
            )
        if name == "exporter":
            return spawn_metrics_exporter(
                "exporter",
                self._exporter_port,
                servers=[self.server],
                proxies=[self.proxy],
                coordinators=[self.job_stats],
                bootstrap_servers=self.bootstrap_servers,
                directory=self.directory,
                environ=self._environ,
            )
        if name == "job":
            addresses = {
                "KEYHOLE_JOB_SERVERS": self.server,
                "KEYHOLE_JOB_BOOTSTRAP_SERVERS": self.bootstrap_servers,
                "KEYHOLE_JOB_PROXY": self.proxy,
                "KEYHOLE_JOB_STATS": self.job_stats,
            }
            return self._python(name, spec.job, {**addresses, **spec.job_environ})
        return self._python(
            name,
            spec.source,
            {f"{spec.source_prefix}BOOTSTRAP_SERVERS": self.bootstrap_servers, **spec.source_environ},
        )

    def _python(self, name: str, module: str, environ: Mapping[str, str], arguments: Sequence[str] = ()) -> Child:
        # -P: a folder `jobs` in the caller's working directory is none of ours.
        command = [sys.executable, "-P", "-m", module, *arguments]
        return Child(name, command, self.directory / f"{name}.log", {**self._environ, **environ})

    def _stop_children(self) -> None:
        for name, seconds in _STOP_SECONDS.items():
            if name in self._children:
                self._children[name].terminate(seconds)
