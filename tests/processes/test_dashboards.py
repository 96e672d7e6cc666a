"""Panels have data, and alerts fire, in a real Prometheus that scrapes a real run.

What only Spark tells is not among it: that is in test_metrics_of_a_run.py.

The tests break a cluster, one after the other, and leave it as it was. Each waits only for the end of the alerts that
it is about: those with the longest windows come first, and that the others end is looked at once. What the panels show
of all that is looked at in the end. `for:` and the windows of the alerts are shortened (tests/support/observed.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from keyhole.local.java import Java
from tests.fault.cluster import Machine
from tests.fault.workload import VALUES
from tests.support import needs, promql
from tests.support.observed import AS_SHIPPED, DISK_BYTES, Observed, eventually, observed
from tests.support.promql import PanelQuery

_HEALTHY_SECONDS = 30.0
# Of five minutes, in which any driver counts that a test starts again.
_RESTARTS = "KeyholeQueryRestarts"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, jars: list[Path], java: Java) -> Iterator[Observed]:
    needs.prometheus()
    with observed(tmp_path_factory.mktemp("observed"), Machine(jars, java)) as made:
        yield made


@pytest.fixture
def healthy(run: Observed) -> Iterator[Observed]:
    """The run, where epochs are completed; what a test has broken is mended after it."""
    run.goes_on()
    yield run
    run.mend()


def test_no_alert_fires_on_a_healthy_run(run: Observed) -> None:
    run.goes_on()
    run.is_quiet()
    time.sleep(_HEALTHY_SECONDS)
    assert not run.firing(AS_SHIPPED)
    ever = run.prometheus.ask(f'last_over_time(ALERTS{{alertstate="firing", rules="{AS_SHIPPED}"}}[1h])')
    assert not [of.labels for of in ever if run.disks or of.labels["alertname"] != "KeyholeDiskNearlyFull"]


def test_a_query_that_is_started_again_and_again(healthy: Observed) -> None:
    healthy.before(_RESTARTS)
    for _ in range(3):
        eventually(lambda: _generation(healthy), "the driver is not seen")
        generation = _generation(healthy)
        healthy.again("driver")
        eventually(lambda before=generation: _generation(healthy) > before, "no new run")  # type: ignore[misc]
    healthy.fires(_RESTARTS)


def _generation(run: Observed) -> float:
    return max((of.values[-1] for of in run.prometheus.ask("max(keyhole_job_run_generation)")), default=0.0)


def test_a_watermark_that_stands_still_while_epochs_are_committed(healthy: Observed) -> None:
    healthy.before("KeyholeWatermarkStale")
    healthy.again("driver", FAULT_WATERMARK_STANDS="yes")
    healthy.fires("KeyholeWatermarkStale", state=VALUES)


def test_a_standby_that_does_not_reach_kafka_is_behind(healthy: Observed) -> None:
    healthy.before("KeyholeStandbyLag")
    healthy.cluster.network.cut("replica-0>kafka")
    healthy.fires("KeyholeStandbyLag", server="replica-0", state=VALUES)


def test_a_disk_that_is_nearly_full(healthy: Observed) -> None:
    if not healthy.disks:
        pytest.skip("needs to mount a file system: nobody may on this machine")
    healthy.before("KeyholeDiskNearlyFull")
    filler = healthy.disks["server-1"] / "filler"
    filler.write_bytes(bytes(DISK_BYTES * 95 // 100))
    healthy.fires("KeyholeDiskNearlyFull", server="server-1")
    filler.unlink()


def test_a_store_that_is_nearly_at_its_limit(healthy: Observed) -> None:
    healthy.before("KeyholeStoreNearlyFull")
    size = f'max(keyhole_state_server_store_bytes{{server="replica-0", state="{VALUES}"}})'
    taken: list[float] = []
    eventually(lambda: taken.extend(of.values[-1] for of in healthy.prometheus.ask(size)) or taken, "no size is told")
    healthy.again("replica-0", KEYHOLE_STATE_SERVER_STORE_LIMIT_BYTES=str(int(taken[0] * 1.07)))
    healthy.fires("KeyholeStoreNearlyFull", server="replica-0", state=VALUES)


def test_an_exporter_that_stands_still(healthy: Observed) -> None:
    healthy.before("KeyholeExporterStale")
    healthy.suspend(healthy.exporter.pid)
    healthy.fires("KeyholeExporterStale")


def test_a_proxy_that_is_silent(healthy: Observed) -> None:
    healthy.before("KeyholeTargetDown")
    healthy.cluster.processes["proxy"].suspend()
    healthy.fires("KeyholeTargetDown", component="client_proxy")


def test_a_restore_that_does_not_get_on(healthy: Observed) -> None:
    """The server that is to take the key groups over reaches the job, but not Kafka."""
    healthy.before("KeyholeRestoreStuck")
    healthy.lose_server("server-0", heir="server-1")
    healthy.fires("KeyholeRestoreStuck", server="server-1")


def test_a_server_that_does_not_reach_kafka_can_not_commit(healthy: Observed) -> None:
    healthy.before("KeyholeCommitFailures")
    healthy.cluster.network.cut("server-1>kafka")
    healthy.fires("KeyholeCommitFailures", server="server-1")


def test_epochs_are_given_up_while_kafka_is_silent(healthy: Observed) -> None:
    healthy.before("KeyholeKafkaUnreachable", "KeyholeEpochFailures")
    healthy.suspend(healthy.cluster.kafka.pid)
    healthy.fires("KeyholeKafkaUnreachable")
    healthy.fires("KeyholeEpochFailures")


def test_all_that_ends_one_after_the_other_ages_the_states_loses_their_owners_and_fails_their_reads(
    healthy: Observed,
) -> None:
    healthy.before(
        "KeyholeStateStale",
        "KeyholeTargetDown",
        "KeyholeKeyGroupsWithoutOwner",
        "KeyholeKeyGroupsUnreadable",
        "KeyholeReadErrorRate",
    )
    processes = healthy.cluster.processes
    processes["driver"].kill()
    healthy.fires("KeyholeStateStale", state=VALUES)
    healthy.fires("KeyholeTargetDown", component="job")
    processes["server-0"].kill()
    healthy.fires("KeyholeKeyGroupsWithoutOwner", state=VALUES)
    processes["server-1"].kill()
    processes["replica-0"].kill()
    healthy.fires("KeyholeKeyGroupsUnreadable", state=VALUES)
    healthy.fires("KeyholeReadErrorRate", state=VALUES)


def test_every_alert_ends_once_what_was_broken_is_mended(healthy: Observed) -> None:
    healthy.is_quiet(lambda alert: alert != _RESTARTS)


@pytest.mark.parametrize(
    "query",
    [q for q in promql.panel_queries() if not (q.needs_spark or q.needs_updates or q.needs_pods)],
    ids=lambda query: query.name,
)
def test_a_panel_has_data(run: Observed, query: PanelQuery) -> None:
    assert run.prometheus.ask_range(query.asked(run.cluster.application), run.started, time.time(), 2)


@pytest.mark.parametrize("name", promql.dashboards())
def test_every_variable_has_something_to_choose(run: Observed, name: str) -> None:
    for variable, (metric, label) in promql.variables(name).items():
        assert run.prometheus.values_of(label, promql.choose(metric, application=run.cluster.application)), variable
