"""The processes of an episode, and the links between them. All of them are real; each link may be cut."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import psutil

from keyhole.local.java import Java
from keyhole.local.kafka import LocalKafka
from keyhole.local.ports import free_ports
from keyhole.local.processes import Child
from keyhole.local.services import spawn_client_proxy, start_state_server
from keyhole.testing.kill_points import KillPoints
from keyhole.testing.network import Network
from tests.fault.driver import Settings
from tests.fault.processes import Managed
from tests.fault.schedule import Kind, Targets
from tests.fault.workload import subtasks

_HOST = "127.0.0.1"
# Where lookup ports are. Their callers go to that number at _HOST, where a link begins.
_LOOKUPS_HOST = "127.0.0.2"
_KAFKA_WAIT_SECONDS = 600
# Longer than any fault lasts, and than the first batch of a driver with Spark takes on a busy machine.
_EPOCH_DEADLINE_SECONDS = 60
KILL_EPOCH = 10
# Of a server (tests/fault/state_server.py) and of the driver. Shorter than answers are lost for.
_KAFKA_DEADLINES = ("FAULT_KAFKA_DEADLINE_SECONDS", "KEYHOLE_JOB_KAFKA_DEADLINE_SECONDS")
_SHORT_KAFKA_DEADLINE_SECONDS = 3


@dataclass(frozen=True)
class Machine:
    """What the processes run on."""

    kafka_jars: Sequence[Path]
    java: Java
    spark_jars: Sequence[Path] = ()


@dataclass(frozen=True)
class Plan:
    """What an episode consists of.

    Attributes:
        standbys: Copies per key group, beside the owner.
        spark: The driver has Spark.
        executors: With Spark: how many processes run the tasks; 0: the driver's own.
        reader_pause_seconds: Each reader waits up to so long between two reads. Readers and whom they ask take most
            of an episode's processor time.
        selected: Which states are watched by predicates; empty: all that are watched.
        hedge_quantile: Of the proxy, and so of readers who go to the servers themselves; 0: nothing is hedged.
        loses_answers: Answers are lost, too, and the servers and the driver give Kafka up before they come again.
        staged_bytes: What a server keeps of staged rows in memory; the others go to disk. 0: as many as by default.
        plant: A bug that the state servers get, or several (tests/fault/planted.py); empty: none.
        plant_proxy: The same of the proxy (tests/fault/planted_proxy.py).
        plant_driver: The same of a driver with Spark, one or several (tests/fault/planted_driver.py).
        epochs: How many are completed at least, however slow the machine is.
        epochs_under_faults: How many must be completed between the first fault and the last one for an episode to say
            anything: where the machine is slow, faults wait for them.
        kill_at: By process, the step (keyhole.protocol.failpoints) of `kill_epoch` at which it kills itself, once.
        waits: By batch, how many seconds a driver without Spark lets pass before it.
    """

    seed: int
    seconds: float
    states: tuple[str, ...]
    servers: int = 3
    replicas: int = 1
    standbys: int = 1
    spark: bool = False
    executors: int = 0
    pace_seconds: float = 0.2
    reader_pause_seconds: float = 0.06
    hedge_quantile: float = 0.0
    selected: tuple[str, ...] = ()
    loses_answers: bool = False
    staged_bytes: int = 0
    plant: str = ""
    plant_proxy: str = ""
    plant_driver: str = ""
    epochs: int = 0
    epochs_under_faults: int = 3
    kill_at: Mapping[str, str] = field(default_factory=dict)
    kill_epoch: int = KILL_EPOCH
    waits: Mapping[int, float] = field(default_factory=dict)

    @property
    def kinds(self) -> list[Kind]:
        """The faults that a schedule is drawn from."""
        return [kind for kind in Kind if self.loses_answers or kind is not Kind.LOSE_ANSWERS]


class Cluster:
    """Kafka, state servers, a spare one, replicas, a proxy, a driver. Not started until `start`; `close` ends all.

    Attributes:
        settings: By process, further environment variables for its next start.
    """

    def __init__(self, plan: Plan, directory: Path, machine: Machine) -> None:
        self.plan = plan
        self.directory = directory
        self.application = f"fault-{plan.seed}"
        self.settings: dict[str, Mapping[str, str]] = {}
        self.network = Network()
        self.servers = tuple(f"server-{number}" for number in range(plan.servers))
        self.spare = f"server-{plan.servers}"
        self.replicas = tuple(f"replica-{number}" for number in range(plan.replicas))
        holders = (*self.servers, self.spare, *self.replicas)
        self._ports = dict(zip(holders, free_ports(len(holders)), strict=True))
        self._machine = machine
        self._environ = {name: value for name, value in os.environ.items() if not name.startswith("KEYHOLE_")}
        if plan.loses_answers:
            self._environ |= dict.fromkeys(_KAFKA_DEADLINES, str(_SHORT_KAFKA_DEADLINE_SECONDS))
        self._relays: dict[str, int] = {}
        self._driver_starts = itertools.count()
        clients = ("driver", *holders)
        inside = dict(zip(clients, free_ports(len(clients)), strict=True))
        relayed = {inside[client]: self._relay(f"{client}>kafka", inside[client]) for client in clients}
        # Others have none, so that lookups go by gRPC, too, and from the one to the other.
        by_port = (*self.servers[::2], *self.replicas)
        self._lookup_ports = dict(zip(by_port, free_ports(len(by_port)), strict=True))
        for holder in holders:
            self._relay(f"proxy>{holder}", self._ports[holder])
            if holder in self._lookup_ports:
                port = self._lookup_ports[holder]
                self.network.link(f"proxy>{holder}", port, port, _LOOKUPS_HOST)
        for server in (*self.servers, self.spare):
            self._relay(f"driver>{server}", self._ports[server])
        (self._proxy_port,) = free_ports(1)
        self._relay("readers>proxy", self._proxy_port)
        self.kafka = LocalKafka(directory / "kafka", machine.kafka_jars, machine.java, 0, 384, relayed=relayed)
        self.processes = {name: Managed(name, lambda name=name: self._start_server(name)) for name in holders}  # type: ignore[misc]
        self.processes["proxy"] = Managed("proxy", self._start_proxy)
        self.processes["driver"] = Managed("driver", self._start_driver, self._why_driver_ended)

    @property
    def targets(self) -> Targets:
        links = tuple(link for link in self.network.links if self.spare not in link)
        return Targets(self.servers, self.replicas, self.spare, links, executors=self.plan.executors > 0)

    @property
    def proxy(self) -> str:
        """Where readers go."""
        return self._through("readers>proxy")

    @property
    def steps(self) -> Path:
        """What drivers append their EpochSteps to."""
        return self.directory / "steps"

    @property
    def watched(self) -> list[Path]:
        """What servers append their Contradictions to; a file of each that has run."""
        return sorted(self.directory.glob("*.groups"))

    def address(self, holder: str) -> str:
        """Of a server or replica, past all links."""
        return f"{_HOST}:{self._ports[holder]}"

    def start(self) -> None:
        """All but the spare server. Blocks until the servers answer."""
        self.kafka.start()
        holders = [self.processes[name] for name in (*self.servers, *self.replicas)]
        with ThreadPoolExecutor(len(holders), thread_name_prefix="fault-start") as starting:
            for started in [starting.submit(holder.start) for holder in holders]:
                started.result()
        for name in ("proxy", "driver"):
            self.processes[name].start()

    def pause_driver(self) -> None:
        """No further batch begins; the coordinator goes on with its heartbeat."""
        (self.directory / "pause").touch()

    def unpause_driver(self) -> None:
        """Idempotent."""
        (self.directory / "pause").unlink(missing_ok=True)
        (self.directory / "paused").unlink(missing_ok=True)

    def paused_driver(self) -> int | None:
        """The process id of the driver that has paused."""
        with contextlib.suppress(OSError, ValueError):
            return int((self.directory / "paused").read_text())
        return None

    def kill_executor(self) -> None:
        """SIGKILL to one of Spark's executors, if there is one. Spark starts another one by itself."""
        with contextlib.suppress(psutil.Error):
            driver = psutil.Process(self.processes["driver"].pid)
            for child in driver.children(recursive=True):
                if "CoarseGrainedExecutorBackend" in " ".join(child.cmdline()):
                    child.kill()
                    return

    def set_clock(self, name: str, error_seconds: float) -> None:
        """A process's wall clock is wrong by so much, from now on."""
        file = self._clock(name)
        new = file.with_suffix(".new")
        new.write_text(str(error_seconds))
        new.rename(file)

    def delete_store(self, name: str) -> None:
        """What a server that does not run has on its disk."""
        shutil.rmtree(self.directory / name, ignore_errors=True)

    def close(self) -> None:
        """Idempotent."""
        for process in self.processes.values():
            process.kill()
        self.kafka.kill()
        with contextlib.suppress(RuntimeError):
            self.network.close()

    def _relay(self, link: str, target: int) -> int:
        (port,) = free_ports(1)
        self.network.link(link, port, target)
        self._relays[link] = port
        return port

    def _through(self, link: str) -> str:
        return f"{_HOST}:{self._relays[link]}"

    def _kill_point(self, name: str) -> dict[str, str]:
        if name not in self.plan.kill_at:
            return {}
        return KillPoints.environ(self.plan.kill_at[name], self.plan.kill_epoch, self.directory / f"{name}.killed")

    def _clock(self, name: str) -> Path:
        return self.directory / f"{name}.clock"

    def _start_server(self, name: str) -> Child:
        environ = self._environ | {"FAULT_CLOCK": str(self._clock(name)), "FAULT_PLANT": self.plan.plant}
        environ |= {"FAULT_GROUPS": str(self.directory / f"{name}.groups")} | self._kill_point(name)
        # A server that is started while Kafka is away waits for it, and a busy machine takes minutes to bring it back.
        environ["KEYHOLE_STATE_SERVER_KAFKA_WAIT_SECONDS"] = str(_KAFKA_WAIT_SECONDS)
        if name in self._lookup_ports:
            environ["KEYHOLE_STATE_SERVER_LOOKUPS"] = f"{_LOOKUPS_HOST}:{self._lookup_ports[name]}"
        if self.plan.staged_bytes:
            environ["KEYHOLE_STATE_SERVER_MAX_STAGED_BYTES"] = str(self.plan.staged_bytes)
        if name in self.replicas:
            environ |= {
                "KEYHOLE_STATE_SERVER_ROLE": "replica",
                "KEYHOLE_STATE_SERVER_APPLICATIONS": self.application,
            }
        return start_state_server(
            name,
            self._ports[name],
            bootstrap_servers=self._through(f"{name}>kafka"),
            directory=self.directory,
            environ=environ | self._further(name),
            module="tests.fault.state_server",
        )

    def _start_proxy(self) -> Child:
        servers = [self._through(f"proxy>{holder}") for holder in self._ports]
        environ = self._environ | self._further("proxy") | {"FAULT_PLANT": self.plan.plant_proxy}
        if self.plan.hedge_quantile:
            environ["KEYHOLE_CLIENT_PROXY_HEDGE_QUANTILE"] = str(self.plan.hedge_quantile)
        return spawn_client_proxy(
            "proxy",
            self._proxy_port,
            servers=servers,
            directory=self.directory,
            environ=environ,
            module="tests.fault.client_proxy",
        )

    def _further(self, name: str) -> dict[str, str]:
        return dict(self.settings.get(name, {}))

    def _start_driver(self) -> Child:
        plan = self.plan
        settings = Settings(
            seed=plan.seed,
            states=plan.states,
            directory=str(self.directory),
            pace_seconds=plan.pace_seconds,
            standbys=plan.standbys,
            executors=plan.executors,
            proxy=f"{_HOST}:{self._proxy_port}",
            subtasks=subtasks(plan.seed, next(self._driver_starts)),
            waits=plan.waits,
        )
        job = {
            "KEYHOLE_JOB_APPLICATION": self.application,
            "KEYHOLE_JOB_SERVERS": ",".join(self._through(f"driver>{s}") for s in (*self.servers, self.spare)),
            "KEYHOLE_JOB_BOOTSTRAP_SERVERS": self._through("driver>kafka"),
            "KEYHOLE_JOB_EPOCH_DEADLINE_SECONDS": str(_EPOCH_DEADLINE_SECONDS),
            "KEYHOLE_JOB_SERVER_WAIT_SECONDS": "1",
        }
        own = {"FAULT_CLOCK": str(self._clock("driver")), "FAULT_DRIVER": msgspec.json.encode(settings).decode()}
        own["FAULT_PLANT"] = plan.plant_driver
        environ = self._environ | job | own | self._kill_point("driver") | self._further("driver")
        module = "tests.fault.spark_driver" if plan.spark else "tests.fault.driver"
        return Child("driver", [sys.executable, "-P", "-m", module], self.directory / "driver.log", environ)

    def _why_driver_ended(self, child: Child) -> tuple[str, str]:
        """What it wrote itself, as its last words."""
        for line in reversed(self.steps.read_text().splitlines() if self.steps.exists() else []):
            event = json.loads(line)
            if event[0] == "ended" and event[2] == f"driver {child.pid}":
                return event[3], event[4]
        return f"EXIT_{child.exit_code}", child.output()[-2000:]
