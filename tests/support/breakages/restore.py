"""Of what brings a copy up: restoring, following, and what a copy is said to stand for."""

from __future__ import annotations

from tests.support.breakages.breakage import Breakage

_RESTORE = "services/state_server/replica/restore.py"
_STANDBY = "services/state_server/replica/standby.py"
_STANDINGS = "services/state_server/read/freshness.py"

RESTORE = (
    Breakage(
        "a copy that is ahead of the changelog is kept",
        "restore",
        _RESTORE,
        "        if position.offset > end:\n",
        "        if position.offset < 0:\n",
        ("test_restore.py",),
    ),
    Breakage(
        "a copy that was away longer than deletions are kept goes on",
        "restore",
        _RESTORE,
        " and position.commit_time_ms < oldest_ms:\n",
        " and position.commit_time_ms < 0:\n",
        ("test_restore.py",),
    ),
    Breakage(
        "a restore passes deletions over",
        "restore",
        "src/keyhole/stores/packed.py",
        "    deletes = [key for key, row in zip(keys, rows, strict=True) if row is None]\n",
        "    deletes = []\n",
        ("test_restore.py",),
    ),
    Breakage(
        "of two changes of a key that are restored together the first one counts",
        "restore",
        "src/keyhole/stores/packed.py",
        "        changes = list(dict(changes).items())\n",
        "        changes = sorted(dict(changes[::-1]).items())\n",
        ("test_restore.py",),
    ),
    Breakage(
        "of a restore, what waits for its key group's turn is lost",
        "restore",
        _RESTORE,
        "    for last in (write, waiting):\n",
        "    for last in (write,):\n",
        ("test_restore.py",),
    ),
    Breakage(
        "a copy that falls behind compaction shows states that never existed",
        "restore",
        _STANDBY,
        "            if item.marker is None or item.marker.stamp.commit_time_ms < oldest_ms:\n",
        "            if item.marker is None:\n",
        ("test_standby_gaps.py",),
    ),
    Breakage(
        "what was read for an order before is applied",
        "restore",
        _STANDBY,
        "        if delivery.subscription != self._subscription.number:\n            return []\n",
        "",
        ("test_standby_gaps.py",),
    ),
    Breakage(
        "what was released before its restore begins is restored all the same",
        "restore",
        "services/state_server/replica/take_over.py",
        " if not hosted[name].groups.is_followed(of)]",
        "]",
        ("test_take_over.py",),
    ),
    Breakage(
        "what an owner releases is not shown until it has caught up",
        "restore",
        "services/state_server/replica/key_groups.py",
        "_S.RELEASED if group in at_once else _S.CATCHING_UP",
        "_S.CATCHING_UP",
        ("test_key_groups.py",),
    ),
    Breakage(
        "key groups are told as ready while they are being restored",
        "restore",
        "services/state_server/read/given_groups.py",
        "        self._ready = self._assigned <= self._owned.groups\n",
        "        self._ready = True\n",
        ("test_observed_groups.py",),
    ),
    Breakage(
        "a take-over that is broken off leaves half an epoch to be read",
        "restore",
        "src/keyhole/protocol/key_group.py",
        "UNSETTLED = frozenset({_S.STALE, _S.RESTORING_SHOWN})\n",
        "UNSETTLED = frozenset({_S.STALE})\n",
        ("test_take_over.py",),
    ),
    Breakage(
        "a store takes a batch that does not follow what it holds",
        "restore",
        "src/keyhole/stores/rules.py",
        "        if stored != advance.before:\n",
        "        if stored > advance.before:\n",
        ("test_stores.py::TestMemoryStore",),
    ),
    Breakage(
        "a store of a changelog that was made anew is taken for one of the new",
        "restore",
        "src/keyhole/stores/disk/identity.py",
        '"state": self.state, "topic_id": self.topic_id}\n',
        '"state": self.state}\n',
        ("test_stores.py::TestLmdbStore",),
    ),
    Breakage(
        "a copy one record before its marker stands for the complete epoch",
        "restore",
        _STANDINGS,
        "    if position.offset > marker:\n",
        "    if position.offset >= marker:\n",
        ("test_standings.py",),
    ),
)
