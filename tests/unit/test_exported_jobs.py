"""What the exporter keeps of a job's processes that have ended, or were started again."""

from __future__ import annotations

import pytest

from keyhole.metrics.cardinality import MOST_QUERIES, MOST_QUERIES_OF_ALL, OTHER
from keyhole.metrics.catalogue import BY_NAME
from keyhole.metrics.counters import Histogram
from keyhole.metrics.families import Figures
from keyhole.metrics.metric import Component
from keyhole.v1 import stats_pb2 as pb
from services.metrics_exporter.cluster import REMEMBERED_SECONDS
from services.metrics_exporter.ended_jobs import FORGOTTEN_SECONDS, MOST_ENDED, MOST_LATELY
from services.metrics_exporter.kafka_look import Found, SourceRead
from services.metrics_exporter.scrape import ScrapedAnswer, ScrapeView, Views
from tests.support import figures

CPU, EPOCHS, FAILED = "keyhole_job_cpu_seconds_total", "keyhole_job_epoch_seconds", "keyhole_job_failed_epochs_total"


def job(
    started: int,
    cpu: float,
    epochs: int = 0,
    *,
    name: str = "shop",
    target: str = "",
    sources: dict[str, int] | None = None,
) -> ScrapedAnswer:
    """Where a query is in partition 0 of these topics."""
    made, histogram = Figures(), Histogram(BY_NAME[EPOCHS].buckets)
    for _ in range(epochs):
        histogram.observe(0.01)
    made.add("keyhole_job_start_time_seconds", (name,), started)
    made.add("keyhole_job_resident_memory_bytes", (name,), 1000)
    made.add(CPU, (name,), cpu)
    made.observed(EPOCHS, (name, "main"), histogram)
    at = [pb.SourcePosition(query="main", topic=topic, offset=offset) for topic, offset in (sources or {}).items()]
    stats = pb.ReadStatsResponse(name=name, families=made.families(), sources=at)
    return ScrapedAnswer(Component.JOB, True, stats, target)


def server(application: str = "shop") -> ScrapedAnswer:
    copies = [pb.StateCopy(application=application, state="orders", all_key_groups=1)]
    return ScrapedAnswer(Component.STATE_SERVER, True, pb.ReadStatsResponse(name="a", copies=copies))


def made(views: Views, *answers: ScrapedAnswer, seconds: float = 0.0) -> ScrapeView:
    return views.make(answers, Found(), 0, seconds)


def value(views: Views, name: str, *answers: ScrapedAnswer, seconds: float = 0.0) -> float | None:
    stats = pb.ReadStatsResponse(families=made(views, *answers, seconds=seconds).families)
    return figures.value(stats, name) if name in figures.names(stats) else None


@pytest.mark.parametrize("name", [CPU, EPOCHS])
def test_what_processes_have_counted_never_goes_back_while_one_of_them_answers(name: str) -> None:
    views = Views()
    scrapes = [[job(1, 100, 100), job(2, 10, 10)], [job(2, 11, 11)], [], [job(2, 12, 12)]]
    scrapes.append([job(1, 101, 101), job(2, 12, 12)])
    assert [value(views, name, *answers) for answers in scrapes] == [110, 111, None, 112, 113]


def test_only_what_counts_is_kept_and_only_of_the_same_application() -> None:
    views = Views()
    made(views, job(1, 100), job(2, 10), job(3, 5, name="mall"))
    stats = pb.ReadStatsResponse(families=made(views, job(2, 10), job(3, 5, name="mall")).families)
    assert figures.value(stats, "keyhole_job_resident_memory_bytes", application="shop") == 1000
    assert figures.value(stats, CPU, application="shop") == 110
    assert figures.value(stats, CPU, application="mall") == 5


def test_processes_that_began_at_the_same_moment_are_told_apart_by_where_they_are_asked() -> None:
    views = Views()
    both = [job(1, 100, target="a:1"), job(1, 10, target="b:1")]
    assert value(views, CPU, *both) == 110
    assert value(views, CPU, both[0]) == 110
    assert value(views, CPU, *both) == 110


def test_any_number_of_processes_may_end_one_after_the_other() -> None:
    views = Views()
    for number in range(5 * MOST_ENDED):
        assert value(views, CPU, job(number, 10), seconds=60.0 * number) == 10 * (number + 1)
    (kept,) = views._ended._ended.values()
    assert len(kept.processes) <= MOST_ENDED + FORGOTTEN_SECONDS / 60
    assert value(views, EPOCHS, job(1000, 10, 3), seconds=60.0 * 50) == 3


