"""`keyhole demo`: the main job on embedded defaults, and a live table of answers read through the proxy."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
from rich.table import Table

from keyhole import Answer, Client
from keyhole.cli.verify import Verdict, verify
from keyhole.errors import EpochFailed, KeyholeError
from keyhole.local.jars import JarSet, default_cache_dir, fetch
from keyhole.local.java import find_java
from keyhole.local.stack import Jars, JobSpec, Stack

APPLICATION, STATE, TOPIC = "temperature-monitor", "max_temperature", "readings"
PROBE = "probe"
SHOWN = ("seattle", "san-francisco", *(f"sensor-{number}" for number in range(8)))

_FIRST_ANSWER_SECONDS = 120.0
_CATCH_UP_SECONDS = 120.0
_POLL_SECONDS = 0.02
_SHOW_SECONDS = 0.5


@dataclass(frozen=True)
class DemoOptions:
    """What the command line says. `seconds` None: until Ctrl-C. `chaos` kills server and driver once each."""

    sensors: int = 1000
    rate: int = 1000
    seconds: float | None = None
    verify: bool = False
    json: bool = False
    chaos: bool = False


@dataclass
class Sightings:
    """When each temperature of the probe was first shown: (temperature, ms since 1970)."""

    seen: list[tuple[float, float]] = field(default_factory=list)
    epoch: int = 0

    def note(self, answer: Answer) -> None:
        self.epoch = max(self.epoch, answer.epoch)
        if answer.found and (not self.seen or answer.value.temperature > self.seen[-1][0]):
            self.seen.append((answer.value.temperature, time.time() * 1000))


def run_demo(options: DemoOptions) -> int:
    """Returns the exit code: 0, or 1 where a key differs. Raises KeyholeError where it can't run."""
    # With --json the last line is for a program, and all the rest for a person goes elsewhere.
    console = Console(stderr=options.json)
    java = find_java(os.environ)
    jars = _fetch_jars(console)
    with (
        _stop_signals() as stopped,
        Stack(jars, java, os.environ, lambda what: console.print(f"starting {what}")) as stack,
    ):
        began = time.monotonic()
        try:
            stack.start(_spec(options, stack.directory, jars))
            with Client(stack.proxy, timeout=5) as client:
                _await_first_answer(client, stack, stopped)
                console.print(
                    f"ready after {time.monotonic() - began:.0f} s; ask it: keyhole get --proxy {stack.proxy} "
                    f"{APPLICATION}/{STATE} seattle sensor-0"
                )
                sightings = _watch(client, stack, options, console, stopped)
                verdict = _verify(client, stack, console, stopped) if options.verify else None
        except InterruptedError:
            console.print("stopping")
            return 0
        result = _result(options, sightings, verdict, stack, time.monotonic() - began)
        console.print("stopping")
    if options.json:
        print(json.dumps(result))
    return 1 if verdict is not None and verdict.mismatches else 0


