"""Whom a client connects to, as people write it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole import AsyncClient, Client
from keyhole.client.target import target_of, targets_of
from keyhole.errors import InvalidConfiguration


@pytest.mark.parametrize(
    ("written", "target"),
    [
        ("localhost", "localhost:7400"),
        ("10.0.0.7", "10.0.0.7:7400"),
        ("::1", "[::1]:7400"),
        ("[::1]", "[::1]:7400"),
        ("[::1]:7", "[::1]:7"),
        ("keyhole-client-proxy.jobs.svc:7400", "keyhole-client-proxy.jobs.svc:7400"),
        ("my_proxy:65535", "my_proxy:65535"),
        ("dns:///proxies:7400", "dns:///proxies:7400"),
        ("ipv4:10.0.0.1:7400,10.0.0.2:7400", "ipv4:10.0.0.1:7400,10.0.0.2:7400"),
        ("unix:/run/proxy", "unix:/run/proxy"),
    ],
)
def test_a_host_without_a_port_is_a_proxy_at_its_default(written: str, target: str) -> None:
    assert target_of(written) == target


@pytest.mark.parametrize(
    ("written", "what"),
    [
        ("", "is empty"),
        ("  ", "is empty"),
        (" localhost:7400", "spaces around it"),
        ("http://proxy:7402/v1", "leave out http://.*gRPC port, 7400 where .* not the one for HTTP.*like proxy:7400$"),
        ("https://reads.example.com/", r"leave out https://.*gRPC port, 7400.*like reads\.example\.com$"),
        ("grpcs://proxy", "leave out grpcs://.*TLS is turned on by credentials="),
        ("proxy:7400/", "whose port is no number"),
        ("proxy:", "whose port is no number"),
        ("proxy:0", "whose port is no number"),
        ("proxy:65536", "whose port is no number"),
        ("proxy:\u0667", "whose port is no number"),
        (":7400", "no host and port"),
        ("a b:7400", "no host and port"),
        ("proxy/x", "no host and port"),
        ("a:7400,", "is empty"),
        ("a:7400,b c", "no host and port"),
        ([], "is an empty list"),
        (["a:7400", "b:7400,c:7400"], "no host and port"),
        (None, "is a NoneType"),
        (("proxy", 7400), "is a int"),
        ({"proxy": 7400}, "is a dict"),
    ],
)
@pytest.mark.parametrize("make", [Client, AsyncClient])
def test_what_is_no_target_is_refused_at_once_with_what_to_give(make: Any, written: Any, what: str) -> None:
    with pytest.raises(InvalidConfiguration, match=f"the target {what}|the target is .*{what}"):
        make(written)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ((), "is left out.*like proxy:7400$"),
        (("127.0.0.1", 7400), r"is given as 2 arguments.*like 127\.0\.0\.1:7400$"),
        (("proxy", "7401"), "is given as 2 arguments.*like proxy:7401$"),
        (("proxy:7401", 5), r"is given as 2 arguments.*\(timeout=, credentials=, routing=\).*like proxy:7400$"),
        (("proxy-0", "proxy-1", "proxy-2"), "is given as 3 arguments.*like proxy:7400$"),
    ],
)
@pytest.mark.parametrize("make", [Client, AsyncClient])
def test_no_target_and_one_in_parts_are_refused_with_what_to_give(make: Any, arguments: Any, what: str) -> None:
    with pytest.raises(InvalidConfiguration, match=f"the target {what}"):
        make(*arguments)


@pytest.mark.parametrize(
    ("written", "targets"),
    [
        ("proxy-0:7400,proxy-1:7401", ("proxy-0:7400", "proxy-1:7401")),
        ("proxy-0, proxy-1", ("proxy-0:7400", "proxy-1:7400")),
        (["proxy-0", "proxy-1:7400"], ("proxy-0:7400", "proxy-1:7400")),
        (("proxy-0",), ("proxy-0:7400",)),
        ("proxy,proxy:7400", ("proxy:7400",)),
        ("::1,[::1]:7401", ("[::1]:7400", "[::1]:7401")),
        ("dns:///proxies:7400,dns:///others:7400", ("dns:///proxies:7400", "dns:///others:7400")),
        ("ipv4:10.0.0.1:7400,10.0.0.2:7400", ("ipv4:10.0.0.1:7400,10.0.0.2:7400",)),
        (["ipv4:10.0.0.1:7400,10.0.0.2:7400", "proxy"], ("ipv4:10.0.0.1:7400,10.0.0.2:7400", "proxy:7400")),
    ],
)
def test_several_targets_are_a_list_or_separated_by_commas_each_once(written: Any, targets: tuple[str, ...]) -> None:
    assert targets_of(written) == targets


@given(st.text(max_size=20))
def test_any_text_is_a_target_or_refused_and_what_is_one_stays_as_it_is(text: str) -> None:
    try:
        target = target_of(text)
    except InvalidConfiguration:
        return
    assert target_of(target) == target
