"""What a Python UDF calls: reads by a client of its worker's."""

from __future__ import annotations

import functools

from keyhole import Client
from tests.support.waiting import LONG_SECONDS


@functools.cache
def _client(proxy: str) -> Client:
    return Client(proxy, timeout=LONG_SECONDS)


def value_of(proxy: str, application: str, state: str, key: str) -> int | None:
    """The field `v` of the state's value."""
    answer = _client(proxy).get(application, state, key)
    return answer.value.v if answer.found else None
