"""Finding servers."""

from __future__ import annotations

import pytest

from keyhole.discovery import StaticDiscovery
from keyhole.errors import InvalidConfiguration


async def test_a_static_list_is_told_once_and_stays() -> None:
    addresses = StaticDiscovery(["a:1", "b:2", "a:1"]).addresses()
    assert await anext(addresses) == {"a:1", "b:2"}
    await addresses.aclose()  # type: ignore[attr-defined]


@pytest.mark.parametrize("server", ["a", "a:", ":1", "a:b", "a:0", "a:65536"])
def test_what_is_not_host_and_port_is_refused_by_name(server: str) -> None:
    with pytest.raises(InvalidConfiguration, match=f"state server '{server}' is not host:port"):
        StaticDiscovery([server])


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="name at least one"):
        StaticDiscovery([])
