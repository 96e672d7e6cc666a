"""What a caller can't mean: each call of the client refuses it at once, by the argument's name, with what to give."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from keyhole import AsyncClient, Client, field
from keyhole import aggregates as agg
from keyhole.client.wire.lookups import LookupBatch
from keyhole.errors import InternalError, InvalidConfiguration, KeyholeError, MalformedRequest
from keyhole.rpc import convert
from keyhole.testing.fake_server import FakeServer
from keyhole.testing.served_states import ServedStates
from tests.support.readings import APPLICATION, STATE, descriptor, rows
from tests.support.waiting import LONG_SECONDS

PATH, NAME = "shop/totals", ("shop", "totals")


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with ServedStates() as served:
        served.write(PATH, [{"customer": f"c{number}", "n": number} for number in range(9)], key="customer")
        hours = [{"customer": "c1", "hour": hour, "n": hour} for hour in range(9)]
        served.write("shop/visits", hours, key="customer", map_key="hour")
        with Client(served.address, timeout=LONG_SECONDS) as client:
            yield client


# (what is asked, what the refusal says)
_WRONG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a number as application": (lambda c: c.get(5, "totals", "c1"), "application is a int; give its name as a str"),
    "none as application": (lambda c: c.get(None, "totals", "c1"), "application is a NoneType"),
    "bytes as state": (lambda c: c.get("shop", b"totals", "c1"), "state is a bytes; give its name as a str"),
    "a list as state": (lambda c: c.get("shop", ["totals"], "c1"), "state is a list"),
    "half a character": (lambda c: c.get("a\ud800", "totals", "c1"), "application is no text"),
    "many of no state": (lambda c: c.get_many("shop", 5, ["c1"]), "state is a int"),
    "a scan of no state": (lambda c: c.scan("shop", 5, "c1"), "state is a int"),
    "all of no state": (lambda c: c.scan_all("shop", 5).page(), "state is a int"),
    "a watch of no state": (lambda c: c.watch("shop", 5).page(), "state is a int"),
    "a count of no state": (lambda c: c.count("shop", 5), "state is a int"),
    "an explanation of no state": (lambda c: c.explain("shop", 5, "c1"), "state is a int"),
    "a description of no state": (lambda c: c.describe_state("shop", None), "state is a NoneType"),
    "the states of a number": (lambda c: c.list_states(5), "application is a int"),
    "SQL of a number": (lambda c: c.sql("select 1", application=5), "application is a int"),
    "SQL in a number": (lambda c: c.sql("select 1", memory=5), 'write a size as "500MB"'),
    "a path, and a key": (lambda c: c.get(PATH, "c1"), "is the path of a state, .* application is 'shop', state is"),
    "a path and no waiting": (
        lambda c: c.get_async(PATH, "c1").result(),
        r"or read through client.state.'shop/totals'",
    ),
    "a path, and keys": (lambda c: c.get_many(PATH, ["c1"]), "'shop/totals' is the path of a state"),
    "a path, and keys for later": (lambda c: c.get_many_async(PATH, ["c1"]).result(), "is the path of a state"),
    "a path beside a state": (lambda c: c.get(PATH, "totals", "c1"), "'shop/totals' is the path of a state"),
    "all of a path": (lambda c: c.scan_all(PATH).page(), "'shop/totals' is the path of a state"),
    "a watch of a path": (lambda c: c.watch(PATH, "c1").page(), "'shop/totals' is the path of a state"),
    "a count of a path": (lambda c: c.count(PATH), "'shop/totals' is the path of a state"),
    "a description of a path": (lambda c: c.describe_state(PATH), "'shop/totals' is the path of a state"),
    "the states of a path": (lambda c: c.list_states(PATH), "'shop/totals' is the path of a state"),
    "no key": (lambda c: c.get(*NAME), r"get is called without key: give application, state and key"),
    "no keys": (lambda c: c.get_many(*NAME), r"get_many is called without keys: .* call state.PATH..get_many.keys."),
    "no state": (lambda c: c.count("shop"), "application is 'shop', and no state is named"),
    "a list as stale": (lambda c: c.get(*NAME, "c1", stale=["never"]), "stale is .*must be one of never"),
    "true as epoch": (lambda c: c.get(*NAME, "c1", min_epoch=True), "min_epoch is True; epochs are whole numbers"),
    "a list as epoch": (lambda c: c.get(*NAME, "c1", min_epoch=[1]), r"min_epoch is \[1\]"),
    "epochs of no key group": (lambda c: c.get(*NAME, "c1", min_epoch={"a": 1, 2: 3}), "names key group 'a'"),
    "key groups of no epoch": (lambda c: c.get(*NAME, "c1", min_epoch={1: [1]}), r"min_epoch is \[1\]"),
    "a list as of": (lambda c: c.get(*NAME, "c1", as_of=[1]), r"as_of is \[1\]"),
    "a text as of": (lambda c: c.get(*NAME, "c1", as_of=""), "as_of is ''"),
    "a list as timeout": (lambda c: c.get(*NAME, "c1", timeout=[1]), "timeout is a list; give a number of seconds"),
    "numpy's duration": (lambda c: c.get(*NAME, "c1", timeout=np.timedelta64(5, "s")), "timeout is a timedelta64"),
    "no keys at all": (lambda c: c.get_many(*NAME, None), "keys is a NoneType; give a list of keys"),
    "one number as keys": (lambda c: c.get_many_async(*NAME, 5), "keys is a int; give a list of keys"),
    "a text as limit": (lambda c: c.scan("shop", "visits", "c1", limit="5"), "limit is '5'; it must be a whole"),
    "a part as limit": (lambda c: c.scan_all(*NAME, limit=2.5), "limit is 2.5; it must be a whole"),
    "true as limit": (lambda c: c.scan("shop", "visits", "c1", limit=True), "limit is True"),
    "a text as order": (lambda c: c.scan("shop", "visits", "c1", descending="no"), "descending is 'no'; give True"),
    "a text as order of all": (lambda c: c.scan_all(*NAME, ordered="no"), "ordered is 'no'; give True or False"),
    "a text as keys_only": (lambda c: c.scan_all(*NAME, keys_only="no"), "keys_only is 'no'; give True or False"),
    "a number as fields": (lambda c: c.scan_all(*NAME, fields=5), "fields is a list of names"),
    "a number as token": (lambda c: c.scan_all(*NAME, after=5), "after is a int; give the `token`"),
    "a number as a watch's token": (lambda c: c.watch(*NAME, after=5), "after is a int; give the `token`"),
    "a text as snapshot": (lambda c: c.watch(*NAME, snapshot="no"), "snapshot is 'no'; give True or False"),
    "none as snapshot": (lambda c: c.watch(*NAME, snapshot=None), "snapshot is None; give True or False"),
    "a text as before": (lambda c: c.watch(*NAME, before="no"), "before is 'no'; give True or False"),
    "a number as latest_only": (lambda c: c.watch(*NAME, latest_only=5), "latest_only is 5; give True or False"),
    "a text as part": (lambda c: c.scan_all(*NAME, part_of="x"), "part_of is 'x'; it must be a whole number"),
    "a fraction as part": (lambda c: c.scan_all(*NAME, part_of=1.5), "part_of is 1.5; it must be a whole number"),
    "an aggregate of a number": (lambda c: agg.max(5), "a field is named by a int"),
    "an aggregate of a field": (lambda c: agg.max(field("n")), "a field is named by a Field"),
    "a field of no name": (lambda c: field(None), "a field is named by a NoneType"),
    "a struct's field of no name": (lambda c: field("n")[5], "a field is named by a int"),
    "one of no list": (lambda c: field("n").is_in(5), "is_in takes a list of values, and was given a int"),
    "none as path": (lambda c: c.state(None), "a NoneType names no state; write APPLICATION/STATE"),
    "a pair as path": (lambda c: c.mirror(NAME), "a tuple names no state; write APPLICATION/STATE"),
    "a list of paths": (lambda c: c.snapshot([PATH]), "a list names no state; write APPLICATION/STATE"),
    "epochs that are none": (lambda c: c.session(5), "epochs of a session are by"),
    "epochs by path": (lambda c: c.session({PATH: 5}), "epochs of a session are by"),
    "epochs as text": (lambda c: c.session({NAME: "5"}), "epochs of a session are by"),
    "a session's epoch": (lambda c: c.session({NAME: 1}).get(*NAME, "c1", min_epoch="x"), "min_epoch is 'x'"),
    "a mirror's bound": (lambda c: c.mirror(PATH, max_entries=2.5), "max_entries is 2.5; give a whole number"),
    "a token as credentials": (lambda c: Client("a", credentials="t"), r"is a str; give keyhole.Credentials\("),
    "no time at all": (lambda c: Client("a", timeout=0), "timeout is 0; within that no read has an answer"),
    "less than none": (lambda c: AsyncClient("a", timeout=timedelta(-1)), "timeout is .*give seconds above 0"),
    "no credentials": (lambda c: Client("a", credentials=None), r"is a NoneType; give keyhole.Credentials\("),
}


@pytest.mark.parametrize(("asked", "says"), _WRONG.values(), ids=_WRONG.keys())
def test_what_can_not_be_meant_is_refused_by_its_name_with_what_to_give(
    client: Client, asked: Callable[[Any], Any], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises((MalformedRequest, InvalidConfiguration), match=says):
        asked(client)
    assert not caplog.records


def test_what_an_answer_has_not_is_said_to_be_in_its_value(client: Client) -> None:
    answer: Any = client.get(*NAME, "c1")
    with pytest.raises(AttributeError, match=r"an answer has no 'n'; fields are those of its value: answer\.value\.n"):
        answer.n  # noqa: B018
    with pytest.raises(TypeError, match=r"an answer has no fields; its value has: answer\.value\['n'\]"):
        answer["n"]
    with pytest.raises(AttributeError, match="the value has no field 'm'; it has n"):
        answer.value.m  # noqa: B018


@pytest.mark.parametrize("misused", [lambda of: of["c1"], list, lambda of: "c1" in of], ids=["[]", "for", "in"])
def test_a_handle_that_is_taken_for_a_mapping_says_how_it_is_read(
    client: Client, misused: Callable[[Any], Any]
) -> None:
    with pytest.raises(TypeError, match=r"no mapping: read a key by get\(key\), several by get_many, all by scan_all"):
        misused(client.state(PATH))


async def test_each_client_that_is_opened_as_the_other_one_says_how_it_is_opened(client: Client) -> None:
    asynchronous: Any = AsyncClient("a")
    with pytest.raises(TypeError, match="by `async with`; outside of coroutines use"), asynchronous:
        pass
    blocking: Any = client
    with pytest.raises(TypeError, match="by `with`; in coroutines use"):
        async with blocking:
            pass


def test_numpys_numbers_and_booleans_are_taken_as_pythons(client: Client) -> None:
    one, yes = np.int64(1), np.True_
    assert client.get(*NAME, "c1", min_epoch=one, as_of=0).found
    assert client.get(*NAME, "c1", min_epoch={one: one}).found
    assert len(client.scan("shop", "visits", "c1", limit=np.int64(2), descending=yes)) == 2
    assert len(list(client.scan_all(*NAME, limit=np.int64(2), keys_only=yes))) == 2
    assert len(client.aggregate(*NAME, {"top": agg.top(np.int64(2), "n")})["top"]) == 2
    assert client.session({NAME: one}).get(*NAME, "c1").found
    with client.mirror(PATH, max_entries=np.int64(9)) as mirror:
        assert len(mirror) == 9


@pytest.mark.parametrize("where", ["described", "encoded"])
async def test_a_bug_in_a_lookup_is_told_at_once_and_not_by_the_deadline(
    where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> Any:
        raise ZeroDivisionError

    server = FakeServer("a")
    await server.start()
    server.host(descriptor(), rows(3))
    try:
        async with AsyncClient(server.address, timeout=LONG_SECONDS) as client:
            with monkeypatch.context() as patched, caplog.at_level(logging.ERROR):
                if where == "described":
                    patched.setattr(convert, "descriptor_from_proto", broken)
                else:
                    patched.setattr(LookupBatch, "encode", broken)
                asked = [client.get(APPLICATION, STATE, "sensor-1") for _ in range(2)]
                outcomes = await asyncio.gather(*asked, return_exceptions=True)
            assert [type(error) for error in outcomes] == [InternalError, InternalError]
            assert all(isinstance(error, KeyholeError) and "by a bug" in error.message for error in outcomes)
            assert any(record.exc_info for record in caplog.records)
            assert (await client.get(APPLICATION, STATE, "sensor-1")).found
    finally:
        await server.stop()
