"""`keyhole demo`: the main job on embedded defaults, and a live table of answers read through the proxy."""

from __future__ import annotations

import dataclasses
import itertools
import time

from rich.console import RenderableType

from keyhole import Answer, Client
from keyhole.demo import freshness
from keyhole.demo.answers_table import AnswersTable
from keyhole.demo.jobs import described
from keyhole.demo.runner import RunOptions, run_locally
from keyhole.errors import KeyholeError
from keyhole.local.stack import Stack

_JOB = described("temperature_monitor")
APPLICATION, TOPIC = _JOB.application, _JOB.topic
STATE, ALERTS, PROBE = "sensors", "alerts", "probe"
# As jobs.temperature_monitor.source has it; the distribution imports no job.
PROBE_PARTITION = 0
SHOWN = ("seattle", "san-francisco", *(f"sensor-{number}" for number in range(10)))


def run_demo(options: RunOptions, *, sensors: int, rate: int) -> int:
    """Runs the demo's job as `run_locally` does, with the table of its answers.

    Args:
        sensors: Of the synthetic fleet.
        rate: Its events per second.
    """
    settings = {"KEYHOLE_READINGS_SENSORS": str(sensors), "KEYHOLE_READINGS_RATE": str(rate)}
    job = dataclasses.replace(_JOB, source_environ=settings)
    return run_locally(job, LiveAnswers(), options)


class LiveAnswers:
    """The runner's LiveView: answers for a few keys, an alert of one after the other, and how fresh the probe's are."""

    def __init__(self) -> None:
        self._sightings = freshness.Sightings()
        self._recent = freshness.Recent()
        self._table = AnswersTable(f"{APPLICATION}/{STATE}, read through the proxy", SHOWN)
        self._turns = itertools.cycle(SHOWN)

    def note(self, probe: Answer) -> None:
        now_ms = time.time() * 1000
        self._sightings.note(probe, now_ms)
        self._recent.note(probe, now_ms)

    def update(self, client: Client) -> None:
        self._table.update(client.get_many(APPLICATION, STATE, SHOWN, timeout=1.0))
        sensor = next(self._turns)
        self._table.note_alerts(sensor, client.scan(APPLICATION, ALERTS, sensor, descending=True, limit=1, timeout=1.0))

    def fail(self, error: KeyholeError) -> None:
        self._table.fail(error)

    def render(self) -> RenderableType:
        self._table.note_freshness(self._recent.median_ms(time.time() * 1000))
        return self._table.render()

    def result(self, stack: Stack) -> dict[str, object]:
        sent = freshness.sent(stack.bootstrap_servers, TOPIC, PROBE_PARTITION, PROBE)
        ages = freshness.ages_ms(sent, self._sightings.first_shown)
        return {
            "freshness_p50_ms": freshness.percentile(ages, 0.5),
            "freshness_p99_ms": freshness.percentile(ages, 0.99),
        }
