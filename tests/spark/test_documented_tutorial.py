"""What docs/first-state.md shows in Python, word for word: a project's job reads a topic, and servers add up."""

from __future__ import annotations

import runpy
import textwrap
import uuid
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from keyhole import Client
from keyhole.changelog.kafka.record_topics import make_topics
from keyhole.cli.main import main
from keyhole.spark.session import has_kafka
from tests.support.snippets import ROOT, blocks
from tests.support.streams import Service, run_to_end
from tests.support.waiting import LONG_SECONDS


def test_a_topic_takes_the_place_of_the_folder_and_servers_add_up(
    spark: SparkSession, kafka: str, service: Service, application: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reducing, from_topic, sends = blocks("docs/first-state.md")
    page = (ROOT / "docs/first-state.md").read_text().partition("\n## Your own topic\n")[2]
    in_job = textwrap.indent(from_topic, " " * 4)
    steps = [
        in_job,
        "\n    uv run keyhole dev --fresh job.py --topic orders\n",
        sends,
        '\n    eval "$(uv run keyhole env)"\n    uv run python send.py\n    uv run keyhole get shop/totals c1\n',
    ]
    assert sorted(steps, key=page.index) == steps, "in this order it works"
    assert main(["new", str(tmp_path / "shop")]) == 0
    job_file = tmp_path / "shop" / "job.py"
    job = runpy.run_path(str(job_file), run_name="job")
    two_lines = '    spark = session("shop")\n    orders = spark.readStream.schema(ORDERS).json("data")\n'
    before, found, after = job_file.read_text().partition(two_lines)
    assert found
    compile(before + in_job + after, "job.py", "exec")
    config = service.config(application)
    for name, value in {
        "APPLICATION": application,
        "SERVERS": ",".join(config.servers),
        "BOOTSTRAP_SERVERS": kafka,
        "EPOCH_DEADLINE_SECONDS": str(config.epoch_deadline_seconds),
    }.items():
        monkeypatch.setenv(f"KEYHOLE_JOB_{name}", value)

    topic = f"orders-{uuid.uuid4().hex}"
    make_topics(kafka, {topic: 1}, LONG_SECONDS)
    assert '"orders"' in sends
    exec(sends.replace('"orders"', f'"{topic}"'), {})

    def session(of: str, *, kafka: bool) -> SparkSession:
        """The one that the tests share: another one would change its settings."""
        assert (of, kafka, has_kafka(spark)) == ("shop", True, True)
        return spark

    names: dict[str, Any] = {**job, "session": session}
    assert '"orders"' in from_topic
    exec(from_topic.replace('"orders"', f'"{topic}"'), names)
    assert "\nqueryable.reducing(" in reducing
    exec(reducing.replace("\nqueryable.", "\nsink = queryable."), names)
    run_to_end(names["orders"], "append", names["sink"], tmp_path / "checkpoint")

    with Client(service.proxy, timeout=LONG_SECONDS) as client:
        first, second = (client.get(application, "totals", customer).value for customer in ("c1", "c2"))
    assert (first.orders, first.spent, first.largest) == (2, 34.5, 30.0)
    assert (second.orders, second.spent, second.largest) == (1, 12.0, 12.0)
