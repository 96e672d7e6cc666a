"""Real processes that are killed in the middle of a scan of all keys, of aggregates, and of a drain."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from keyhole import AggregateAnswer, Client
from keyhole import aggregates as agg
from keyhole.cli.main import main
from keyhole.config import JobConfig
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.storage_key import group_of
from keyhole.errors import UnavailableError
from keyhole.local.ports import free_ports
from keyhole.local.processes import Child
from keyhole.local.services import start_client_proxy, start_state_server
from keyhole.model.read import KeyedEntry, Role
from keyhole.rpc import ordered_pages
from keyhole.rpc.draining import drain
from tests.support.feeding import Feed
from tests.support.numbers_state import KEY_GROUPS, STATE, number, number_rows, numbers_of
from tests.support.waiting import LONG_SECONDS, until

KEYS = range(3_000)


@contextmanager
def _repeating(act: Callable[[], object], seconds: float = 0.3) -> Iterator[None]:
    """In a thread of its own; what it raises is raised at the end."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(seconds):
            act()

    with ThreadPoolExecutor(1) as thread:
        repeats = thread.submit(repeat)
        try:
            yield
        finally:
            ended.set()
            repeats.result()


def _follows(address: str) -> bool:
    """Whether a server is a standby of something."""
    with Client(address, timeout=LONG_SECONDS) as client:
        (status,) = client.status()
    return any(holding.source.role is Role.STANDBY for holding in status.holdings)


def _all_keys(
    client: Client, application: str, at: dict[int, Callable[[], object]], **options: bool
) -> list[KeyedEntry]:
    """Reads all of the state, on behind the token wherever it breaks off.

    Args:
        at: By how many entries were read, what happens then.
    """
    found: list[KeyedEntry] = []
    token: str | None = None
    while True:
        with client.scan_all(application, STATE, after=token, **options) as entries:
            try:
                for entry in entries:
                    found.append(entry)
                    at.get(len(found), lambda: None)()
            except UnavailableError:
                token = entries.token
            else:
                return found


