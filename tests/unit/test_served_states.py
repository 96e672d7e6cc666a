"""States that a test of somebody's reader serves in memory: written, read, and what is refused."""

from __future__ import annotations

import gc

import pyarrow as pa
import pytest

from keyhole import ChangeKind, Client, field
from keyhole.errors import InvalidConfiguration, KeyMismatch, ValueMismatch
from keyhole.testing.served_states import ServedStates
from tests.support.waiting import LONG_SECONDS


def test_what_is_written_is_read_by_a_client() -> None:
    with ServedStates() as served, Client(served.address, timeout=LONG_SECONDS) as client:
        assert served.write("shop/totals", [{"customer": "c1", "spent": 1.5}, {"customer": "c2"}], key="customer") == 1
        assert client.get("shop", "totals", "c1").value.spent == 1.5
        assert client.get("shop", "totals", "c2").value.spent is None
        assert not client.get("shop", "totals", "c3").found
        assert served.write("shop/totals", [{"customer": "c1", "spent": 2.5}], key="customer") == 2
        answer = client.get("shop", "totals", "c1")
        assert (answer.value.spent, answer.epoch) == (2.5, 2)

        hours = [{"shop": 1, "hour": hour, "orders": 10 * hour} for hour in (2, 1)]
        served.write("shop/hours", hours, key="shop", map_key="hour")
        assert [value.orders for value in client.scan("shop", "hours", 1).values] == [10, 20]

        with client.watch("shop", "totals", where=field("spent") > 2) as changes:
            there = next(iter(changes))
            assert (there.key, there.snapshot) == ("c1", True)
            assert served.write("shop/totals", [], key="customer", delete=[{"customer": "c1"}]) == 3
            gone = next(iter(changes))
            assert (gone.kind, gone.key, gone.epoch) == (ChangeKind.DELETE, "c1", 3)
        with client.mirror("shop/totals") as mirror:
            mirror.wait_for(served.write("shop/totals", [{"customer": "c4", "spent": 4.5}], key="customer"))
            assert (mirror.get("c4").value.spent, mirror.get("c4").epoch, mirror.get("c1").found) == (4.5, 4, False)
        served.write("shop/hours", hours[:1], key="shop", map_key="hour", delete=[{"shop": 1, "hour": 1}])
        assert [value.orders for value in client.scan("shop", "hours", 1).values] == [20]

        with pytest.raises(InvalidConfiguration, match=r"'shop/totals' is there already with other columns"):
            served.write("shop/totals", [{"customer": "c1", "spent": 1}], key="customer")
        with pytest.raises(InvalidConfiguration, match="write some, or a schema"):
            served.write("shop/new", [], key="customer")
        with pytest.raises(InvalidConfiguration, match="write APPLICATION/STATE"):
            served.write("totals", [{"customer": "c1"}], key="customer")
        with pytest.raises(KeyMismatch, match="there is no key column client"):
            served.write("shop/new", [{"customer": "c1"}], key="client")
        schema = pa.schema([("customer", pa.string()), ("orders", pa.int32())])
        with pytest.raises(ValueMismatch, match="'orders' of state 'new' is of type int, which a str does not fit"):
            served.write("shop/new", [{"customer": "c1", "orders": "many"}], key="customer", schema=schema)


def test_states_of_one_query_are_in_one_snapshot_and_a_state_stays_of_its_query() -> None:
    with ServedStates() as served, Client(served.address, timeout=LONG_SECONDS) as client:
        for _ in range(2):
            served.write("shop/orders", [{"order": "o1"}], key="order", query="shop")
        served.write("shop/customers", [{"customer": "c1"}], key="customer", query="shop")
        assert served.write("shop/customers", [{"customer": "c2"}], key="customer") == 2
        assert client.snapshot("shop/orders", "shop/customers").epoch == 2
        with pytest.raises(InvalidConfiguration, match="or of another query"):
            served.write("shop/orders", [{"order": "o1"}], key="order", query="other")


def test_one_whose_clients_are_still_open_ends_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    """As those of a service's module are, while its tests end."""
    clients = _left_open()
    gc.collect()
    assert not [record.getMessage() for record in caplog.records if record.name == "asyncio"]
    for client in clients:
        client.close()


def _left_open() -> list[Client]:
    with ServedStates() as served:
        served.write("shop/totals", [{"customer": "c1", "spent": 1.5}], key="customer")
        clients = [Client(served.address, timeout=LONG_SECONDS) for _ in range(3)]
        assert all(client.get("shop", "totals", "c1").found for client in clients)
    return clients
