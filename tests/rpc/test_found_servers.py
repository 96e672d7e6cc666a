"""A query whose state servers are pods that come and go: its coordinator and a proxy find them by the API."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from keyhole import Client
from keyhole.clock import Clock
from keyhole.config import JobConfig
from keyhole.discovery import FollowedServers
from keyhole.encoding.columnar import encode
from keyhole.errors import EpochFailed, InvalidConfiguration, KeyholeError
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.testing.changelog import MemoryChangelog
from tests.support.feeding import Feed
from tests.support.kubernetes_api import status_body
from tests.support.pods import PodServers, pod_servers
from tests.support.state_servers import AheadClock
from tests.support.waiting import until

APPLICATION, STATE = "app", "numbers"
KEY_GROUPS, KEYS = 12, range(120)
LONG_SECONDS = 180.0
OF = StateDescriptor(
    application=APPLICATION,
    state=STATE,
    query="main",
    kind=StateKind.VALUE,
    key_groups=KEY_GROUPS,
    key=(KeyColumn("k", KeyType.BIGINT),),
    value=ValueSchema(1, (ValueField("n", "bigint"),)),
)


class Addresses:
    """What the coordinator takes, over a discovery."""

    def __init__(self, found: FollowedServers) -> None:
        self._found = found

    def __call__(self) -> frozenset[str]:
        return self._found.known()

    def close(self) -> None:
        self._found.close()


def written(epoch: int) -> list[int]:
    """The keys that an epoch writes: a third of them."""
    return [key for key in KEYS if key % 3 == epoch % 3]


def rows(epoch: int) -> list[pa.RecordBatch]:
    keys = written(epoch)
    columns = {"k": pa.array(keys, pa.int64()), "n": pa.array([epoch] * len(keys), pa.int64())}
    return [encode(pa.RecordBatch.from_pydict(columns), OF)]


@pytest.fixture
def pods() -> Iterator[PodServers]:
    with pod_servers() as made:
        yield made


@contextmanager
def feeding(
    pods: PodServers, epoch_deadline_seconds: float = LONG_SECONDS, clock: Clock | None = None
) -> Iterator[Feed]:
    """The driver, which finds the pods."""
    with pods.found() as found:
        config = JobConfig(APPLICATION, (found.described,), "memory", epoch_deadline_seconds, server_wait_seconds=2)
        changelog = MemoryChangelog(pods.kafka, APPLICATION)
        addresses = Addresses(found)
        with Feed(
            config, OF, rows, heartbeat_seconds=0.1, changelog=changelog, addresses=addresses, clock=clock
        ) as feed:
            yield feed


class Driver:
    """Runs epoch after epoch, in a thread."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self._ended = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._running: Future[None] = self._pool.submit(self._run)

    def _run(self) -> None:
        while not self._ended.is_set():
            self.feed.epoch()
            self._ended.wait(0.05)

    def goes_on(self) -> None:
        """Some epochs more are complete."""
        before = self.feed.complete
        until(lambda: self.feed.complete > before + 3 or self._running.done(), LONG_SECONDS)

    def owns(self, *names: str) -> None:
        """Until these, and no others, own all key groups, evenly."""
        share = KEY_GROUPS // len(names)
        until(
            lambda: (
                self._running.done() or all(len(self.feed.coordinator.owned_by(name, STATE)) == share for name in names)
            ),
            LONG_SECONDS,
        )

    def end(self) -> int:
        """The last complete epoch; raises what ended it before."""
        self._ended.set()
        self._running.result(LONG_SECONDS)
        self._pool.shutdown()
        return self.feed.complete


def recount(proxy: str, last: int) -> list[tuple[int, int]]:
    """Which keys, and what they hold, differ from what the epochs wrote."""
    expected = {key: max(epoch for epoch in range(max(1, last - 2), last + 1) if key in written(epoch)) for key in KEYS}
    with Client(proxy, timeout=LONG_SECONDS) as client:
        answers = client.get_many(APPLICATION, STATE, KEYS, stale="never", min_epoch=last)
    return [
        (key, answer.value.n if answer.found else -1)
        for key, answer in zip(KEYS, answers, strict=True)
        if not answer.found or answer.value.n != expected[key]
    ]


