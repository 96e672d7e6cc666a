"""Real servers that are told to end, that are lost while a batch runs, or suspended for so long that others own their
key groups when they wake.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from keyhole import Client
from keyhole.changelog.base import Partition
from keyhole.changelog.kafka.changelog import KafkaChangelog
from keyhole.cli.main import main
from keyhole.client.bounds import StalePolicy
from keyhole.config import JobConfig
from keyhole.encoding.codec import StateCodec
from keyhole.errors import KeyholeError, NotOwner, Unconfirmed
from keyhole.local.ports import free_ports
from keyhole.local.processes import Child
from keyhole.local.services import start_client_proxy, start_state_server
from keyhole.model.read import Answer, Role
from keyhole.model.state import StateDescriptor
from keyhole.protocol.failpoints import Step
from keyhole.rpc.channels import sync_channel
from keyhole.v1 import state_server_pb2, state_server_pb2_grpc
from tests.support.feeding import Feed
from tests.support.numbers_state import KEY_GROUPS, STATE, number, number_rows, numbers_of

KEYS = range(120)
PATIENCE_SECONDS = 300.0
DRAIN_SECONDS = PATIENCE_SECONDS
# Where it is to pass. Else it doesn't, however late a busy machine's heartbeats are: a server that is told to end waits
# for nobody who has not been heard of for so long.
SHORT_LEASE_SECONDS = 3.0
# Of a read, on a busy machine: as by default, and where only an owner may answer, with what a handover may take.
TIMEOUT_SECONDS = {"when_needed": 60.0, "never": 120.0}


def keys_of(of: StateDescriptor, groups: Collection[int]) -> list[int]:
    codec = StateCodec(of)
    return [key for key in KEYS if int.from_bytes(codec.storage_key(key)[:2], "big") in groups]


@dataclass(frozen=True)
class Servers:
    """Three of them, by name."""

    children: dict[str, Child]
    addresses: dict[str, str]

    def config(self, application: str, kafka: str) -> JobConfig:
        return JobConfig(application, tuple(self.addresses.values()), kafka, epoch_deadline_seconds=120)


@pytest.fixture
def lease_seconds() -> float:
    """Of the servers."""
    return PATIENCE_SECONDS


@pytest.fixture
def servers(kafka: str, tmp_path: Path, lease_seconds: float) -> Iterator[Servers]:
    settings = {
        "KEYHOLE_STATE_SERVER_DRAIN_SECONDS": str(DRAIN_SECONDS),
        "KEYHOLE_STATE_SERVER_LEASE_SECONDS": str(lease_seconds),
    }
    ports = {f"server-{index}": port for index, port in enumerate(free_ports(3))}
    children: dict[str, Child] = {}
    try:
        for name, port in ports.items():
            children[name] = start_state_server(
                name, port, bootstrap_servers=kafka, directory=tmp_path, environ=os.environ | settings
            )
        yield Servers(children, {name: f"127.0.0.1:{port}" for name, port in ports.items()})
    finally:
        for child in children.values():
            child.kill()


@pytest.fixture
def proxy(servers: Servers, tmp_path: Path) -> Iterator[str]:
    (port,) = free_ports(1)
    child = start_client_proxy(
        "proxy", port, servers=list(servers.addresses.values()), directory=tmp_path, environ=dict(os.environ)
    )
    yield f"127.0.0.1:{port}"
    child.terminate()


class Reader:
    """Reads all keys again and again, and keeps what was wrong with it."""

    def __init__(self, proxy: str, application: str, stale: StalePolicy, feed: Feed) -> None:
        self.rounds = 0
        self.failed: list[KeyholeError] = []
        self.wrong: list[tuple[int, Answer]] = []
        self._state = application, STATE
        self._stale = stale
        self._feed = feed
        self._client = Client(proxy, timeout=TIMEOUT_SECONDS[stale])

    def read(self) -> None:
        complete = self._feed.complete
        self.rounds += 1
        try:
            answers = self._client.get_many(*self._state, KEYS, stale=self._stale)
        except KeyholeError as error:
            self.failed.append(error)
            return
        self.wrong += [
            (key, answer)
            for key, answer in zip(KEYS, answers, strict=True)
            if not answer.found
            or answer.value.n != number(key, answer.epoch)
            or (self._stale == "never" and (answer.role is not Role.OWNER or answer.epoch < complete))
        ]

    def close(self) -> None:
        self._client.close()


def both_read_on(*readers: Reader) -> None:
    """Returns when they have read everything some more times."""
    rounds = [reader.rounds for reader in readers]
    wait_until(lambda: all(r.rounds > before + 10 for r, before in zip(readers, rounds, strict=True)), "reads")


@contextmanager
def repeating(act: Callable[[], object], seconds: float) -> Iterator[None]:
    """In a thread of its own, with a pause after each time; what it raises is raised at the end."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.is_set():
            act()
            ended.wait(seconds)

    with ThreadPoolExecutor(1) as thread:
        repeats = thread.submit(repeat)
        try:
            yield
        finally:
            ended.set()
            repeats.result()


