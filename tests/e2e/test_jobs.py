"""Any job at all: those of the repository and one of a user's, several in a release, two releases in a namespace.

One namespace. Its first release has Kafka and two jobs; the second one has that Kafka and others, one after the other.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e import report
from tests.e2e.conftest import removed
from tests.e2e.kube import Namespace, await_, load, run
from tests.e2e.release import CHART, PATIENCE, RELEASE, VALUES, Platform, storage_class
from tests.support import images
from tests.support.chart import SMALL

pytestmark = pytest.mark.timeout(1800)

OTHER = "other"
JOBS = {job["name"]: job for job in yaml.safe_load((CHART / "ci" / "every-job-values.yaml").read_text())["jobs"]}
FIRST = ("tweet-impressions", "golden-signals")
OWN = {"name": "orders", "application": "shop", "module": "orders"}


@pytest.fixture(scope="module")
def first(tag: str) -> Iterator[Platform]:
    """The first release: Kafka, a proxy and two jobs."""
    space = Namespace(f"keyhole-jobs-{os.getpid()}")
    made = Platform(space, tag, storage_class(), observed=False)
    values = {"kafka": _KAFKA, "clientProxy": {"replicas": 1}, "metricsExporter": {"enabled": False}}
    made.values = (SMALL, written(made, RELEASE, values | {"jobs": [JOBS[name] | _SMALL for name in FIRST]}))
    with removed(made):
        made.install()
        yield made


@pytest.mark.parametrize("name", FIRST)
def test_two_jobs_of_one_release_make_their_states(first: Platform, name: str) -> None:
    rows_noted(first, RELEASE, name)


@pytest.mark.parametrize("name", sorted(set(JOBS) - set(FIRST) - {"temperature-monitor"}))
def test_another_release_of_the_namespace_makes_the_states_of_its_job(first: Platform, name: str) -> None:
    other(first, JOBS[name])
    rows_noted(first, OTHER, name)
    # The first release's proxy finds what there is in the namespace.
    assert rows(first, RELEASE, FIRST[0])


def test_a_users_job_is_our_image_and_one_file(first: Platform, tag: str) -> None:
    image = f"keyhole/own-job:{tag}"
    folder = Path(__file__).with_name("own_job")
    spark_job = f"SPARK_JOB={images.image('spark-job')}"
    run("docker", "build", "--build-arg", spark_job, "--tag", image, str(folder), seconds=600)
    load([image], os.environ["KEYHOLE_E2E_LOAD"])
    repository, _, version = image.rpartition(":")
    other(first, OWN | {"image": {"repository": repository, "tag": version}})
    found = rows_noted(first, OTHER, "shop")["totals"]
    assert all(row["spent"] == 5 * row["orders"] > 0 for row in found)


def other(first: Platform, job: dict[str, Any]) -> None:
    """Installs the second release with this job, or changes it to have this one alone."""
    values = {"kafka": {"bootstrapServers": f"{RELEASE}-kafka:9092"}, "clientProxy": {"replicas": 1}}
    values |= {"metricsExporter": {"enabled": False}, "jobs": [job | _SMALL]}
    files = [word for file in (SMALL, written(first, OTHER, values)) for word in ("--values", str(file))]
    first.space.helm("upgrade", "--install", OTHER, str(CHART), *files, "--set", f"image.tag={first.tag}")


def rows_noted(first: Platform, release: str, application: str) -> dict[str, list[dict[str, Any]]]:
    """Some rows of each state, once one of them has any; noted."""
    found: dict[str, list[dict[str, Any]]] = await_(
        lambda: rows(first, release, application), 2 * PATIENCE, f"rows of {application}"
    )
    counts = {state: len(some) for state, some in found.items()}
    report.note(f"job {application}", release=release, rows=counts)
    return found


def rows(first: Platform, release: str, application: str) -> dict[str, list[dict[str, Any]]]:
    """By state, what its first keys have; empty: none has any."""
    pod = f"deployment/{release}-client-proxy"
    said: dict[str, list[dict[str, Any]]] = json.loads(first.space.execute(pod, "python", "-c", _ROWS, application))
    return said if any(said.values()) else {}


def written(platform: Platform, name: str, values: dict[str, Any]) -> Path:
    """A file of values."""
    file = platform.folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(values))
    return file


_KAFKA = {"enabled": True, "persistence": {"size": "1Gi"}}
_SMALL = {
    "checkpoint": {"claim": {"existingClaim": "checkpoint"}},
    "executors": {"instances": 1, "cpuRequest": "50m", "memoryLimit": "1536Mi"},
    "sparkConf": yaml.safe_load(VALUES.read_text())["jobs"][0]["sparkConf"],
}
_ROWS = """
import json, sys
from keyhole import Client, Credentials
from keyhole.errors import KeyholeError
with Client("127.0.0.1:7400", credentials=Credentials(tls=False)) as client:
    found = {}
    for state in client.list_states(sys.argv[1]):
        try:
            entries = list(client.scan_all(sys.argv[1], state.state, limit=3))
        except KeyholeError as error:
            print(error, file=sys.stderr)
            continue
        found[state.state] = [dict(each.value) for each in entries if each.value is not None]
print(json.dumps(found, default=str))
"""