@pytest.mark.parametrize("staying", [0, 1])
def test_however_many_processes_come_back_each_counts_once(staying: int) -> None:
    views, drivers = Views(), [job(1 + number, 100) for number in range(3 * MOST_ENDED)]
    assert value(views, CPU, *drivers) == 100 * len(drivers)
    made(views, *drivers[:staying], seconds=60.0)
    assert value(views, CPU, *drivers, seconds=120.0) == 100 * len(drivers)


def test_however_many_end_at_once_they_are_bounded() -> None:
    views = Views()
    many = [job(2 + number, 10) for number in range(2 * MOST_LATELY)]
    assert value(views, CPU, job(1, 0), *many) == 10 * len(many)
    assert value(views, CPU, job(1, 0)) == 10 * len(many)
    (kept,) = views._ended._ended.values()
    assert len(kept.processes) == MOST_LATELY


def test_a_process_that_is_found_at_another_address_counts_once() -> None:
    views = Views()
    assert value(views, CPU, job(1, 100, target="a:1")) == 100
    assert value(views, CPU, job(1, 101, target="b:1")) == 101


def test_an_application_that_was_away_for_long_counts_anew() -> None:
    views = Views()
    made(views, job(1, 100))
    assert value(views, CPU, seconds=1.0) is None
    assert value(views, CPU, job(2, 1), seconds=FORGOTTEN_SECONDS) == 101
    made(views, seconds=FORGOTTEN_SECONDS + 1)
    assert value(views, CPU, job(3, 1), seconds=2 * FORGOTTEN_SECONDS) == 1


def test_where_a_query_is_in_its_sources_is_known_until_a_new_process_has_told_it() -> None:
    views, at_9 = Views(), SourceRead("shop", "main", "orders", 0, 9)
    assert made(views, server(), job(1, 1, sources={"orders": 9})).wanted.sources == (at_9,)
    assert made(views, server()).wanted.sources == (), "nobody reads"
    assert made(views, server(), job(2, 1)).wanted.sources == (at_9._replace(told=False),)
    sources = made(views, server(), job(2, 1, sources={"orders": 11}), job(3, 1, sources={"orders": 10})).wanted.sources
    assert sources == (at_9._replace(offset=11),)
    made(views)
    made(views, seconds=REMEMBERED_SECONDS + 1)
    assert made(views, server(), job(4, 1), seconds=REMEMBERED_SECONDS + 1).wanted.sources == ()


def test_a_source_that_a_new_version_does_not_read_is_forgotten_once_its_query_tells_what_it_reads() -> None:
    views = Views()
    made(views, server(), job(1, 1, sources={"orders": 9, "rules": 3}))
    assert len(made(views, server(), job(2, 1), seconds=1.0).wanted.sources) == 2
    sources = made(views, server(), job(2, 1, sources={"orders": 10}), seconds=2.0).wanted.sources
    assert sources == (SourceRead("shop", "main", "orders", 0, 10),)


def test_a_query_that_the_others_go_on_without_is_remembered_for_a_while() -> None:
    views, orders = Views(), SourceRead("shop", "main", "orders", 0, 9)
    other = job(2, 1, sources={"rules": 3})
    other.stats.sources[0].query = "another"
    rules = SourceRead("shop", "another", "rules", 0, 3)
    made(views, server(), job(1, 1, sources={"orders": 9}), other)
    remembered = made(views, server(), other, seconds=FORGOTTEN_SECONDS - 1).wanted.sources
    assert set(remembered) == {orders._replace(told=False), rules}
    assert made(views, server(), other, seconds=FORGOTTEN_SECONDS).wanted.sources == (rules,)


def test_queries_of_many_jobs_are_told_apart() -> None:
    def of(number: int) -> ScrapedAnswer:
        figures_ = Figures()
        figures_.add("keyhole_job_complete_epochs_total", (f"app-{number}", "main"), 1)
        return ScrapedAnswer(
            Component.JOB, True, pb.ReadStatsResponse(name=f"app-{number}", families=figures_.families())
        )

    stats = pb.ReadStatsResponse(families=made(Views(), *map(of, range(2 * MOST_QUERIES_OF_ALL))).families)
    epochs = "keyhole_job_complete_epochs_total"
    assert figures.value(stats, epochs, query="main") == MOST_QUERIES_OF_ALL > MOST_QUERIES
    assert figures.value(stats, epochs, query=OTHER) == MOST_QUERIES_OF_ALL
