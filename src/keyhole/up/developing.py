"""`keyhole dev JOB`: all that serves states here, and a job that is started again whenever its file changes."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from keyhole import Client
from keyhole.demo.fetching import fetch_jars
from keyhole.demo.progress_line import ProgressLine
from keyhole.demo.signals import StopSignals
from keyhole.errors import KeyholeError, MachineError
from keyhole.local.jars import JarSet
from keyhole.local.java import Java, find_java
from keyhole.local.spark_home import refuse_other_spark
from keyhole.terminal.commands import keyhole_command
from keyhole.up.bringing_up import UpOptions, ensure_up, is_other
from keyhole.up.exports import running, variables
from keyhole.up.home import Home, Recorded
from keyhole.up.job_file import JobFile, JobText, Settling
from keyhole.up.job_run import JobRun, SeenState, owned
from keyhole.up.taking_down import down

_BROKEN_OFF = 130
_LOOK_SECONDS = 0.2
_ASK_SECONDS = 1.0
# For as long a file must stay as it is: editors write it in several steps.
_SETTLED_SECONDS = 0.4
_USUAL_PROXY = "127.0.0.1:7400"


@dataclass(frozen=True)
class DevOptions:
    """What the command line says.

    Attributes:
        watch: Files beside the job's whose change starts it again.
        topics: Are made in Kafka, with so many partitions.
        servers: So many state servers; None: as many as last time, or one.
        ephemeral: The states and the job's checkpoint are in a temporary folder, and go at the end.
        keep: What this command has started goes on after it.
        fresh: What is in the folder goes first: states, checkpoints, logs.
    """

    watch: Sequence[Path] = ()
    topics: Mapping[str, int] = field(default_factory=dict)
    keep: bool = False
    fresh: bool = False
    servers: int | None = None
    ephemeral: bool = False


def develop(path: Path, home: Home, options: DevOptions, environ: Mapping[str, str], console: Console) -> int:
    """Runs until Ctrl-C or SIGTERM comes; must be called from the main thread. The job then runs no more.

    Returns:
        The exit code: 0; 130 where it was broken off before all had started.

    Raises:
        KeyholeError: There is no such file, the machine lacks something, another one works at a job in this folder, or
            what serves states has ended.
    """
    began = time.monotonic()
    file = JobFile(path, options.watch)
    started = False
    try:
        with StopSignals() as signals:
            java = find_java(environ)
            refuse_other_spark(environ)
            if problem := file.read().problem:
                _say(console, f"{problem}; all that the job needs starts meanwhile")
            (_, connector) = fetch_jars(console, environ, JarSet.KAFKA, JarSet.SPARK_KAFKA)
            if options.fresh and home.file.parent.exists():
                home.make()
                with home.developed(path):
                    down(home, console, delete=True)
            home.make()
            # Its own: the one from before went with the folder.
            with home.developed(path):
                try:
                    wanted = UpOptions(options.servers, options.ephemeral, topics=options.topics)
                    started = ensure_up(home, wanted, environ, console)
                    recorded = running(home)
                    _say(console, _where_it_runs(home, recorded, started=started))
                    if is_other(wanted, recorded):
                        _say(console, f"To have it otherwise, end it first: {_down(home, environ)}")
                    settings = job_environ(environ, recorded, java, connector)
                    with Client(recorded.proxy, timeout=_ASK_SECONDS) as client:
                        work = _Work(file, home, recorded, settings, client, signals, console, began)
                        with signals.gently():
                            work.run()
                finally:
                    # The end is short, and a second signal must not leave things behind.
                    signals.ignore()
                    if started and not options.keep and home.runs():
                        down(home, console, delete=False)
    except KeyboardInterrupt:
        _say(console, "broken off")
        return _BROKEN_OFF
    if home.runs():
        _say(console, f"what serves states goes on: {_down(home, environ)} ends it")
    return 0


def job_environ(
    environ: Mapping[str, str], recorded: Recorded, java: Java, connector: Sequence[Path]
) -> dict[str, str]:
    """The environment of the job's process: where all is, its checkpoints too; this Python for Spark's workers; and
    Spark's connector for Kafka, as `spark-submit` takes it.
    """
    # PySpark takes it apart as a shell would.
    jars = f"--jars {shlex.quote(','.join(map(str, connector)))}"
    return {
        **environ,
        **variables(recorded, sys.executable),
        "JAVA_HOME": str(java.home),
        "PYSPARK_SUBMIT_ARGS": f"{jars} {environ.get('PYSPARK_SUBMIT_ARGS', 'pyspark-shell')}",
        "PYTHONUNBUFFERED": "1",
    }


def _where_it_runs(home: Home, recorded: Recorded, *, started: bool) -> str:
    what = "Keyhole runs here" if started else "Keyhole runs here already"
    return (
        f"{what}: Kafka {recorded.kafka}, client proxy {recorded.proxy}, HTTP {recorded.http}, "
        f"console {recorded.http}/console/; its data are in {recorded.data if recorded.ephemeral else home.path}"
    )


def _down(home: Home, environ: Mapping[str, str]) -> str:
    return f"{keyhole_command(environ)} down{home.option}"


def _say(console: Console, what: str) -> None:
    console.print(what, markup=False, soft_wrap=True)


class _Work:
    """The job's starts, one after the other, while somebody works at its file."""

    def __init__(
        self,
        file: JobFile,
        home: Home,
        recorded: Recorded,
        environ: Mapping[str, str],
        client: Client,
        signals: StopSignals,
        console: Console,
        began: float,
    ) -> None:
        self._file = file
        self._home = home
        self._recorded = recorded
        self._environ = environ
        self._client = client
        self._signals = signals
        self._console = console
        self._began = began
        self._text = JobText("")
        self._run: JobRun | None = None
        self._states: dict[str, SeenState] = {}
        self._first = True
        self._ended = began

    def run(self) -> None:
        """Until a signal comes; then no job runs. Raises MachineError: what it needs has ended."""
        settling = Settling(self._file.stamp(), _SETTLED_SECONDS)
        try:
            self._look_at_states()
            self._take(self._file.read())
            with ProgressLine(self._console) as line:
                while not self._signals.came.wait(_LOOK_SECONDS):
                    self._check_home()
                    if settling.changed(self._file.stamp(), time.monotonic()):
                        self._take(self._file.read())
                    self._look_at_job()
                    self._look_at_states()
                    self._show(line)
        finally:
            self._stop()

    def _take(self, text: JobText) -> None:
        """What the file has become."""
        name = self._file.path.name
        if text.problem:
            goes_on = "the job goes on as it was" if self._run is not None else f"waiting for a change of {name}"
            self._say(f"{text.problem}; {goes_on}")
            return
        if self._run is not None:
            if text.digest == self._text.digest:
                return
            self._say(f"{name} has changed: starting it again")
            self._stop()
        self._text = text
        self._start()

    def _start(self) -> None:
        path = self._file.path.resolve()
        self._run = JobRun(
            [sys.executable, path.name],
            path.parent,
            self._home.logs / "job.log",
            self._home.file.parent / "job-tmp",
            self._environ,
            self._states,
            self._signals.deferred,
        )

    def _stop(self) -> None:
        if self._run is not None:
            self._run.stop()
            self._run, self._ended = None, time.monotonic()

    def _look_at_job(self) -> None:
        run = self._run
        if run is not None and run.exit_code is not None:
            self._say(f"{run.end()}\nIts whole log is {self._log()}. Waiting for a change of {self._file.path.name}")
            self._stop()

    def _look_at_states(self) -> None:
        try:
            self._states = owned(self._client.status())
        except KeyholeError:
            return  # the proxy, or a server, is started again: they are asked again
        run = self._run
        if run is None:
            return
        for path, seen in run.answers.look(self._states):
            since = f"{run.seconds:.0f} s after the job's start"
            if self._first:
                since += f", {time.monotonic() - self._began:.0f} s after the command"
                self._first = False
            self._say(f"{path} can be read, {since}: {seen.entries:,} entries at epoch {seen.epoch}")
            proxy = "" if self._recorded.proxy == _USUAL_PROXY else f" --proxy {self._recorded.proxy}"
            self._say(f"  {keyhole_command(self._environ)} get {path} KEY{proxy}")
            self._say(f"  curl {self._recorded.http}/v1/{path}/KEY")

    def _show(self, line: ProgressLine) -> None:
        run, name = self._run, self._file.path.name
        if run is not None and not run.answers.announced:
            line.show(f"waiting for the first answer of {name} ({run.step()})", run.seconds)
            return
        if not self._console.is_terminal:
            return  # it would say the same every few seconds
        if run is None:
            line.show(f"waiting for a change of {name}", time.monotonic() - self._ended)
            return
        last = f"; its last line: {said}" if (said := run.last_line()) else ""
        states = ", ".join(
            f"{path} at epoch {seen.epoch}" for path, seen in self._states.items() if path in run.answers.announced
        )
        line.show(f"{name} runs; {states}{last}", run.seconds)

    def _check_home(self) -> None:
        if not self._home.runs():
            recorded = self._home.read()
            why = f": {recorded.failure.splitlines()[0]}" if recorded is not None and recorded.failure else ""
            raise MachineError(f"what serves states in {self._home.path} has ended{why}; start this command again")

    def _log(self) -> Path:
        return self._home.path / "logs" / "job.log"

    def _say(self, what: str) -> None:
        _say(self._console, what)
