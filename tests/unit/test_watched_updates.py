"""Who watches a state that is fed by updates gets what is committed of them, and not what is applied alone."""

from __future__ import annotations

from keyhole.encoding.storage_key import group_of
from keyhole.encoding.watch_token import WatchMark
from services.state_server.read.watcher import Watcher
from tests.support.fed_hosts import NAMES, begun, closed
from tests.support.states import KEY_GROUPS, key


def taken(watcher: Watcher) -> list[tuple[bytes, bytes | None, bytes | None]]:
    found = []
    while (pending := watcher.take()) is not None:
        found += [(change.key, change.entry, change.before) for change in pending.changes]
    return found


async def test_a_change_is_given_once_it_is_committed_and_rows_are_those_that_are() -> None:
    fed = await begun()
    name = NAMES[0]
    group = group_of(key(name))
    fed.add(name, 1.0)
    await fed.steps()
    changes = fed.table.changes
    changes.begin(fed.table.positions)
    watcher = Watcher(None, frozenset(range(KEY_GROUPS)), befores=True)
    assert changes.attach(watcher, {of: WatchMark.at(position) for of, position in changes.positions.items()})
    held = fed.table.hold_committed()
    assert held.snapshot.get(key(name)) is None
    held.release()
    assert fed.sums([name]) == [1.0]
    assert taken(watcher) == []

    await fed.host.feeding.commit()
    ((changed, first, before),) = taken(watcher)
    assert (changed, before) == (key(name), None)
    fed.add(name, 2.0)
    await fed.steps()
    assert fed.sums([name]) == [3.0]
    assert taken(watcher) == []
    held = fed.table.hold_committed()
    assert held.snapshot.get(key(name)) == first
    held.release()
    await fed.host.feeding.commit()
    ((_, second, before),) = taken(watcher)
    assert before == first != second
    assert changes.positions[group].offset == fed.table.positions()[group].offset
    await closed(fed)
