"""The commands a person types, against a proxy with a fake server behind it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from keyhole.cli.main import main
from tests.support.proxies import fake_servers, proxy_of, unused_address
from tests.support.readings import APPLICATION, STATE, descriptor, rows

PATH = f"{APPLICATION}/{STATE}"
Command = Callable[..., Awaitable[int]]


@pytest.fixture
async def keyhole() -> AsyncIterator[Command]:
    """Runs `keyhole ARGUMENTS --proxy ...` and returns the exit code."""
    async with fake_servers("server-a") as (server,):
        server.host(descriptor(), rows(100))
        async with proxy_of(server.address) as proxy:

            async def run(*arguments: str) -> int:
                return await asyncio.to_thread(main, [*arguments, "--proxy", proxy.address])

            yield run


async def test_states_lists_what_can_be_read(keyhole: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert await keyhole("states", "--json") == 0
    (state,) = json.loads(capsys.readouterr().out)
    assert (state["state"], state["key"]) == (PATH, "sensor string")
    assert await keyhole("states") == 0
    assert PATH in capsys.readouterr().out


async def test_get_shows_found_and_absent_keys_alike(keyhole: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert await keyhole("get", PATH, "sensor-7", "nobody", "--json") == 0
    found, absent = json.loads(capsys.readouterr().out)
    assert (found["found"], found["value"]) == (True, {"celsius": 7.0, "count": 1})
    assert (absent["found"], absent["value"]) == (False, None)
    assert (found["epoch"], found["server"], found["role"]) == (1, "server-a", "owner")


async def test_get_says_how_stale_an_answer_may_be_and_is(keyhole: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert await keyhole("get", PATH, "sensor-7", "--stale", "never", "--max-staleness", "5", "--json") == 0
    (answer,) = json.loads(capsys.readouterr().out)
    assert (answer["role"], answer["lag"]) == ("owner", 0)
    assert float(answer["age"].removesuffix(" s")) < 5
    assert await keyhole("get", PATH, "sensor-7", "--min-epoch", "9", "--timeout", "0.5") == 1
    assert "at epoch 1" in capsys.readouterr().err


async def test_describe_and_status_tell_who_holds_what(keyhole: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert await keyhole("describe", PATH, "--format", "json") == 0
    described = json.loads(capsys.readouterr().out)
    assert (described["state"], described["holdings"][0]["server"]) == (STATE, "server-a")
    assert await keyhole("status", "--json") == 0
    (server,) = json.loads(capsys.readouterr().out)
    assert (server["server"], server["unreachable"], server["holdings"][0]["ready"]) == ("server-a", None, True)
    assert await keyhole("status") == 0
    assert "server-a" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("get", "weather", "a"), "APPLICATION/STATE"),
        (("get", "weather/nothing", "a"), STATE),
        (("get", "climate/readings", "a"), APPLICATION),
    ],
)
async def test_an_error_is_one_message_and_exit_code_1(
    keyhole: Command, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str
) -> None:
    assert await keyhole(*arguments) == 1
    shown = capsys.readouterr()
    assert not shown.out
    assert shown.err.startswith("keyhole: ")
    assert says in shown.err
    assert "Traceback" not in shown.err


async def test_a_proxy_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with unused_address() as address:
        assert await asyncio.to_thread(main, ["states", "--proxy", address, "--timeout", "1"]) == 1
    assert address in capsys.readouterr().err


def test_wrong_usage_is_exit_code_2() -> None:
    with pytest.raises(SystemExit) as caught:
        main(["get"])
    assert caught.value.code == 2


def test_reading_imports_neither_spark_nor_kafka_nor_numpy() -> None:
    code = (
        "import sys, keyhole.cli.main, keyhole.cli.reads; "
        "print([name for name in ('pyspark', 'confluent_kafka', 'numpy', 'pyarrow', 'lmdb') if name in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert told.strip() == "[]"
