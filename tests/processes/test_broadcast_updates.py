"""Rules that change while a job runs: a batch that is run again by another driver keeps to those that it had read, and
what an update does to every key it does once.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter, defaultdict
from pathlib import Path

from pyspark.sql import SparkSession

from keyhole import Client
from keyhole.protocol.failpoints import Step
from keyhole.spark import queryable
from tests.support.broadcasting_job import RULE_SCHEMA, RULES, feed
from tests.support.killable_job import run_until_killed
from tests.support.streams import RunQuery, Service
from tests.support.waiting import LONG_SECONDS

KILLED_AT = Step.DRIVER_BEFORE_COMMIT
CUSTOMERS = [f"c{number}" for number in range(8)]
Rule = tuple[str, str, int]


def payments(batch: int) -> list[tuple[str, int]]:
    """Customers come one after the other: a bonus is for those who are there."""
    draw = random.Random(batch)
    return [(CUSTOMERS[draw.randrange(4 + 2 * batch)], draw.randrange(1, 100)) for _ in range(20)]


class Expected:
    """What the job makes of the same payments and rules, in plain Python."""

    def __init__(self) -> None:
        self.spent: Counter[str] = Counter()
        self.bonus: Counter[str] = Counter()
        self.alerts: dict[str, list[tuple[int, int]]] = defaultdict(list)

    def batch(self, number: int, limit: int, *bonuses: int) -> None:
        for customer, amount in payments(number):
            self.spent[customer] += amount
        for customer, spent in self.spent.items():
            self.bonus[customer] += sum(bonuses)
            if spent > limit:
                self.alerts[customer].append((spent, limit))


def test_a_killed_driver_s_batch_keeps_its_rules_and_an_update_reaches_every_key_once(
    spark: SparkSession, run_query: RunQuery, service: Service, application: str, tmp_path: Path
) -> None:
    folder, checkpoint, config = tmp_path / "payments", str(tmp_path / "checkpoint"), service.config(application)
    folder.mkdir()

    def announce(number: int, *rules: Rule) -> None:
        source = tmp_path / f"rules-{number}"
        source.mkdir()
        names = [part.split()[0] for part in RULE_SCHEMA.split(", ")]
        (source / "0.json").write_text("\n".join(json.dumps(dict(zip(names, rule, strict=True))) for rule in rules))
        sink = queryable.broadcast(RULES, key="rule", query=RULES, config=config, on_new_checkpoint="continue")
        run_query(spark.readStream.schema(RULE_SCHEMA).json(str(source)), "append", sink, checkpoint=source.name + "-c")

    def arrive(batch: int) -> None:
        file = folder / f"{batch}.json"
        file.write_text("\n".join(json.dumps({"customer": c, "amount": amount}) for c, amount in payments(batch)))
        os.utime(file, (1_600_000_000 + batch,) * 2)

    announce(0, ("limit", "limit", 300), ("welcome", "bonus", 1))
    arrive(0)
    feed(spark, str(folder), checkpoint, service.proxy, config)
    announce(1, ("summer", "bonus", 10))
    arrive(1)
    options = {"payments": str(folder), "checkpoint": checkpoint, "proxy": service.proxy}
    run_until_killed("tests.support.broadcasting_job", options, config, tmp_path, KILLED_AT, 2)
    announce(2, ("limit", "limit", 500), ("autumn", "bonus", 100))
    arrive(2)
    feed(spark, str(folder), checkpoint, service.proxy, config)

    expected = Expected()
    expected.batch(0, 300, 1)
    expected.batch(1, 300, 10)  # as the killed driver had read them
    expected.batch(2, 500, 100)
    with Client(service.proxy, timeout=LONG_SECONDS) as client:
        spent, bonus = (client.get_many(application, state, CUSTOMERS) for state in ("spent", "bonus"))
        assert {c: a.value.spent for c, a in zip(CUSTOMERS, spent, strict=True)} == expected.spent
        assert {c: a.value.amount for c, a in zip(CUSTOMERS, bonus, strict=True)} == expected.bonus
        assert len(set(expected.bonus.values())) == 3, "customers who came later have fewer"
        for customer in CUSTOMERS:
            alerts = client.scan(application, "alerts", customer).values
            assert [(alert.spent, alert.limit) for alert in alerts] == expected.alerts[customer]
        assert {limit for of in expected.alerts.values() for _, limit in of} == {300, 500}
