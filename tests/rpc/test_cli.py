"""The commands a person types, against a proxy with a fake server behind it."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import pytest

from keyhole.cli.main import main
from keyhole.errors import Unsupported
from keyhole.model.state import KeyColumn, KeyType, StateKind, ValueField, ValueSchema
from keyhole.rpc.draining import drain
from keyhole.testing.changelog import MemoryKafka
from tests.support.entries import hourly
from tests.support.hostile_names import OF_KEYS
from tests.support.proxies import fake_servers, proxy_of, unused_address
from tests.support.readings import APPLICATION, STATE, descriptor, row, rows
from tests.support.refusals import longer_and_longer
from tests.support.state_servers import LEASE_SECONDS, state_server
from tests.support.waiting import LONG_SECONDS, eventually

PATH = f"{APPLICATION}/{STATE}"
HOURLY, WINDOWS, RULES = (f"{APPLICATION}/{state}" for state in ("hourly", "windows", "rules"))
Command = Callable[..., Awaitable[int]]


async def refused(command: Command, capsys: pytest.CaptureFixture[str], says: str, *arguments: str) -> str:
    """What the command says on standard error, as it ends with exit code 1: this, and nothing on standard output.

    It is given its deadline: a longer one where the machine is so slow that nobody has answered within the first.
    """
    for seconds in longer_and_longer(1.0):
        assert await command(*arguments, "--timeout", str(seconds)) == 1
        shown = capsys.readouterr()
        if says in shown.err:
            assert not shown.out
            return shown.err
        assert "deadline" in shown.out + shown.err
    raise AssertionError(shown.err)


def hour(number: int) -> dt.datetime:
    return dt.datetime(2026, 11, 21, number, tzinfo=dt.UTC)


@pytest.fixture
async def keyhole() -> AsyncIterator[Command]:
    """Runs `keyhole ARGUMENTS --proxy ...` and returns the exit code."""
    async with fake_servers("server-a") as (server,):
        server.host(descriptor(), rows(100))
        server.host(hourly(KeyType.TIMESTAMP), {("sensor-7", hour(n)): row(float(n)) for n in range(24)})
        windows = {("sensor-7", name, n): row(float(n)) for name in ("a", "a,b") for n in (-1, 1)}
        server.host(hourly(KeyType.STRING, KeyType.INT, state="windows"), windows)
        rules = hourly(kind=StateKind.BROADCAST, state="rules", key_groups=1)
        server.host(rules, {f"sensor-{n}": row(float(n)) for n in (2, 1)})
        server.host(hourly(KeyType.INT, state="fresh")).epoch = 0
        async with proxy_of(server.address) as proxy:

            async def run(*arguments: str) -> int:
                return await asyncio.to_thread(main, [*arguments, "--proxy", proxy.address])

            yield run


async def test_states_lists_what_can_be_read(keyhole: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert await keyhole("states", "--json") == 0
    listed = {state["state"]: state for state in json.loads(capsys.readouterr().out)}
    assert (listed[PATH]["key"], listed[PATH]["map_key"]) == ("sensor string", None)
    assert listed[WINDOWS]["map_key"] == "m0 string, m1 int"
    assert await keyhole("states") == 0
    assert PATH in capsys.readouterr().out


async def test_columns_of_any_name_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """With what tells a terminal something written out, and nothing taken for markup."""
    names = list(OF_KEYS)
    of = descriptor("--help", application="class")
    of = msgspec.structs.replace(
        of,
        kind=StateKind.MAP,
        key=tuple(KeyColumn(name, KeyType.SMALLINT) for name in names[::2]),
        map_key=tuple(KeyColumn(name, KeyType.SMALLINT) for name in names[1::2]),
        value=ValueSchema(1, tuple(ValueField(name, "bigint") for name in ["", *names])),
    )
    numbers = tuple(range(len(names)))
    key, map_key = numbers[: len(names[::2])], numbers[: len(names[1::2])]
    async with fake_servers("server-a") as (server,), proxy_of(server.address) as proxy:
        server.host(of, {(*key, *map_key): msgspec.msgpack.encode([1, 7, *numbers])})

        async def run(*arguments: str) -> str:
            assert await asyncio.to_thread(main, [*arguments, "--proxy", proxy.address]) == 0
            return capsys.readouterr().out

        expected = {"": 7} | dict(zip(names, numbers, strict=True))
        (found,) = json.loads(await run("get", "class/--help", json.dumps([*key, *map_key]), "--json"))
        assert found["value"] == expected
        (entry,) = json.loads(await run("scan", "class/--help", json.dumps(key), "--json"))["entries"]
        assert entry["value"] == expected
        assert [of["name"] for of in json.loads(await run("describe", "class/--help", "--json"))["key"]] == names[::2]
        for shown in (
            await run("states"),
            await run("describe", "class/--help"),
            await run("get", "class/--help", json.dumps([*key, *map_key])),
            await run("scan", "class/--help", json.dumps(key)),
        ):
            assert "[red]x[/]" in shown
            assert "\x1b" not in shown
        assert await asyncio.to_thread(main, ["scan", "class/--help", "x", "--proxy", proxy.address]) == 1
        refused = capsys.readouterr().err
        assert r"\x1b[31m smallint" in refused
        assert "\x1b" not in refused


async def test_get_shows_found_and_absent_keys_alike(keyhole: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert await keyhole("get", PATH, "sensor-7", "nobody", "--json") == 0
    found, absent = json.loads(capsys.readouterr().out)
    assert (found["found"], found["value"]) == (True, {"celsius": 7.0, "count": 1})
    assert (absent["found"], absent["value"]) == (False, None)
    assert (found["epoch"], found["server"], found["role"]) == (1, "server-a", "owner")


async def test_before_the_first_epoch_it_is_said_that_nothing_is_known_of_any_key(
    keyhole: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    path = f"{APPLICATION}/fresh"
    said = f"{path}: epoch 0: no epoch is complete yet, so that nothing is known of any key\n"
    for command in (("get", path, "sensor-7,1"), ("scan", path, "sensor-7")):
        assert await keyhole(*command) == 0
        assert capsys.readouterr().err == said
        assert await keyhole(*command, "--json") == 0
        assert capsys.readouterr().err == ""
    assert await keyhole("get", PATH, "nobody") == 0
    assert capsys.readouterr().err == ""


async def test_get_says_how_stale_an_answer_may_be_and_is(keyhole: Command, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("get", PATH, "sensor-7", "--stale", "never", "--max-staleness", str(LONG_SECONDS), "--json")
    assert await keyhole(*arguments) == 0
    (answer,) = json.loads(capsys.readouterr().out)
    assert (answer["role"], answer["lag_epochs"]) == ("owner", 0)
    assert 0 <= answer["staleness_seconds"] < LONG_SECONDS
    assert answer["commit_age_seconds"] >= 0
    assert await keyhole("get", PATH, "sensor-7") == 0
    shown = capsys.readouterr().out
    assert {"committed", "age", "lag"} <= set(re.findall(r"\w+", shown))
    assert len(re.findall(r"│ \d+\.\d s ", shown)) == 2
    await refused(keyhole, capsys, "at epoch 1", "get", PATH, "sensor-7", "--min-epoch", "9")


async def test_get_of_an_entry_takes_the_key_and_then_the_map_key(
    keyhole: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await keyhole("get", HOURLY, "sensor-7,2026-11-21T07:00:00", "sensor-7,2026-11-20", "--json") == 0
    found, absent = json.loads(capsys.readouterr().out)
    assert (found["value"], absent["found"]) == ({"celsius": 7.0, "count": 1}, False)
    assert await keyhole("get", WINDOWS, '["sensor-7", "a,b", -1]', "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["value"]["celsius"] == -1.0
    assert await keyhole("get", WINDOWS, "sensor-7") == 1
    says = capsys.readouterr().err
    assert "the key has 1 column, the state's key has 3: sensor string, m0 string, m1 int" in says
    assert f"`keyhole scan {WINDOWS} KEY` lists all entries of a key" in says


async def test_scan_lists_the_entries_of_a_key_in_a_range_from_either_end(
    keyhole: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scan(*arguments: str) -> tuple[list[str], list[float]]:
        assert await keyhole("scan", *arguments, "--json") == 0
        printed = json.loads(capsys.readouterr().out)
        assert (printed["epoch"], printed["server"], printed["role"]) == (1, "server-a", "owner")
        assert 0 <= printed["staleness_seconds"] < LONG_SECONDS
        return [entry["map_key"] for entry in printed["entries"]], [
            entry["value"]["celsius"] for entry in printed["entries"]
        ]

    keys, values = await scan(HOURLY, "sensor-7")
    assert (keys[7], values) == ("2026-11-21T07:00:00+00:00", [float(n) for n in range(24)])
    assert (await scan(HOURLY, "sensor-7", "--from", "2026-11-21T20:00:00"))[1] == [20.0, 21.0, 22.0, 23.0]
    # A map key as it was printed can be typed again.
    assert (await scan(HOURLY, "sensor-7", "--from", keys[3], "--to", keys[5]))[1] == [3.0, 4.0]
    assert (await scan(HOURLY, "sensor-7", "--to", keys[5], "--descending", "--limit", "2"))[1] == [4.0, 3.0]
    assert await scan(HOURLY, "sensor-7", "--from", "2026-11-22") == await scan(HOURLY, "nobody") == ([], [])
    assert (await scan(WINDOWS, "sensor-7"))[0] == [["a", -1], ["a", 1], ["a,b", -1], ["a,b", 1]]
    assert (await scan(WINDOWS, "sensor-7", "--from", "a,1"))[0] == [["a", 1], ["a,b", -1], ["a,b", 1]]
    assert (await scan(WINDOWS, "sensor-7", "--to", '["a,b"]'))[0] == [["a", -1], ["a", 1]]


async def test_scan_shows_a_table_that_says_of_which_epoch(
    keyhole: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    bounds = ("--stale", "always", "--max-staleness", str(LONG_SECONDS))
    assert await keyhole("scan", WINDOWS, "sensor-7", "--limit", "2", *bounds) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{WINDOWS} sensor-7: 2 entries by m0, m1, epoch 1" in shown
    assert '["a", -1]' in shown
    assert await keyhole("scan", WINDOWS, "nobody") == 0
    assert "0 entries" in capsys.readouterr().out


async def test_a_broadcast_state_is_listed_whole(keyhole: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert await keyhole("scan", RULES, "--json") == 0
    assert [entry["map_key"] for entry in json.loads(capsys.readouterr().out)["entries"]] == ["sensor-1", "sensor-2"]
    assert await keyhole("scan", RULES) == 0
    assert f"{RULES}: 2 entries by sensor, epoch 1" in " ".join(capsys.readouterr().out.split())


async def test_without_a_key_all_keys_are_listed_and_a_token_goes_on(
    keyhole: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await keyhole("scan", HOURLY, "--json") == 0
    whole = json.loads(capsys.readouterr().out)
    assert (len(whole["entries"]), whole["next"]) == (24, None)
    assert {(entry["key"], entry["epoch"]) for entry in whole["entries"]} == {("sensor-7", 1)}
    assert await keyhole("scan", HOURLY, "--limit", "20", "--json") == 0
    first = json.loads(capsys.readouterr().out)
    assert await keyhole("scan", HOURLY, "--after", first["next"], "--json") == 0
    assert first["entries"] + json.loads(capsys.readouterr().out)["entries"] == whole["entries"]
    assert await keyhole("scan", HOURLY, "--limit", "2") == 0
    printed = capsys.readouterr()
    assert f"{HOURLY}: 2 entries by sensor, m0, in no order" in " ".join(printed.out.split())
    assert "there may be more: --after " in printed.err
    assert await keyhole("scan", PATH, "--json") == 0
    (one,) = [entry for entry in json.loads(capsys.readouterr().out)["entries"] if entry["key"] == "sensor-7"]
    assert "map_key" not in one


async def test_scan_lists_such_entries_and_fields_as_are_asked_for(
    keyhole: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scan(*arguments: str) -> list[dict[str, object]]:
        assert await keyhole("scan", *arguments, "--json") == 0
        found: list[dict[str, object]] = json.loads(capsys.readouterr().out)["entries"]
        return found

    late = ("--where", "celsius > 20", "--where", "celsius != 22")
    assert [entry["value"] for entry in await scan(HOURLY, *late, "--fields", "celsius")] == [
        {"celsius": 21.0},
        {"celsius": 23.0},
    ]
    assert [entry["value"] for entry in await scan(HOURLY, "sensor-7", *late, "--fields", "count")] == [
        {"count": 1}
    ] * 2
    (one,) = await scan(HOURLY, "--where", "m0 = 2026-11-21T03:00:00", "--keys-only")
    assert one["map_key"] == hour(3).isoformat()
    assert "value" not in one
    assert await scan(PATH, "--where", "sensor in sensor-3,sensor-4", "--where", "celsius is null") == []
    (last,) = await scan(PATH, "--descending", "--limit", "1", "--keys-only")
    assert last["key"] == "sensor-99"
    assert [entry["key"] for entry in await scan(PATH, "--ordered", "--prefix", "sensor-9", "--keys-only")] == [
        "sensor-9",
        *(f"sensor-{number}" for number in range(90, 100)),
    ]
    some = await scan(HOURLY, "--map-from", "2026-11-21T02:00:00", "--map-to", "2026-11-21T04:00:00", "--ordered")
    assert [entry["map_key"] for entry in some] == [hour(2).isoformat(), hour(3).isoformat()]
    between = await scan(PATH, "--from", "sensor-5", "--to", "sensor-51", "--ordered", "--fields", "celsius")
    assert [entry["key"] for entry in between] == ["sensor-5", "sensor-50"]
    assert await keyhole("scan", PATH, "--ordered", "--limit", "3") == 0
    assert f"{PATH}: 3 entries by sensor, in order" in " ".join(capsys.readouterr().out.split())
    figures = ("count", "max(celsius)", "min(m0)", "bottom(2,celsius)")
    asked = [word for figure in figures for word in ("--aggregate", figure)]
    assert await keyhole("scan", HOURLY, *asked, "--where", "celsius >= 20", "--fields", "celsius", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert [entry.pop("value") for entry in printed["values"].pop("bottom(2,celsius)")] == [
        {"celsius": 20.0},
        {"celsius": 21.0},
    ]
    assert printed == {
        "values": {"count": 4, "max(celsius)": 23.0, "min(m0)": hour(20).isoformat()},
        "epochs": [1],
    }
    ranges = (
        (HOURLY, ("--from", "sensor-7", "--map-to", "2026-11-21T04:00:00"), 4),
        (HOURLY, ("--from", "sensor-8"), 0),
        (PATH, ("--from", "sensor-5", "--to", "sensor-51"), 2),
        (PATH, ("--prefix", "sensor-9"), 11),
    )
    for path, within, count in ranges:
        assert await keyhole("scan", path, "--aggregate", "count", *within, "--json") == 0
        assert json.loads(capsys.readouterr().out)["values"] == {"count": count}, within
    assert await keyhole("scan", PATH, "--aggregate", "count", "--aggregate", "top(1,celsius)") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{PATH}: top(1,celsius)" in shown
    assert "100" in shown


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((HOURLY, "--where", "kelvin > 3"), "no field of state"),
        ((HOURLY, "--aggregate", "median(celsius)"), "an aggregate is count"),
        ((HOURLY, "--aggregate", "sum(sensor)"), "'sensor' is of type string, of which there is no sum"),
        ((HOURLY, "--where", "celsius"), "write FIELD OP VALUE"),
        ((HOURLY, "sensor-7", "--where", "celsius > hot"), "'celsius' is of type double: give a number"),
        ((HOURLY, "--fields", "kelvin"), "no field 'kelvin'"),
        ((HOURLY, "--fields", "count", "--keys-only"), "contradict each other"),
        ((PATH, "sensor-7"), "no entries to scan"),
        ((PATH, "sensor-7", "--from", "a"), "no entries to scan"),
        ((HOURLY, "sensor-7", "--from", "noon"), "give a time like"),
        ((PATH, "--after", "x"), "no token of an earlier one"),
        ((RULES, "sensor-7"), "kind broadcast, and listed whole"),
        ((WINDOWS, "sensor-7", "--to", "a,b,c"), "has 3 columns"),
        ((WINDOWS, "sensor-7", "--min-epoch", "9"), "at epoch 1"),
        (("weather/nothing", "sensor-7"), "windows"),
    ],
)
async def test_a_scan_that_cant_be_is_one_message_and_exit_code_1(
    keyhole: Command, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str
) -> None:
    assert (await refused(keyhole, capsys, says, "scan", *arguments)).startswith("keyhole: ")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((WINDOWS, "sensor-7", "--ordered"), "come in order"),
        ((WINDOWS, "sensor-7", "--prefix", "a"), "come in order"),
        ((WINDOWS, "sensor-7", "--map-to", "3"), "of one, give --from and --to"),
        ((WINDOWS, "sensor-7", "--after", "x"), "go on by --from"),
        ((RULES, "--after", "x"), "leave --after out"),
        ((HOURLY, "sensor-7", "--aggregate", "count"), "or of a range of them: leave KEY"),
        ((HOURLY, "--limit", "3", "--aggregate", "count"), "or of a range of them: leave KEY"),
        ((HOURLY, "--ordered", "--aggregate", "count"), "say by --where, --from"),
    ],
)
async def test_options_that_contradict_each_other_are_wrong_usage(
    keyhole: Command, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str
) -> None:
    assert await keyhole("scan", *arguments) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert says in printed.err


async def test_a_limit_of_nothing_is_wrong_usage() -> None:
    with pytest.raises(SystemExit) as caught:
        main(["scan", HOURLY, "sensor-7", "--limit", "0"])
    assert caught.value.code == 2


async def test_describe_and_status_tell_who_holds_what(keyhole: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert await keyhole("describe", PATH, "--format", "json") == 0
    described = json.loads(capsys.readouterr().out)
    (holding,) = described["holdings"]
    assert (described["state"], holding["server"]) == (STATE, "server-a")
    assert (holding["key_groups"], holding["all_key_groups"], holding["lag_epochs"]) == (16, 16, 0)
    assert 0 <= holding["staleness_seconds"] < LONG_SECONDS
    assert (holding["lag_updates"], holding["updates_lag_seconds"]) == (0, 0.0)
    assert (holding["restored_records"], holding["records_to_restore"]) == (0, 0)
    assert await keyhole("status", "--json") == 0
    (server,) = json.loads(capsys.readouterr().out)
    assert (server["server"], server["unreachable"], server["holdings"][0]["ready"]) == ("server-a", None, True)
    assert await keyhole("status") == 0
    shown = capsys.readouterr().out
    assert "server-a" in shown
    assert "16 of 16" in shown


async def test_describe_says_of_which_version_the_class_is_that_makes_what_is_stored(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with fake_servers("server-a") as (server,), proxy_of(server.address) as proxy:
        for version in (0, 1, 3):
            server.host(msgspec.structs.replace(descriptor(f"of-{version}"), class_version=version))

        async def described(version: int, *options: str) -> str:
            path = f"{APPLICATION}/of-{version}"
            assert await asyncio.to_thread(main, ["describe", path, "--proxy", proxy.address, *options]) == 0
            return capsys.readouterr().out

        assert [json.loads(await described(version, "--json"))["class_version"] for version in (0, 1, 3)] == [0, 1, 3]
        for version, shown in ((1, "1"), (3, "3")):
            _, names, _, row, *_ = (await described(version)).splitlines()[1:]
            assert _column(names, row, "class_version") == shown
        assert "class_version" not in await described(0), "there is no class"


def _column(names: str, row: str, name: str) -> str:
    """What a row of a table has there."""
    cells = [[cell.strip() for cell in re.split("[│┃]", line)] for line in (names, row)]
    return dict(zip(*cells, strict=True))[name]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
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
    async def run(*arguments: str) -> int:
        return await asyncio.to_thread(main, [*arguments])

    with unused_address() as address:
        await refused(run, capsys, f"{address} can't be reached", "states", "--proxy", address)


def test_wrong_usage_is_exit_code_2() -> None:
    with pytest.raises(SystemExit) as caught:
        main(["get"])
    assert caught.value.code == 2


def test_reading_imports_neither_spark_nor_kafka_nor_numpy() -> None:
    code = (
        "import sys, keyhole.cli.main, keyhole.cli.reads; "
        "print([name for name in ('pyspark', 'confluent_kafka', 'numpy', 'pyarrow', 'lmdb') if name in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert printed.strip() == "[]"


async def test_retire_has_all_servers_forget_and_says_what_each_has_forgotten(
    capsys: pytest.CaptureFixture[str],
) -> None:
    kafka = MemoryKafka()
    async with state_server("a", kafka) as a, state_server("b", kafka) as b, proxy_of(a.address, b.address) as proxy:

        async def run(*arguments: str) -> int:
            return await asyncio.to_thread(main, ["retire", *arguments])

        await a.own(descriptor())
        await b.follow(descriptor())
        says = "query 'main' of application weather is running"
        await refused(run, capsys, says, APPLICATION, "--proxy", proxy.address)
        for server in (a, b):
            server.clock.ahead_seconds += 2 * LEASE_SECONDS
        assert await run(APPLICATION, "another", "--proxy", proxy.address, "--json") == 0
        assert json.loads(capsys.readouterr().out)["retired"] == []
        with unused_address() as nobody:
            assert await run(APPLICATION, "main", "--servers", f"{a.address},{nobody}", "--json") == 1
        printed = json.loads(capsys.readouterr().out)
        assert printed["retired"] == [{"server": a.address, "query": "main", "states": [STATE]}]
        assert len(printed["not_asked"]) == 1
        assert await run(APPLICATION, "--proxy", proxy.address) == 0
        shown = capsys.readouterr().out
        assert f"forgotten of {APPLICATION}" in shown
        assert re.search(rf"b +│ main +│ {STATE} ", shown)


async def test_retire_that_one_server_refuses_has_none_forget_anything(capsys: pytest.CaptureFixture[str]) -> None:
    """The first one was cut off from the job for longer than its lease, and is asked first."""
    kafka = MemoryKafka()
    async with state_server("a", kafka) as a, state_server("b", kafka) as b:
        for server in (a, b):
            await server.own(descriptor())
        a.clock.ahead_seconds += 2 * LEASE_SECONDS

        async def run(*arguments: str) -> int:
            return await asyncio.to_thread(main, ["retire", APPLICATION, *arguments])

        servers = ("--servers", f"{a.address},{b.address}")
        await refused(run, capsys, "query 'main' of application weather is running: server b", *servers)
        for server in (a, b):
            registry = server.server._registry
            assert registry is not None
            assert registry.table(APPLICATION, STATE).groups
        b.clock.ahead_seconds += 2 * LEASE_SECONDS
        assert await run(*servers, "--json") == 0
        retired = json.loads(capsys.readouterr().out)["retired"]
        assert [of["server"] for of in retired] == [a.address, b.address]


async def test_a_drain_that_is_refused_leaves_every_server_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    kafka = MemoryKafka()
    async with (
        state_server("a", kafka) as a,
        state_server("b", kafka, security={"role": "replica", "applications": (APPLICATION,)}) as b,
    ):
        await a.own(descriptor())
        with unused_address() as nobody:
            async with proxy_of(a.address, b.address, nobody) as proxy:

                async def run(*arguments: str) -> int:
                    return await asyncio.to_thread(main, ["drain", *arguments, "--proxy", proxy.address])

                def standing() -> list[object]:
                    registries = [server.server._registry for server in (a, b)]
                    assert all(registries)
                    return [(of.draining, of.ready, of.owning, of.next_change()) for of in registries if of is not None]

                await eventually(lambda: len(proxy._directory.tables) == 1)
                before = standing()
                for undo in ([], ["--undo"]):
                    await refused(run, capsys, "there is no state server c; there are", "c", *undo)
                    await refused(run, capsys, "server b is a replica: it owns nothing", "b", *undo)
                    await refused(run, capsys, f"server {nobody} can't be reached", nobody, *undo)
                    # Whoever asks the server itself is told the same by it.
                    with pytest.raises(Unsupported, match="server b is a replica: it owns nothing"):
                        await asyncio.to_thread(drain, b.address, undo=bool(undo), timeout_seconds=LONG_SECONDS)
                assert standing() == before
                assert not (await asyncio.to_thread(drain, b.address, look=True)).draining


async def test_move_tells_the_server_that_is_to_have_them_and_those_that_were_to_before(
    capsys: pytest.CaptureFixture[str],
) -> None:
    kafka = MemoryKafka()
    async with state_server("a", kafka) as a, state_server("b", kafka) as b, proxy_of(a.address, b.address) as proxy:

        async def run(*arguments: str) -> int:
            return await asyncio.to_thread(main, [*arguments, "--proxy", proxy.address])

        async def placed() -> dict[str, list[int]]:
            assert await run("status", "--json") == 0
            servers = json.loads(capsys.readouterr().out)
            moved = {of["server"]: of["placements"] for of in servers}
            assert {of["state"] for all_of in moved.values() for of in all_of} <= {PATH}
            return {server: of["key_groups"] for server, all_of in moved.items() for of in all_of}

        await a.own(descriptor())
        groups = descriptor().key_groups
        moving = ("move", PATH, "2", "0")
        beyond = f"has no key group {groups}: they are 0 to {groups - 1}"
        assert await run("move", PATH, "0", str(groups), "--to", "b") == 2
        assert beyond in capsys.readouterr().err
        await refused(run, capsys, "there is no state server c; there are a, b", *moving, "--to", "c")
        await refused(run, capsys, "has no state", "move", f"{APPLICATION}/other", "0", "--to", "b")
        assert await placed() == {}
        # Nobody moves them here: there is no driver.
        assert await run(*moving, "--to", "b", "--wait", "1") == 1
        assert "b does not own key groups 0 and 2 of" in capsys.readouterr().out
        assert await placed() == {"b": [0, 2]}
        assert await run("status") == 0
        assert "what `keyhole move` has placed" in capsys.readouterr().out
        assert await run("move", PATH, "0", "--to", a.address, "--json") == 0
        expected = {"state": PATH, "key_groups": [0], "to": "a", "owned": [0], "not_asked": {}}
        assert json.loads(capsys.readouterr().out) == expected
        assert await placed() == {"a": [0], "b": [2]}
        assert await run(*moving, "--to", "a") == 0
        assert f"a owns key groups 0 and 2 of {PATH}, until it ends or" in capsys.readouterr().out
        assert await placed() == {"a": [0, 2]}
        assert await run("move", PATH, "0", "--undo") == 0
        assert f"key group 0 of {PATH} may be on any server again" in capsys.readouterr().out
        assert await placed() == {"a": [2]}
        assert await run("drain", "b", "--wait", "0") == 0
        capsys.readouterr()
        await refused(run, capsys, "server b drains", *moving, "--to", "b")
        assert await placed() == {"a": [2]}


async def test_move_says_who_could_not_be_asked_and_takes_a_server_with_two_addresses_for_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    kafka = MemoryKafka()
    async with state_server("a", kafka) as a, state_server("b", kafka) as b:
        await a.own(descriptor())
        twice = a.address.replace("127.0.0.1", "localhost")
        with unused_address() as nobody:
            async with proxy_of(a.address, twice, b.address, nobody) as proxy:

                async def run(*arguments: str) -> dict[str, object]:
                    moving = ("move", PATH, "0", *arguments, "--proxy", proxy.address, "--json")
                    assert await asyncio.to_thread(main, [*moving]) == 1
                    printed: dict[str, object] = json.loads(capsys.readouterr().out)
                    return printed

                assert a.server._registry is not None
                for _ in range(2):
                    printed = await run("--to", "a")
                    assert (printed["owned"], list(printed["not_asked"])) == ([0], [nobody])  # type: ignore[call-overload]
                    assert [list(of.key_groups) for of in a.server._registry.status(0).placements] == [[0]]
                assert list((await run("--undo"))["not_asked"]) == [nobody]  # type: ignore[call-overload]
                assert not a.server._registry.status(0).placements


async def test_what_was_moved_of_a_state_that_there_is_no_more_can_be_undone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with state_server("a", MemoryKafka()) as a, proxy_of(a.address) as proxy:
        registry = a.server._registry
        assert registry is not None
        registry.move(APPLICATION, "gone", "gone", frozenset({3}))
        moving = ["move", f"{APPLICATION}/gone", "3", "--undo", "--proxy", proxy.address]
        assert await asyncio.to_thread(main, moving) == 0
        assert "key group 3 of weather/gone may be on any server again" in capsys.readouterr().out
        assert not registry.status(0).placements


async def test_types_are_written_for_the_states_of_an_application_or_some_of_them(
    keyhole: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await keyhole("codegen", APPLICATION) == 0
    written = capsys.readouterr().out
    compile(written, "written", "exec")
    assert f'READINGS = "{PATH}"' in written
    assert "class Hourly(" in written
    assert await keyhole("codegen", APPLICATION, STATE, "--language", "typescript") == 0
    written = capsys.readouterr().out
    assert "export interface Readings<" in written
    assert "Hourly" not in written
    assert "has no state nonsense; it has fresh, hourly, readings, rules, windows" in await refused(
        keyhole, capsys, "nonsense", "codegen", APPLICATION, "nonsense"
    )
    await refused(keyhole, capsys, "no application 'nonsense'", "codegen", "nonsense")
