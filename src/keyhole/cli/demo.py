"""`keyhole demo`: the main job on embedded defaults, and a live table of answers read through the proxy."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from keyhole import Client
from keyhole.cli import freshness
from keyhole.cli.answers_table import AnswersTable
from keyhole.cli.signals import StopSignals
from keyhole.cli.verify import Verdict, committed_offsets, compare, entries, recount, topic_ends
from keyhole.errors import KeyholeError, MachineError
from keyhole.local.jars import JarSet, default_cache_dir, fetch
from keyhole.local.java import find_java
from keyhole.local.stack import Jars, JobSpec, Stack

APPLICATION, STATE, TOPIC = "temperature-monitor", "max_temperature", "readings"
# As jobs.temperature_monitor.source has it; the distribution imports no job.
PROBE, PROBE_PARTITION, PARTITIONS = "probe", 0, 3
SHOWN = ("seattle", "san-francisco", *(f"sensor-{number}" for number in range(10)))

_BROKEN_OFF = 130
_FIRST_ANSWER_SECONDS = 180.0
_CATCH_UP_SECONDS = 180.0
_POLL_SECONDS = 0.02
_SHOW_SECONDS = 0.5
_CHAOS_SECONDS = 60.0


@dataclass(frozen=True)
class DemoOptions:
    """What the command line says.

    Attributes:
        sensors: Of the synthetic fleet.
        rate: Its events per second.
        seconds: From the first answer on; None: until Ctrl-C.
        verify: Count everything again at the end, and compare.
        json: One line of JSON at the end of standard output; all else goes to standard error.
        chaos: SIGKILL the state server and the driver, once each.
    """

    sensors: int = 1000
    rate: int = 1000
    seconds: float | None = None
    verify: bool = False
    json: bool = False
    chaos: bool = False


def run_demo(options: DemoOptions) -> int:
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
            jars = _fetch_jars(console)
            stack = Stack(
                jars, java, os.environ, lambda what: console.print(f"starting {what}"), uninterrupted=signals.deferred
            )
            with stack:
                try:
                    demo = _Demo(options, stack, console, signals, began)
                    result, passed = demo.run(_spec(options, stack, jars))
                finally:
                    # The end is short, and a second Ctrl-C must not leave things behind.
                    signals.ignore()
                    console.print("stopping")
    except KeyboardInterrupt:
        console.print("broken off" + (": nothing was verified" if options.verify else ""))
        return _BROKEN_OFF
    if options.json:
        print(json.dumps(result))
    return 0 if passed else 1


def _fetch_jars(console: Console) -> Jars:
    """From the cache, or from the registry with a progress bar."""
    columns = (TextColumn("fetching {task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=console, transient=True) as progress:

        def of(which: JarSet) -> list[Path]:
            task = progress.add_task(f"{which} jars", total=None, visible=False)

            def show(done: int, total: int, name: str) -> None:
                progress.update(task, completed=done, total=total, visible=True)

            return fetch(which, default_cache_dir(os.environ), show)

        return Jars(of(JarSet.KAFKA), of(JarSet.SPARK_KAFKA))


def _spec(options: DemoOptions, stack: Stack, jars: Jars) -> JobSpec:
    return JobSpec(
        job="jobs.temperature_monitor",
        source="jobs.temperature_monitor.source",
        topic=TOPIC,
        partitions=PARTITIONS,
        job_environ={
            "KEYHOLE_JOB_APPLICATION": APPLICATION,
            "KEYHOLE_TEMPERATURE_MONITOR_TOPIC": TOPIC,
            "KEYHOLE_TEMPERATURE_MONITOR_CHECKPOINT": str(stack.checkpoint),
            "KEYHOLE_TEMPERATURE_MONITOR_DIRECTORY": str(stack.directory / "spark"),
            "KEYHOLE_TEMPERATURE_MONITOR_JARS": ",".join(map(str, jars.spark)),
        },
        source_environ={
            "KEYHOLE_READINGS_TOPIC": TOPIC,
            "KEYHOLE_READINGS_SENSORS": str(options.sensors),
            "KEYHOLE_READINGS_RATE": str(options.rate),
        },
    )


class _Demo:
    """One run, from the start of the stack to the result."""

    def __init__(
        self, options: DemoOptions, stack: Stack, console: Console, signals: StopSignals, began: float
    ) -> None:
        self._options = options
        self._stack = stack
        self._console = console
        self._signals = signals
        self._began = began
        self._sightings = freshness.Sightings()

    def run(self, spec: JobSpec) -> tuple[dict[str, object], bool]:
        """The result for programs, and whether all is well."""
        self._stack.start(spec)
        with Client(self._stack.proxy, timeout=5) as client:
            self._await_first_answer(client)
            self._console.print(
                f"ready after {time.monotonic() - self._began:.0f} s. In another terminal:\n"
                f"  keyhole get --proxy {self._stack.proxy} {APPLICATION}/{STATE} seattle sensor-0",
                soft_wrap=True,
            )
            with self._signals.gently():
                self._watch(client)
            verdict = self._verify(client) if self._options.verify else None
            return self._result(client, verdict), verdict is None or verdict.passed

    def _await_first_answer(self, client: Client) -> None:
        until = time.monotonic() + _FIRST_ANSWER_SECONDS
        while True:
            reason = "the probe is absent"
            try:
                if client.get(APPLICATION, STATE, PROBE).found:
                    return
            except KeyholeError as error:
                reason = error.message
            self._stack.check()
            if time.monotonic() > until:
                raise MachineError(
                    f"no answer within {_FIRST_ANSWER_SECONDS:.0f} s ({reason}); the end of the job's log:\n"
                    f"{self._stack.log_tail('job')}"
                )
            time.sleep(0.2)

    def _watch(self, client: Client) -> None:
        """Polls the probe, and shows the table, until the time is up or a signal comes."""
        seconds, began = self._options.seconds, time.monotonic()
        chaos = list(self._chaos()) if self._options.chaos else []
        table = AnswersTable(f"{APPLICATION}/{STATE}, read through the proxy", SHOWN)
        next_show = 0.0
        with Live(console=self._console, auto_refresh=False) as live:
            while seconds is None or time.monotonic() - began < seconds:
                now = time.monotonic()
                while chaos and now - began >= chaos[0][0]:
                    chaos.pop(0)[1]()
                try:
                    self._sightings.note(client.get(APPLICATION, STATE, PROBE, timeout=1.0), time.time() * 1000)
                    if now >= next_show:
                        table.update(client.get_many(APPLICATION, STATE, SHOWN, timeout=1.0))
                except KeyholeError as error:  # of a server that was killed, say: the table shows how its answers age
                    table.fail(error)
                if now >= next_show:
                    live.update(table.render(), refresh=True)
                    next_show = now + _SHOW_SECONDS
                self._stack.supervise()
                if self._signals.came.wait(_POLL_SECONDS):
                    return
        if not self._console.is_terminal:
            self._console.print()

    def _chaos(self) -> Iterator[tuple[float, Callable[[], None]]]:
        """Seconds after the first answer, and what happens then."""
        seconds = self._options.seconds or _CHAOS_SECONDS
        for part, name, what in ((1 / 4, "server", "the state server"), (1 / 2, "job", "the driver")):

            def kill(name: str = name, what: str = what) -> None:
                self._console.print(f"chaos: kill -9 of {what}")
                self._stack.kill(name)

            yield seconds * part, kill

    def _verify(self, client: Client) -> Verdict:
        self._console.print("verify: stopping the source, and waiting until the job has caught up")
        self._stack.stop_source()
        epoch = self._await_caught_up(client)
        # The first epoch of a fresh application is 1, of Spark's batch 0.
        ends = committed_offsets(self._stack.checkpoint, epoch - 1)
        try:
            counted, events = recount(self._stack.bootstrap_servers, TOPIC, ends)
        except TimeoutError as error:
            raise MachineError(f"the topic can't be counted: {error}") from error
        self._console.print(f"verify: counted {events:,} events of {len(counted):,} keys up to epoch {epoch}")
        verdict = compare(client, APPLICATION, STATE, epoch, counted, events)
        outcome = "all agree" if verdict.passed else f"{verdict.mismatches:,} DIFFER"
        self._console.print(f"verify: {verdict.agreed:,} of {verdict.keys:,} keys agree at epoch {epoch}: {outcome}")
        return verdict

    def _await_caught_up(self, client: Client) -> int:
        """The epoch that holds all that the source has sent."""
        until = time.monotonic() + _CATCH_UP_SECONDS
        ends = topic_ends(self._stack.bootstrap_servers, TOPIC)
        reached = 0
        while time.monotonic() < until:
            self._stack.supervise()
            with contextlib.suppress(KeyholeError):
                answer = client.get(APPLICATION, STATE, PROBE, timeout=1.0)
                self._sightings.note(answer, time.time() * 1000)
                epoch = answer.epoch
                if epoch != reached and committed_offsets(self._stack.checkpoint, epoch - 1) == ends:
                    return epoch
                reached = epoch
            time.sleep(0.1)
        raise MachineError(
            f"the job has not caught up within {_CATCH_UP_SECONDS:.0f} s after the source stopped (epoch {reached}); "
            f"the end of its log:\n{self._stack.log_tail('job')}"
        )

    def _result(self, client: Client, verdict: Verdict | None) -> dict[str, object]:
        ages: list[float] = []
        keys = verdict.keys if verdict else None
        events = verdict.events if verdict else None
        if self._options.json:
            kafka = self._stack.bootstrap_servers
            ages = freshness.ages_ms(freshness.sent(kafka, TOPIC, PROBE_PARTITION, PROBE), self._sightings.first_shown)
            with contextlib.suppress(KeyholeError):
                keys = entries(client, APPLICATION, STATE) if keys is None else keys
            events = sum(topic_ends(kafka, TOPIC).values()) if events is None else events
        return {
            "keys": keys,
            "epochs": verdict.epoch if verdict else self._sightings.epoch,
            "events": events,
            "freshness_p50_ms": freshness.percentile(ages, 0.5),
            "freshness_p99_ms": freshness.percentile(ages, 0.99),
            "mismatches": verdict.mismatches if verdict else None,
            "agreed": verdict.agreed if verdict else None,
            "seconds": round(time.monotonic() - self._began, 1),
        }
