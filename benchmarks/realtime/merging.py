"""How many updates a second one state server merges from an updates topic, alone and under lookups, and how many
lookups it answers meanwhile, to how many it answers when idle.

Updates are written faster than they are merged. What is measured is what it merges once all of them are there.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.cluster import Cluster
from benchmarks.flink.running import measurements
from benchmarks.loading import APPLICATION
from benchmarks.lookups import PLAIN, STATES
from benchmarks.realtime.figures import spread
from benchmarks.realtime.sides import feeding
from keyhole import Client
from keyhole.changelog.kafka.record_topics import make_topics
from keyhole.encoding.murmur3 import key_group
from keyhole.errors import KeyholeError, MachineError
from keyhole.local.processes import Child
from keyhole.model.state import KeyType

_TOPIC = "merging"
_WAIT_SECONDS = 600
_LOOK_SECONDS = 0.1
_OUTSTANDING = 64

Say = Callable[[str], None]


class Merging:
    """A state that sums, fed by `keyhole feed` from a topic that stays empty, and by a backlog of updates.

    Args:
        updates: Of a backlog.
        keys: Over which it goes.
        seconds: Of lookups.
    """

    def __init__(self, running: Cluster, updates: int, keys: int, seconds: float, say: Say) -> None:
        self._running = running
        self._path = f"{APPLICATION}/{STATES[PLAIN]}"
        self._updates = updates
        self._keys = keys
        self._seconds = seconds
        self._say = say

    def measure(self, repeats: int) -> list[dict[str, Any]]:
        """A line per turn, and a summary."""
        make_topics(self._running.bootstrap_servers, {_TOPIC: 1}, _WAIT_SECONDS)
        reduced = ("--reduce", "number:bigint=sum", "--unchecked")
        with feeding(self._running, self._path, _TOPIC, *reduced) as feed, Client(self._running.proxy) as client:
            feed.wait_healthy(lambda: "feeding" in feed.output(), _WAIT_SECONDS)
            self._client = client
            self._say("merging: the first of each key")
            self._write(self._keys)
            self._wait_for(self._keys)
            self._probes = self._a_key_of_each_group()
            lines = [self._turn(f"merging, turn {number} of {repeats}") for number in range(1, repeats + 1)]
        return [*lines, summary(lines)]

    def _turn(self, name: str) -> dict[str, Any]:
        line: dict[str, Any] = {"side": "merging", "updates": self._updates}
        self._say(f"{name}: lookups, idle")
        line["idle_lookups_per_second"] = self._result(self._lookups())["lookups_per_second"]
        self._say(f"{name}: updates, alone")
        line |= self._merged()
        self._say(f"{name}: updates, and lookups")
        line |= self._merged(under_lookups=True)
        return line | {"load": round(os.getloadavg()[0], 1)}

    def _merged(self, *, under_lookups: bool = False) -> dict[str, Any]:
        """What is merged once all updates are there; under lookups for as long as these last."""
        target = self._applied() + self._updates
        written = self._write(self._updates)
        looking = self._lookups() if under_lookups else None
        began, first = time.monotonic(), self._applied()
        until = began + _WAIT_SECONDS
        ended, last = began, first
        while last < target and (looking is None or looking.exit_code is None):
            if time.monotonic() > until:
                raise MachineError(f"{target - last} of {self._updates} updates were not merged in {_WAIT_SECONDS} s")
            time.sleep(_LOOK_SECONDS)
            ended, last = time.monotonic(), self._applied()
        figures: dict[str, Any] = {"updates_per_second": round((last - first) / max(ended - began, _LOOK_SECONDS))}
        if looking is None:
            return {**written, **figures, "left_when_written": target - first}
        result = self._result(looking)
        lasted = time.monotonic() - began
        while self._applied() < target:
            time.sleep(_LOOK_SECONDS)
        figures["lookups_per_second"] = result["lookups_per_second"]
        # Below 1 there was nothing left to merge in the rest of the lookups' time: then their rate says too much.
        figures["merging_for"] = round(min(1.0, (ended - began) / lasted), 2)
        return {f"together_{name}": value for name, value in figures.items()}

    def _write(self, updates: int) -> dict[str, Any]:
        command = [sys.executable, "-m", "benchmarks.realtime.backlog", self._running.bootstrap_servers, self._path]
        command += ["--updates", str(updates), "--keys", str(min(self._keys, updates))]
        return self._result(self._child("backlog", command))

    def _lookups(self) -> Child:
        command = [sys.executable, "-m", "benchmarks.lookups", "--client", self._running.proxy, "--system", PLAIN]
        command += ["--keys", str(self._keys), "--outstanding", str(_OUTSTANDING), "--seconds", str(self._seconds)]
        return self._child("lookups", command)

    def _child(self, name: str, command: list[str]) -> Child:
        return Child(name, command, self._running.directory / f"{name}.log", os.environ)

    def _result(self, child: Child) -> dict[str, Any]:
        code = child.wait(_WAIT_SECONDS)
        try:
            if code != 0:
                raise MachineError(f"{child.name}: exit code {code}: {child.output()[-2000:]}")
            return measurements(child.output())[-1]
        finally:
            child.kill()

    def _wait_for(self, keys: int) -> None:
        """Until all keys are there."""
        until = time.monotonic() + _WAIT_SECONDS
        names = [f"sensor-{number}" for number in range(keys)]
        while time.monotonic() < until:
            try:
                if all(answer.found for answer in self._client.get_many(*self._path.split("/"), names)):
                    return
            except KeyholeError as error:
                self._say(f"merging: {error.message}")
            time.sleep(1)
        raise MachineError(f"{keys} keys were not there within {_WAIT_SECONDS} s")

    def _a_key_of_each_group(self) -> list[str]:
        application, state = self._path.split("/")
        of = self._client.describe_state(application, state)
        groups: dict[int, str] = {}
        for sensor in (f"sensor-{number}" for number in range(self._keys)):
            groups.setdefault(key_group([sensor], [KeyType.STRING], of.key_groups), sensor)
        if len(groups) < of.key_groups:
            raise MachineError(f"{self._keys} keys are too few for {of.key_groups} key groups")
        return list(groups.values())

    def _applied(self) -> int:
        """Updates of all key groups: an epoch of this lane is an offset of the key group's log."""
        answers = self._client.get_many(*self._path.split("/"), self._probes)
        return sum(answer.epoch for answer in answers)


def summary(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Spread over the turns, and the ratio of the medians of lookups."""
    names = [name for name in lines[0] if name.endswith("_per_second") or name == "together_merging_for"]
    idle, together = (
        statistics.median(line[name] for line in lines)
        for name in ("idle_lookups_per_second", "together_lookups_per_second")
    )
    return {
        "benchmark": "realtime",
        "side": "merging",
        **{name: spread([line[name] for line in lines]) for name in names},
        "lookups_to_idle": round(together / idle, 2),
        "load": spread([line["load"] for line in lines], 1),
    }
