"""The embedded default: Kafka, a state server, a proxy, a job and its source on this machine, as one thing."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from keyhole.config import DEFAULT_PROXY_PORT, DEFAULT_STATE_SERVER_PORT
from keyhole.errors import MachineError
from keyhole.local.java import Java
from keyhole.local.kafka import LocalKafka
from keyhole.local.ports import free_ports, is_free
from keyhole.local.processes import Child
from keyhole.local.services import start_client_proxy, start_state_server

_STOP_SECONDS = 3.0


@dataclass(frozen=True)
class Jars:
    """The JVM jars, by path."""

    kafka: Sequence[Path]
    spark: Sequence[Path]


@dataclass(frozen=True)
class JobSpec:
    """A job and its source, by module name, and their environments but for what the stack knows."""

    job: str
    source: str
    topic: str
    job_environ: Mapping[str, str]
    source_environ: Mapping[str, str]


class Stack:
    """All processes of a demo, in one temporary directory. Use as a context manager: the end leaves nothing behind.

    Each child dies with this process, even if that is killed. Not thread-safe.

    Args:
        environ: The base of the children's environments.
        say: Is told each step, for a person.
    """

    def __init__(self, jars: Jars, java: Java, environ: Mapping[str, str], say: Callable[[str], None]) -> None:
        self._jars = jars
        self._java = java
        self._environ = {name: value for name, value in environ.items() if not name.startswith("KEYHOLE_")}
        self._say = say
        self._cleanup = contextlib.ExitStack()
        self._spec: JobSpec | None = None

    def __enter__(self) -> Stack:
        temporary = tempfile.TemporaryDirectory(prefix="keyhole-", ignore_cleanup_errors=True)
        self.directory = Path(self._cleanup.enter_context(temporary))
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    @property
    def proxy(self) -> str:
        """host:port of the proxy."""
        return f"127.0.0.1:{self._proxy_port}"

    @property
    def checkpoint(self) -> Path:
        """Spark's checkpoint location."""
        return self.directory / "checkpoint"

    def start(self, spec: JobSpec) -> None:
        """Starts all, each once the one before it is healthy.

        Raises:
            MachineError: One of them did not come up; the message has the end of its log.
        """
        self._spec = spec
        self._say("Kafka")
        kafka = LocalKafka(self.directory / "kafka", self._jars.kafka, self._java)
        self._cleanup.callback(kafka.stop, _STOP_SECONDS)
        kafka.start()
        self.bootstrap_servers = kafka.bootstrap_servers
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        admin.create_topics([NewTopic(spec.topic, 2, 1)])[spec.topic].result(30)
        self._server_port = _port(DEFAULT_STATE_SERVER_PORT)
        self._proxy_port = _port(DEFAULT_PROXY_PORT)
        self._say(f"state server on 127.0.0.1:{self._server_port}")
        self._children: dict[str, Child] = {}
        self._cleanup.callback(self._stop_children)
        self.start_server()
        self._say(f"client proxy on {self.proxy}")
        self._children["proxy"] = start_client_proxy(
            "proxy",
            self._proxy_port,
            servers=[f"127.0.0.1:{self._server_port}"],
            directory=self.directory,
            environ=self._environ,
        )
        self._say(f"job {spec.job}, and its source")
        self.start_source()
        self.start_job()

    def start_server(self) -> None:
        """The state server, on its port and its store."""
        self._children["server"] = start_state_server(
            "server-0",
            self._server_port,
            bootstrap_servers=self.bootstrap_servers,
            directory=self.directory,
            environ=self._environ,
        )

    def start_job(self) -> None:
        """The Spark driver, from its checkpoint."""
        assert self._spec is not None
        environ = {
            "KEYHOLE_JOB_SERVERS": f"127.0.0.1:{self._server_port}",
            "KEYHOLE_JOB_BOOTSTRAP_SERVERS": self.bootstrap_servers,
            **self._spec.job_environ,
        }
        self._children["job"] = self._python("job", self._spec.job, environ)

    def start_source(self) -> None:
        """What feeds the topic."""
        assert self._spec is not None
        self._children["source"] = self._python(
            "source",
            self._spec.source,
            {"KEYHOLE_READINGS_BOOTSTRAP_SERVERS": self.bootstrap_servers, **self._spec.source_environ},
        )

    def stop_source(self) -> None:
        """Lets it send what it has."""
        self._children["source"].terminate(_STOP_SECONDS)

    def kill(self, name: str) -> None:
        """SIGKILL to "server" or "job"."""
        self._children[name].kill()

    def check(self) -> None:
        """Raises MachineError, with the end of its log, where a child has ended by itself."""
        for name, child in self._children.items():
            if name != "source" and child.exit_code is not None:
                tail = "\n".join(child.output().splitlines()[-20:])
                raise MachineError(f"{name} ended with exit code {child.exit_code}; the end of its log:\n{tail}")

    def _python(self, name: str, module: str, environ: Mapping[str, str]) -> Child:
        command = [sys.executable, "-m", module]
        return Child(name, command, self.directory / f"{name}.log", {**self._environ, **environ})

    def _stop_children(self) -> None:
        # Nothing of theirs is kept, and Spark takes its time to end in an orderly way.
        for name in ("source", "proxy", "server"):
            if name in self._children:
                self._children[name].terminate(1.0)
        if "job" in self._children:
            self._children["job"].kill()


def _port(wanted: int) -> int:
    return wanted if is_free(wanted, "127.0.0.1") else free_ports(1)[0]
