"""The index of a state that is fed by updates: of what is applied, of what is committed, and at the next owner."""

from __future__ import annotations

from keyhole import field
from keyhole.encoding.selected_entries import SelectedEntries
from keyhole.model.selection import Selection
from services.state_server.read.indexed_scans import IndexRule
from services.state_server.read.table import Table
from tests.support.fed_hosts import NAMES, Fed, begun, closed
from tests.support.states import KEY_GROUPS, key


def found(table: Table, n: float) -> tuple[list[bytes], int]:
    """The keys whose sum is n; and in how many key groups an index was asked."""
    select = SelectedEntries(table.descriptor, Selection(field("n") == n))
    table.index_rule = IndexRule(1, 1000)
    keys, asked = [], 0
    for group in range(KEY_GROUPS):
        scanned = table.scan(table.codec.group_range(group), indexed=select.indexed)
        entries = list(scanned.entries)
        asked += any(not name for name, _ in entries)
        keys += [name for name, _ in select.kept([(name, row) for name, row in entries if row is not None])]
        scanned.close()
    return keys, asked


async def test_what_is_applied_and_what_is_committed_is_found_and_so_it_is_at_the_next_owner() -> None:
    fed = await begun(index=("n",))
    fed.add(NAMES[0], 1)
    fed.add(NAMES[1], 1)
    await fed.steps()
    assert found(fed.table, 1)[0] == [key(NAMES[0]), key(NAMES[1])]
    await fed.host.feeding.commit()
    fed.add(NAMES[1], 2)
    await fed.steps()
    # Of what stands over the store the index has what was there before.
    assert found(fed.table, 1) == ([key(NAMES[0])], KEY_GROUPS)
    assert found(fed.table, 3) == ([key(NAMES[1])], KEY_GROUPS)
    await fed.host.feeding.commit()
    next_one = Fed(fed.kafka, index=("n",))
    await next_one.open(2, "grant-2")
    assert await next_one.assign()
    assert found(next_one.table, 3) == ([key(NAMES[1])], KEY_GROUPS)
    await closed(fed)
    await closed(next_one)
