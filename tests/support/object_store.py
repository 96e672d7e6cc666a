"""An S3 on this machine for tests: a server whose buckets are in its memory, and what its clients must be told.

A pytest plugin (tests/conftest.py loads it).
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import boto3
import pytest

from keyhole.local.ports import free_ports
from keyhole.local.processes import Child
from tests.support.waiting import LONG_SECONDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BUCKET = "checkpoints"
_OF_BUCKET = f"fs.s3a.bucket.{_BUCKET}"


@dataclass(frozen=True)
class ObjectStore:
    """Where it is; it has one bucket, which all tests share."""

    endpoint: str

    @property
    def environ(self) -> Mapping[str, str]:
        """How Amazon's tools and fsspec are told: by the environment."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "keyhole",
            "AWS_SECRET_ACCESS_KEY": "of the tests",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    @property
    def place(self) -> dict[str, str]:
        """How Hadoop is told where it is, for this bucket alone: settings of a session, or of Spark's with
        `spark.hadoop.` before them. Credentials it takes from the environment of its JVM."""
        return {f"{_OF_BUCKET}.endpoint": self.endpoint, f"{_OF_BUCKET}.path.style.access": "true"}

    @property
    def credentials(self) -> dict[str, str]:
        """The same for a JVM that was started without them."""
        return {
            f"{_OF_BUCKET}.access.key": self.environ["AWS_ACCESS_KEY_ID"],
            f"{_OF_BUCKET}.secret.key": self.environ["AWS_SECRET_ACCESS_KEY"],
        }

    def at(self, path: str) -> str:
        """As Spark names it, and `keyhole savepoint`."""
        return f"s3a://{_BUCKET}/{path}"

    def names(self, path: str) -> list[str]:
        """Of all objects below it. At most a thousand."""
        listed = self._client().list_objects_v2(Bucket=_BUCKET, Prefix=f"{path}/").get("Contents", [])
        return sorted(of["Key"].removeprefix(f"{path}/") for of in listed)

    def put(self, key: str, content: bytes) -> None:
        """An object, also one whose name ends with a slash."""
        self._client().put_object(Bucket=_BUCKET, Key=key, Body=content)

    def make_bucket(self) -> None:
        self._client().create_bucket(Bucket=_BUCKET)

    def _client(self) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=self.environ["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=self.environ["AWS_SECRET_ACCESS_KEY"],
        )


@pytest.fixture(scope="session")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """One for all tests of this process. A test uses a folder of its own."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "tests.support.s3_server", str(port)]
    server = Child("s3", command, tmp_path_factory.mktemp("s3") / "s3.log", os.environ)
    store = ObjectStore(f"http://127.0.0.1:{port}")

    def listens() -> bool:
        with socket.socket() as asking:
            return asking.connect_ex(("127.0.0.1", port)) == 0

    try:
        server.wait_healthy(listens, LONG_SECONDS)
        store.make_bucket()
        yield store
    finally:
        server.kill()


@pytest.fixture
def credentials(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process finds it by its environment."""
    for name, value in object_store.environ.items():
        monkeypatch.setenv(name, value)


@contextmanager
def reaching(store: ObjectStore, spark: SparkSession) -> Iterator[None]:
    """This process finds it by its environment meanwhile, and the session has its checkpoints there alone."""
    from keyhole.spark.session import FILE_CHECKPOINTS, S3_CHECKPOINTS

    settings = store.place | store.credentials
    for name, value in (settings | S3_CHECKPOINTS).items():
        spark.conf.set(name, value)
    try:
        with pytest.MonkeyPatch.context() as patched:
            for name, value in store.environ.items():
                patched.setenv(name, value)
            yield
    finally:
        for name in settings:
            spark.conf.unset(name)
        for name, value in FILE_CHECKPOINTS.items():
            spark.conf.set(name, value)
