"""A real cluster that Prometheus looks at, with readers, and the chart's alerts: as shipped, and in a hurry."""

from __future__ import annotations

import contextlib
import copy
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from keyhole import Client
from keyhole.errors import KeyholeError
from keyhole.local.ports import free_ports
from keyhole.local.services import exposes, spawn_metrics_exporter
from tests.fault.cluster import Cluster, Machine, Plan
from tests.fault.workload import SPANS, VALUES, names
from tests.support import promql
from tests.support.disks import NoDiskError, mounted
from tests.support.prometheus import Job, Prometheus

_HOST = "127.0.0.1"
DISK_BYTES = 64 << 20
# What the chart's monitors, and the operator, have Prometheus say of each series. Of runs of others nobody says it.
RELEASE = {"namespace": "shop", "keyhole_release": "keyhole"}
AS_SHIPPED, HURRIED = "as shipped", "hurried"

# Durations of the hurried rules are that part of the shipped ones; what is bounded in seconds has bounds of its own.
_PART = 20
_BOUNDS = {
    "KeyholeStateStale": ("> 300", "> 10"),
    "KeyholeStandbyLag": ("> 60", "> 10"),
    # Three starts of a driver take their time, however short the alert's is.
    "KeyholeQueryRestarts": ("[30m]", "[100m]"),
}
_UNITS = {"s": 1, "m": 60}
# Nothing is told to happen in time; it must happen at all, on a machine that does other things as well.
_LONG_SECONDS = 300.0
_EPOCHS = 3
# Between two epochs at the most, and between two rounds of the readers: what is looked at is whether there are any, and
# without pause the run takes a processor to itself.
_PACE_SECONDS = 1.5
_READ_SECONDS = 0.5
_ANSWER_SECONDS = 5.0


def hurried(rule: Mapping[str, Any]) -> dict[str, Any]:
    """The same alert, in a few seconds."""
    made = copy.deepcopy(dict(rule))
    shipped, bound = _BOUNDS.get(rule["alert"], ("", ""))
    assert shipped in rule["expr"]
    made["expr"] = re.sub(r"(?<=\[|\s)(\d+)([sm])\b", _shorter, rule["expr"].replace(shipped, bound))
    made["for"] = re.sub(r"(\d+)([sm])", _shorter, rule.get("for", "0s"))
    made["labels"] = {**rule["labels"], "rules": HURRIED}
    return made


def shipped(rule: Mapping[str, Any]) -> dict[str, Any]:
    """The same alert, which waits a quarter of the time: a healthy run doesn't last for minutes here."""
    made = copy.deepcopy(dict(rule))
    made["for"] = re.sub(
        r"(\d+)([sm])", lambda found: f"{int(found[1]) * _UNITS[found[2]] // 4}s", rule.get("for", "0s")
    )
    made["labels"] = {**rule["labels"], "rules": AS_SHIPPED}
    return made


def _shorter(found: re.Match[str]) -> str:
    return f"{max(int(found[1]) * _UNITS[found[2]] // _PART, 3 if int(found[1]) else 0)}s"


def eventually(condition: Callable[[], object], what: str, seen: Callable[[], object] = lambda: "") -> None:
    """Waits until it is true, for long if need be. `seen`: what there is instead, told where it never is."""
    until = time.monotonic() + _LONG_SECONDS
    while not condition():
        assert time.monotonic() < until, (what, seen())
        time.sleep(0.5)


class Readers:
    """Looks up and scans through the proxy, again and again, whatever comes of it; from `__init__` to `close`."""

    def __init__(self, proxy: str, application: str) -> None:
        self._proxy, self._application = proxy, application
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="observed-readers", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        # Long enough for a busy machine whose servers answer: what fails on a healthy run is an alert.
        with Client(self._proxy, timeout=_ANSWER_SECONDS) as client:
            while not self._closed.wait(_READ_SECONDS):
                for key in names()[:2]:
                    with contextlib.suppress(KeyholeError):
                        client.get_many(self._application, VALUES, names())
                    with contextlib.suppress(KeyholeError):
                        client.scan(self._application, SPANS, key)


