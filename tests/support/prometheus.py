"""A real Prometheus on this machine (Debian's package), which scrapes every second."""

from __future__ import annotations

import contextlib
import json
import math
import os
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import yaml

from keyhole.local.ports import free_ports
from keyhole.local.processes import Child
from tests.support.waiting import LONG_SECONDS

# It answers at once, and on a busy machine when it can.
_READY_SECONDS = 10.0


class Job(NamedTuple):
    """What is scraped: targets as host:port. `labels`: what each of their series has besides its own."""

    name: str
    targets: Sequence[str]
    labels: Mapping[str, str] = MappingProxyType({})


class Series(NamedTuple):
    """One of a query's results: its labels and its numbers, oldest first, without those that are none."""

    labels: Mapping[str, str]
    values: Sequence[float]


class Prometheus:
    """Use as a context manager. Blocks; not thread-safe."""

    def __init__(self, directory: Path, jobs: Sequence[Job], rules: Sequence[Path] = ()) -> None:
        self._directory = directory
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        # Not through a proxy that the environment names: it is on this machine.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._settings = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(file) for file in rules],
            "scrape_configs": [
                {
                    "job_name": job.name,
                    "honor_labels": True,
                    "static_configs": [{"targets": list(job.targets), "labels": dict(job.labels)}],
                }
                for job in jobs
            ],
        }

    def __enter__(self) -> Prometheus:
        self._directory.mkdir(parents=True, exist_ok=True)
        (self._directory / "prometheus.yml").write_text(yaml.safe_dump(self._settings))
        self._child = Child(
            "Prometheus",
            [
                "prometheus",
                f"--config.file={self._directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={self._directory / 'data'}",
                f"--web.listen-address={self.address}",
                "--query.lookback-delta=10s",
            ],
            self._directory / "prometheus.log",
            {"PATH": os.environ["PATH"], "HOME": str(self._directory)},
            self._directory,
        )
        try:
            self._child.wait_healthy(self._ready, LONG_SECONDS)
        except BaseException:
            self._child.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._child.terminate()

    def ask(self, expression: str) -> list[Series]:
        """What it is now."""
        found = self._get("query", query=expression)
        assert found["resultType"] in ("vector", "scalar"), expression
        if found["resultType"] == "scalar":
            return _without_gaps([({}, [found["result"]])])
        return _without_gaps([(one["metric"], [one["value"]]) for one in found["result"]])

    def ask_range(self, expression: str, start: float, end: float, step_seconds: int = 1) -> list[Series]:
        """What it was. `start` and `end`: seconds since 1970."""
        found = self._get("query_range", query=expression, start=start, end=end, step=step_seconds)
        return _without_gaps([(one["metric"], one["values"]) for one in found["result"]])

    def values_of(self, label: str, series: str) -> list[str]:
        """Of a label, in a selection of series: what Grafana's label_values shows."""
        return list(self._get(f"label/{label}/values", **{"match[]": series}))

    def _ready(self) -> bool:
        asked = f"http://{self.address}/-/ready"
        with contextlib.suppress(OSError), self._opener.open(asked, timeout=_READY_SECONDS) as answer:
            return bool(answer.status == 200)
        return False

    def _get(self, what: str, **parameters: object) -> Any:
        query = urllib.parse.urlencode(parameters)
        with self._opener.open(f"http://{self.address}/api/v1/{what}?{query}", timeout=LONG_SECONDS) as answer:
            said = json.load(answer)
        assert said["status"] == "success", said
        return said["data"]


def _without_gaps(found: Sequence[tuple[Mapping[str, str], Sequence[tuple[float, str]]]]) -> list[Series]:
    series = [
        Series(labels, [float(value) for _, value in values if not math.isnan(float(value))])
        for labels, values in found
    ]
    return [one for one in series if one.values]
