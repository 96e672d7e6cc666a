"""A state of sums on simulated servers, one key in each key group."""

from __future__ import annotations

from keyhole.model.state import StateKind
from tests.support.simulation import World
from tests.support.states import KEY_GROUPS, descriptor, key, names_in, row

KEYS = [key(names_in(group)[0]) for group in range(KEY_GROUPS)]
ONE = {name: row(1.0) for name in KEYS}
SUM = descriptor(kind=StateKind.REDUCING, reducers=("sum",))


def sums(world: World) -> list[float]:
    """By key group, from the server that owns it."""
    assert world.coordinator is not None
    found: dict[int, float] = {}
    for name, server in world.servers.items():
        for group in world.coordinator.owned_by(name, "counts"):
            (value,) = server.tables["app", "counts"].lookup([KEYS[group]]).rows
            found[group] = world.codec.decode_row(value)["n"] if value is not None else 0.0
    return [found[group] for group in range(KEY_GROUPS)]