class Observed:
    """The cluster, its exporter, its Prometheus and its readers.

    Attributes:
        settings: By process, what it is told besides what a Cluster tells it.
        started: When Prometheus was, in seconds since 1970.
        disks: By server, the small file system that its stores are on; empty: this machine lets nobody mount one.
    """

    def __init__(self, directory: Path, machine: Machine) -> None:
        plan = Plan(
            seed=7, seconds=0, states=(VALUES, SPANS), servers=2, replicas=1, standbys=0, pace_seconds=_PACE_SECONDS
        )
        self.cluster = Cluster(plan, directory, machine)
        holders = (*self.cluster.servers, *self.cluster.replicas)
        self._pages = dict(
            zip((*holders, "proxy", "driver", "exporter", "stats"), free_ports(len(holders) + 4), strict=True)
        )
        self.settings: dict[str, dict[str, str]] = {
            **{name: {"KEYHOLE_STATE_SERVER_METRICS": self.page(name)} for name in holders},
            "proxy": {"KEYHOLE_CLIENT_PROXY_METRICS": self.page("proxy")},
            "driver": {
                "KEYHOLE_JOB_METRICS": self.page("driver"),
                "KEYHOLE_JOB_STATS": self.page("stats"),
                "FAULT_LINGER_SECONDS": "3600",
            },
        }
        self.cluster.settings = dict(self.settings)
        self.disks: dict[str, Path] = {}
        self._directory = directory
        self._ending = contextlib.ExitStack()

    def page(self, name: str) -> str:
        """host:port of a process's /metrics."""
        return f"{_HOST}:{self._pages[name]}"

    def start(self) -> None:
        """All of it; blocks until an epoch is complete, and Prometheus has begun."""
        cluster = self.cluster
        self._mount_disks()
        self._ending.callback(cluster.close)
        cluster.start()
        eventually(lambda: cluster.steps.exists() and b"complete" in cluster.steps.read_bytes(), "no epoch", self._said)
        readers = Readers(cluster.proxy, cluster.application)
        self._ending.callback(readers.close)
        self._start_exporter()
        rules = self._directory / "rules.yaml"
        groups = [
            {"name": kind.__name__, "rules": [kind(rule) for rule in promql.alerts()]} for kind in (shipped, hurried)
        ]
        rules.write_text(yaml.safe_dump({"groups": groups}))
        services = [self.page(name) for name in (*cluster.servers, *cluster.replicas, "proxy", "driver")]
        jobs = [Job("exporter", [self.page("exporter")], RELEASE), Job("services", services, RELEASE)]
        self.started = time.time()
        self.prometheus = self._ending.enter_context(Prometheus(self._directory / "prometheus", jobs, [rules]))

    def close(self) -> None:
        self.resume()
        self._ending.close()

    def _mount_disks(self) -> None:
        """A small file system in memory for the stores of each server: the machine's own may be full."""
        for name in (*self.cluster.servers, *self.cluster.replicas):
            disk = self._directory / name
            disk.mkdir(parents=True)
            try:
                self._ending.enter_context(mounted(disk, DISK_BYTES))
            except NoDiskError:
                return
            self.disks[name] = disk

    def _start_exporter(self) -> None:
        cluster = self.cluster
        self.exporter = spawn_metrics_exporter(
            "exporter",
            self._pages["exporter"],
            servers=[cluster.address(name) for name in (*cluster.servers, *cluster.replicas)],
            proxies=[cluster.proxy],
            coordinators=[self.page("stats")],
            bootstrap_servers=cluster.kafka.bootstrap_servers,
            directory=self._directory,
            environ=dict(os.environ) | {"KEYHOLE_METRICS_EXPORTER_INTERVAL_SECONDS": "0.5"},
        )
        self._ending.callback(self.exporter.terminate)
        self.exporter.wait_healthy(lambda: exposes(self.page("exporter")), _LONG_SECONDS)

    def again(self, name: str, **settings: str) -> None:
        """A process is killed and started anew, with these environment variables besides its own."""
        self.cluster.processes[name].kill()
        self.cluster.settings[name] = self.settings[name] | settings
        self.cluster.processes[name].start()

    def lose_server(self, lost: str, heir: str) -> None:
        """Kills a server between two epochs; the other one, which is to take over, doesn't reach Kafka from then on.

        In an epoch it would be the commit that waits for Kafka, until the epoch is given up. The next one may take as
        long as any alert needs.
        """
        cluster = self.cluster
        self.again("driver", KEYHOLE_JOB_EPOCH_DEADLINE_SECONDS=str(int(_LONG_SECONDS)))
        self.goes_on()
        cluster.pause_driver()
        driver = cluster.processes["driver"].pid
        eventually(lambda: cluster.paused_driver() == driver, "the driver does not pause")
        cluster.network.cut(f"{heir}>kafka")
        cluster.processes[lost].kill()
        cluster.unpause_driver()

    def mend(self) -> None:
        """Whatever was killed, cut, suspended, or told something else is as it was at the start."""
        self.resume()
        self.cluster.unpause_driver()
        for link in self.cluster.network.links:
            self.cluster.network.heal(link)
        for name, settings in self.settings.items():
            if self.cluster.processes[name].pid is None or self.cluster.settings[name] != settings:
                self.again(name)

    def suspend(self, pid: int | None) -> None:
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Whatever was suspended goes on."""
        for pid in (self.cluster.kafka.pid, self.exporter.pid if self.exporter.exit_code is None else None):
            if pid is not None:
                os.kill(pid, signal.SIGCONT)
        for process in self.cluster.processes.values():
            process.resume()

    def firing(self, rules: str = HURRIED) -> list[Mapping[str, str]]:
        """The labels of the alerts that fire now."""
        return [one.labels for one in self.prometheus.ask(f'ALERTS{{alertstate="firing", rules="{rules}"}}')]

    def before(self, *alerts: str) -> None:
        """Waits until none of these fires: that `fires` sees one of them comes of what is broken from here on.

        Others may fire yet for what was broken before, and mended: nobody waits for the end of their windows.
        """
        self.is_quiet(lambda alert: alert in alerts)
        self._awaited, self._quiet_at = alerts, time.time()

    def fires(self, alert: str, **labels: str) -> None:
        """Waits until an alert with these labels does, or has done since `before`."""
        assert alert in self._awaited, f"say before({alert!r}) first: it may fire for what was broken earlier"
        wanted = labels | {"alertname": alert}
        eventually(
            lambda: any(wanted.items() <= of.items() for of in self._fired()),
            f"{alert} does not fire: {labels}",
            self._fired,
        )

    def _fired(self) -> list[Mapping[str, str]]:
        """As `firing`, since `before`: of two that are waited for, one may be over before the other begins."""
        seconds = max(1, int(time.time() - self._quiet_at))
        asked = f'last_over_time(ALERTS{{alertstate="firing", rules="{HURRIED}"}}[{seconds}s])'
        return [one.labels for one in self.prometheus.ask(asked)]

    def goes_on(self) -> None:
        """Waits until some more epochs are complete on all servers."""
        wanted = self._epochs() + _EPOCHS

        def completed() -> bool:
            self._revive_driver()
            return self._epochs() >= wanted

        eventually(completed, "no more epochs are completed", self._said)

    def _said(self) -> dict[str, str]:
        """The end of what each process has said, by the name of its log."""
        logs = sorted(self._directory.glob("*.log"))
        return {log.name: "\n".join(log.read_text(errors="replace").splitlines()[-5:]) for log in logs}

    def _revive_driver(self) -> None:
        """One whose epoch was given up is started again, as Spark or whoever looks after it would."""
        ended = f'"driver {self.cluster.processes["driver"].pid}"'
        if ended.encode() in self.cluster.steps.read_bytes():
            self.again("driver")

    def _epochs(self) -> int:
        return self.cluster.steps.read_bytes().count(b"driver-complete")

    def is_quiet(self, of: Callable[[str], bool] = lambda _: True) -> None:
        """Waits until no alert fires any more, of those whose names are wanted."""

        def still() -> list[str]:
            return [one["alertname"] for one in self.firing() if of(one["alertname"])]

        eventually(lambda: not still(), "alerts still fire", still)


@contextlib.contextmanager
def observed(directory: Path, machine: Machine) -> Iterator[Observed]:
    """Started; ended with all that it has started."""
    run = Observed(directory, machine)
    try:
        run.start()
        yield run
    finally:
        run.close()