def wait_until(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < until, f"no {what} within {PATIENCE_SECONDS:.0f} s"
        time.sleep(0.05)


def owned(feed: Feed, names: Collection[str]) -> list[int]:
    """How many key groups each of the servers owns, as the coordinator has it."""
    return sorted(len(feed.coordinator.owned_by(name, STATE)) for name in names)


def answered_for(addresses: Collection[str], *roles: Role) -> set[int]:
    """The key groups that these servers can be asked for, in one of these roles."""
    found: set[int] = set()
    for address in addresses:
        with Client(address, timeout=PATIENCE_SECONDS) as client:
            (status,) = client.status()
        for holding in status.holdings:
            if holding.descriptor.state == STATE and holding.source.role in roles:
                found.update(holding.key_groups)
    return found


@contextmanager
def until_it_turns_away(address: str) -> Iterator[None]:
    """Follows a server as a proxy does; waits at the end until it says that nothing more will be answered."""
    with sync_channel(address) as channel:
        stub = state_server_pb2_grpc.StateServerStub(channel)
        ownerships = stub.WatchOwnership(
            state_server_pb2.WatchOwnershipRequest(), timeout=DRAIN_SECONDS + PATIENCE_SECONDS
        )
        next(ownerships)
        yield
        for _ in ownerships:
            pass


def test_a_server_that_is_told_to_end_hands_its_key_groups_over_without_one_failed_read(
    kafka: str, servers: Servers, proxy: str, application: str
) -> None:
    of = numbers_of(application, "draining")
    victim, *others = servers.children
    rest = [servers.addresses[name] for name in others]
    with Feed(servers.config(application, kafka), of, lambda epoch: number_rows(of, KEYS, epoch)) as feed:
        feed.epoch()
        assert owned(feed, servers.children) == [4, 4, 4]
        by_default, of_owners = (Reader(proxy, application, stale, feed) for stale in ("when_needed", "never"))
        with (
            closing(by_default),
            closing(of_owners),
            repeating(feed.epoch, 0.7),
            repeating(by_default.read, 0.01),
            repeating(of_owners.read, 0.01),
        ):
            both_read_on(by_default, of_owners)
            asked = time.monotonic()
            with until_it_turns_away(servers.addresses[victim]):
                os.kill(servers.children[victim].pid, signal.SIGTERM)
            # From here on the others have it all, and nobody has to restore anything first.
            assert answered_for(rest, Role.OWNER, Role.STANDBY) == set(range(KEY_GROUPS))
            assert servers.children[victim].wait(PATIENCE_SECONDS) == 0
            assert time.monotonic() - asked < DRAIN_SECONDS
            wait_until(lambda: owned(feed, others) == [6, 6], "new owners")
            wait_until(lambda: answered_for(rest, Role.OWNER) == set(range(KEY_GROUPS)), "owners")
            both_read_on(by_default, of_owners)
    assert not by_default.failed + of_owners.failed
    assert not by_default.wrong + of_owners.wrong


class LongBatch:
    """Makes an epoch's rows; those of `epoch` only when it is let go."""

    def __init__(self, of: StateDescriptor, epoch: int) -> None:
        self.let_go = threading.Event()
        self.began = threading.Event()
        self._of, self._epoch = of, epoch

    def __call__(self, epoch: int) -> list[pa.RecordBatch]:
        if epoch == self._epoch:
            self.began.set()
            assert self.let_go.wait(PATIENCE_SECONDS)
        return number_rows(self._of, KEYS, epoch)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "told-to-end"])
