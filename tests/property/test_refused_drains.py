"""However often a `keyhole drain` or `move` is refused beside a query that runs, and that others move: nothing of it is
ever seen.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyhole.errors import Draining, KeyholeError, MalformedRequest, Unsupported
from keyhole.model.state import MAX_KEY_GROUPS
from keyhole.v1 import state_server_pb2 as pb
from tests.support.examples import examples
from tests.support.refused_starts import healthy, snapshot
from tests.support.simulation import Letter, World
from tests.support.states import KEY_GROUPS
from tests.support.sums import ONE, sums


class RefusedOrder(NamedTuple):
    """Of a person to a server.

    Attributes:
        meanwhile: What the server is otherwise when it comes.
    """

    name: str
    method: str
    request: Any
    error: type[KeyholeError]
    meanwhile: Mapping[str, bool] = {}


def moving(*key_groups: int) -> pb.MoveRequest:
    return pb.MoveRequest(application="app", query="main", state="counts", key_groups=key_groups)


ENDING, REPLICA = {"ending": True, "draining": True}, {"replica": True, "draining": False}
ORDERS = [
    RefusedOrder("an end can't be undone", "Drain", pb.DrainRequest(undo=True), Draining, ENDING),
    RefusedOrder("a replica owns nothing to give away", "Drain", pb.DrainRequest(), Unsupported, REPLICA),
    RefusedOrder("nor anything to get again", "Drain", pb.DrainRequest(undo=True), Unsupported, REPLICA),
    RefusedOrder("nothing comes to one that drains", "Move", moving(0), Draining, {"draining": True}),
    RefusedOrder("nor to a replica", "Move", moving(0), Unsupported, REPLICA),
    RefusedOrder("what is moved are key groups", "Move", moving(), MalformedRequest),
    RefusedOrder("of which there are so many", "Move", moving(0, MAX_KEY_GROUPS), MalformedRequest),
]

Taken = Literal["an epoch", "a heartbeat", "time", "drain", "drain no more", "move", "move back"]
Step = tuple[Literal["a", "b"], RefusedOrder] | Taken

steps = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from(ORDERS)) | st.sampled_from(Taken.__args__),  # type: ignore[attr-defined]
    max_size=10,
)


@contextlib.contextmanager
def otherwise(registry: Any, meanwhile: Mapping[str, bool]) -> Iterator[None]:
    before = {name: getattr(registry, name) for name in meanwhile}
    for name, value in meanwhile.items():
        setattr(registry, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(registry, name, value)


def everything(world: World) -> object:
    """As `snapshot`, and what people want of the servers, and who is told of changes there."""
    registries = {name: server._registry for name, server in world.servers.items()}
    wanted = {
        name: (
            of.draining,
            of.ending,
            of.ready,
            of.status(0).placements,
            id(of.next_change()),
        )
        for name, of in registries.items()
    }
    assert world.coordinator is not None
    return snapshot(world), wanted, world.coordinator.membership.assignment


def refuse(world: World, server: str, order: RefusedOrder) -> None:
    of = world.servers[server]
    with otherwise(of._registry, order.meanwhile):
        before = everything(world)
        with pytest.raises(order.error):
            world.call(Letter(server, of.servicer, order.method, order.request))
        assert everything(world) == before, order.name


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.name)
def test_an_order_that_is_refused_leaves_the_world_as_it_was(order: RefusedOrder) -> None:
    world = healthy()
    for server in "ab":
        refuse(world, server, order)
    assert world.run_epoch(2, ONE).epoch == 3
    assert sums(world) == [3.0] * len(ONE)
    world.close()


@given(steps)
@settings(max_examples=examples(60), deadline=None)
def test_refused_orders_are_nothing_between_any_steps_of_a_query_and_of_orders_that_are_taken(
    taken: Sequence[Step],
) -> None:
    world = healthy()
    assert world.coordinator is not None
    done = 2
    for step in taken:
        if isinstance(step, tuple):
            refuse(world, *step)
        elif step == "an epoch":
            assert world.run_epoch(done, ONE).epoch == done + 1
            done += 1
        elif step == "a heartbeat":
            world.coordinator.beat()
        elif step == "time":
            world.clock.advance(10.0)
        elif step in ("drain", "drain no more"):
            world.servers["b"].drain(undo=step != "drain")
        else:
            world.servers["b"].move("counts", 0, KEY_GROUPS - 1, undo=step == "move back")
    assert world.run_epoch(done, ONE).epoch == done + 1
    assert sums(world) == [done + 1.0] * len(ONE)
    world.close()
