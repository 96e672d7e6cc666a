"""One Spark for all tests, streams over files, which need no broker, and the services that take their states.

A pytest plugin (tests/conftest.py loads it); core tests load it too, so Spark is imported only where it is asked
for.
"""

from __future__ import annotations

import json
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from keyhole import Client
from keyhole.config import JobConfig
from keyhole.local.ports import free_ports
from keyhole.local.services import start_client_proxy, start_state_server
from keyhole.rpc.retiring import retire
from tests.support.waiting import LONG_SECONDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Rows = Sequence[Mapping[str, object]]
Stream = Callable[..., "DataFrame"]
RunQuery = Callable[..., None]
RunUntil = Callable[["DataFrame", str, Callable[["DataFrame", int], None], threading.Event], None]


@pytest.fixture(scope="session")
def spark(
    tmp_path_factory: pytest.TempPathFactory, spark_jars: list[Path], s3_jars: list[Path]
) -> Iterator[SparkSession]:
    """A session with the connectors of Kafka and S3.

    There can be one JVM per process, so tests share it and don't stop it.
    """
    from keyhole.spark.session import local_settings, start_session

    # However few its rows are, each task has a start of its own, and one of a processor a Python worker, too.
    settings = local_settings([*spark_jars, *s3_jars], tmp_path_factory.mktemp("spark"), partitions=2)
    session = start_session("keyhole-tests", settings | {"spark.log.level": "ERROR"})
    yield session
    session.stop()


@pytest.fixture
def rocksdb(spark: SparkSession) -> Iterator[None]:
    """The only state store that takes transformWithState."""
    from keyhole.spark.running import ROCKSDB

    ((name, provider),) = ROCKSDB.items()
    before = spark.conf.get(name)
    spark.conf.set(name, provider)
    yield
    assert before is not None
    spark.conf.set(name, before)


def file_stream(spark: SparkSession, directory: Path, schema: str, batches: Sequence[Rows]) -> DataFrame:
    """A streaming data frame of files in the directory, one for the rows of each micro-batch."""
    directory.mkdir(exist_ok=True)
    for number, rows in enumerate(batches):
        # Elsewhere first: a query that is running would take half of a file for the whole.
        written = directory / f".{number:03}"
        written.write_text("\n".join(json.dumps(row) for row in rows))
        os.utime(written, (1_600_000_000 + number,) * 2)  # Spark takes the oldest first
        written.rename(directory / f"{number:03}.json")
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(directory))


def run_to_end(
    data: DataFrame,
    mode: str,
    function: Callable[[DataFrame, int], None],
    checkpoint: str | Path,
    name: str | None = None,
) -> None:
    """Runs a streaming query until it has taken all that its source has; raises what ended it, if it failed."""
    writer = data.writeStream.outputMode(mode).option("checkpointLocation", str(checkpoint))
    if name is not None:
        writer = writer.queryName(name)
    query = writer.foreachBatch(function).start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    """(schema, the rows of each micro-batch) -> a streaming data frame. `name`: where a test has several."""

    def make(schema: str, batches: Sequence[Rows], name: str = "source") -> DataFrame:
        return file_stream(spark, tmp_path / name, schema, batches)

    return make


@pytest.fixture
def run_query(tmp_path: Path) -> RunQuery:
    """`run_to_end` with a checkpoint of the test's own."""

    def run(
        data: DataFrame,
        mode: str,
        function: Callable[[DataFrame, int], None],
        *,
        name: str | None = None,
        checkpoint: str = "checkpoint",
    ) -> None:
        run_to_end(data, mode, function, tmp_path / checkpoint, name)

    return run


@pytest.fixture
def run_until(tmp_path: Path) -> RunUntil:
    """Runs a streaming query until an event is set; raises what ended it, if it ended before.

    For one that never has all there is: by processing time Spark runs one batch after the other, also without data.
    """

    def run(data: DataFrame, mode: str, function: Callable[[DataFrame, int], None], enough: threading.Event) -> None:
        writer = data.writeStream.outputMode(mode).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.foreachBatch(function).start()
        try:
            while not enough.wait(0.1):
                assert query.isActive, query.exception()
        finally:
            query.stop()

    return run


@dataclass(frozen=True)
class Service:
    """A state server and a proxy before it. Addresses as host:port.

    Attributes:
        http: Where the proxy answers over HTTP.
    """

    bootstrap_servers: str
    server: str
    proxy: str
    http: str
    _retiring: Executor
    _retired: list[Future[None]] = field(default_factory=list)

    def config(self, application: str) -> JobConfig:
        """For `queryable.value(..., config=...)`."""
        return JobConfig(
            application,
            (self.server,),
            self.bootstrap_servers,
            epoch_deadline_seconds=5 * LONG_SECONDS,
            kafka_deadline_seconds=LONG_SECONDS,
        )

    def retire(self, application: str) -> None:
        """Has the server forget an application, and those whose names begin with its name, whose queries have ended.

        Nobody waits for it but `check_retired`: it is not before the leases have passed.
        """
        self._retired.append(self._retiring.submit(self._retire, application))

    def _retire(self, application: str) -> None:
        with Client(self.server, timeout=LONG_SECONDS) as client:
            found = {state.application for state in client.list_states() if state.application.startswith(application)}
        for name in sorted(found):
            retire(self.server, name, timeout_seconds=LONG_SECONDS)

    def check_retired(self) -> None:
        """Raises what kept an application from being retired: a query that a test has not ended, say."""
        for retired in self._retired:
            retired.result()


@contextmanager
def served(bootstrap_servers: str, directory: Path) -> Iterator[Service]:
    """Real processes, whose stores and logs are in the directory; they end at the end."""
    ports = free_ports(3)
    server, proxy, http = (f"127.0.0.1:{port}" for port in ports)
    environ = {
        **os.environ,
        "KEYHOLE_CLIENT_PROXY_HTTP": http,
        "KEYHOLE_CLIENT_PROXY_DEFAULT_TIMEOUT_SECONDS": str(LONG_SECONDS),
    }
    children = [
        start_state_server(
            "server-0", ports[0], bootstrap_servers=bootstrap_servers, directory=directory, environ=environ
        )
    ]
    try:
        children.append(start_client_proxy("proxy", ports[1], servers=[server], directory=directory, environ=environ))
        with ThreadPoolExecutor(4, thread_name_prefix="retiring") as retiring:
            yield Service(bootstrap_servers, server, proxy, http, retiring)
    finally:
        for child in reversed(children):
            child.terminate()


@pytest.fixture(scope="session")
def service(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One for all tests of this process. A test uses an application of its own, and doesn't stop the processes."""
    with served(kafka, tmp_path_factory.mktemp("service")) as running:
        yield running
        running.check_retired()


def new_application() -> str:
    """A name that no other test uses."""
    return f"app-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def application(request: pytest.FixtureRequest) -> Iterator[str]:
    """A name that no other test uses. The shared service, where the test uses it, forgets what was made under it."""
    name = new_application()
    service: Service | None = request.getfixturevalue("service") if "service" in request.fixturenames else None
    yield name
    if service is not None:
        service.retire(name)
