"""`keyhole demo`: the main job on embedded defaults, in either lane, and a live table of what the proxy answers."""

from __future__ import annotations

import dataclasses
import itertools
import time

from rich.console import RenderableType

from keyhole import Answer, Client
from keyhole.demo import reading_ages
from keyhole.demo.answers_table import AnswersTable
from keyhole.demo.described_jobs import described
from keyhole.demo.runner import RunOptions, run_locally
from keyhole.errors import KeyholeError
from keyhole.local.stack import Stack

_JOB = described("temperature_monitor")
APPLICATION, TOPIC = _JOB.application, _JOB.topic
STATE, ALERTS, PROBE = "sensors", "alerts", "probe"
REAL_TIME = dataclasses.replace(_JOB, runs="realtime", verifies="verify_realtime", real_time=True, states=(STATE,))
"""The same state of the same readings, without a micro-batch between."""

# As jobs.temperature_monitor.source has it; the distribution imports no job.
PROBE_PARTITION = 0
SHOWN = ("seattle", "san-francisco", *(f"sensor-{number}" for number in range(10)))


def run_demo(options: RunOptions, *, sensors: int, rate: int, real_time: bool) -> int:
    """Runs the demo's job as `run_locally` does, with the table of its answers.

    Args:
        sensors: Of the synthetic fleet.
        rate: Its events per second.
        real_time: The state is fed in Spark's real-time mode, which makes no alerts.
    """
    settings = {"KEYHOLE_READINGS_SENSORS": str(sensors), "KEYHOLE_READINGS_RATE": str(rate)}
    job = dataclasses.replace(REAL_TIME if real_time else _JOB, source_environ=settings)
    return run_locally(job, LiveAnswers(alerts=not real_time), options)


class LiveAnswers:
    """The runner's LiveView: answers for a few keys, how fresh the probe's are, and alerts where there are any.

    Args:
        alerts: The job makes them; one of them is shown after the other.
    """

    def __init__(self, *, alerts: bool = True) -> None:
        self._alerts = alerts
        self._sightings = reading_ages.Sightings()
        self._recent = reading_ages.Recent()
        self._table = AnswersTable(f"{APPLICATION}/{STATE}, read through the proxy", SHOWN)
        self._turns = itertools.cycle(SHOWN)

    def note(self, probe: Answer) -> None:
        now_ms = time.time() * 1000
        self._sightings.note(probe, now_ms)
        self._recent.note(probe, now_ms)

    def update(self, client: Client) -> None:
        self._table.update(client.get_many(APPLICATION, STATE, SHOWN, timeout=1.0))
        if not self._alerts:
            return
        sensor = next(self._turns)
        self._table.note_alerts(sensor, client.scan(APPLICATION, ALERTS, sensor, descending=True, limit=1, timeout=1.0))

    def fail(self, error: KeyholeError) -> None:
        self._table.fail(error)

    def render(self) -> RenderableType:
        self._table.note_freshness(self._recent.percentiles_ms(time.time() * 1000))
        return self._table.render()

    def result(self, stack: Stack) -> dict[str, object]:
        sent = reading_ages.sent(stack.bootstrap_servers, TOPIC, PROBE_PARTITION, PROBE)
        ages = reading_ages.ages_ms(sent, self._sightings.first_shown)
        return {
            "freshness_p50_ms": reading_ages.percentile(ages, 0.5),
            "freshness_p99_ms": reading_ages.percentile(ages, 0.99),
        }