def test_a_server_that_goes_while_a_batch_runs_has_a_successor_before_the_batch_ends(
    kafka: str, servers: Servers, proxy: str, application: str, number: signal.Signals
) -> None:
    of = numbers_of(application, "draining")
    batch = LongBatch(of, 2)
    victim, *others = servers.children
    rest = [servers.addresses[name] for name in others]
    with Feed(servers.config(application, kafka), of, batch) as feed, ThreadPoolExecutor(1) as thread:
        feed.epoch()
        assert owned(feed, servers.children) == [4, 4, 4]
        reader = Reader(proxy, application, "never", feed)
        with closing(reader):
            second = thread.submit(feed.epoch)
            try:
                assert batch.began.wait(PATIENCE_SECONDS)
                with repeating(reader.read, 0.01):
                    os.kill(servers.children[victim].pid, number)
                    wait_until(lambda: answered_for(rest, Role.OWNER) == set(range(KEY_GROUPS)), "owners")
                    both_read_on(reader)
                    ended = servers.children[victim].wait(PATIENCE_SECONDS)
                    assert not second.done()
            finally:
                batch.let_go.set()
            assert second.result().rounds == 2
            reader.read()
        assert ended == (0 if number is signal.SIGTERM else -number)
        assert not reader.wrong
        assert not reader.failed
        assert feed.epoch().rounds == 1
        targets = ",".join(rest)
    assert main(["verify", f"{application}/{STATE}", "--bootstrap-servers", kafka, "--servers", targets]) == 0


class SuspendsBeforeCommit:
    """Suspends a process when an epoch's rows are staged on it, once it has been given one."""

    def __init__(self) -> None:
        self.process: Child | None = None

    def reached(self, step: Step, epoch: int) -> None:
        """See StepObserver."""
        if step is Step.DRIVER_BEFORE_COMMIT and self.process is not None:
            os.kill(self.process.pid, signal.SIGSTOP)
            self.process = None


@pytest.mark.parametrize("lease_seconds", [SHORT_LEASE_SECONDS], ids=["short-lease"])
def test_a_server_that_was_suspended_while_its_key_groups_moved_steps_down_when_it_wakes(
    kafka: str, servers: Servers, application: str, lease_seconds: float
) -> None:
    of = numbers_of(application, "draining")
    victim, *others = servers.children
    suspends = SuspendsBeforeCommit()

    def ends() -> dict[Partition, int]:
        with closing(KafkaChangelog(kafka, application).reader()) as reader:
            return dict(reader.ends({STATE: range(KEY_GROUPS)}, PATIENCE_SECONDS))

    with Feed(
        servers.config(application, kafka),
        of,
        lambda epoch: number_rows(of, KEYS, epoch),
        observer=suspends,
        heartbeat_seconds=600,  # this test's are made by hand: nobody talks to the server when it wakes
    ) as feed:
        feed.epoch()
        assert owned(feed, servers.children) == [4, 4, 4]
        keys = keys_of(of, feed.coordinator.owned_by(victim, STATE))
        suspends.process = servers.children[victim]
        suspended = time.monotonic()
        assert feed.epoch().rounds > 1
        assert owned(feed, others) == [6, 6]
        while time.monotonic() < suspended + 2 * lease_seconds:  # within the lease it may take itself for the owner
            feed.epoch()
            time.sleep(0.5)
        before = ends()

        address = servers.addresses[victim]
        with Client(address, timeout=PATIENCE_SECONDS) as client:
            os.kill(servers.children[victim].pid, signal.SIGCONT)

            def stepped_down() -> bool:
                with pytest.raises((Unconfirmed, NotOwner)) as refused:
                    client.get_many(application, STATE, keys, stale="never")
                return refused.type is NotOwner

            wait_until(stepped_down, "step down")
            assert not answered_for([address], Role.OWNER)
            time.sleep(1.0)  # for the Commit that it was sent, should it take it up
            assert ends() == before

            def owns_again() -> bool:
                feed.epoch()
                feed.coordinator.beat()
                return owned(feed, servers.children) == [4, 4, 4]

            wait_until(owns_again, "share of its own")

            def answers_as_owner() -> bool:
                """Not where a lease has passed since the epoch."""
                complete = feed.epoch().epoch
                keys = keys_of(of, feed.coordinator.owned_by(victim, STATE))
                try:
                    answers = client.get_many(application, STATE, keys, stale="never")
                except Unconfirmed:
                    return False
                assert [answer.value.n for answer in answers] == [number(key, complete) for key in keys]
                return True

            wait_until(answers_as_owner, "answers of an owner")
        targets = ",".join(servers.addresses.values())
        assert main(["verify", f"{application}/{STATE}", "--bootstrap-servers", kafka, "--servers", targets]) == 0
