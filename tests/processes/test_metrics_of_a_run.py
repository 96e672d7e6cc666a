"""What the exporter tells of a run of the main job: its processes, Spark and Kafka; and the panels that show it.

One run for all tests of this file. A real Prometheus, where there is one, looks at it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from keyhole import Client
from keyhole.errors import DeadlineExceeded, TooStale
from keyhole.metrics.catalogue import BY_NAME, of
from keyhole.metrics.metric import Component
from tests.processes.test_demo import demo, end, wait_for
from tests.support import needs, promql
from tests.support.embedded import assert_nothing_is_left, ports_in
from tests.support.exporters import Scrape, scrape
from tests.support.prometheus import Job, Prometheus
from tests.support.promql import PanelQuery
from tests.support.waiting import LONG_SECONDS, PATIENCE_SECONDS

_APPLICATION, _STATE = "temperature-monitor", "sensors"
_START_SECONDS, _PATIENCE = 900.0, 600.0


@dataclass(frozen=True)
class Run:
    """`keyhole demo` that goes on; `exporter` is host:port of its page, `server` of the state server."""

    process: subprocess.Popen[bytes]
    directory: Path
    log: Path

    @property
    def exporter(self) -> str:
        return f"127.0.0.1:{ports_in(self.log.read_text())[-1]}"

    @property
    def server(self) -> str:
        return f"127.0.0.1:{ports_in(self.log.read_text())[0]}"

    def scraped(self, **wanted: float) -> Scrape:
        """The first scrape in which these metrics, without `keyhole_`, are at least so much."""
        until = time.monotonic() + _PATIENCE
        while True:
            found = asyncio.run(scrape(self.exporter))
            values = {name: found.value(f"keyhole_{name}") for name in wanted}
            if all((values[name] or 0.0) >= least for name, least in wanted.items()):
                return found
            assert time.monotonic() < until, values
            time.sleep(0.5)

    def is_refused_reads(self) -> None:
        """One that its server can't answer, which a panel shows."""
        with (
            Client(self.server, timeout=PATIENCE_SECONDS) as client,
            contextlib.suppress(TooStale, DeadlineExceeded),
        ):
            client.get(_APPLICATION, _STATE, "seattle", max_staleness=timedelta(milliseconds=1))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    directory = tmp_path_factory.mktemp("run")
    # What has waited while a busy machine started Spark is to be caught up with, too.
    with demo(directory, "--sensors", "100", "--rate", "300") as (process, log):
        wait_for("ready after", process, log, _START_SECONDS)
        yield Run(process, directory, log)


@pytest.fixture(scope="module")
def shown(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Prometheus, float]]:
    """A Prometheus that has looked at some epochs of the run, and since when."""
    needs.prometheus()
    with Prometheus(tmp_path_factory.mktemp("prometheus"), [Job("exporter", [run.exporter])]) as prometheus:
        since = time.time()
        before = asyncio.run(scrape(run.exporter)).value("keyhole_spark_run_batches_total") or 0.0
        for _ in range(5):
            run.is_refused_reads()
            time.sleep(1)
        run.scraped(spark_run_batches_total=before + 5, state_server_failed_reads_total=1)
        yield prometheus, since


def test_a_scrape_tells_of_all_processes_of_a_run_and_of_kafka(run: Run) -> None:
    found = run.scraped(
        job_complete_epochs_total=4,
        spark_run_batches_total=4,
        state_server_committed_epochs_total=4,
        client_proxy_lookup_keys_total=1,
        kafka_changelog_records=1,
        # Not before the first readings have been seen.
        spark_watermark_age_seconds=1,
    )
    assert found.names <= BY_NAME.keys()
    assert found.value("keyhole_exporter_unknown_metrics") == 0
    # Of what went wrong there is nothing to tell.
    names = {metric.name for metric in of(Component.JOB)} - {
        "keyhole_job_failed_epochs_total",
        "keyhole_job_refused_calls_total",
    }
    # Each process is asked at a moment of its own, and one may answer late on a busy machine: that comes right.
    until = time.monotonic() + _PATIENCE
    while wrong := [claim for claim, holds in _of_a_healthy_run(found, names).items() if not holds]:
        assert time.monotonic() < until, wrong
        time.sleep(0.5)
        found = asyncio.run(scrape(run.exporter))


def _of_a_healthy_run(found: Scrape, names: Collection[str]) -> dict[str, bool]:
    """What is to be so, and whether it is."""
    batches = found.value("keyhole_spark_run_batches_total") or 0
    epochs = found.value("keyhole_job_complete_epochs_total") or 0
    return {
        "the job tells all its metrics": found.names >= set(names),
        "the source's lag is known": found.value("keyhole_kafka_source_lag_records") is not None,
        "all three processes answer": found.value("keyhole_exporter_up") == 3,
        "every key group has an owner": found.value("keyhole_cluster_unowned_key_groups", state=_STATE) == 0,
        "rows are committed": (found.value("keyhole_state_server_committed_rows_total", state=_STATE) or 0) > 0,
        "the store has entries": (found.value("keyhole_state_server_store_entries", state=_STATE) or 0) > 0,
        "Spark has input": (found.value("keyhole_spark_input_rows_total") or 0) > 0,
        # They are told a moment apart.
        "Spark's batches are the coordinator's epochs": abs(batches - epochs) <= 2,
    }


@pytest.mark.parametrize("query", [q for q in promql.panel_queries() if q.needs_spark], ids=lambda query: query.name)
def test_a_panel_has_data(run: Run, shown: tuple[Prometheus, float], query: PanelQuery) -> None:
    prometheus, since = shown
    until = time.monotonic() + LONG_SECONDS
    # The run goes on: what grows may have grown last before Prometheus looked for the first time.
    while not prometheus.ask_range(query.asked(_APPLICATION), since, time.time(), 2):
        assert time.monotonic() < until, "no data"
        run.is_refused_reads()
        time.sleep(1)


def test_the_alert_of_rejected_records_asks_for_what_a_run_tells(shown: tuple[Prometheus, float]) -> None:
    """Of this run's readings a thousandth is bad: the part is known, and below what is an alert."""
    prometheus, _ = shown
    (alert,) = [rule for rule in promql.alerts() if rule["alert"] == "KeyholeRejectedRecords"]
    part, _, bound = alert["expr"].replace("[10m]", "[1m]").rpartition(">")
    readings = {"application": _APPLICATION, "topic": "readings"}
    until = time.monotonic() + LONG_SECONDS
    # Of thresholds, of which there are few, there may be a bad one at any time.
    while not (known := [of for of in prometheus.ask(f"{part} > 0") if of.labels == readings]):
        assert time.monotonic() < until, "no data"
        time.sleep(1)
    assert known[0].values[-1] < float(bound)


def test_ctrl_c_ends_it_in_time_and_leaves_nothing(run: Run) -> None:
    said = run.log.read_text()
    assert len(ports_in(said)) == 4
    (curl,) = re.findall(r"^  curl (http://\S+)$", said, re.MULTILINE)
    with urllib.request.urlopen(curl, timeout=LONG_SECONDS) as answer:
        assert json.load(answer)["found"]
    assert end(run.process, signal.SIGINT) == 0
    assert_nothing_is_left(run.directory, run.log.read_text())
