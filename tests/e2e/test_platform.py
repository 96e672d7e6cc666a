"""The whole platform on a real cluster, taken apart piece by piece under reads that never stop.

One release for all tests of this file, in this order: each leaves it whole. What a reader is told is checked with every
read (reader.py); each test prints the longest time without an answer.
"""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.e2e import limits, report, usage
from tests.e2e.kube import await_, script
from tests.e2e.release import APPLICATION, PATIENCE, RELEASE, Platform
from tests.e2e.steps import disturbed, replaced

pytestmark = pytest.mark.timeout(1800)

MEASURED_SECONDS = 30.0


def test_answers_come_from_two_executors_whose_servers_started_before_them(platform: Platform) -> None:
    await_(lambda: len(platform.space.ready("spark-executor")) == 2, PATIENCE, "two executors")
    servers = {line["server"] for line in platform.lines() if line.get("found")}
    assert servers
    for pod in platform.space.pods("spark-executor"):
        (sidecar,) = [each for each in pod["status"]["initContainerStatuses"] if each["name"] == "state-server"]
        (executor,) = pod["status"]["containerStatuses"]
        assert sidecar["started"]
        assert sidecar["state"]["running"]["startedAt"] <= executor["state"]["running"]["startedAt"]
    assert platform.gaps(0).wrong == ()


def test_a_service_in_another_language_reads_by_the_services_name(platform: Platform, go_client: str) -> None:
    for method in ("get", "lookup", "lookup-bytes"):
        options = ["-proxy", platform.proxy, "-state", f"{APPLICATION}/sensors", "-method", method, "-timeout", "20s"]
        said = platform.run_once(f"go-{method}", go_client, ["/go-client", *options, "seattle", "nobody"])
        known, unknown = (json.loads(line) for line in said.splitlines())
        report.note(f"Go client, {method}", found=known["found"], server=known["server"])
        assert (known["found"], unknown["found"]) == (True, False)
        assert known["value"]["readings"] > 0


def test_a_service_in_another_language_scans_and_watches(platform: Platform, go_client: str) -> None:
    command = ["/go-client", "-proxy", platform.proxy, "-state", f"{APPLICATION}/sensors", "-timeout", "60s"]

    def lines_of(name: str, *arguments: str) -> list[Any]:
        return [json.loads(line) for line in platform.run_once(name, go_client, [*command, *arguments]).splitlines()]

    entries = lines_of("go-scan", "-method", "scan")
    assert ["seattle"] in [one["key"] for one in entries]
    some = lines_of("go-scan-where", "-method", "scan", "-where", "readings>=1", "-prefix", "sea")
    assert {one["key"][0] for one in some} == {one["key"][0] for one in entries if one["key"][0].startswith("sea")}
    # The job goes on: beside the rows that are there, changes come.
    most = str(len(entries) + 2)
    lines = lines_of("go-watch", "-method", "watch", "-changes", most, "-for", "300s")
    changes = [one for one in lines if "key" in one and not one.get("snapshot")]
    report.note("Go client, scan and watch", entries=len(entries), changes=len(changes))
    assert changes
    # Another watch goes on behind the token: what it tells is no older.
    token, epoch = lines[-1]["token"], max(one["epoch"] for one in changes)
    later = lines_of("go-watch-on", "-method", "watch", "-token", token, "-changes", "1", "-for", "300s")
    assert all(one["epoch"] >= epoch and not one.get("snapshot") for one in later if "key" in one)
    assert any("key" in one for one in later)


def test_a_service_without_grpc_reads_by_the_services_name(platform: Platform) -> None:
    url = f"http://{platform.proxy.replace(':7400', ':7402')}/v1/{APPLICATION}/sensors/seattle"
    answer = json.loads(platform.in_tools("python", "-c", _FETCH, url))
    assert answer["found"]
    assert answer["value"]["readings"] > 0
    assert answer["source"]["epoch"] > 0


def test_helms_own_test_writes_a_record_and_reads_it_back(platform: Platform) -> None:
    assert "Succeeded" in platform.helm_test()


def test_the_operators_image_says_how_all_is(platform: Platform) -> None:
    def printed_by(command: str, *arguments: str) -> str:
        line = ["keyhole", command, *arguments, "--proxy", platform.proxy]
        return platform.run_once(f"cli-{command}", platform.image("cli"), line)

    assert APPLICATION in printed_by("status")
    verdict = printed_by("verify", f"{APPLICATION}/sensors", "--bootstrap-servers", platform.kafka)
    report.note("keyhole verify in the cluster", last_line=verdict.strip().splitlines()[-1])