def _fetch_jars(console: Console) -> Jars:
    """From the cache, or from the registry with a progress bar."""
    columns = (TextColumn("fetching {task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=console, transient=True) as progress:

        def of(which: JarSet) -> list[Path]:
            task = progress.add_task(f"{which.name.lower()} jars", total=None, visible=False)

            def show(done: int, total: int, name: str) -> None:
                progress.update(task, completed=done, total=total, visible=True)

            return fetch(which, default_cache_dir(os.environ), show)

        return Jars(of(JarSet.KAFKA), of(JarSet.SPARK_KAFKA))


@contextlib.contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """Ctrl-C and SIGTERM set the event instead of breaking off whatever is under way."""
    stopped = threading.Event()
    before = {number: signal.signal(number, lambda *_: stopped.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _spec(options: DemoOptions, directory: Path, jars: Jars) -> JobSpec:
    return JobSpec(
        job="jobs.temperature_monitor",
        source="jobs.temperature_monitor.source",
        topic=TOPIC,
        job_environ={
            "KEYHOLE_JOB_APPLICATION": APPLICATION,
            "KEYHOLE_TEMPERATURE_MONITOR_TOPIC": TOPIC,
            "KEYHOLE_TEMPERATURE_MONITOR_CHECKPOINT": str(directory / "checkpoint"),
            "KEYHOLE_TEMPERATURE_MONITOR_DIRECTORY": str(directory / "spark"),
            "KEYHOLE_TEMPERATURE_MONITOR_JARS": ",".join(map(str, jars.spark)),
        },
        source_environ={
            "KEYHOLE_READINGS_TOPIC": TOPIC,
            "KEYHOLE_READINGS_SENSORS": str(options.sensors),
            "KEYHOLE_READINGS_RATE": str(options.rate),
        },
    )


def _await_first_answer(client: Client, stack: Stack, stopped: threading.Event) -> None:
    until = time.monotonic() + _FIRST_ANSWER_SECONDS
    while True:
        try:
            if client.get(APPLICATION, STATE, PROBE).found:
                return
        except KeyholeError as error:
            if time.monotonic() > until:
                raise EpochFailed(f"no answer within {_FIRST_ANSWER_SECONDS:.0f} s: {error.message}") from error
        stack.check()
        if stopped.wait(0.2):
            raise InterruptedError


def _watch(client: Client, stack: Stack, options: DemoOptions, console: Console, stopped: threading.Event) -> Sightings:
    """Polls the probe, and shows the table, until the time is up."""
    sightings = Sightings()
    began = time.monotonic()
    chaos = _chaos(stack, options.seconds or 60.0, console) if options.chaos else iter(())
    next_show, next_chaos = began, next(chaos, None)
    with Live(console=console, auto_refresh=False) as live:
        while options.seconds is None or time.monotonic() - began < options.seconds:
            now = time.monotonic()
            if next_chaos is not None and now - began >= next_chaos[0]:
                next_chaos[1]()
                next_chaos = next(chaos, None)
            with contextlib.suppress(KeyholeError):  # a server that was killed: the table shows its last answers' age
                sightings.note(client.get(APPLICATION, STATE, PROBE, timeout=1.0))
                if now >= next_show:
                    live.update(_table(client.get_many(APPLICATION, STATE, SHOWN, timeout=1.0)), refresh=True)
                    next_show = now + _SHOW_SECONDS
            stack.check()
            if stopped.wait(_POLL_SECONDS):
                break
    return sightings


def _chaos(stack: Stack, seconds: float, console: Console) -> Iterator[tuple[float, Callable[[], None]]]:
    """When, and what: the state server is killed after a third of the time, the driver after two thirds."""

    def server() -> None:
        console.print("chaos: kill -9 of the state server")
        stack.kill("server")
        stack.start_server()

    def job() -> None:
        console.print("chaos: kill -9 of the driver")
        stack.kill("job")
        stack.start_job()

    yield seconds / 3, server
    yield seconds * 2 / 3, job


def _table(answers: list[Answer]) -> Table:
    now = datetime.now(UTC)
    table = Table(title=f"{APPLICATION}/{STATE}, read through the proxy", title_justify="left")
    for name, justify in (("sensor", "left"), ("highest °C", "right"), ("readings", "right"), ("epoch", "right")):
        table.add_column(name, justify="left" if justify == "left" else "right")
    table.add_column("age", justify="right")
    table.add_column("server")
    for sensor, answer in zip(SHOWN, answers, strict=True):
        age = f"{(now - answer.commit_time).total_seconds():.1f} s" if answer.commit_time else "-"
        value = (f"{answer.value.temperature:.2f}", f"{answer.value.readings:,}") if answer.found else ("-", "-")
        table.add_row(sensor, *value, str(answer.epoch), age, answer.server)
    return table


def _verify(client: Client, stack: Stack, console: Console, stopped: threading.Event) -> Verdict:
    console.print("verify: stopping the source, and waiting until the job has caught up")
    stack.stop_source()
    _await_caught_up(client, stack, stopped)
    verdict = verify(stack.proxy, APPLICATION, STATE, stack.bootstrap_servers, TOPIC, stack.checkpoint, console.print)
    word = "all agree" if not verdict.mismatches else f"{verdict.mismatches:,} DIFFER"
    console.print(f"verify: {verdict.agreed:,} of {verdict.keys:,} keys agree at epoch {verdict.epoch}: {word}")
    return verdict


def _await_caught_up(client: Client, stack: Stack, stopped: threading.Event) -> None:
    """Until the number of readings over all keys that are asked for stands still, and the checkpoint holds all."""
    until = time.monotonic() + _CATCH_UP_SECONDS
    ends = _ends(stack.bootstrap_servers)
    while time.monotonic() < until:
        stack.check()
        with contextlib.suppress(KeyholeError, OSError, ValueError):
            epoch = client.get(APPLICATION, STATE, PROBE).epoch
            offsets = stack.checkpoint / "offsets" / str(epoch - 1)
            if json.loads(offsets.read_text().splitlines()[-1])[TOPIC] == ends:
                return
        if stopped.wait(0.2):
            raise InterruptedError
    raise EpochFailed(f"the job has not caught up within {_CATCH_UP_SECONDS:.0f} s after the source stopped")


def _ends(bootstrap_servers: str) -> dict[str, int]:
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "ends"})
    try:
        partitions = consumer.list_topics(TOPIC, 10).topics[TOPIC].partitions
        return {
            str(number): consumer.get_watermark_offsets(TopicPartition(TOPIC, number), 10)[1] for number in partitions
        }
    finally:
        consumer.close()


def _freshness(bootstrap_servers: str, seen: list[tuple[float, float]]) -> list[float]:
    """Of each probe reading that was sent while we looked: ms from its Kafka timestamp to the first sight of it."""
    if not seen:
        return []
    ages: list[float] = []
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "freshness", "enable.auto.commit": False})
    ends = _ends(bootstrap_servers)
    consumer.assign([TopicPartition(TOPIC, int(number), 0) for number in ends])
    waiting = {int(number) for number, end in ends.items() if end}
    try:
        while waiting:
            for message in consumer.consume(10_000, 1.0):
                partition, offset = message.partition(), message.offset()
                if message.error() is not None or partition is None or offset is None:
                    continue
                if offset + 1 >= ends[str(partition)]:
                    waiting.discard(partition)
                if message.timestamp()[1] < seen[0][1]:
                    continue  # what was waiting while the job started is not how fresh it is when it runs
                reading = json.loads(message.value() or b"{}")
                if reading.get("sensor") != PROBE or reading["temperature"] <= seen[0][0]:
                    continue
                shown = next((moment for value, moment in seen if value >= reading["temperature"]), None)
                if shown is not None:
                    ages.append(shown - message.timestamp()[1])
    finally:
        consumer.close()
    return ages


def _result(
    options: DemoOptions, sightings: Sightings, verdict: Verdict | None, stack: Stack, seconds: float
) -> dict[str, object]:
    ages = sorted(_freshness(stack.bootstrap_servers, sightings.seen))
    return {
        "keys": verdict.keys if verdict else options.sensors + len(("seattle", "san-francisco", PROBE)),
        "epochs": verdict.epoch if verdict else sightings.epoch,
        "events": verdict.events if verdict else sum(_ends(stack.bootstrap_servers).values()),
        "freshness_p50_ms": round(statistics.median(ages)) if ages else None,
        "freshness_p99_ms": round(ages[int(len(ages) * 0.99)]) if ages else None,
        "agreed": verdict.agreed if verdict else None,
        "mismatches": verdict.mismatches if verdict else None,
        "seconds": round(seconds, 1),
    }
