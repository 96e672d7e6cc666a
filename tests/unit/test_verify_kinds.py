"""`keyhole verify` of states with several entries per key, and of those whose entries expire: as they are stored."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pytest

from keyhole.encoding.key_codec import encode_integer
from keyhole.model.read import Role
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind
from keyhole.stores.base import Advance, Batch
from keyhole.testing.changelog import MemoryChangelog
from keyhole.v1 import state_server_pb2 as pb
from keyhole.verify.fetched_copies import Server
from keyhole.verify.verify import Verdict, describe, verify
from services.state_server.read.dump import dump
from tests.support.models import aggregated
from tests.support.simulation import World
from tests.support.states import KEY_GROUPS, content, descriptor, names_in, row

NAMES = [name for group in range(KEY_GROUPS) for name in names_in(group)]
MAP_KEY = (KeyColumn("m", KeyType.INT),)
BY_N = ("n",)
KINDS = {
    "map": descriptor(kind=StateKind.MAP, map_key=MAP_KEY, index=BY_N),
    "list": descriptor(kind=StateKind.LIST, max_length=2, index=BY_N),
    "value that expires": descriptor(ttl_ms=5000, index=BY_N),
    "sums that expire": descriptor(
        kind=StateKind.REDUCING, reducers=("sum",), map_key=MAP_KEY, ttl_ms=5000, index=BY_N
    ),
    "list that expires": descriptor(kind=StateKind.LIST, ttl_ms=5000, index=BY_N),
    "aggregates that expire": descriptor(kind=StateKind.AGGREGATING, ttl_ms=5000, index=BY_N),
}


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Each key group with an owner and a standby; after epochs in which entries have expired, and been removed."""
    made = World(KINDS[request.param], "ab", standbys=1)
    for batch in range(4):
        names = [name for number, name in enumerate(NAMES) if number % 4 == batch or batch == 3]
        made.run_epoch(batch, dict(change for name in names for change in changes(made.descriptor, made, name)))
        made.clock.advance(3)
    made.run_epoch(4, {})
    made.settle()
    yield made
    made.close()


def changes(of: StateDescriptor, world: World, name: str) -> Iterator[tuple[bytes, bytes | None]]:
    prefix, plain = world.codec.prefix(name), row(1.0)
    if of.entry_key:
        width = 8 if of.kind is StateKind.LIST else 4
        yield from ((prefix + encode_integer(at, width), plain) for at in range(3))
    else:
        yield prefix, aggregated(plain, b"1") if of.kind is StateKind.AGGREGATING else plain


def verified(world: World) -> Verdict:
    changelog = MemoryChangelog(world.kafka, "app")

    def dumped(server: Server, key_groups: Collection[int]) -> Iterator[pb.DumpChunk]:
        return dump(world.servers[server.server].tables["app", "counts"], frozenset(key_groups))

    servers = [Server(name, f"{name}:1") for name in world.servers]
    of = describe("app", "counts", changelog, 1)
    return verify(of, servers, changelog, dumped, deadline_seconds=1, pause_seconds=0)


@pytest.mark.parametrize("compacted", [False, True])
def test_all_copies_agree_with_the_changelog_and_a_row_that_is_lost_is_found(world: World, compacted: bool) -> None:
    if compacted:
        world.kafka.compact(world.descriptor.topic)
    verdict = verified(world)
    assert not verdict.findings
    assert all(of.compared and not of.unread for of in verdict.indexes.values())
    assert {copy.role for copy in verdict.copies} == {Role.OWNER, Role.STANDBY}
    assert len(verdict.copies) == 2 * KEY_GROUPS
    store = world.servers["a"].tables["app", "counts"].store
    lost = min(content(store))
    group = int.from_bytes(lost[:2], "big")
    position = store.snapshot().positions()[group]
    store.apply(Batch(deletes=[lost], advances={group: Advance(position, position)}))
    (finding,) = verified(world).findings
    assert (finding.copy.server.server, finding.differences.missing) == ("a", [lost])


def test_what_has_expired_is_gone_from_every_copy_and_from_the_changelog(world: World) -> None:
    """Of the first epochs only what the last one has written again is left."""
    held = {name: content(server.tables["app", "counts"].store) for name, server in world.servers.items()}
    assert held["a"] == held["b"]
    if world.descriptor.ttl_ms:
        written_ms = world.clock.now_ms() - 3000
        assert {int.from_bytes(stored[:8], "big") for stored in held["a"].values()} == {written_ms + 5000}
