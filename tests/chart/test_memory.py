"""What becomes of a memory limit: the parts of an executor's, and which limits can't hold what runs in them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pytest

from keyhole.config import StateServerConfig
from tests.support.chart import JOB, KAFKA, SMALL, environment, pods, refused, render, spark_conf

EXECUTORS: list[tuple[dict[str, Any], tuple[int, int, int]]] = [
    # limit, heap and RocksDB in MiB: what docs/kubernetes-reference.md says, by hand. Python 320 for a core,
    # the JVM's 480; for four, 896 and 624.
    ({}, (2048, 2048 - 320 - 128 - 480 - 102, 128)),
    ({"memoryLimit": "1536Mi"}, (1536, 1536 - 320 - 96 - 480 - 76, 96)),
    ({"memoryLimit": "4Gi", "cores": 4}, (4096, 4096 - 896 - 256 - 624 - 204, 256)),
    ({"memoryLimit": "16Gi", "cores": 4}, (16384, 16384 - 896 - 1024 - 624 - 819, 1024)),
    ({"memoryLimit": "3Gi", "pythonMemory": "1Gi", "rocksdbMemory": "64Mi"}, (3072, 3072 - 1024 - 64 - 480 - 153, 64)),
    # In other units than MiB: rounded down.
    ({"memoryLimit": "2G"}, (1907, 1907 - 320 - 119 - 480 - 95, 119)),
    ({"memoryLimit": "2e9"}, (1907, 1907 - 320 - 119 - 480 - 95, 119)),
]


def _job(**more: Any) -> dict[str, Any]:
    return KAFKA | {"jobs": [JOB | more]}


def _mebibytes(text: str) -> int:
    assert text.endswith("m")
    return int(text[:-1])


@pytest.mark.parametrize(("executors", "parts"), EXECUTORS, ids=lambda value: str(value))
def test_heap_overhead_and_rocksdb_are_made_of_the_limit(
    executors: dict[str, Any], parts: tuple[int, int, int]
) -> None:
    limit, heap, rocksdb = parts
    conf = spark_conf(render(_job(executors=executors)))
    assert _mebibytes(conf["spark.executor.memory"]) == heap
    # Spark makes the container's limit of both.
    assert heap + _mebibytes(conf["spark.executor.memoryOverhead"]) == limit
    assert conf["spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage"] == "true"
    assert conf["spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB"] == str(rocksdb)
    assert conf["spark.network.maxRemoteBlockSizeFetchToMem"] == "32m"
    bounds = dict(re.findall(r"-XX:(Max\w+Size|Reserved\w+Size)=(\d+)m", conf["spark.executor.extraJavaOptions"]))
    # Each task fetches up to 48 MiB at once, of blocks of 32 at most.
    direct = str(16 + 48 * executors.get("cores", 1))
    assert bounds == {"MaxMetaspaceSize": "192", "ReservedCodeCacheSize": "96", "MaxDirectMemorySize": direct}


def test_the_small_profile_has_a_heap_that_spark_starts_with() -> None:
    assert _mebibytes(spark_conf(render(SMALL, _job()))["spark.executor.memory"]) == 564


def test_a_jobs_java_options_come_behind_the_bounds_and_may_choose_the_collector() -> None:
    def options(given: str) -> list[str]:
        conf = spark_conf(render(_job(sparkConf={"spark.executor.extraJavaOptions": given})))
        return conf["spark.executor.extraJavaOptions"].split()

    assert options("-XX:MaxMetaspaceSize=300m -Da=b")[-3:] == ["-XX:+UseSerialGC", "-XX:MaxMetaspaceSize=300m", "-Da=b"]
    assert "-XX:+UseSerialGC" not in options("-XX:+UseParallelGC")
    large = spark_conf(render(_job(executors={"memoryLimit": "16Gi"})))
    assert "GC" not in large["spark.executor.extraJavaOptions"]


# The process 80, an epoch on its way 136.
STATE_SERVERS: list[tuple[str, str, tuple[int, int]]] = [
    # limit, store; rows staged and updates not committed in MiB: what docs/kubernetes-reference.md says, by hand
    ("1Gi", "lmdb", ((1024 - 80 - 136 - 51) // 2, (1024 - 80 - 136 - 51) // 4)),
    ("512Mi", "lmdb", ((512 - 80 - 136 - 25) // 2, (512 - 80 - 136 - 25) // 4)),
    ("1Gi", "rocksdb", ((1024 - 80 - 136 - 51 - 320) // 2, (1024 - 80 - 136 - 51 - 320) // 4)),
    ("1Gi", "memory", (379 // 2, 379 // 4)),
    ("1G", "lmdb", ((953 - 80 - 136 - 47) // 2, (953 - 80 - 136 - 47) // 4)),
    # Never less than what goes on, and never more than without a limit.
    ("256Mi", "rocksdb", (16, 16)),
    ("16Gi", "lmdb", (2048, 512)),
]
BOUNDS = ("KEYHOLE_STATE_SERVER_MAX_STAGED_BYTES", "KEYHOLE_STATE_SERVER_MAX_UNCOMMITTED_BYTES")


def _bounds(**server: Any) -> list[tuple[str | None, ...]]:
    """Of a sidecar, of a state server without a job and of a replica with these values."""
    values = {name: {"enabled": True} | server for name in ("stateServers", "replica")}
    found = [
        tuple(environment(container).get(name) for name in BOUNDS)
        for of in pods(render(_job(stateServer=server), values))
        for container in of.containers
        if container["name"] == "state-server"
    ]
    assert len(found) == 3
    return found


@pytest.mark.parametrize(("limit", "store", "parts"), STATE_SERVERS, ids=lambda value: str(value))
def test_what_a_state_server_holds_of_rows_and_updates_is_made_of_its_limit(
    limit: str, store: str, parts: tuple[int, int]
) -> None:
    expected = tuple(str(part << 20) for part in parts)
    assert set(
        _bounds(store={"kind": store}, resources={"requests": {"memory": "128Mi"}, "limits": {"memory": limit}})
    ) == {expected}


def test_a_state_server_without_a_limit_has_the_bounds_that_it_has_anywhere() -> None:
    assert set(_bounds(resources={"limits": {"memory": ""}})) == {(None, None)}
    config = StateServerConfig(bootstrap_servers="kafka:9092")
    largest = STATE_SERVERS[-1][2]
    assert (config.max_staged_bytes >> 20, config.max_uncommitted_bytes >> 20) == largest


def test_bounds_that_env_gives_a_state_server_count() -> None:
    given = {BOUNDS[0]: 1 << 26}
    assert set(_bounds(env=given)) == {(str(1 << 26), str(189 << 20))}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "bytes": (
        KAFKA | {"clientProxy.resources": {"limits": {"memory": "150"}}},
        "clientProxy.resources.limits.memory is 150, which is 150 bytes",
    ),
    "a number of bytes": (
        KAFKA | {"metricsExporter.resources": {"limits": {"memory": 150}}},
        "metricsExporter.resources.limits.memory is 150, which is 150 bytes",
    ),
    "thousandths of a byte": (
        KAFKA | {"kafka.resources": {"limits": {"memory": "800m"}}},
        "kafka.resources.limits.memory is 800m",
    ),
    "a feed's bytes": (
        KAFKA
        | {
            "feeds": [
                {"name": "a", "state": "a/b", "topic": "t", "key": ["k"], "value": ["v"]}
                | {"resources": {"limits": {"memory": "256"}}}
            ]
        },
        "feeds[a].resources.limits.memory is 256",
    ),
    "a sidecar's bytes": (
        _job(stateServer={"resources": {"limits": {"memory": "1024"}}}),
        "jobs[temperature-monitor].stateServer.resources.limits.memory is 1024",
    ),
    "a request above its limit": (
        KAFKA | {"stateServers.resources": {"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}}},
        "stateServers.resources.requests.memory is 2Gi, above the limit (1Gi)",
    ),
    "a driver's limit below its heap": (
        _job(driver={"memory": "4g"}),
        "jobs[temperature-monitor].driver.memory is a heap of 4096 MiB",
    ),
    "a driver's limit that is its heap": (
        _job(driver={"memory": "2048m"}),
        "raise the limit to 2560Mi or more",
    ),
    "a driver's heap that Spark doesn't start with": (
        _job(driver={"memory": "511m"}),
        "jobs[temperature-monitor].driver.memory is 511m, and Spark needs a heap of 512 MiB",
    ),
    "a driver's heap in another unit": (
        _job(driver={"memory": "500000k"}),
        "jobs[temperature-monitor].driver.memory is 500000k",
    ),
    "Kafka's heap above its limit": (
        KAFKA | {"kafka.heapMegabytes": 4000},
        "kafka.resources.limits.memory is 1Gi, and kafka.heapMegabytes is a heap of 4000 MiB",
    ),
    "an executor that is too small": (
        _job(executors={"memoryLimit": "1Gi"}),
        "are left for the heap, and Spark needs 512",
    ),
    "an executor with more cores than it has memory for": (
        _job(executors={"cores": 6}),
        "or take fewer cores",
    ),
    "an executor's bytes": (
        _job(executors={"memoryLimit": "2048"}),
        "jobs[temperature-monitor].executors.memoryLimit is 2048, which is 2048 bytes",
    ),
    "an executor without a limit": (_job(executors={"memoryLimit": ""}), "/jobs/0/executors/memoryLimit"),
    "Python's bytes": (_job(executors={"pythonMemory": "500"}), "executors.pythonMemory is 500"),
    "the heap beside what it is made of": (
        _job(sparkConf={"spark.executor.memory": "3g"}),
        "sparkConf has spark.executor.memory",
    ),
}


@pytest.mark.parametrize(("values", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_what_can_t_run_is_refused_by_name(values: dict[str, Any], says: str) -> None:
    assert says in refused(values)


def _with_limits(executors: dict[str, Any], limits: Iterable[int]) -> list[dict[str, Any]]:
    """A job for each of these limits, in MiB."""
    return [JOB | {"name": f"j{limit}", "executors": executors | {"memoryLimit": f"{limit}Mi"}} for limit in limits]


@pytest.mark.parametrize(
    ("limit", "executors"),
    # What is divided is not always rounded as the bounds are.
    [(1024, {}), (16, {"cores": 2}), (1024, {"cores": 7}), (300, {"rocksdbMemory": "70Mi"}), (900, {"cores": 3})],
    ids=str,
)
def test_the_limit_that_a_refusal_names_is_enough_and_so_is_each_above_it(
    limit: int, executors: dict[str, Any]
) -> None:
    advice = re.search(r"Raise the limit by (\d+)Mi", refused(KAFKA | {"jobs": _with_limits(executors, [limit])}))
    assert advice is not None
    enough = limit + int(advice[1])
    assert render(KAFKA | {"jobs": _with_limits(executors, range(enough, enough + 25))})
    assert "Raise the limit" in refused(KAFKA | {"jobs": _with_limits(executors, [enough - 3])})


@pytest.mark.parametrize(
    ("former", "keys"),
    [
        ({"memory": "1g", "memoryOverhead": "512m"}, "memory (1g) and memoryOverhead (512m)"),
        ({"memory": "700m"}, "memory (700m)"),
        ({"memoryOverhead": "512m"}, "memoryOverhead (512m)"),
    ],
    ids=str,
)
def test_the_values_of_an_earlier_chart_are_refused_with_what_takes_their_place(
    former: dict[str, str], keys: str
) -> None:
    # What --reuse-values makes of a release of the earlier chart has no memoryLimit.
    reused = KAFKA | {"jobs": [JOB], "jobDefaults": {"executors": former | {"memoryLimit": None}}}
    for values in (_job(executors=former), reused):
        said = refused(values)
        assert f"jobs[temperature-monitor].executors has {keys} of an earlier chart" in said
        assert "set executors.memoryLimit" in said
        assert "give --reset-then-reuse-values" in said
        named = re.search(r"(\d+)Mi has a heap of (\d+) MiB", said)
        assert named is not None
        heap = _mebibytes(spark_conf(render(_job(executors={"memoryLimit": f"{named[1]}Mi"})))["spark.executor.memory"])
        assert 0 <= heap - int(named[2]) <= 2
        assert int(named[2]) == {"1g": 1024, "700m": 700}.get(former.get("memory", "1g"))
    assert render(_job(executors=dict.fromkeys(former)))
