"""Routes depend on the last word of each server, whatever the order in which the words arrive."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from keyhole.routing import Holding, View, build, diff
from keyhole.types import Role
from tests.support.readings import KEY_GROUPS, descriptor

ADDRESSES = ["a", "b", "c"]
STATES = ["readings", "alarms"]

_holdings = st.builds(
    Holding,
    descriptor=st.builds(descriptor, st.sampled_from(STATES), topic_id=st.sampled_from(["t1", "t2"])),
    key_groups=st.frozensets(st.integers(0, KEY_GROUPS - 1)),
    role=st.sampled_from(Role),
    generation=st.integers(1, 3),
    assignment_version=st.integers(1, 3),
    ready=st.booleans(),
)
_words = st.lists(
    st.builds(
        View,
        address=st.sampled_from(ADDRESSES),
        lost=st.sampled_from(["", "", "gone"]),
        holdings=st.lists(_holdings, max_size=2, unique_by=lambda holding: holding.descriptor.state).map(tuple),
    ),
    max_size=12,
)


def _last_words(words: list[View]) -> dict[str, View]:
    return {view.address: view for view in words}


@given(words=_words, seed=st.integers())
def test_any_interleaving_of_the_servers_words_gives_the_same_tables(words: list[View], seed: int) -> None:
    expected = build(_last_words(words).values())
    # Another interleaving that keeps each server's own order.
    queues = {address: [view for view in words if view.address == address] for address in ADDRESSES}
    rng, shuffled = random.Random(seed), []
    while any(queues.values()):
        shuffled.append(queues[rng.choice([address for address, queue in queues.items() if queue])].pop(0))
    views: dict[str, View] = {}
    tables = build([])
    for view in shuffled:
        views[view.address] = view
        tables = build(views.values())
    assert tables == expected
    assert diff(tables, expected).moved == {}


@given(words=_words)
def test_every_route_leads_to_the_best_of_those_that_claim_the_key_group_and_no_claim_is_left_out(
    words: list[View],
) -> None:
    views = _last_words(words)
    for (_, state), table in build(views.values()).items():
        assert table.sole == (table.routes[0] if len(set(table.routes)) == 1 else "")
        for group, route in enumerate(table.routes):
            claims = {
                address: holding
                for address, view in views.items()
                for holding in view.holdings
                if not view.lost and holding.descriptor == table.descriptor and group in holding.key_groups
                if holding.descriptor.state == state
            }
            if not claims:
                assert route == ""
                continue
            chosen = claims[route]
            for other in claims.values():
                assert _rank(other) <= _rank(chosen)


def _rank(holding: Holding) -> tuple[bool, int, int, bool]:
    return holding.role is Role.OWNER, holding.generation, holding.assignment_version, holding.ready
