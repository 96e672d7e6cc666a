"""Records that a job can't take: kept in a topic of their own, so that they neither stop the job nor are lost.

    dead_letters = DeadLetters(spark, bootstrap_servers, "readings")
    good = dead_letters.accept(json_records.parsed(records, ...), problem)

The tasks that read the records send them there, before the epoch that they would have been in is committed. A batch
that is run again sends them again: who reads the topic goes by the headers `topic`, `partition` and `offset`, which say
where the record was. `reason` says what is wrong with it. Key and value are as they were, byte for byte; they are left
out (the header `omitted` says so) where they are so large that with the headers they are too large for the topic.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from typing import TypeAlias

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everyone who writes PySpark calls it

from keyhole.changelog.kafka.record_topics import make_topics
from keyhole.changelog.settings import dead_letter_topic
from keyhole.config import JobConfig
from keyhole.coordinator.stats import stats_of
from keyhole.spark.driver.arrow_map import map_in_arrow
from keyhole.spark.driver.data_frames import quoted
from keyhole.spark.worker.rejecting import KEPT, REASON, set_aside

Accept: TypeAlias = Callable[[DataFrame, Column], DataFrame]
"""(parsed records, what is wrong with each, null where nothing is) -> the good ones, without Kafka's columns.

What begins with `__` is left out, too: it is there for the rules alone.
"""

_log = logging.getLogger(__name__)

_KAFKA = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
_ADMIN_SECONDS = 30.0


def drop(parsed: DataFrame, problem: Column) -> DataFrame:
    """An Accept that keeps none of the others: for batches, and tests."""
    return parsed.where(problem.isNull()).select(*map(quoted, _taken(parsed)))


def _taken(parsed: DataFrame) -> list[str]:
    return [name for name in parsed.columns if name not in _KAFKA and not name.startswith("__")]


def first_broken(rules: Mapping[str, str]) -> Column:
    """What the first rule says that a record breaks; null: it keeps to all.

    Args:
        rules: By condition (SQL), what is said where it doesn't hold, or is null.
    """
    return F.coalesce(
        *(F.when(~F.coalesce(F.expr(rule), F.lit(False)), F.lit(said)) for rule, said in rules.items()), F.lit(None)
    )


class DeadLetters:
    """The dead letters of one source topic. For the driver.

    Makes the topic `<topic>.dead-letter`, of one partition, where there is none.

    Args:
        config: The job's, in whose metrics `tell` counts them, and the records that they are among; None: in none.

    Raises:
        KeyholeError: The topic can't be made.
    """

    def __init__(
        self, spark: SparkSession, bootstrap_servers: str, topic: str, *, config: JobConfig | None = None
    ) -> None:
        self.topic = dead_letter_topic(topic)
        self._source = topic
        self._counts = None if config is None else stats_of(config).counts
        self._bootstrap_servers = bootstrap_servers
        self._checked = spark.sparkContext.accumulator(0)
        self._sent = spark.sparkContext.accumulator(0)
        self._told_checked = self._told_sent = 0
        make_topics(bootstrap_servers, {self.topic: 1}, _ADMIN_SECONDS)
        self._count(0, 0)  # whoever waits for the first one needs a 0 before it

    @property
    def sent(self) -> int:
        """How many were sent since the start; one that was sent again counts again."""
        return int(self._sent.value)

    def accept(self, parsed: DataFrame, problem: Column) -> DataFrame:
        """The good records; the others are sent on their way.

        Args:
            parsed: Kafka's columns, and those that were made of them.
            problem: A string that says what is wrong with a record, and nothing of what is in it; null: nothing is.

        Returns:
            The columns that are not Kafka's, and don't begin with `__`.
        """
        taken = list(map(quoted, _taken(parsed)))
        wrong = problem.isNotNull()
        kept = [F.when(wrong, F.col(name)).alias(f"__{name}") for name in KEPT]
        rows = parsed.select(*taken, problem.alias(REASON), *kept)
        aside = functools.partial(set_aside, self._bootstrap_servers, self.topic, self._checked, self._sent)
        return map_in_arrow(rows, aside, rows.select(*taken).schema)

    def tell(self, epoch: int) -> None:
        """Logs and counts how many there were since it was last called. For a query's `on_commit`."""
        checked, sent = int(self._checked.value), self.sent
        new = sent - self._told_sent
        self._count(checked - self._told_checked, new)
        self._told_checked, self._told_sent = checked, sent
        if new:
            _log.warning("records were rejected", extra={"records": new, "kept_in": self.topic, "epoch": epoch})

    def _count(self, records: int, rejected: int) -> None:
        if self._counts is not None:
            self._counts.check(self._source, records, rejected)
