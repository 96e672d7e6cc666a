"""host:port: what is one, what its parts are, and how it is spelled."""

from __future__ import annotations

import pytest

from keyhole.addresses import host_of, is_host_port, joined, parted, port_of
from keyhole.errors import InvalidConfiguration


@pytest.mark.parametrize(("text", "port"), [("1", 1), ("65535", 65_535), ("07400", 7400)])
def test_a_port_is_a_number_from_1_to_65535(text: str, port: int) -> None:
    assert port_of(text) == port


@pytest.mark.parametrize("text", ["", "0", "65536", "-1", " 1", "1.0", "٣", "http"])
def test_all_else_is_no_port(text: str) -> None:
    assert port_of(text) is None
    assert not is_host_port(f"host:{text}")


@pytest.mark.parametrize("address", ["a:1", "a.b:7400", "[::1]:7400", "10.0.0.1:7400"])
def test_an_address_has_a_host_and_a_port(address: str) -> None:
    assert is_host_port(address)
    host, port = parted(address, "it")
    assert joined(host, port) == address
    assert joined(host_of(address), port) == address


@pytest.mark.parametrize("address", ["", ":", "a", "a:", ":7400"])
def test_what_lacks_a_part_is_refused_by_name(address: str) -> None:
    assert not is_host_port(address)
    with pytest.raises(InvalidConfiguration, match=r"the port of something is .*; it must be host:port"):
        parted(address, "the port of something")


def test_whoever_listens_may_ask_for_any_free_port() -> None:
    assert parted("a:0", "it") == ("a", 0)
