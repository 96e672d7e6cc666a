"""Runs a job here on embedded defaults, from the start of Kafka to the verdict: what `demo` and `job` share."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console, RenderableType
from rich.live import Live

from keyhole import Answer, Client
from keyhole.demo import batch_logs
from keyhole.demo.batch_logs import BatchLogs
from keyhole.demo.described_jobs import JobDescription
from keyhole.demo.fetching import fetch_jars
from keyhole.demo.preparing import prepare_classes
from keyhole.demo.progress_line import ProgressLine, say_starting
from keyhole.demo.recount import RecountVerdict, entries_by_state, topic_ends
from keyhole.demo.signals import StopSignals
from keyhole.demo.starting import step
from keyhole.errors import KeyholeError, MachineError, UnknownApplication, UnknownState
from keyhole.local.jars import JarSet
from keyhole.local.java import find_java
from keyhole.local.spark_home import refuse_other_spark
from keyhole.local.stack import Jars, Stack
from keyhole.terminal.commands import keyhole_command
from keyhole.terminal.json_output import print_json

_BROKEN_OFF = 130
_FIRST_ANSWER_SECONDS = 600.0
_CATCH_UP_SECONDS = 180.0
# Of a batch in real-time mode, which lasts as long as the job says, and first of a driver that was killed.
_BATCH_SECONDS = 300.0
_VERIFY_SECONDS = 600.0
_ANSWER_SECONDS = 1.0
_LOOK_SECONDS = 0.2
# Each costs the job processor time, here and in the proxy and the server.
_POLL_SECONDS = 0.05
# In real-time mode. What is fresh after milliseconds would else be measured by the pause.
_SHORT_POLL_SECONDS = 0.003
_SHOW_SECONDS = 0.5
_CHAOS_SECONDS = 60.0


@dataclass(frozen=True)
class RunOptions:
    """What the command line says.

    Attributes:
        seconds: From the first answer on; None: until Ctrl-C.
        verify: Count everything again at the end, and compare.
        json: One line of JSON at the end of standard output; all else goes to standard error.
        chaos: SIGKILL the state server and the driver, once each.
    """

    seconds: float | None = None
    verify: bool = False
    json: bool = False
    chaos: bool = False


class LiveView(Protocol):
    """What a person sees while the job runs. One thread."""

    def note(self, probe: Answer) -> None:
        """An answer for the job's probe; they come all the time."""

    def update(self, client: Client) -> None:
        """Reads what `render` shows. Its KeyholeErrors come back as `fail`."""

    def fail(self, error: KeyholeError) -> None:
        """Takes note that there were no answers."""

    def render(self) -> RenderableType:
        """What a person sees at this moment; called several times a second."""

    def result(self, stack: Stack) -> dict[str, object]:
        """What --json has beside what it has of every job."""


def run_locally(job: JobDescription, view: LiveView, options: RunOptions) -> int:
    """Runs until the time is up, or Ctrl-C or SIGTERM comes; must be called from the main thread.

    Returns:
        The exit code: 0; 1 where a key differs; 130 where it was broken off before there were answers, or while they
        were verified.

    Raises:
        KeyholeError: The machine lacks something, or one of the processes failed.
    """
    console = Console(stderr=options.json, highlight=False)
    began = time.monotonic()
    try:
        with StopSignals() as signals:
            java = find_java(os.environ)
            refuse_other_spark(os.environ)
            jars = Jars(*fetch_jars(console, os.environ, JarSet.KAFKA, JarSet.SPARK_KAFKA))
            prepare_classes(console, os.environ, java, jars.kafka)
            say = functools.partial(say_starting, console)
            stack = Stack(jars, java, os.environ, say, uninterrupted=signals.deferred)
            with stack:
                try:
                    stack.start(job.spec(stack.directory, stack.checkpoint, ",".join(map(str, jars.spark)), os.environ))
                    result, passed = _DemoRun(job, view, options, stack, console, signals, began).run()
                finally:
                    # The end is short, and a second Ctrl-C must not leave things behind.
                    signals.ignore()
                    console.print("stopping")
    except KeyboardInterrupt:
        console.print("broken off" + (": nothing was verified" if options.verify else ""))
        return _BROKEN_OFF
    if options.json:
        print_json(result)
    return 0 if passed else 1


