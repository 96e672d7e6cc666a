"""A server that comes, and refuses what it is given, ends no query that runs well: it is left out."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from keyhole.errors import EpochFailed, KeyholeError, PermissionDenied, StoreFull
from tests.support.simulation import SimulatedServer, World
from tests.support.sums import ONE, SUM, sums


@pytest.fixture
def world() -> Iterator[World]:
    """Two servers that own everything; c is known, and comes later."""
    made = World(SUM, "abc")
    made.servers["c"].die()
    made.run_epoch(0, ONE)
    yield made
    made.close()


def refuses(world: World, method: str, count: int, error: KeyholeError) -> SimulatedServer:
    """c comes, and refuses its messages of this kind from the given one on."""
    c = world.servers["c"]
    c.start()
    servicer = c.servicer
    assert servicer is not None
    answer, seen = getattr(servicer, method), iter(range(count - 1))

    async def refusing(request: object, context: object) -> object:
        if next(seen, None) is None:
            raise error
        return await answer(request, context)

    setattr(servicer, method, refusing)
    return c


def go_on(world: World, first: int) -> None:
    """Epochs, with heartbeats between them as copies get warm."""
    for batch_id in range(first, first + 3):
        world.follow()
        assert world.coordinator is not None
        world.coordinator.beat()
        assert world.run_epoch(batch_id, ONE).epoch == batch_id + 1
        assert sums(world) == [batch_id + 1.0] * len(ONE)


@pytest.mark.parametrize("error", [StoreFull("no room for the store"), PermissionDenied("may not write app/*")])
# The first assignment has it follow key groups, the next one own them.
@pytest.mark.parametrize(("method", "count"), [("OpenRun", 1), ("Assign", 1), ("Assign", 2)])
def test_a_server_that_comes_and_refuses_is_left_out_until_it_comes_anew(
    world: World, caplog: pytest.LogCaptureFixture, method: str, count: int, error: KeyholeError
) -> None:
    c = refuses(world, method, count, error)
    go_on(world, 1)
    assert world.coordinator is not None
    assert "c" not in world.coordinator.membership.members
    assert not world.coordinator.owned_by("c", "counts")
    (left_out,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert (left_out.message, left_out.server, left_out.why) == (  # type: ignore[attr-defined]  # of `extra`
        "a server that has come refuses what it is given: it is left out until it is restarted",
        "c",
        error.message,
    )
    c.die()
    c.start()
    go_on(world, 4)
    assert world.coordinator.owned_by("c", "counts")


def test_where_nobody_else_is_there_it_is_asked_again(world: World) -> None:
    c = refuses(world, "Assign", 1, StoreFull("no room for the store"))
    go_on(world, 1)
    for name in "ab":
        world.servers[name].die()
    with pytest.raises(EpochFailed, match="server c is left out: no room for the store"):
        world.run_epoch(4, ONE)
    del c.servicer.Assign  # type: ignore[union-attr]  # now it has room
    assert world.run_epoch(4, ONE).epoch == 5
    assert sums(world) == [5.0] * len(ONE)


def test_one_that_owns_what_it_refuses_ends_the_query_by_saying_so(world: World) -> None:
    """Nobody else has to have room for it."""
    c = world.servers["c"]
    c.start()
    go_on(world, 1)
    assert world.coordinator is not None
    assert world.coordinator.owned_by("c", "counts")
    refuses(world, "Assign", 1, StoreFull("no room"))
    world.servers["b"].die()  # what it had is dealt out anew
    with pytest.raises(StoreFull, match="no room"):
        world.run_epoch(4, ONE)


def test_nor_is_one_left_out_where_a_run_begins(world: World) -> None:
    world.driver_dies()
    refuses(world, "Assign", 1, StoreFull("no room"))
    with pytest.raises(StoreFull, match="no room"):
        world.run_epoch(1, ONE)