def test_the_exporter_tells_of_the_whole_cluster(platform: Platform) -> None:
    url = f"http://{RELEASE}-metrics-exporter.{platform.space.name}.svc:7420/metrics"

    def figures() -> str:
        text = platform.in_tools("python", "-c", _FETCH, url)
        return text if "keyhole_cluster_unowned_key_groups" in text else ""

    text: str = await_(figures, PATIENCE, "what the exporter tells of key groups")
    unowned = [line for line in text.splitlines() if line.startswith("keyhole_cluster_unowned_key_groups{")]
    assert unowned
    assert all(line.rpartition(" ")[2] in ("0", "0.0") for line in unowned)


def test_what_each_container_takes_is_measured_idle_and_at_ten_thousand_lookups_a_second(platform: Platform) -> None:
    # The job goes on meanwhile, and so does the one reader.
    idle = usage.measured(platform.space, lambda: time.sleep(MEASURED_SECONDS))
    asked: list[str] = []

    def load() -> None:
        command = ["python", "-P", "-c", script("load.py"), platform.proxy, str(MEASURED_SECONDS)]
        asked.append(platform.space.execute("reader", *command, seconds=MEASURED_SECONDS + 120))

    busy = usage.measured(platform.space, load)
    report.note("load", **json.loads(asked[0]))
    for name in sorted(idle):
        now = busy.get(name, {})
        facts = {"idle_cores": idle[name]["cores"], "idle_mebibytes": idle[name]["mebibytes"]}
        report.note(f"container {name}", **facts, loaded_cores=now.get("cores"), loaded_mebibytes=now.get("mebibytes"))
    assert {"client-proxy/client-proxy", "spark-executor/state-server"} <= set(idle)
    assert json.loads(asked[0])["failed_frames"] == 0


def test_an_executor_pod_is_deleted(platform: Platform) -> None:
    disturbed(platform, limits.EXECUTOR, *replaced(platform, "spark-executor", 2))


def test_an_executor_pod_is_killed_without_grace(platform: Platform) -> None:
    victim = platform.space.ready("spark-executor")[0]

    def kill() -> None:
        platform.space.kubectl("delete", "pod", victim, "--grace-period=0", "--force")

    def whole() -> bool:
        ready = platform.space.ready("spark-executor")
        return victim not in ready and len(ready) == 2

    disturbed(platform, limits.KILLED, kill, whole)


def test_a_proxy_is_deleted(platform: Platform) -> None:
    disturbed(platform, "proxy deleted", *replaced(platform, "client-proxy", 2))


def test_the_proxies_are_rolled(platform: Platform) -> None:
    def roll() -> None:
        platform.space.kubectl("rollout", "restart", f"deployment/{RELEASE}-client-proxy")
        platform.space.kubectl("rollout", "status", f"deployment/{RELEASE}-client-proxy", seconds=PATIENCE)

    disturbed(platform, "proxies rolled", roll, lambda: len(platform.space.ready("client-proxy")) == 2)


def test_the_replica_is_deleted(platform: Platform) -> None:
    disturbed(platform, "replica deleted", *replaced(platform, "replica", 1))


def test_kafka_is_deleted(platform: Platform) -> None:
    # Reads need no Kafka.
    disturbed(platform, "Kafka deleted", *replaced(platform, "kafka", 1))


def test_the_driver_is_deleted_and_the_replica_serves(platform: Platform) -> None:
    delete, driver_again = replaced(platform, "spark-driver", 1)

    def whole() -> bool:
        return driver_again() and len(platform.space.ready("spark-executor")) == 2

    disturbed(platform, limits.DRIVER, delete, whole)


def test_the_release_is_upgraded_with_a_changed_value(platform: Platform) -> None:
    driver = platform.space.ready("spark-driver")

    def upgrade() -> None:
        platform.upgrade(clientProxy__logLevel="DEBUG")
        platform.space.kubectl("rollout", "status", f"deployment/{RELEASE}-client-proxy", seconds=PATIENCE)

    disturbed(platform, "helm upgrade", upgrade, lambda: len(platform.space.ready("client-proxy")) == 2)
    assert platform.space.ready("spark-driver") == driver, "a proxy's value restarted the job"


@pytest.mark.parametrize("executors", [3, 1, 2])
def test_the_executors_are_scaled(platform: Platform, executors: int) -> None:
    disturbed(
        platform,
        f"{limits.SCALED} {executors}",
        lambda: platform.upgrade(**{"jobs[0]__executors__instances": str(executors)}),
        lambda: len(platform.space.ready("spark-executor")) == executors,
    )


