"""All keys of a state while it changes: epochs are committed, owners are replaced and go, in the middle of the scan."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from keyhole import AsyncClient
from keyhole.client.state_scans import AsyncStateScan
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.storage_key import group_of
from keyhole.errors import UnavailableError
from keyhole.model.read import KeyedEntry
from keyhole.testing.memory_kafka import MemoryKafka
from services.client_proxy.app import ClientProxy
from tests.support.entries import APPLICATION, KEY_GROUPS, STATE, hourly, hours
from tests.support.proxies import proxy_of
from tests.support.state_servers import RunningServer, state_server
from tests.support.waiting import LONG_SECONDS, eventually

# One key group takes several pages.
_KEYS = {"sensor-7": range(1_200)} | {f"sensor-{number}": range(3) for number in range(20, 60)}
_CODEC = StateCodec(hourly())
_EVEN, _ODD = range(0, KEY_GROUPS, 2), range(1, KEY_GROUPS, 2)


def _rows(epoch: int) -> dict[Any, bytes]:
    """Each value tells its epoch."""
    found: dict[Any, bytes] = {}
    for sensor, of in _KEYS.items():
        found |= hours(sensor, of, epoch)
    return found


@pytest.fixture
async def owners() -> AsyncIterator[tuple[RunningServer, RunningServer, AsyncClient]]:
    """Two servers, which own the even and the odd key groups; and a client of a proxy before them. Epoch 1 is there."""
    kafka = MemoryKafka()
    async with AsyncExitStack() as stack:
        even, odd = [await stack.enter_async_context(state_server(name, kafka)) for name in ("even", "odd")]
        await even.own(hourly(), _EVEN)
        await odd.share(hourly(), _ODD)
        for server in (even, odd):
            await server.commit_own(_rows(1))
        proxy = await stack.enter_async_context(proxy_of(even.address, odd.address))
        await eventually(lambda: _all_owned(proxy))
        yield even, odd, await stack.enter_async_context(AsyncClient(proxy.address, timeout=LONG_SECONDS))


def _all_owned(proxy: ClientProxy) -> bool:
    return any(all(table.owners.addresses) for table in proxy._directory.tables.values())


def _epochs_by_group(found: list[KeyedEntry]) -> dict[int, set[int]]:
    """What was read of each key group. Each key must have come once, with the value of the epoch that it names."""
    keys = [(entry.key, entry.map_key) for entry in found]
    assert len(keys) == len(set(keys))
    assert set(keys) == {(key[0], key[1]) for key in _rows(1)}
    epochs: defaultdict[int, set[int]] = defaultdict(set)
    for entry in found:
        assert entry.value.count == entry.source.epoch, entry
        epochs[group_of(_CODEC.storage_key((entry.key, entry.map_key)))].add(entry.source.epoch)
    return epochs


async def _into_the_large_one(scan: AsyncStateScan) -> list[KeyedEntry]:
    """Reads until some of the large key group was given, and not all of it."""
    found: list[KeyedEntry] = []
    while not any(entry.key == "sensor-7" for entry in found):
        found += await scan.page()
    assert sum(entry.key == "sensor-7" for entry in found) < len(_KEYS["sensor-7"])
    return found


async def test_an_epoch_that_is_committed_in_the_middle_is_seen_whole_by_key_group(
    owners: tuple[RunningServer, RunningServer, AsyncClient],
) -> None:
    even, odd, client = owners
    async with client.scan_all(APPLICATION, STATE) as scan:
        found = await _into_the_large_one(scan)
        for server in (even, odd):
            await server.commit_own(_rows(2))
        while page := await scan.page():
            found += page
        assert scan.done
    epochs = _epochs_by_group(found)
    assert all(len(of) == 1 for of in epochs.values()), epochs
    large = group_of(_CODEC.storage_key(("sensor-7", 0)))
    # What was begun before goes on as of then, and what comes behind it is of the new epoch.
    assert epochs[large] == {1}
    assert {of for group, some in epochs.items() if group > large for of in some} == {2}


async def test_an_owner_that_goes_in_the_middle_loses_nothing_and_the_token_goes_on_at_the_next_owner(
    owners: tuple[RunningServer, RunningServer, AsyncClient],
) -> None:
    even, odd, client = owners
    scan = client.scan_all(APPLICATION, STATE)
    found = await _into_the_large_one(scan)
    large = group_of(_CODEC.storage_key(("sensor-7", 0)))
    goes, heir = (even, odd) if large in _EVEN else (odd, even)
    await goes.server.stop()
    await heir.succeed(goes)
    await heir.commit_own(_rows(2))
    for _ in range(KEY_GROUPS + 2):
        try:
            while page := await scan.page():
                found += page
        except UnavailableError:
            token = scan.token
            await scan.close()
            scan = client.scan_all(APPLICATION, STATE, after=token)
        else:
            break
    assert scan.done
    await scan.close()
    # Nothing is missing and nothing came twice; what came behind the token may be of the later epoch.
    assert {of for some in _epochs_by_group(found).values() for of in some} == {1, 2}
