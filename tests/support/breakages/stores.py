"""Of what keeps rows on a server's disk or in its memory."""

from __future__ import annotations

from tests.support.breakages.breakage import Breakage

STORES = (
    Breakage(
        "LMDB's rows are all taken for small",
        "stores",
        "src/keyhole/stores/lmdb/engine.py",
        'sys.maxsize if stat["overflow_pages"] else stat["psize"] // 2\n',
        'stat["psize"] // 2\n',
        ("test_lmdb.py::test_rows_of_no_size_are_read_beyond_what_was_asked_for",),
    ),
    Breakage(
        "a scan ends before the last entry of its range",
        "stores",
        "src/keyhole/stores/lmdb/engine.py",
        "        if key < first:\n            return\n",
        "        if key <= first:\n            return\n",
        ("test_stores.py::TestLmdbStore",),
    ),
    Breakage(
        "a snapshot of RocksDB reads what was written since",
        "stores",
        "src/keyhole/stores/rocksdb/database.py",
        "                if now() == view.sequence:\n                    return rows\n",
        "                return rows\n",
        ("test_rocksdb.py::test_a_reader_at_any_moment_of_a_write_sees_all_of_its_snapshot",),
    ),
    Breakage(
        "staged rows that the disk does not give back are committed without",
        "stores",
        "services/state_server/write/spill.py",
        "            except (OSError, msgspec.MsgspecError) as error:\n                raise",
        "            except (OSError, msgspec.MsgspecError) as error:\n                return\n                raise",
        ("test_spill.py",),
    ),
    Breakage(
        "staged rows take eight times as much of a server's memory as its setting says",
        "stores",
        "services/state_server/app.py",
        "StagingRoom(self._config.max_staged_bytes,",
        "StagingRoom(8 * self._config.max_staged_bytes,",
        ("test_large_epochs.py",),
        tier="processes",
    ),
    Breakage(
        "a store that fails just after it was opened stays open",
        "stores",
        "services/state_server/replica/open_state.py",
        "        store.close()  # or whoever tries it again would find it open\n",
        "",
        ("test_unusable_states.py",),
    ),
)