def test_what_is_told_is_what_a_recount_of_the_topics_finds(platform: Platform) -> None:
    platform.space.kubectl("scale", f"deployment/{RELEASE}-{APPLICATION}-source", "--replicas=0")
    await_(lambda: not platform.space.pods("source"), PATIENCE, "the end of the source")
    checkpoint = f"/var/lib/keyhole/checkpoint/{APPLICATION}"
    until = time.monotonic() + PATIENCE
    ends = json.loads(platform.in_tools("python", "-c", _ENDS, platform.kafka))
    while json.loads(platform.in_tools("python", "-c", _TAKEN, checkpoint)) != ends:
        assert time.monotonic() < until, "the job does not take what was sent"
        time.sleep(2)
    more = json.dumps({"THRESHOLDS_TOPIC": "thresholds"})
    where = ["--proxy", platform.proxy, "--bootstrap-servers", platform.kafka, "--topic", "readings"]
    printed = platform.in_tools(
        *["python", "-m", f"jobs.{APPLICATION.replace('-', '_')}.verify", *where, "--epoch", "1"],
        *["--checkpoint", checkpoint, "--logs", "/tmp/logs", "--files", "/tmp/files", "--more-topics", more],
        seconds=900,
    )
    verdict = json.loads(printed)
    report.note("recount", **verdict)
    assert verdict["keys"] == verdict["agreed"] > 0
    assert (verdict["surplus"], verdict["unkept"]) == (0, 0)
    first = next(line["at"] for line in platform.lines() if line.get("found"))
    # Between the steps, too: whatever has failed since readers were first answered.
    for step, whole in ((limits.STARTING, platform.gaps(0, first)), (limits.SINCE, platform.gaps(first))):
        facts = {"by": whole.roles, "errors": whole.errors, "wrong": len(whole.wrong)}
        report.note(f"all reads {step}", reads=whole.reads, **facts)
        assert whole.wrong == ()
        assert limits.surplus(step, whole) == ()


def test_a_feed_makes_the_topic_a_state_without_spark_and_each_row_counts_once(platform: Platform) -> None:
    # The source has ended: what the job counts of a sensor is what the feed must count.
    def value_of(state: str, field: str) -> int:
        url = f"http://{platform.proxy.replace(':7400', ':7402')}/v1/{state}/seattle"
        answer = json.loads(platform.in_tools("python", "-c", _FETCH, url))
        return int(answer["value"][field]) if answer["found"] else 0

    counted = value_of(f"{APPLICATION}/sensors", "readings")
    feed = {"name": "counts", "state": "weather/counts", "topic": "readings", "key[0]": "sensor"}
    settings = {f"feeds[0]__{name}": value for name, value in feed.items()}
    platform.upgrade(
        **settings,
        **{"feeds[0]__reduce[0]": "temperature=count", "feeds[0]__resources__requests__cpu": "50m"},
        # Or else it is back: what was scaled by hand is not in the values.
        **{"jobs[0]__source__enabled": "false"},
        stateServers__enabled="true",
        stateServers__replicas="1",
        stateServers__resources__requests__cpu="100m",
    )
    await_(lambda: value_of("weather/counts", "temperature") == counted > 0, PATIENCE, "the feed's count")
    delete, whole = replaced(platform, "feed", 1)
    delete()
    await_(whole, PATIENCE, "the next feed")
    assert value_of("weather/counts", "temperature") == counted
    report.note("a feed", sensor="seattle", counted=counted)


def test_uninstalling_leaves_nothing_but_claims(platform: Platform) -> None:
    platform.uninstall()

    def left() -> set[str]:
        kinds = "deployments,statefulsets,services,configmaps,secrets,pods,roles,rolebindings,serviceaccounts,jobs"
        names = platform.space.kubectl("get", kinds, "-o", "name").split()
        own = {"pod/reader", "pod/tools", "configmap/reader"}
        given = {"configmap/kube-root-ca.crt", "serviceaccount/default"}
        return set(names) - own - given

    await_(lambda: not left(), PATIENCE, "nothing left")
    claims = platform.space.kubectl("get", "persistentvolumeclaims", "-o", "name").split()
    assert "persistentvolumeclaim/checkpoint" in claims


_FETCH = """
import sys, urllib.request
print(urllib.request.urlopen(sys.argv[1], timeout=30).read().decode())
"""
_ENDS = """
import json, sys
from keyhole.demo.recount import topic_ends
print(json.dumps({str(partition): end for partition, end in topic_ends(sys.argv[1], "readings").items()}))
"""
_TAKEN = """
import json, pathlib, sys
from keyhole.demo.batch_logs import BatchLogs
logs = BatchLogs(pathlib.Path(sys.argv[1]), pathlib.Path("/tmp/logs"))
print(json.dumps({str(partition): end for partition, end in logs.ends(logs.newest()).items()}))
"""