def test_each_key_is_read_once_and_nothing_is_lost_whoever_is_killed_in_the_middle_of_a_scan_and_of_a_drain(
    kafka: str, application: str, tmp_path: Path
) -> None:
    of = numbers_of(application, "killed")
    names = [f"server-{index}" for index in range(3)]
    children: dict[str, Child] = {}
    *ports, first, second = free_ports(5)
    try:
        for name, port in zip(names, ports, strict=True):
            # A drain asks no server whose lease has passed, which on a busy machine it may by itself.
            environ = {**os.environ, "KEYHOLE_STATE_SERVER_LEASE_SECONDS": str(LONG_SECONDS)}
            children[name] = start_state_server(
                name, port, bootstrap_servers=kafka, directory=tmp_path, environ=environ
            )
        addresses = {name: f"127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)}
        for name, port in (("proxy-0", first), ("proxy-1", second)):
            children[name] = start_client_proxy(
                name, port, servers=list(addresses.values()), directory=tmp_path, environ=dict(os.environ)
            )
        config = JobConfig(application, tuple(addresses.values()), kafka, epoch_deadline_seconds=120)
        targets = f"127.0.0.1:{first},127.0.0.1:{second}"
        with (
            Feed(config, of, lambda epoch: number_rows(of, KEYS, epoch)) as feed,
            Client(targets, timeout=LONG_SECONDS) as client,
        ):

            def owned_by(*servers: str) -> int:
                return sum(len(feed.coordinator.owned_by(name, STATE)) for name in servers)

            feed.epoch()
            assert [owned_by(name) for name in names] == [4, 4, 4]
            # Of the last key group, which is read last.
            (goes,) = (name for name in names if KEY_GROUPS - 1 in feed.coordinator.owned_by(name, STATE))
            drained, last = (name for name in names if name != goes)
            client.get(application, STATE, 1)
            committed: list[object] = []
            kills = {
                200: children[goes].kill,
                1_000: lambda: until(lambda: bool(committed), LONG_SECONDS),
                1_500: children["proxy-0"].kill,
            }
            with _repeating(lambda: committed.append(feed.epoch())):
                found = _all_keys(client, application, kills)
            assert sorted(entry.key for entry in found) == list(KEYS)
            assert [entry for entry in found if entry.value.n != number(entry.key, entry.source.epoch)] == []
            assert len({entry.source.epoch for entry in found}) > 1
            assert all(children[name].exit_code is not None for name in (goes, "proxy-0"))

            feed.epoch()
            assert owned_by(drained) == owned_by(last) == KEY_GROUPS / 2
            assert drain(addresses[drained]).owns
            with _repeating(feed.epoch):
                # The other one is on its way to have copies, or has them, or owns some already.
                until(lambda: _follows(addresses[last]) or owned_by(last) > KEY_GROUPS / 2, LONG_SECONDS)
                children[drained].kill()
                until(lambda: owned_by(last) == KEY_GROUPS, LONG_SECONDS)
            epoch = feed.epoch().epoch
            answers = client.get_many(application, STATE, KEYS, min_epoch=epoch)
            assert [answer.value.n for answer in answers] == [number(key, epoch) for key in KEYS]
            assert {answer.server for answer in answers} == {last}
        left = ["--bootstrap-servers", kafka, "--servers", addresses[last]]
        assert main(["verify", f"{application}/{STATE}", *left]) == 0
    finally:
        for child in children.values():
            child.kill()


_FIGURES = {"count": agg.count(), "sum": agg.sum("n"), "top": agg.top(3, "n")}


def _check(answer: AggregateAnswer, sizes: Mapping[int, int]) -> None:
    """That each key group is in it once, and whole as of one epoch.

    Args:
        sizes: Of the key groups, in keys.
    """
    epochs = {source.epoch for source in answer.sources}
    assert answer["count"] == len(KEYS)
    # All that can be, whichever of these epochs each key group was at.
    totals = {sum(KEYS)}
    for size in sizes.values():
        totals = {total + size * number(0, epoch) for total in totals for epoch in epochs}
    assert answer["sum"] in totals
    top = [(entry.key, entry.value.n) for entry in answer["top"]]
    assert [n for _, n in top] == sorted((n for _, n in top), reverse=True)
    assert all(n == number(key, entry.source.epoch) for (key, n), entry in zip(top, answer["top"], strict=True))
    assert {entry.source.epoch for entry in answer["top"]} <= {max(epochs)}


def test_order_and_figures_are_right_whichever_server_is_killed_in_their_middle(
    kafka: str, application: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = numbers_of(application, "killed")
    groups = {key: group_of(StateCodec(of).storage_key(key)) for key in KEYS}
    sizes = Counter(groups.values())
    # Of a key group's 250 entries: so that there is more to come when its server goes.
    monkeypatch.setattr(ordered_pages, "_MOST_AHEAD", 64)
    names = [f"server-{index}" for index in range(3)]
    children: dict[str, Child] = {}
    *ports, proxy = free_ports(4)
    try:
        for name, port in zip(names, ports, strict=True):
            children[name] = start_state_server(
                name, port, bootstrap_servers=kafka, directory=tmp_path, environ=dict(os.environ)
            )
        servers = [f"127.0.0.1:{port}" for port in ports]
        children["proxy"] = start_client_proxy(
            "proxy", proxy, servers=servers, directory=tmp_path, environ=dict(os.environ)
        )
        config = JobConfig(application, tuple(servers), kafka, epoch_deadline_seconds=120)
        with (
            Feed(config, of, lambda epoch: number_rows(of, KEYS, epoch)) as feed,
            Client(f"127.0.0.1:{proxy}", timeout=LONG_SECONDS) as client,
        ):
            feed.epoch()
            in_order, descending, last = names
            client.get(application, STATE, 1)
            killed = feed.coordinator.owned_by(in_order, STATE)
            with _repeating(feed.epoch):
                found = _all_keys(client, application, {200: children[in_order].kill}, ordered=True)
            assert [entry.key for entry in found] == list(KEYS)
            assert [entry for entry in found if entry.value.n != number(entry.key, entry.source.epoch)] == []
            assert children[in_order].exit_code is not None
            answered = {entry.source.server for entry in found if groups[entry.key] in killed}
            assert answered > {in_order}

            answers: list[AggregateAnswer] = []

            def figures() -> None:
                answers.append(client.aggregate(application, STATE, _FIGURES, timeout=LONG_SECONDS))
                _check(answers[-1], sizes)

            with _repeating(feed.epoch), _repeating(figures, 0.0):
                until(lambda: len(answers) > 3, LONG_SECONDS)
                children[descending].kill()
                until(lambda: len(feed.coordinator.owned_by(last, STATE)) == KEY_GROUPS, LONG_SECONDS)
                then = len(answers)
                until(lambda: len(answers) > then + 3, LONG_SECONDS)
            found = _all_keys(client, application, {}, descending=True)
            assert [entry.key for entry in found] == list(KEYS)[::-1]
    finally:
        for child in children.values():
            child.kill()
