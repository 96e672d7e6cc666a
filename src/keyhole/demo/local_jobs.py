"""The jobs as `keyhole job` and `keyhole demo` run them here: by module name, as the distribution imports no job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from keyhole.client.options import Key
from keyhole.local.stack import JobSpec


@dataclass(frozen=True)
class LocalJob:
    """A job, its source and its recount on one machine.

    Attributes:
        name: The package below `jobs`; it has the modules `source` and `verify`.
        probe: A state, and any key of it: by its answers it is seen how far the job is.
        example: What a person may type first, after `keyhole `; --proxy is put behind its first word.
        path: What they may ask for over HTTP, behind /v1/.
        topic, partitions: The source's, whose records are counted again.
        more_topics: By the part of a setting's name that names it, for the job and for the source: a topic of rules,
            say, of one partition.
        source_prefix: Of the names of the source's settings. The job's follow from its name.
        source_environ: Settings of the source.
        files: The name of the job's setting for where it writes files, if it has one.
        needs: Modules that it, or its source, needs beside the demo's, and which `keyhole-spark[jobs]` brings.
    """

    name: str
    application: str
    probe: tuple[str, Key]
    example: str
    path: str
    topic: str
    partitions: int
    source_prefix: str
    source_environ: Mapping[str, str] = field(default_factory=dict)
    more_topics: Mapping[str, str] = field(default_factory=dict)
    files: str = ""
    needs: tuple[str, ...] = ()

    @property
    def prefix(self) -> str:
        """Of the names of the job's settings."""
        return f"KEYHOLE_{self.name.upper()}_"

    @property
    def verify(self) -> str:
        """The module that counts again."""
        return f"jobs.{self.name}.verify"

    def files_in(self, directory: Path, environ: Mapping[str, str]) -> str:
        """Where the job writes files, if it does: where the caller has them in an object store, else on this disk."""
        given = environ.get(self.prefix + self.files, "") if self.files else ""
        return given if "://" in given else str(directory / "files")

    def settings(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The caller's settings of the job, by their names without the prefix."""
        return {name.removeprefix(self.prefix): value for name, value in _given(environ, self.prefix).items()}

    def spec(self, directory: Path, checkpoint: Path, jars: str, environ: Mapping[str, str]) -> JobSpec:
        """What the stack starts.

        Args:
            directory: For what Spark and the job write beside the checkpoint.
            jars: Spark's Kafka connector, separated by commas.
            environ: Of the caller: its settings of this job and of its source are taken, but for those made here.
        """
        ours = {
            "KEYHOLE_JOB_APPLICATION": self.application,
            f"{self.prefix}TOPIC": self.topic,
            f"{self.prefix}CHECKPOINT": str(checkpoint),
            f"{self.prefix}DIRECTORY": str(directory / "spark"),
            f"{self.prefix}JARS": jars,
        }
        of_source = {f"{self.source_prefix}TOPIC": self.topic, **self.source_environ}
        for setting, topic in self.more_topics.items():
            ours[f"{self.prefix}{setting}"] = of_source[f"{self.source_prefix}{setting}"] = topic
        if self.files:
            ours[f"{self.prefix}{self.files}"] = self.files_in(directory, environ)
        return JobSpec(
            job=f"jobs.{self.name}",
            source=f"jobs.{self.name}.source",
            source_prefix=self.source_prefix,
            topics={self.topic: self.partitions, **dict.fromkeys(self.more_topics.values(), 1)},
            job_environ=_given(environ, self.prefix) | ours,
            source_environ=_given(environ, self.source_prefix) | of_source,
        )


def _given(environ: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(prefix)}


TEMPERATURE_MONITOR = LocalJob(
    name="temperature_monitor",
    application="temperature-monitor",
    # As jobs.temperature_monitor.source has it.
    probe=("sensors", "probe"),
    example="get temperature-monitor/sensors seattle sensor-0",
    path="temperature-monitor/sensors/seattle",
    topic="readings",
    partitions=3,
    source_prefix="KEYHOLE_READINGS_",
    more_topics={"THRESHOLDS_TOPIC": "thresholds"},
)

TWEET_IMPRESSIONS = LocalJob(
    name="tweet_impressions",
    application="tweet-impressions",
    # As jobs.tweet_impressions.source has its beginning.
    probe=("top_tweets", datetime(2026, 11, 21, tzinfo=UTC)),
    example="get tweet-impressions/top_tweets 2026-11-21T00:00:00Z",
    path="tweet-impressions/top_tweets/2026-11-21T00:00:00Z",
    topic="tweets",
    partitions=1,
    source_prefix="KEYHOLE_TWEETS_",
)

GOLDEN_SIGNALS = LocalJob(
    name="golden_signals",
    application="golden-signals",
    probe=("golden_signals", ("web", datetime(2026, 11, 21, tzinfo=UTC))),
    example="describe golden-signals/golden_signals",
    path="golden-signals/golden_signals",
    topic="requests",
    partitions=3,
    source_prefix="KEYHOLE_REQUESTS_",
    needs=("ddsketch", "psutil"),
)

VITAL_SIGNS = LocalJob(
    name="vital_signs",
    application="vital-signs",
    probe=("vitals", ("patient-0", "pleth")),
    example="get vital-signs/vitals patient-0,pleth",
    path="vital-signs/vitals/patient-0,pleth",
    topic="chunks",
    partitions=1,
    source_prefix="KEYHOLE_CHUNKS_",
    files="FILES",
    needs=("heartpy",),
)

FRAUD_DETECTION = LocalJob(
    name="fraud_detection",
    application="fraud-detection",
    # As jobs.fraud_detection.source has its beginning.
    probe=("totals", ("spent-per-hour", "account-0", datetime(2026, 11, 21, tzinfo=UTC))),
    example="scan fraud-detection/alerts account-0",
    path="fraud-detection/alerts/account-0",
    topic="payments",
    partitions=1,
    source_prefix="KEYHOLE_PAYMENTS_",
    more_topics={"RULES_TOPIC": "rules", "AGGREGATIONS_TOPIC": "aggregations"},
)

LOCAL_JOBS = {
    job.name: job for job in (TEMPERATURE_MONITOR, TWEET_IMPRESSIONS, GOLDEN_SIGNALS, VITAL_SIGNS, FRAUD_DETECTION)
}
