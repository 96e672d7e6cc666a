"""The embedded default, on this machine, as one thing: what serves states, a job that makes them, and its source."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from keyhole.local.base_stack import BaseStack, StopSeconds
from keyhole.local.java import Java
from keyhole.local.job_spec import JobSpec
from keyhole.local.ports import free_ports
from keyhole.local.processes import Child
from keyhole.local.stack_ports import HOST, StackPorts

_LOOK_SECONDS = 0.2
_SOURCE, _JOB = "source", "job"
# Together below the 10 s that a person is promised.
_STOP_SECONDS = StopSeconds(kafka=2.5, server=1.5, proxy=1.0, exporter=0.5, others=2.0)


@dataclass(frozen=True)
class Jars:
    """The JVM jars, by path."""

    kafka: Sequence[Path]
    spark: Sequence[Path]


class Stack(BaseStack):
    """All processes of a demo, in one temporary directory. Use as a context manager: the end leaves nothing behind.

    Args:
        jars: What the JVMs load.
        java: What they run on.
        environ: As of BaseStack.
        say: Is called with each step, in words for a person.
        uninterrupted: As of BaseStack.
    """

    _once: ClassVar[frozenset[str]] = frozenset({_SOURCE})

    def __init__(
        self,
        jars: Jars,
        java: Java,
        environ: Mapping[str, str],
        say: Callable[[str], None],
        uninterrupted: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        super().__init__(jars.kafka, java, environ, say, _STOP_SECONDS, uninterrupted=uninterrupted)

    @property
    def job_stats(self) -> str:
        """host:port of the job's figures."""
        return f"{HOST}:{self._job_stats_port}"

    @property
    def checkpoint(self) -> Path:
        """The directory of the query's Spark checkpoint."""
        return self.directory / "checkpoint"

    def start(self, spec: JobSpec) -> None:
        """Starts all, each once the one before it is healthy. The job and its source are only started.

        The job comes first: its JVM and Spark's session take as long as all the rest, for which it waits then. Its
        source comes last: what it had sent by the first batch would make that longer.

        Raises:
            MachineError: One of them did not come up; the message has the end of its log.
        """
        self._spec = spec
        # The job takes its own only once Spark has started: the usual one may be another stack's by then.
        (self._job_stats_port,) = free_ports(1)
        self._coordinators = [self.job_stats]
        self._choose(StackPorts())
        self._say(f"job {spec.job}")
        self._spawn(_JOB)
        self._start_chosen(spec.topics)
        self._say(f"source {spec.source}")
        self._spawn(_SOURCE)
        # The last one, as it is the first to end.
        self._children[_JOB] = self._children.pop(_JOB)

    def stop_source(self) -> None:
        """Lets it send what it has. Nothing more comes after this."""
        self._children.pop(_SOURCE).terminate(_STOP_SECONDS.others)

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

    def _start_child(self, name: str) -> Child:
        spec = self._spec
        if name == _JOB:
            addresses = {
                "KEYHOLE_JOB_SERVERS": self.server,
                "KEYHOLE_JOB_BOOTSTRAP_SERVERS": self.bootstrap_servers,
                "KEYHOLE_JOB_PROXY": self.proxy,
                "KEYHOLE_JOB_STATS": self.job_stats,
            }
            return self._python(name, spec.job, {**addresses, **spec.job_environ})
        if name == _SOURCE:
            bootstrap = {f"{spec.source_prefix}BOOTSTRAP_SERVERS": self.bootstrap_servers}
            return self._python(name, spec.source, {**bootstrap, **spec.source_environ})
        return super()._start_child(name)

    def _python(self, name: str, module: str, environ: Mapping[str, str], arguments: Sequence[str] = ()) -> Child:
        # -P: a folder `jobs` in the caller's working directory is none of ours.
        command = [sys.executable, "-P", "-m", module, *arguments]
        return Child(name, command, self.directory / f"{name}.log", {**self._environ, **environ})
