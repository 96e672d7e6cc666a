"""The control topic's records, and the receipts that tasks hand to the driver: what is written is what is read."""

from __future__ import annotations

import msgspec
import pytest

from keyhole.errors import ProtocolMismatch
from keyhole.protocol.control import (
    AssignmentRecord,
    CompleteRecord,
    GenerationRecord,
    GrantRecord,
    OpenedRecord,
    QueryControl,
    QueryRecord,
    generations,
    read_control,
    record,
)
from keyhole.protocol.receipts import GroupReceipt, PartitionReceipt, ServerReceipt
from tests.support.states import descriptor

GRANT = GrantRecord("server-a", "i", 3, "keyhole.app.main.server-a.i.3.1")
OPENED = OpenedRecord("run-4", "host", 4711, "spark-1")
GENERATION = GenerationRecord(3, "run-3")
QUERY = QueryRecord("spark-1", base=5, reset_epoch=6, first_epoch=6)
COMPLETE = CompleteRecord(8, 3, 1000, 500, 2**64 - 1, {"counts": [4, -1, 7, 0]})
ASSIGNMENT = AssignmentRecord(9, ("server-a", "server-b"), {"counts": (0, 1, 0, 1)})


def written(*records: dict[str, bytes | None]) -> dict[str, bytes]:
    """What is left after these were appended one after the other."""
    latest: dict[str, bytes | None] = {}
    for item in records:
        latest |= item
    return {name: value for name, value in latest.items() if value is not None}


def test_an_empty_topic_knows_nothing() -> None:
    assert read_control({}, "main") == QueryControl(states={})


def test_every_record_is_read_as_it_was_written() -> None:
    records = written(
        record("state", "counts", descriptor(topic_id="t")),
        record("opened", "main", OPENED),
        record("generation", "main", GENERATION),
        record("query", "main", QUERY),
        record("complete", "main", COMPLETE),
        record("assignment", "main", ASSIGNMENT),
        record("grant", f"main/{GRANT.grant}", GRANT),
    )
    assert read_control(records, "main") == QueryControl(
        states={"counts": descriptor(topic_id="t")},
        generation=3,
        run_id="run-3",
        opened=OPENED,
        query=QUERY,
        complete=COMPLETE,
        assignment=ASSIGNMENT,
        grants=(GRANT,),
    )


def test_fields_that_only_a_later_version_knows_are_passed_over() -> None:
    records = {
        "opened/main": b'{"run_id":"run-4","later":{"more":1}}',
        "generation/main": b'{"generation":3,"run_id":"run-3","later":"x"}',
    }
    control = read_control(records, "main")
    assert (control.opened, control.generation, control.run_id) == (OpenedRecord("run-4"), 3, "run-3")


def test_a_query_sees_the_states_of_all_queries_and_nothing_else_of_the_others() -> None:
    records = written(
        record("state", "counts", descriptor()),
        record("state", "others", descriptor(state="others", query="main-2")),
        record("generation", "main-2", GENERATION),
        record("query", "main-2", QUERY),
        record("complete", "main-2", COMPLETE),
        record("assignment", "main-2", ASSIGNMENT),
        record("grant", f"main-2/{GRANT.grant}", GRANT),
    )
    control = read_control(records, "main")
    assert set(control.states) == {"counts", "others"}
    assert control == QueryControl(states=control.states)


def test_a_deleted_grant_is_gone() -> None:
    name = f"main/{GRANT.grant}"
    assert read_control(written(record("grant", name, GRANT), record("grant", name, None)), "main").grants == ()


def test_fields_of_a_later_version_are_ignored() -> None:
    value = msgspec.json.encode({**msgspec.to_builtins(GENERATION), "later": 1})
    assert read_control({"generation/main": value}, "main").generation == 3


@pytest.mark.parametrize("value", [b"", b"{}", b"[]", b'{"generation": "x", "run_id": ""}'])
def test_what_is_no_record_of_ours_is_refused_by_its_name(value: bytes) -> None:
    with pytest.raises(ProtocolMismatch, match=r"'generation/main' can't be read .* later version") as caught:
        read_control({"generation/main": value}, "main")
    assert caught.value.facts == {"record": "generation/main"}
    with pytest.raises(ProtocolMismatch, match="generation/main"):
        generations({"generation/main": value})


def test_a_state_of_a_kind_that_only_a_later_version_knows_is_refused_by_its_name() -> None:
    record_of_later = {**msgspec.to_builtins(descriptor()), "kind": "graph"}
    with pytest.raises(ProtocolMismatch, match=r"'state/counts' can't be read \(Invalid enum value 'graph'"):
        read_control({"state/counts": msgspec.json.encode(record_of_later)}, "main")


@pytest.mark.parametrize(
    "receipt",
    [
        PartitionReceipt("counts", 0, 2**40),
        PartitionReceipt(
            "counts",
            7,
            1,
            (
                ServerReceipt("server-a", "i", (GroupReceipt(3, 10, 2**40, 2**64 - 1),)),
                ServerReceipt("server-b", "j", error=("SERVER_LOST", "connection refused")),
            ),
        ),
        PartitionReceipt("counts", 1, 2, failure=("DUPLICATE_KEY", "two rows of one key", {"state": "counts"})),
    ],
)
def test_a_receipt_comes_back_from_a_row_as_it_went_in(receipt: PartitionReceipt) -> None:
    assert PartitionReceipt.from_row(receipt.to_row()) == receipt
