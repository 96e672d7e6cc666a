"""`keyhole up`: has all started in the background, or in this process, and tells where it is."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from rich.console import Console

from keyhole.changelog.kafka.record_topics import make_topics
from keyhole.config import DEFAULT_STATE_SERVER_PORT
from keyhole.demo.fetching import fetch_jars
from keyhole.demo.preparing import prepare_classes
from keyhole.demo.progress_line import ProgressLine, say_starting
from keyhole.demo.signals import StopSignals
from keyhole.errors import MachineError
from keyhole.local.jars import JarSet
from keyhole.local.java import find_java
from keyhole.local.processes import last_words
from keyhole.local.stack_ports import HOST, StackPorts
from keyhole.terminal.commands import keyhole_command
from keyhole.up.home import Home, Recorded
from keyhole.up.supervisor import STOP_SECONDS, UpReport, WantedStack, run

KAFKA_PORT = 9092
_TOPICS_SECONDS = 30.0
_LOOK_SECONDS = 0.2
_BROKEN_OFF_SECONDS = STOP_SECONDS.kafka + 30.0


@dataclass(frozen=True)
class UpOptions:
    """What the command line says. `servers` None: as many as last time, or one."""

    servers: int | None = None
    ephemeral: bool = False
    foreground: bool = False
    topics: Mapping[str, int] = field(default_factory=dict)


def up(home: Home, options: UpOptions, environ: Mapping[str, str], console: Console) -> int:
    """Starts all, or says what runs. Must be called from the main thread. Returns the exit code.

    Raises:
        KeyholeError: The machine lacks something, something did not come up, or another command is under way here.
    """
    began = time.monotonic()
    with StopSignals() as signals:
        home.make()
        with home.alone():
            before = home.read()
            if home.runs():
                return _running(home, before, options, console)
            wanted = _wanted(home, before, options, environ, console)
            if not options.foreground:
                _start_in_background(home, wanted, environ, console, began)
                _tell_ready(home, wanted, console, began)
                return 0
        return _run_here(home, wanted, environ, console, began, signals)


def ensure_up(home: Home, options: UpOptions, environ: Mapping[str, str], console: Console) -> bool:
    """For a command that goes on with what runs: starts all in the background, unless it runs already.

    Returns:
        Whether this call has started it.

    Raises:
        KeyholeError: As `up`.
    """
    began = time.monotonic()
    home.make()
    with home.alone():
        before = home.read()
        if home.runs():
            _use_running(home, before, options)
            return False
        wanted = _wanted(home, before, options, environ, console)
        _start_in_background(home, wanted, environ, console, began)
        for line in moved(wanted.ports, _recorded(home).ports):
            console.print(line, soft_wrap=True)
        return True


def _wanted(
    home: Home, before: Recorded | None, options: UpOptions, environ: Mapping[str, str], console: Console
) -> WantedStack:
    """What is to be started, once the machine has all for it."""
    if before is not None and before.failure:
        reason = before.failure.splitlines()[0]
        console.print(f"what ran here has ended by itself: {reason}", markup=False, soft_wrap=True)
    java = find_java(environ)
    (jars,) = fetch_jars(console, environ, JarSet.KAFKA)
    prepare_classes(console, environ, java, jars, spark=False)
    _set_logs_aside(home.logs)
    return WantedStack(
        ports=ports_wanted(before, options.servers),
        ephemeral=options.ephemeral,
        java=str(java.executable),
        java_version=java.version,
        jars=tuple(map(str, jars)),
        topics=dict(options.topics),
    )


def ports_wanted(before: Recorded | None, servers: int | None) -> StackPorts:
    """Those of the last time, so that addresses stay what they are; else the usual ones."""
    ports = before.ports if before is not None else StackPorts(kafka=KAFKA_PORT)
    count = servers or len(ports.servers)
    more = [DEFAULT_STATE_SERVER_PORT + number for number in range(len(ports.servers), count)]
    return StackPorts(ports.kafka, (*ports.servers, *more)[:count], ports.proxy, ports.http, ports.exporter)


def moved(wanted: StackPorts, got: StackPorts) -> Iterator[str]:
    """What has another port than it was to have, for a person."""
    names = ["Kafka", *_servers(got), "the client proxy", "HTTP", "metrics"]
    for name, of, port in zip(names, _flat(wanted), _flat(got), strict=True):
        if of != port:
            yield f"port {of} is another process's: {name} has {port}"


def _flat(ports: StackPorts) -> list[int]:
    return [ports.kafka, *ports.servers, ports.proxy, ports.http, ports.exporter]


def _servers(ports: StackPorts) -> list[str]:
    return ["state server"] if len(ports.servers) == 1 else [f"server-{number}" for number in range(len(ports.servers))]


def _running(home: Home, recorded: Recorded | None, options: UpOptions, console: Console) -> int:
    recorded = _use_running(home, recorded, options)
    pid = recorded.supervisor.pid if recorded.supervisor is not None else "?"
    _show(home, recorded, f"Keyhole runs here already, as process {pid}.", console)
    if is_other(options, recorded) or (recorded.ephemeral and not options.ephemeral):
        console.print("To start it otherwise, end it first.", soft_wrap=True)
    return 0


def is_other(options: UpOptions, recorded: Recorded) -> bool:
    """Whether what runs is not what these options say: other state servers, or data that stay."""
    other = options.servers is not None and options.servers != len(recorded.ports.servers)
    return other or (options.ephemeral and not recorded.ephemeral)


def _use_running(home: Home, recorded: Recorded | None, options: UpOptions) -> Recorded:
    if recorded is None or not recorded.serves:
        raise MachineError(f"what `keyhole up` starts in {home.path} is not ready yet, or ends: look again in a moment")
    if options.topics:
        make_topics(recorded.kafka, options.topics, _TOPICS_SECONDS)
    return recorded


def _set_logs_aside(logs: Path) -> None:
    for log in logs.glob("*.log"):
        log.replace(log.with_suffix(".log.1"))


def _start_in_background(
    home: Home, wanted: WantedStack, environ: Mapping[str, str], console: Console, began: float
) -> None:
    folder = home.file.parent
    # -P: a folder `services` where the command was typed is none of ours.
    command = [sys.executable, "-P", "-m", "keyhole.up.supervisor", str(folder), msgspec.json.encode(wanted).decode()]
    with home.log.open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env=dict(environ),
            cwd=folder,
            start_new_session=True,
        )
    assert process.stdout is not None
    with process.stdout as output:
        try:
            failure = follow(output.fileno(), console, began)
        except BaseException:
            process.terminate()
            try:
                process.wait(_BROKEN_OFF_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            raise
    if failure is not None:
        code = process.wait()
        why = f"what `keyhole up` starts has ended with exit code {code}:\n{last_words(home.log.read_text())}"
        raise MachineError(failure or why)
    # It outlives us, and nobody here waits for it.
    process.returncode = 0


def follow(output: int, console: Console, began: float) -> str | None:
    """Shows what the supervisor tells by this descriptor until all serves.

    Returns:
        None; or why it has failed, empty where it did not say so.
    """
    step, rest = "", b""
    with ProgressLine(console) as progress, selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        while True:
            if step:
                progress.show(f"starting {step}", time.monotonic() - began)
            if not selector.select(_LOOK_SECONDS):
                continue
            data = os.read(output, 1 << 16)
            if not data:
                return ""
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                one = msgspec.json.decode(line, type=UpReport)
                if one.serves:
                    return None
                if one.failure:
                    return one.failure
                step = one.starting
                if not console.is_terminal:
                    say_starting(console, step)


def _run_here(
    home: Home, wanted: WantedStack, environ: Mapping[str, str], console: Console, began: float, signals: StopSignals
) -> int:
    def tell(report: UpReport) -> None:
        if report.serves:
            _tell_ready(home, wanted, console, began)
        else:
            say_starting(console, report.starting)

    run(home, wanted, environ, signals, tell)
    console.print("ended")
    return 0


def _tell_ready(home: Home, wanted: WantedStack, console: Console, began: float) -> None:
    recorded = _recorded(home)
    for line in moved(wanted.ports, recorded.ports):
        console.print(line, soft_wrap=True)
    _show(home, recorded, f"Keyhole runs here, ready after {time.monotonic() - began:.0f} s.", console)


def _recorded(home: Home) -> Recorded:
    recorded = home.read()
    if recorded is None:
        raise MachineError(f"{home.path} was deleted while all was started: start it again", path=home.path)
    return recorded


def _show(home: Home, recorded: Recorded, headline: str, console: Console) -> None:
    where = f"a temporary folder, {recorded.data}" if recorded.ephemeral else str(home.path)
    servers = [f"{HOST}:{port}" for port in recorded.ports.servers]
    rows = {
        "Kafka": recorded.kafka,
        **dict(zip(_servers(recorded.ports), servers, strict=True)),
        "client proxy": recorded.proxy,
        "HTTP": recorded.http,
        "console": f"{recorded.http}/console/",
        "metrics": recorded.metrics,
    }
    keyhole = keyhole_command(os.environ)
    lines = [
        f"{headline} Its data are in {where}.",
        "",
        *(f"  {name:<13} {address}" for name, address in rows.items()),
        "",
        "Next:",
        f'  eval "$({keyhole} env{home.option})"',
        "      so that jobs, and keyhole itself, find all of it from this shell",
        f"  {keyhole} states",
        "      shows which states there are",
        f"  {keyhole} down{home.option}",
        "      ends it" + ("" if recorded.ephemeral else "; the data stay for the next `up`"),
    ]
    console.print("\n".join(lines), markup=False, soft_wrap=True)