class Reader:
    """Reads all keys through the proxy again and again, in a thread; whatever was wrong is kept."""

    def __init__(self, proxy: str) -> None:
        self.failed: list[KeyholeError] = []
        self.backwards: list[int] = []
        self.rounds = 0
        self._ended = threading.Event()
        self._client = Client(proxy, timeout=LONG_SECONDS)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        last = dict.fromkeys(KEYS, 0)
        while not self._ended.wait(0.03):
            try:
                answers = self._client.get_many(APPLICATION, STATE, KEYS, stale="never")
            except KeyholeError as error:
                self.failed.append(error)
                continue
            self.rounds += 1
            for key, answer in zip(KEYS, answers, strict=True):
                number = answer.value.n if answer.found else 0
                if number < last[key]:
                    self.backwards.append(key)
                last[key] = number

    def end(self) -> None:
        self._ended.set()
        self._thread.join()
        self._client.close()


def test_a_query_follows_pods_that_come_go_and_are_replaced_and_counts_everything_once(pods: PodServers) -> None:
    with ExitStack() as stack:
        proxy = stack.enter_context(pods.proxy())
        driver = Driver(stack.enter_context(feeding(pods)))
        for name in ("exec-1", "exec-2"):
            pods.start(name)
        driver.owns("exec-1", "exec-2")
        reader = Reader(proxy)
        try:
            driver.goes_on()
            pods.start("exec-3")
            driver.owns("exec-1", "exec-2", "exec-3")
            driver.goes_on()
            pods.kill("exec-2")
            driver.owns("exec-1", "exec-3")
            pods.start("exec-4")
            driver.owns("exec-1", "exec-3", "exec-4")
            driver.goes_on()
            # A pod with a stable name, at another address.
            pods.kill("exec-3")
            pods.start("exec-3")
            driver.owns("exec-1", "exec-3", "exec-4")
            driver.goes_on()
            pods.end("exec-1")
            pods.end("exec-4")
            driver.owns("exec-3")
            driver.goes_on()
        finally:
            reader.end()
        assert recount(proxy, driver.end()) == []
        assert reader.rounds
        assert (reader.failed, reader.backwards) == ([], [])


def test_a_driver_that_starts_before_any_pod_waits_for_one_and_says_what_it_waits_for(
    pods: PodServers, caplog: pytest.LogCaptureFixture
) -> None:
    clock = AheadClock()

    def says_so() -> bool:
        clock.ahead_seconds += 1.0
        return bool(
            waits := [record for record in caplog.records if "waiting for the state servers" in record.message]
        ) and (
            # Who has set up no logging is shown warnings, and nothing but their text.
            waits[0].levelno == logging.WARNING
            and "no state server was found yet (KEYHOLE_JOB_SERVERS=kubernetes:7410)" in waits[0].message
        )

    with feeding(pods, epoch_deadline_seconds=1e5, clock=clock) as feed, ThreadPoolExecutor(1) as thread:
        epoch = thread.submit(feed.epoch)
        until(says_so)
        assert not epoch.done()
        pods.start("exec-1")
        assert epoch.result(LONG_SECONDS).epoch == 1


def test_without_any_pod_the_epoch_ends_at_its_deadline_and_names_the_setting(pods: PodServers) -> None:
    with feeding(pods, epoch_deadline_seconds=0.3) as feed, pytest.raises(EpochFailed) as caught:
        feed.epoch()
    assert "no state server was found yet (KEYHOLE_JOB_SERVERS=kubernetes:7410)" in caught.value.message


def test_a_driver_without_the_right_to_list_pods_ends_at_once(pods: PodServers) -> None:
    pods.api.failing = {"list": (403, status_body(403, 'User "system:serviceaccount:data:spark" cannot list'))}
    with feeding(pods) as feed, pytest.raises(InvalidConfiguration, match="service account 'spark' of namespace"):
        feed.epoch()


def test_a_proxy_without_the_right_to_list_pods_ends_with_exit_code_1_and_says_which(
    pods: PodServers, tmp_path: Path
) -> None:
    refusal = 'pods is forbidden: User "system:serviceaccount:data:proxy" cannot list resource "pods"'
    pods.api.failing = {"list": (403, status_body(403, refusal))}
    context = {"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "data"}}
    config = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{pods.api.port}"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [context],
        "current-context": "c",
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(config))  # YAML takes JSON
    named = {"KUBECONFIG": str(tmp_path / "kubeconfig"), "KEYHOLE_CLIENT_PROXY_SERVERS": "kubernetes:7410"}
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("KEYHOLE_", "KUBERNETES_"))}
    ended = subprocess.run(
        [sys.executable, "-m", "services.client_proxy"],
        env=environ | named | {"KEYHOLE_CLIENT_PROXY_PORT": "0"},
        capture_output=True,
        text=True,
        timeout=3 * LONG_SECONDS,
        check=False,
    )
    assert ended.returncode == 1
    assert "client-proxy: service account 'proxy' of namespace 'data' may not list the resource pods" in ended.stderr
    assert "Traceback" not in ended.stderr
