"""Requests by curl, JavaScript and grpcurl that the pages show are answered: docs/clients.md, docs/kubernetes.md,
docs/predicates.md, docs/watch.md.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import re
import shlex

import grpc
import pytest
from google.protobuf import json_format

from keyhole.v1 import query_pb2, query_pb2_grpc
from tests.support import needs
from tests.support.documented_reads import Reader, reader
from tests.support.snippets import blocks_of, commands
from tests.support.waiting import LONG_SECONDS

PAGES = ("docs/clients.md", "docs/kubernetes.md", "docs/predicates.md", "docs/watch.md")
CURLS = [
    (page, command)
    for page in PAGES
    for block in blocks_of(page)
    for command in commands(block.code)
    if command.startswith("curl ") and "If-None-Match" not in command
]
# What each answer has, and no other one.
ANSWERS = {
    "/openapi.json": '"openapi": "3.1',
    "/sensors/seattle": '"last": 17.5',
    "sensors:scan?where=": '"key": "sensor-2"',
    "/sensors/sensor-42?stale=": '"role": "owner"',
    "/hourly/sensor-7?from=": '"celsius": 29.0',
    "sensors:batchGet": '"found": false',
    "curl -i ": "ETag: ",
    "orders:watch?key=": "event: rows",
}


async def states(person: Reader) -> None:
    """What the pages read."""
    readings = [{"sensor": name, "last": 17.5, "mean": 16.0} for name in ("seattle", "sensor-42", "sensor-1")]
    person.served.write("temperature-monitor/sensors", readings, key="sensor")
    sensors = [{"sensor": f"sensor-{n}", "max": 20.5 * n, "city": "Chur"} for n in (1, 2)]
    person.served.write("weather/sensors", sensors, key="sensor")
    times = [dt.datetime(2026, 11, 20, hour, tzinfo=dt.UTC) for hour in (10, 20)]
    hourly = [{"sensor": "sensor-7", "hour": at, "celsius": 29.0} for at in times]
    person.served.write("app/hourly", hourly, key="sensor", map_key="hour")
    person.served.write("shop/orders", [{"order": "o1", "total": 2.5}], key="order")
    person.served.write("shop/totals", [{"customer": "c1", "spent": 34.5}], key="customer")
    # Until the proxy knows of the last one, and so of all.
    with person.client() as client:
        await asyncio.to_thread(client.get, "shop", "totals", "c1")


@pytest.mark.parametrize(("page", "command"), CURLS, ids=lambda of: of.partition("\n")[0])
async def test_a_request_of_curl_is_answered(page: str, command: str) -> None:
    (holding,) = (answer for part, answer in ANSWERS.items() if part in command)
    watch = ":watch" in command
    async with reader() as person:
        await states(person)
        printed = await person.curls(command, until=holding if watch else "")
    assert holding in re.sub(r'":(?=\S)', '": ', printed)


async def test_the_answer_that_is_known_is_not_sent_again() -> None:
    first, again = (
        command for block in blocks_of("docs/clients.md") for command in commands(block.code) if "curl -i " in command
    )
    async with reader() as person:
        await states(person)
        printed = await person.curls(first)
        (tag,) = re.findall(r"^ETag: (\S+)", printed, re.MULTILINE | re.IGNORECASE)
        assert printed.startswith("HTTP/1.1 200")
        answer = await person.curls(re.sub(r'W/"\S+"', lambda _: tag, again))
    assert answer.startswith("HTTP/1.1 304")


async def test_what_is_fetched_by_javascript_is_answered() -> None:
    """By Node, of which `fetch` is the browsers'."""
    needs.node()
    (code,) = (block.code for block in blocks_of("docs/clients.md") if block.language == "js")
    async with reader() as person:
        await states(person)
        here = code.replace("http://proxy:7402", f"http://{person.proxy.http_address}")
        script = f'const token = "none";\n{here}\nconsole.log(answer.status, await answer.text());\n'
        node = await asyncio.create_subprocess_exec(
            "node", "--input-type=module", "--eval", script, stdout=asyncio.subprocess.PIPE
        )
        printed, _ = await asyncio.wait_for(node.communicate(), LONG_SECONDS)
    status, _, answer = printed.decode().partition(" ")
    assert (status, json.loads(answer)["value"]) == ("200", {"spent": 34.5})


async def test_what_grpcurl_is_given_is_a_request_that_is_answered() -> None:
    """Here by the same JSON, address and method as grpcurl takes them."""
    (command,) = (
        command for block in blocks_of("docs/clients.md") for command in commands(block.code) if "grpcurl" in command
    )
    _, plaintext, _, given, address, method = shlex.split(command)
    assert (plaintext, address, method) == ("-plaintext", "proxy:7400", "keyhole.v1.Query/Get")
    request = json_format.Parse(given, query_pb2.GetRequest())
    async with reader() as person:
        await states(person)
        async with grpc.aio.insecure_channel(person.proxy.address) as channel:
            response = await query_pb2_grpc.QueryStub(channel).Get(request, timeout=LONG_SECONDS)
    assert json.loads(response.answer.value) == {"last": 17.5, "mean": 16.0}
