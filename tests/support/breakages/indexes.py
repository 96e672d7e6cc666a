"""Of indexes: what they miss, keep too long, or are asked before they have it."""

from __future__ import annotations

from tests.support.breakages.breakage import Breakage

_STORE = "src/keyhole/stores/indexed.py"

INDEXES = (
    Breakage(
        "the first rows of a watch that go by an index are those of all keys",
        "watch",
        "services/state_server/read/watch_rows.py",
        "EntryRange(prefix, start or prefix, stop)",
        "EntryRange(prefix, prefix, None)",
        ("test_index_use.py",),
    ),
    Breakage(
        "an index of an exposed state is declared and never kept",
        "spark",
        "src/keyhole/spark/write_path/processor_sink.py",
        '    if "index" in options:\n',
        '    if "index" in options and not processor.states:\n',
        ("test_queryable_processor.py::test_options_that_exposed_states_can_not_have_are_refused_by_name",),
    ),
    Breakage(
        "a count of a range of keys is one of all keys",
        "client",
        "src/keyhole/client/wire/aggregate_reads.py",
        "self._calls.key_group(codec, key_group), pb.ScanResponse()",
        "pb.KeyGroupScan(key_group=key_group), pb.ScanResponse()",
        ("test_scans.py::test_counts_and_aggregates_are_of_what_a_scan_of_the_same_range_gives",),
    ),
    Breakage(
        "a row is read for an index though it was read for those who watch",
        "stores",
        "services/state_server/write/store_write.py",
        "else befores_of(watched)",
        "else {}",
        ("test_rows_before_writes.py",),
    ),
    Breakage(
        "an entry of an index that no row has is not told of by verify",
        "verify",
        "src/keyhole/verify/index_check.py",
        "held.items(group, place, end))",
        "filter(lambda of: expected.get(of[0]), held.items(group, place, end)))",
        ("test_verify_indexes.py",),
    ),
    Breakage(
        "verify says that all is well of indexes that it could not compare",
        "verify",
        "src/keyhole/verify/index_check.py",
        '            return CheckedIndexes(unread="a row is of no schema that the control topic has, or damaged")',
        "            return CheckedIndexes()",
        ("test_verify_indexes.py",),
    ),
    Breakage(
        "a row that gets another value keeps its entry of the value before",
        "stores",
        "src/keyhole/stores/index_steps.py",
        "        self.deletes += deletes\n",
        "",
        ("test_indexed_store.py",),
    ),
    Breakage(
        "an index that is removed is still asked while nobody keeps it",
        "stores",
        _STORE,
        "            step.deletes += [place_of(number, index) for index in of.declare(self._declared)]\n",
        "            of.declare(self._declared)\n",
        ("test_indexed_store.py",),
    ),
    Breakage(
        "an index is trusted though an earlier release has written rows without it",
        "stores",
        "src/keyhole/stores/index_steps.py",
        "        if position != found.positions.get(number):\n",
        "        if position is None:\n",
        ("test_indexed_store.py",),
    ),
    Breakage(
        "what stands over a store is not found by an index of the store",
        "stores",
        "services/state_server/read/indexed_scans.py",
        "                keys = _each_once(heapq.merge(keys, over, reverse=descending))\n",
        "                keys = (key for key in keys if over)\n",
        ("test_index_use.py",),
    ),
    Breakage(
        "rows that equal a bound that has no value of its own are left out",
        "stores",
        "src/keyhole/encoding/index_ranges.py",
        "operator is ComparedBy.LESS and to.exact else",
        "operator is ComparedBy.LESS else",
        ("test_index_use.py",),
    ),
)
