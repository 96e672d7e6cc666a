"""Commands that read, as the pages show them, read: all of README and docs that need no more than a proxy."""

from __future__ import annotations

import asyncio
import datetime as dt
import re
import shlex

import pytest

from keyhole.cli.main import main
from tests.support.documented_reads import Reader, reader
from tests.support.snippets import ROOT, blocks_of, commands
from tests.support.waiting import LONG_SECONDS

_READ = re.compile(r"(?:uv run )?keyhole ((?:describe|explain|get|scan|sql|states|status)\b.*)")
# Of a savepoint, of a cluster, and what goes on until it is broken off.
_ELSEWHERE = re.compile(r"--savepoint|--pods|--watch")


def _shown() -> list[str]:
    pages = ["README.md", *(f"docs/{page.name}" for page in sorted(ROOT.glob("docs/*.md")))]
    lines = [line for page in pages for block in blocks_of(page) for line in commands(block.code)]
    found = [match[1] for line in lines if (match := _READ.fullmatch(line)) and not _ELSEWHERE.search(line)]
    return sorted(set(found))


SHOWN = _shown()


async def states(person: Reader) -> None:
    """What the pages' commands ask for."""
    readings = [{"sensor": name, "last": 17.5, "max": 31.5} for name in ("seattle", "sensor-42")]
    person.served.write("temperature-monitor/sensors", readings, key="sensor")
    sensors = [{"sensor": f"sensor-{n}", "max": 20.5 * n, "city": "Bern"} for n in (1, 2)]
    person.served.write("weather/sensors", sensors, key="sensor")
    person.served.write("weather/highest", [{"sensor": "sensor-42", "temperature": 31.5}], key="sensor")
    person.served.write("shop/orders", [{"order": "c17", "total": 2.5}], key="order")
    hourly = [{"sensor": "sensor-7", "hour": dt.datetime(2026, 11, 20, 10, tzinfo=dt.UTC), "celsius": 31.5}]
    person.served.write("app/hourly", hourly, key="sensor", map_key="hour")
    person.served.write("shop/totals", [{"customer": "c1", "amount": 34.5}], key="customer")
    # Until the proxy knows of the last one, and so of all.
    with person.client() as client:
        await asyncio.to_thread(client.get, "shop", "totals", "c1")


@pytest.mark.parametrize("command", SHOWN)
async def test_a_command_that_reads_finds_what_is_there(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with reader() as person:
        await states(person)
        monkeypatch.setenv("KEYHOLE_PROXY", person.proxy.address)
        words = [*shlex.split(command), "--timeout", str(LONG_SECONDS)]
        code = await asyncio.to_thread(main, words)
        printed = capsys.readouterr()
    assert (code, printed.err) == (0, "")
    assert re.search(r"31\.5|41\.0|2\.5|34\.5|17\.5|sensors|fake-1", printed.out), printed.out


def test_the_commands_have_been_found() -> None:
    assert {command.split()[0] for command in SHOWN} == {
        "describe",
        "explain",
        "get",
        "scan",
        "sql",
        "states",
        "status",
    }