class _DemoRun:
    """One run, from the moment that all is started to the result."""

    def __init__(
        self,
        job: JobDescription,
        view: LiveView,
        options: RunOptions,
        stack: Stack,
        console: Console,
        signals: StopSignals,
        began: float,
    ) -> None:
        self._job = job
        self._view = view
        self._options = options
        self._stack = stack
        self._console = console
        self._signals = signals
        self._began = began
        self._epoch = 0
        self._logs = stack.directory / "logs"

    def run(self) -> tuple[dict[str, object], bool]:
        """The result for programs, and whether all is well."""
        with Client(self._stack.proxy, timeout=5) as client:
            self._await_first_answer(client)
            self._console.print(self._ready(), markup=False, soft_wrap=True)
            with self._signals.gently():
                self._watch(client)
            verdict = self._verify(client) if self._options.verify else None
            return self._result(client, verdict), verdict is None or verdict.passed

    def _ready(self) -> str:
        command, arguments = self._job.example.split(maxsplit=1)
        keyhole = keyhole_command(os.environ)
        return (
            f"ready after {time.monotonic() - self._began:.0f} s. In another terminal:\n"
            f"  {keyhole} {command} --proxy {self._stack.proxy} {arguments}\n"
            f"  curl http://{self._stack.http}/v1/{self._job.path}\n"
            "A job of your own finds these servers, and this Kafka, by\n"
            f"  KEYHOLE_JOB_SERVERS={self._stack.server} KEYHOLE_JOB_BOOTSTRAP_SERVERS={self._stack.bootstrap_servers}"
        )

    def _probe(self, client: Client) -> Answer:
        """Reads the job's probe key, no older than it was last. Raises KeyholeError."""
        state, key = self._job.probe
        # A call that is broken off while it is handed over to the client's thread would be warned of by Python.
        with self._signals.deferred():
            answer = client.get(self._job.application, state, key, timeout=_ANSWER_SECONDS)
        self._epoch = max(self._epoch, answer.epoch)
        self._view.note(answer)
        return answer

    def _keep_logs(self) -> None:
        if self._options.verify:
            batch_logs.keep(self._stack.checkpoint, self._logs)

    def _await_first_answer(self, client: Client) -> None:
        began = time.monotonic()
        waiting, batches = ProgressLine(self._console), BatchLogs(self._stack.checkpoint, self._logs)
        with waiting:
            while True:
                trouble = ""
                try:
                    answer = self._probe(client)
                    # The rules of a state that is fed by updates are an epoch, without a row.
                    if answer.found if self._job.real_time else answer.epoch > 0:
                        return
                except (UnknownApplication, UnknownState):
                    pass  # it is declared in the first batch
                except KeyholeError as error:
                    trouble = f"; {error.message}"
                self._stack.supervise()
                self._keep_logs()
                seconds = time.monotonic() - began
                reason = step(self._stack.said("job"), batches) + trouble
                if seconds > _FIRST_ANSWER_SECONDS:
                    raise self._stack.failed("job", f"no answer within {_FIRST_ANSWER_SECONDS:.0f} s ({reason})")
                waiting.show(f"waiting for the job's first answer ({reason})", seconds)
                time.sleep(_LOOK_SECONDS)

    def _watch(self, client: Client) -> None:
        """Asks for the probe, and shows the view, until the time is up or a signal comes."""
        seconds, began = self._options.seconds, time.monotonic()
        pause = _SHORT_POLL_SECONDS if self._job.real_time else _POLL_SECONDS
        chaos = list(self._chaos()) if self._options.chaos else []
        next_show = 0.0
        with Live(console=self._console, auto_refresh=False) as live:
            while seconds is None or time.monotonic() - began < seconds:
                now = time.monotonic()
                while chaos and now - began >= chaos[0][0]:
                    chaos.pop(0)[1]()
                try:
                    self._probe(client)
                    if now >= next_show:
                        self._view.update(client)
                except KeyholeError as error:  # of a server that was killed, say: the view shows how its answers age
                    self._view.fail(error)
                if now >= next_show:
                    self._keep_logs()
                    live.update(self._view.render(), refresh=True)
                    next_show = now + _SHOW_SECONDS
                self._stack.supervise()
                if self._signals.came.wait(pause):
                    return
        if not self._console.is_terminal:
            self._console.print()

    def _chaos(self) -> Iterator[tuple[float, Callable[[], None]]]:
        """Seconds after the first answer, and what happens then."""
        seconds = self._options.seconds or _CHAOS_SECONDS
        for part, name, what in ((1 / 4, "server-0", "the state server"), (1 / 2, "job", "the driver")):

            def kill(name: str = name, what: str = what) -> None:
                self._console.print(f"chaos: kill -9 of {what}")
                self._stack.kill(name)

            yield seconds * part, kill

    def _verify(self, client: Client) -> RecountVerdict:
        self._console.print("verify: stopping the source, and waiting until the job has caught up")
        self._stack.stop_source()
        epoch = self._await_last_batch() if self._job.real_time else self._await_caught_up(client)
        upto = f"the end of batch {epoch - 1}" if self._job.real_time else f"epoch {epoch}"
        arguments = {
            "--proxy": self._stack.proxy,
            "--bootstrap-servers": self._stack.bootstrap_servers,
            "--topic": self._job.topic,
            "--epoch": str(epoch),
            "--checkpoint": str(self._stack.checkpoint),
            "--logs": str(self._logs),
            "--files": self._job.files_in(self._stack.directory, os.environ),
            "--more-topics": json.dumps(dict(self._job.more_topics)),
            "--settings": json.dumps(self._job.given(os.environ)),
        }
        given = [word for pair in arguments.items() for word in pair]
        code, output = self._stack.run("verify", self._job.verify, given, _VERIFY_SECONDS)
        # What Python says at its end may stand behind it.
        last_line = next((line for line in reversed(output.splitlines()) if line.startswith("{")), None)
        if code not in (0, 1) or last_line is None:
            raise MachineError(f"the topic can't be counted again; the end of what was said:\n{output[-2000:]}")
        verdict = RecountVerdict(**json.loads(last_line))
        self._console.print(f"verify: counted {verdict.events:,} events of {verdict.keys:,} keys up to {upto}")
        if rejected := sum(verdict.rejected.values()):
            kept = "all are" if not verdict.unkept else f"{verdict.unkept:,} are NOT"
            self._console.print(f"verify: {rejected:,} records can't be taken; {kept} in the dead-letter topic")
        if verdict.late:
            self._console.print(f"verify: {verdict.late:,} events came too late, and no state has them")
        outcome = "all agree" if verdict.passed else f"{verdict.mismatches:,} DIFFER"
        self._console.print(f"verify: {verdict.agreed:,} of {verdict.keys:,} keys agree at {upto}: {outcome}")
        return verdict

    def _await_caught_up(self, client: Client) -> int:
        """The epoch that holds all that the source has sent."""
        until = time.monotonic() + _CATCH_UP_SECONDS
        ends = topic_ends(self._stack.bootstrap_servers, self._job.topic)
        reached, batches = 0, BatchLogs(self._stack.checkpoint, self._logs)
        while time.monotonic() < until:
            self._stack.supervise()
            self._keep_logs()
            with contextlib.suppress(KeyholeError):
                epoch = self._probe(client).epoch
                # The first epoch of a fresh application is 1, of Spark's batch 0.
                if epoch != reached and batches.ends(epoch - 1) == ends:
                    return epoch
                if epoch != reached:
                    reached, until = epoch, time.monotonic() + _CATCH_UP_SECONDS
            time.sleep(0.1)
        raise self._stack.failed(
            "job",
            f"the job has come no further than epoch {reached} for {_CATCH_UP_SECONDS:.0f} s, though there is more",
        )

    def _await_last_batch(self) -> int:
        """How many batches of Spark's have ended, once the last one has all that the source has sent."""
        until = time.monotonic() + _BATCH_SECONDS
        ends = topic_ends(self._stack.bootstrap_servers, self._job.topic)
        reached, batches = dict[int, int](), BatchLogs(self._stack.checkpoint, self._logs)
        while time.monotonic() < until:
            self._stack.supervise()
            self._keep_logs()
            if (newest := batches.newest()) >= 0 and (found := batches.ends(newest)) != reached:
                if found == ends:
                    return newest + 1
                reached, until = found, time.monotonic() + _BATCH_SECONDS
            time.sleep(0.1)
        raise self._stack.failed(
            "job", f"no batch with more records has ended for {_BATCH_SECONDS:.0f} s, though there are more"
        )

    def _result(self, client: Client, verdict: RecountVerdict | None) -> dict[str, object]:
        keys = verdict.keys if verdict else None
        events = verdict.events if verdict else None
        more: dict[str, object] = {}
        states: dict[str, int] | None = None
        if self._options.json:
            more = self._view.result(self._stack)
            with contextlib.suppress(KeyholeError):
                states = entries_by_state(client, self._job.application)
                keys = states.get(self._job.probe[0], 0) if keys is None else keys
            if events is None:
                events = sum(topic_ends(self._stack.bootstrap_servers, self._job.topic).values())
        return {
            "keys": keys,
            # Of a state that is fed by updates each key group has its own.
            "epochs": None if self._job.real_time else verdict.epoch if verdict else self._epoch,
            "events": events,
            "states": states,
            **more,
            "mismatches": verdict.mismatches if verdict else None,
            "agreed": verdict.agreed if verdict else None,
            "rejected": sum(verdict.rejected.values()) if verdict else None,
            "rejected_by_topic": verdict.rejected if verdict else None,
            "late": verdict.late if verdict else None,
            "seconds": round(time.monotonic() - self._began, 1),
        }
