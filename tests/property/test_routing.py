"""Routes depend on the last word of each server, whatever the order in which the words arrive."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from keyhole.model.read import Role
from keyhole.protocol.routing import RouteTable, build, diff
from keyhole.protocol.server_view import Holding, ServerView
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
        ServerView,
        address=st.sampled_from(ADDRESSES),
        lost=st.sampled_from(["", "", "gone"]),
        draining=st.booleans(),
        suspect=st.booleans(),
        # One per state and role.
        holdings=st.lists(
            _holdings, max_size=4, unique_by=lambda holding: (holding.descriptor.state, holding.role)
        ).map(tuple),
    ),
    max_size=12,
)


def _last_words(words: list[ServerView]) -> dict[str, ServerView]:
    return {view.address: view for view in words}


@given(words=_words, seed=st.integers())
def test_any_interleaving_of_the_servers_words_gives_the_same_tables(words: list[ServerView], seed: int) -> None:
    expected = build(_last_words(words).values())
    # Another interleaving that keeps each server's own order.
    queues = {address: [view for view in words if view.address == address] for address in ADDRESSES}
    rng, shuffled = random.Random(seed), []
    while any(queues.values()):
        shuffled.append(queues[rng.choice([address for address, queue in queues.items() if queue])].pop(0))
    views: dict[str, ServerView] = {}
    tables = build([])
    for view in shuffled:
        views[view.address] = view
        tables = build(views.values())
    assert tables == expected
    assert diff(tables, expected).moved == {}


@given(words=_words)
def test_every_copy_that_somebody_reachable_claims_has_its_place_and_nobody_elses(words: list[ServerView]) -> None:
    views = _last_words(words)
    for (_, state), table in build(views.values()).items():
        for group, copies in enumerate(table.copies):
            claims = {
                address
                for address, view in views.items()
                for holding in view.holdings
                if not view.lost and _of(table, holding, state) and group in holding.key_groups
            }
            assert len(copies) == len(set(copies))
            assert set(copies) == claims
            assert table.first.addresses[group] == (copies[0] if copies else "")
            assert {routes.addresses[group] for routes in table.spread} <= (claims or {""})
        for routes in (table.owners, table.first, *table.spread):
            assert routes.sole == (routes.addresses[0] if len(set(routes.addresses)) == 1 else "")


@given(words=_words)
def test_the_owner_of_the_highest_generation_and_version_is_believed_and_asked_first_where_it_can_answer(
    words: list[ServerView],
) -> None:
    views = _last_words(words)
    for (_, state), table in build(views.values()).items():
        for group, owner in enumerate(table.owners.addresses):
            claims = [
                (view, holding)
                for view in views.values()
                for holding in view.holdings
                if not view.lost and _of(table, holding, state) and group in holding.key_groups
            ]
            owners = [(view, holding) for view, holding in claims if holding.role is Role.OWNER]
            highest = max((_version(holding) for _, holding in owners), default=None)
            believed = [one for one in owners if one[0].address == owner and _version(one[1]) == highest]
            assert bool(believed) == bool(owners)
            if any(holding.ready and not view.suspect for view, holding in believed):
                assert table.copies[group][0] == owner


@given(words=_words)
def test_a_copy_that_should_answer_is_asked_before_one_that_is_not_ready_or_silent(words: list[ServerView]) -> None:
    views = _last_words(words)
    for (_, state), table in build(views.values()).items():
        for group, copies in enumerate(table.copies):
            able = [
                any(
                    holding.ready and _of(table, holding, state) and group in holding.key_groups
                    for holding in views[address].holdings
                )
                and not views[address].suspect
                for address in copies
            ]
            assert able == sorted(able, reverse=True)


def _of(table: RouteTable, holding: Holding, state: str) -> bool:
    return holding.descriptor.state == state and holding.descriptor.topic_id == table.descriptor.topic_id


def _version(holding: Holding) -> tuple[int, int]:
    return holding.generation, holding.assignment_version
