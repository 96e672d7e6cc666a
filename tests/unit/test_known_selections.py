"""A predicate is compiled once for scans that ask for the same, as long as the state is what it was."""

from __future__ import annotations

import msgspec
import pytest

from keyhole import AsyncClient, field
from keyhole.encoding.entry_filter import EntryFilter
from keyhole.errors import ValueMismatch
from keyhole.model.predicates import Predicate
from keyhole.model.selection import selection
from keyhole.model.state import ValueField, ValueSchema
from keyhole.rpc.convert_predicates import selection_to_proto
from keyhole.rpc.known_selections import _MOST, _MOST_BYTES, KnownSelections
from keyhole.v1 import query_pb2 as pb
from tests.support.entries import APPLICATION, KEY_GROUPS, STATE, hourly, hours, row
from tests.support.state_servers import state_server
from tests.support.waiting import PATIENCE_SECONDS


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Predicate]:
    """The predicates that were compiled."""
    found: list[Predicate] = []

    def counted(descriptor: object, predicate: Predicate) -> object:
        found.append(predicate)
        return EntryFilter(descriptor, predicate)  # type: ignore[arg-type]

    monkeypatch.setattr("keyhole.encoding.selected_entries.EntryFilter", counted)
    return found


def _request(where: Predicate | None, **options: pb.ValueFormat) -> pb.ScanRequest:
    return pb.ScanRequest(
        selection=selection_to_proto(selection(where, None, keys_only=False)), options=pb.ReadOptions(**options)
    )


def test_what_was_compiled_is_used_again_for_the_same_state_and_form_alone(compiled: list[Predicate]) -> None:
    known, of = KnownSelections(), hourly()
    warm, cold = field("celsius") > 3, field("celsius") < 3
    first = known.of(of, _request(warm))
    assert known.of(of, _request(warm)) is first
    assert first.kept([(b"", row(4.0)), (b"", row(2.0))]) == [(b"", row(4.0))]
    assert known.of(of, _request(cold)) is not first
    assert known.of(of, _request(warm, format=pb.VALUE_FORMAT_JSON)) is not first
    assert known.of(hourly(state="other"), _request(warm)) is not first
    assert compiled == [warm, cold, warm, warm]
    # The state has evolved: `celsius` is another field now.
    evolved = msgspec.structs.replace(of, value=ValueSchema(2, (ValueField("count", "bigint"),)), earlier=(of.value,))
    with pytest.raises(ValueMismatch, match="no field"):
        known.of(evolved, _request(warm))
    again = hourly()
    assert known.of(again, _request(warm)) is not first
    assert known.of(again, _request(warm)) is known.of(again, _request(warm))


def test_what_is_remembered_is_bounded(compiled: list[Predicate]) -> None:
    known, of = KnownSelections(), hourly()
    for number in range(_MOST + 10):
        known.of(of, _request(field("count") == number))
    assert len(known._known) == _MOST
    known.of(of, _request(field("count") == _MOST))
    assert len(compiled) == _MOST + 10
    texts = ["x" * 900 + str(number) for number in range(1_003)]
    for begin in (0, 1, 2, 3, 0, 1, 2, 3):
        known.of(of, _request(field("sensor").is_in(texts[begin : begin + 1_000])))
    assert known._size <= _MOST_BYTES
    assert known._size == sum(of.size for of in known._known.values())
    assert known.of(of, _request(None)).kept([(b"", b"")]) == [(b"", b"")]


async def test_a_server_compiles_a_predicate_once_for_all_key_groups_of_a_scan(compiled: list[Predicate]) -> None:
    warm = field("celsius") > 1
    async with state_server("server-a") as server, AsyncClient(server.address, timeout=PATIENCE_SECONDS) as client:
        await server.own(hourly(), range(KEY_GROUPS))
        await server.commit(hours("sensor-1", range(3)) | hours("sensor-2", range(3)))
        assert len([entry async for entry in client.scan_all(APPLICATION, STATE, where=warm)]) == 2
        assert await client.count(APPLICATION, STATE, where=warm) == 2
    assert compiled == [warm]
