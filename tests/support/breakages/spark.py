"""Of what runs in Spark's driver and tasks."""

from __future__ import annotations

from tests.support.breakages.breakage import Breakage

_FIRST_BATCH = "src/keyhole/spark/first_batch.py"
_RECORDING = "src/keyhole/spark/recording.py"

SPARK = (
    Breakage(
        "a query whose checkpoint its next start will not have begins",
        "spark",
        _FIRST_BATCH,
        "_TEMPORARY.fullmatch(folder)",
        "_TEMPORARY.fullmatch(location)",
        ("test_first_batch.py",),
    ),
    Breakage(
        "workers of another virtual environment are taken to have what the driver has",
        "spark",
        _FIRST_BATCH,
        "    return here.parent == there.parent and here",
        "    return here",
        ("test_first_batch.py",),
    ),
    Breakage(
        "changes of one key are told as the next one's",
        "spark",
        _RECORDING,
        "        self._settle()\n        self._key = tuple",
        "        self._key = tuple",
        ("test_recording.py::test_what_an_initial_state_changes_leaves_with_the_keys_rows_or_at_the_next_chance",),
    ),
    Breakage(
        "a state that readers know by another name is the processor's of that name",
        "spark",
        "src/keyhole/spark/processor_task.py",
        "{state.variable: state for state in exposed}",
        "{state.name: state for state in exposed}",
        ("test_recording.py::test_changes_of_a_state_that_readers_know_by_another_name_leave_under_that",),
    ),
    Breakage(
        "two exposed states are given one name",
        "spark",
        "src/keyhole/spark/processor.py",
        "    if len(set(names)) < len(names):\n",
        "    if len(names) < 0:\n",
        ("test_queryable_processor.py::test_what_cannot_be_exposed_is_refused_where_it_is_said",),
    ),
    Breakage(
        "times are looked up by way of the session's time zone",
        "spark",
        "src/keyhole/arrow_times.py",
        "        values: list[Any] = in_utc(column).to_pylist()\n",
        "        values: list[Any] = column.to_pylist()\n",
        ("test_lookup_times.py::test_the_first_and_the_last_times_are_looked_up_and_found_in_any_session",),
    ),
    Breakage(
        "a row that clears a key leaves what the batch had for it before",
        "spark",
        "src/keyhole/spark/folding.py",
        "            self._keys[prefix] = {key: row}\n",
        "            self._keys.setdefault(prefix, {})[key] = row\n",
        ("test_folding.py",),
    ),
    Breakage(
        "change rows are packed to a partition that is not their key's",
        "spark",
        "src/keyhole/spark/packing.py",
        "ipc_stream(rows.filter(pa.array(places == partition)))",
        "ipc_stream(rows.filter(pa.array(places >= partition)))",
        ("test_packing.py",),
    ),
    Breakage(
        "a shuffle is used again whose partitions split key groups",
        "spark",
        "src/keyhole/spark/partitioning.py",
        " and key_groups % layout.partitions == 0\n",
        " and key_groups >= layout.partitions\n",
        ("test_spark_partitioning.py",),
    ),
    Breakage(
        "of what owners held a task gets the first message alone",
        "spark",
        "src/keyhole/spark/aggregating.py",
        "                    asked = asked[len(bases) :]\n",
        "                    asked = []\n",
        ("test_aggregating.py::test_a_task_adds_its_rows_to_what_the_owner_held",),
    ),
    Breakage(
        "a task ends before Kafka has its dead letters",
        "spark",
        "src/keyhole/spark/dead_letters.py",
        "    if sender is not None:\n        sender.finish()\n",
        "",
        ("test_dead_letters.py::test_they_are_kept_before_the_batch_is_done_which_has_the_others",),
        tier="spark",
    ),
    Breakage(
        "a batch that is run again reads a broadcast state as it is now",
        "spark",
        "src/keyhole/spark/pins.py",
        "            return settled\n        return",
        "            return msgspec.structs.replace(pin, content=content)\n        return",
        ("test_reading_from_jobs.py::test_a_driver_that_wakes_late_changes_nothing_of_what_its_successor_has_read",),
        tier="spark",
    ),
    Breakage(
        "what kept batches have read is dropped with the batch that wrote it",
        "spark",
        "src/keyhole/pinned.py",
        "if end > oldest)\n",
        "if of >= oldest)\n",
        ("test_pins.py",),
    ),
    Breakage(
        "a driver that wakes late drops what its successors' batches have read",
        "spark",
        "src/keyhole/spark/pins.py",
        "        if max(numbers, default=0) > self._number or (earlier and last is None):\n",
        "        if not numbers and last is not None:\n",
        ("test_pins.py::test_a_driver_that_sleeps_before_a_batch_without_another_before_it_drops_nothing",),
    ),
    Breakage(
        "a state reads a column that Spark takes for another one",
        "spark",
        "src/keyhole/spark/schema.py",
        "    _check_told_apart(declaration, schema, by_case)\n",
        "",
        ("test_declared_names.py",),
    ),
)
