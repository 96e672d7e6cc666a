"""What docs/kinds.md shows in Python runs, word for word, and makes the states that it says it does."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from keyhole import Client
from keyhole.spark import queryable
from tests.support.documented_jobs import MONDAY, TUESDAY, minute
from tests.support.documented_jobs import Scene as AnyScene
from tests.support.micro_batches import MicroBatches
from tests.support.snippets import SNIPPETS, snippet
from tests.support.streams import Rows, Service, new_application, run_to_end
from tests.support.waiting import LONG_SECONDS


class Scene(AnyScene):
    @cached_property
    def hours(self) -> dict[Any, Any]:
        """What `per_hour` has of a tweet, once the snippet that makes it has run."""
        events = [{"tweet": "tweet-1", "at": minute(25 * n)} for n in range(10)]
        self.run(snippet("hourly = ("), events=self.stream("tweet string, at timestamp", [events]))
        return self.entries("per_hour", "tweet-1")


@pytest.fixture(scope="module")
def batches(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MicroBatches]:
    columns = "sensor string, celsius double, customer string, rule string, amount long"
    columns += ", tweet string, hour timestamp, count long"
    with MicroBatches(spark, tmp_path_factory.mktemp("fed"), columns) as batches:
        yield batches


@pytest.fixture(scope="module")
def scenes(
    spark: SparkSession, service: Service, batches: MicroBatches, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], Scene]]:
    """Makes a scene, of an application of its own."""
    with Client(service.proxy, timeout=LONG_SECONDS) as client:
        yield lambda: Scene(spark, service, client, batches, new_application(), tmp_path_factory.mktemp("scene"))


@pytest.fixture(scope="module")
def scene_of_hours(scenes: Callable[[], Scene]) -> Scene:
    """For two snippets: what one makes the other reads."""
    return scenes()


def hourly(scene: Scene, code: str) -> None:
    assert code == snippet("hourly = (")
    assert [(hour.hour, value["count"]) for hour, value in scene.hours.items()] == [(0, 3), (1, 2), (2, 3), (3, 2)]


def reads(scene: Scene, code: str) -> None:
    assert scene.hours
    names = {"client": scene.client, "monday": MONDAY, "tuesday": TUESDAY}
    ranged, last, one = (eval(line.replace('"app"', repr(scene.application)), names) for line in code.splitlines())
    assert [entry.map_key.hour for entry in ranged] == [0, 1, 2, 3]
    assert [entry.map_key.hour for entry in last] == [3, 2, 1]
    assert one.value["count"] == 3


def mean(scene: Scene, code: str) -> None:
    sink = scene.run(code)["sink"]
    readings = [
        [{"sensor": "a", "celsius": 20.5}, {"sensor": "a", "celsius": 21.0}],
        [{"sensor": "a", "celsius": -1.5}],
    ]
    scene.feed(sink, *readings)
    (value,) = scene.values("mean", ["a"])
    assert (value.mean, value.readings) == (pytest.approx(40 / 3), 3)


def later_mean(scene: Scene, code: str) -> None:
    readings = [[{"sensor": "a", "celsius": 20.5}], [{"sensor": "a", "celsius": 21.001}]]
    for batches, class_of_the_time in ((1, snippet("class Mean:\n    commutative")), (2, code)):
        data = scene.stream("sensor string, celsius double", readings[:batches])
        run_to_end(data, "append", scene.run(class_of_the_time)["sink"], scene.directory / "checkpoint")
    (value,) = scene.values("mean", ["a"])
    assert (value.mean, value.readings) == (pytest.approx(41.501 / 2), 2)


def broadcast(scene: Scene, code: str) -> None:
    scene.rules("rule string, limit long", ("high", 100))
    sink = queryable.value("alerts", key="customer", config=scene.service.config(scene.application))
    names = {"sink": sink, "alerts": lambda of: of.where("amount > limit")}
    process = scene.run(code, **names)["process"]
    payments = [{"customer": f"c{amount}", "rule": "high", "amount": amount} for amount in (50, 150)]
    scene.feed(process, payments)
    answers = scene.client.get_many(scene.application, "alerts", ["c50", "c150"])
    assert [(answer.found and answer.value.limit) for answer in answers] == [False, 100]


def bonuses(scene: Scene, code: str) -> None:
    rules = scene.rules("rule string, bonus long", ("welcome", 5))
    payments = [[{"customer": "a", "amount": 10}], [{"customer": "a", "amount": 20}, {"customer": "b", "amount": 1}]]
    scene.run(code, rules=rules, payments=scene.stream("customer string, amount long", payments))
    assert [value.spent for value in scene.values("spent", ["a", "b"])] == [30, 1]
    (bonus,) = scene.values("bonus", ["a"])
    assert bonus.bonus == 5, "once, though the rows of customer a came twice"
    assert not scene.client.get(scene.application, "bonus", "b").found, "who wasn't there yet"


def several(scene: Scene, code: str) -> None:
    published: list[int] = []

    def top_tweets(batch: DataFrame) -> DataFrame:
        return batch.groupBy("hour").agg(F.max_by("tweet", "count").alias("tweet"))

    sink = scene.run(code, top_tweets=top_tweets, published=published.append)["sink"]
    rows = [{"tweet": f"tweet-{n}", "hour": minute(0), "count": n} for n in range(3)]
    scene.feed(sink, rows)
    assert [value.tweet for value in scene.values("top", [MONDAY])] == ["tweet-2"]
    assert [value["count"] for value in scene.entries("per_hour", "tweet-1").values()] == [1]
    assert published == [1]


def debezium(scene: Scene, code: str) -> None:
    def change(op: str, of: int, lsn: int) -> dict[str, str]:
        image = {"id": of, "name": f"at {lsn}"}
        before, after = (image, None) if op == "d" else (None, image)
        return {"value": json.dumps({"op": op, "before": before, "after": after, "source": {"lsn": lsn}})}

    tombstone: dict[str, str | None] = {"value": None}
    records: list[Rows] = [
        [change("r", 1, 10), change("r", 2, 10), change("c", 3, 11), change("c", 6, 12)],
        # In one batch in any order, too.
        [change("d", 1, 20), tombstone, change("u", 2, 21), change("d", 3, 22), tombstone],
        [change("d", 4, 25), change("c", 4, 24), change("c", 5, 27), change("d", 5, 26), change("d", 7, 30), tombstone],
        # The connector was restarted, and begins before what it had told.
        [change("r", 1, 10), change("u", 2, 15), change("c", 3, 11), change("d", 6, 9), change("c", 7, 29)],
        [change("c", 3, 40)],
    ]
    scene.run(code, records=scene.stream("value string", records))
    answers = scene.client.get_many(scene.application, "customers", [1, 2, 3, 4, 5, 6, 7])
    names = [answer.value.name if answer.found else None for answer in answers]
    assert names == [None, "at 21", "at 40", None, "at 27", "at 12", None]


def sessions(scene: Scene, code: str) -> None:
    events = [[{"user": "a", "at": minute(m)} for m in (0, 5, 30)], [{"user": "b", "at": minute(300)}], []]
    scene.run(code, events=scene.stream("user string, at timestamp", events))
    found = scene.entries("sessions", "a")
    assert [(since.minute, of.until.minute, of["count"]) for since, of in found.items()] == [(0, 15, 2), (30, 40, 1)]


def processor(scene: Scene, code: str) -> None:
    """Runs with the snippet that exposes it."""
    assert "OpenSessions" in scene.run(code)


def open_sessions(scene: Scene, code: str) -> None:
    events = [[{"user": "a", "at": minute(m)} for m in (0, 5, 30)], [{"user": "b", "at": minute(300)}], []]
    defined = scene.run(snippet("class OpenSessions"))["OpenSessions"]
    scene.run(code, events=scene.stream("user string, at timestamp", events), OpenSessions=defined)
    closed = {since.minute: (of.until.minute, of.events) for since, of in scene.entries("closed", "a").items()}
    assert closed == {0: (15, 2), 30: (40, 1)}
    assert not scene.entries("open", "a")
    assert [of.events for of in scene.entries("open", "b").values()] == [1]


def firsts(scene: Scene, code: str) -> None:
    events = [[{"order": "o1", "at": minute(0), "v": 1}], [{"order": "o1", "at": minute(1), "v": 2}]]
    scene.run(code, events=scene.stream("order string, at timestamp, v long", events))
    assert [value.v for value in scene.values("orders", ["o1"])] == [1]


def joined(scene: Scene, code: str) -> None:
    impressions = scene.stream("ad string, shown timestamp", [[{"ad": "ad-1", "shown": minute(0)}]], "impressions")
    events = [{"clicked": "ad-1", "at": minute(m)} for m in (20, 90)]
    scene.run(code, impressions=impressions, clicks=scene.stream("clicked string, at timestamp", [events], "clicks"))
    assert [at.minute for at in scene.entries("clicks", "ad-1")] == [20]


def sql(scene: Scene, code: str) -> None:
    payments = [[{"customer": "a", "amount": n, "at": minute(25 * n)} for n in range(4)]]
    scene.run(code, payments=scene.stream("customer string, amount long, at timestamp", payments))
    assert [(hour.hour, of.spent) for hour, of in scene.entries("spent", "a").items()] == [(0, 3), (1, 3)]


SCENES: dict[str, Callable[[Scene, str], None]] = {
    "hourly = (": hourly,
    "client.scan(": reads,
    "class Mean:\n    commutative": mean,
    "class Mean:\n    version": later_mean,
    "rules = queryable.BroadcastReader(": broadcast,
    "def bonuses(": bonuses,
    "queryable.together(": several,
    "envelope = ": debezium,
    "sessions = events": sessions,
    "from datetime import UTC": processor,
    "from keyhole.spark.changes": open_sessions,
    "firsts = events": firsts,
    "joined = impressions": joined,
    "payments.withWatermark(": sql,
}


@pytest.mark.parametrize("code", SNIPPETS, ids=lambda code: re.match(r"[\w .]+", code)[0].strip())
def test_what_the_page_shows_runs_and_makes_what_it_says(
    scenes: Callable[[], Scene], scene_of_hours: Scene, code: str
) -> None:
    (play,) = (play for beginning, play in SCENES.items() if code.startswith(beginning))
    play(scene_of_hours if play in (hourly, reads) else scenes(), code)
