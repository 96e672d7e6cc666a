"""The main path: one query feeds a state of every kind, over a crash and a restart; whoever can read, reads it.

All tests read what one fixture has fed. They need one Kafka, one Spark, one state server and one proxy.
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from keyhole import AsyncClient, Client
from keyhole.cli.main import main
from keyhole.errors import (
    DeadlineExceeded,
    EpochNotReached,
    KeyholeError,
    KeyMismatch,
    NullKey,
    UnknownApplication,
    UnknownState,
    Unsupported,
)
from keyhole.model.read import Role
from keyhole.protocol.failpoints import Step
from keyhole.spark import queryable
from tests.support.all_kinds import (
    ABSENT,
    KEYS,
    SCHEMA,
    SUBTASKS,
    WATERMARK,
    Recount,
    all_kinds,
    batches,
    packed,
    recount,
)
from tests.support.exporters import exporter_of, scrape
from tests.support.refusals import longer_and_longer
from tests.support.streams import Service, file_stream, run_to_end
from tests.support.waiting import LONG_SECONDS, until

APPLICATION, QUERY = "main-path", "feeding"
STATES = {
    "last": "value",
    "pairs": "value",
    "per_m": "map",
    "log": "list",
    "sums": "reducing",
    "mean": "aggregating",
    "rules": "broadcast",
    "seen": "aggregating",
    "recent": "value",
    "packed": "map",
}
BATCHES = batches()
EPOCHS = len(BATCHES)
# The batch of this epoch is run twice.
BROKEN_OFF = 2


class Crash(Exception):
    """What ends the first run."""


@dataclass
class Crashing:
    """Ends a run when all servers have committed an epoch, and nobody has been told yet."""

    at: int = BROKEN_OFF

    def reached(self, step: Step, epoch: int) -> None:
        if step is Step.DRIVER_COMMITTED and epoch == self.at:
            raise Crash("the driver's end")


@dataclass
class Fed:
    """What was fed. `committed`: the epochs that `on_commit` was called with, run by run."""

    service: Service
    checkpoint: Path
    expected: Recount
    began: datetime
    committed: list[list[int]] = field(default_factory=list)

    @property
    def kafka(self) -> list[str]:
        return ["--bootstrap-servers", self.service.bootstrap_servers]


@pytest.fixture(scope="module")
def fed(spark: SparkSession, service: Service, tmp_path_factory: pytest.TempPathFactory) -> Fed:
    """The first run ends in its second batch; the next one has the same checkpoint, and goes on."""
    folder = tmp_path_factory.mktemp("fed")
    of = Fed(service, folder / "checkpoint", recount(BATCHES), datetime.now(UTC))

    def run(upto: int, **options: Any) -> None:
        of.committed.append([])
        sink = all_kinds(service.config(APPLICATION), query=QUERY, on_commit=of.committed[-1].append, **options)
        data = file_stream(spark, folder / "source", SCHEMA, BATCHES[:upto]).withWatermark("at", WATERMARK)
        run_to_end(data, "append", sink, of.checkpoint, QUERY)

    with pytest.raises(StreamingQueryException, match="the driver's end"):
        run(BROKEN_OFF, observer=Crashing())
    run(EPOCHS)
    return of


@pytest.fixture(scope="module")
def client(fed: Fed) -> Iterator[Client]:
    with Client(fed.service.proxy, timeout=LONG_SECONDS) as client:
        yield client


def values(client: Client, state: str, of: Callable[[Any], object]) -> dict[str, object]:
    """By key, what `of` makes of the value; without those that are not found."""
    answers = client.get_many(APPLICATION, state, [*KEYS, ABSENT])
    return {key: of(answer.value) for key, answer in zip([*KEYS, ABSENT], answers, strict=True) if answer.found}


def test_each_epoch_is_told_once_though_a_batch_was_run_twice(fed: Fed) -> None:
    assert fed.committed == [[1], [2, 3]]


def test_a_value_is_the_last_row_of_its_key(fed: Fed, client: Client) -> None:
    assert values(client, "last", lambda value: value.v) == fed.expected.last


@pytest.mark.parametrize("key", ["k5", ABSENT], ids=["deleted", "never there"])
def test_an_absent_key_is_not_found_and_never_a_default(fed: Fed, client: Client, key: str) -> None:
    """F07."""
    assert key not in fed.expected.last
    answer = client.get(APPLICATION, "last", key)
    assert (answer.found, answer.value, answer.epoch) == (False, None, EPOCHS)


def test_a_key_may_have_several_columns(fed: Fed, client: Client) -> None:
    keys = [(k, m) for k in KEYS for m in range(-4, 5)]
    answers = client.get_many(APPLICATION, "pairs", keys)
    assert {key: of.value.v for key, of in zip(keys, answers, strict=True) if of.found} == fed.expected.pairs


def test_a_map_has_the_last_row_of_each_map_key_in_order(fed: Fed, client: Client) -> None:
    for key in [*KEYS, ABSENT]:
        entries = [(entry.map_key, entry.value.v) for entry in client.scan(APPLICATION, "per_m", key)]
        assert entries == sorted(fed.expected.per_m.get(key, {}).items()), key


def test_a_range_of_a_map_is_scanned_from_either_end(fed: Fed, client: Client) -> None:
    within = [m for m in sorted(fed.expected.per_m["k0"]) if -3 <= m < 3]
    assert len(within) > 2
    found = client.scan(APPLICATION, "per_m", "k0", start=-3, stop=3)
    assert [entry.map_key for entry in found] == within
    found = client.scan(APPLICATION, "per_m", "k0", start=-3, stop=3, descending=True, limit=2)
    assert [entry.map_key for entry in found] == within[:-3:-1]


def test_an_entry_of_a_map_is_looked_up_by_key_and_map_key(fed: Fed, client: Client) -> None:
    for m in range(-4, 5):
        answer = client.get(APPLICATION, "per_m", ("k5", m))
        assert (answer.value.v if answer.found else None) == fed.expected.per_m["k5"].get(m)


def test_a_list_has_the_last_rows_of_all_batches_in_order(fed: Fed, client: Client) -> None:
    for key in [*KEYS, ABSENT]:
        found = client.scan(APPLICATION, "log", key)
        assert [element.v for element in found.values] == fed.expected.log.get(key, []), key


def test_a_sum_has_each_row_once(fed: Fed, client: Client) -> None:
    expected = {key: (sum(of), fed.expected.times[key]) for key, of in fed.expected.values.items()}
    assert values(client, "sums", lambda value: (value.v, value.at)) == expected


def test_an_aggregate_is_the_result_of_all_rows(fed: Fed, client: Client) -> None:
    expected = {key: (sum(of) / len(of), len(of)) for key, of in fed.expected.values.items()}
    assert values(client, "mean", lambda value: (value.mean, value.rows)) == expected


def test_a_broadcast_state_is_one_key_group_and_read_whole(fed: Fed, client: Client) -> None:
    assert client.describe_state(APPLICATION, "rules").key_groups == 1
    assert values(client, "rules", lambda value: value.v) == fed.expected.last
    expected = sorted(fed.expected.last.items())
    assert [(entry.map_key, entry.value.v) for entry in client.scan(APPLICATION, "rules", ())] == expected
    of = client.scan(APPLICATION, "rules", (), start="k2")
    assert [entry.map_key for entry in of] == [key for key, _ in expected if key >= "k2"]


def test_the_subtasks_of_an_operator_have_seen_each_row_once(fed: Fed, client: Client) -> None:
    answers = client.get_many(APPLICATION, "seen", range(SUBTASKS))
    assert sum(answer.value.rows for answer in answers if answer.found) == fed.expected.seen


def test_what_has_expired_is_not_found(fed: Fed, client: Client) -> None:
    assert values(client, "recent", lambda value: value.v) == fed.expected.recent
    assert set(fed.expected.last) - set(fed.expected.recent) == {"k7"}, "the rows have one that expires"


def test_values_of_the_jobs_own_making_come_back_as_its_bytes(fed: Fed, client: Client) -> None:
    for key in KEYS:
        expected = [packed(v) for _, v in sorted(fed.expected.per_m.get(key, {}).items())]
        assert [element.value for element in client.scan(APPLICATION, "packed", key).values] == expected


def test_all_states_of_a_query_have_one_epoch(fed: Fed, client: Client) -> None:
    epochs = {
        state: {answer.epoch for answer in client.get_many(APPLICATION, state, KEYS)}
        for state in ("last", "sums", "mean", "rules")
    }
    epochs["per_m"] = {client.scan(APPLICATION, "per_m", key).epoch for key in KEYS}
    assert epochs == {state: {EPOCHS} for state in epochs}


def test_an_answer_tells_who_gave_it_and_when_it_was_committed(fed: Fed, client: Client) -> None:
    answer = client.get(APPLICATION, "last", "k0")
    assert (answer.epoch, answer.server, answer.role) == (EPOCHS, "server-0", Role.OWNER)
    assert answer.commit_time is not None
    assert fed.began <= answer.commit_time <= datetime.now(UTC)


def test_a_session_never_goes_back_and_an_epoch_that_is_not_there_yet_is_refused(fed: Fed, client: Client) -> None:
    session = client.session()
    assert session.get(APPLICATION, "last", "k0").epoch == EPOCHS
    assert session.epochs == {(APPLICATION, "last"): EPOCHS}
    assert client.get(APPLICATION, "last", "k0", min_epoch=EPOCHS).found
    # It is waited for as long as the reader has time. What is left of that must be enough for the answer to come back.
    for seconds in longer_and_longer(2.0):
        with pytest.raises(KeyholeError) as caught:
            client.get(APPLICATION, "last", "k0", min_epoch=EPOCHS + 1, timeout=seconds)
        if not isinstance(caught.value, DeadlineExceeded):  # it is where the machine is slow
            break
    assert isinstance(caught.value, EpochNotReached)
    assert f"epoch {EPOCHS}" in caught.value.message


def test_what_was_committed_is_read_after_the_job_has_ended(fed: Fed, client: Client) -> None:
    def unconfirmed() -> bool:
        answer = client.get(APPLICATION, "last", "k0")
        assert answer.value.v == fed.expected.last["k0"]
        return answer.source.unconfirmed

    until(unconfirmed, LONG_SECONDS, pause=0.1)  # once the lease is over


def test_a_wrong_application_and_a_wrong_state_have_errors_of_their_own(client: Client) -> None:
    """F05."""
    with pytest.raises(UnknownApplication, match=APPLICATION):
        client.get("elsewhere", "last", "k0")
    with pytest.raises(UnknownState, match="last"):
        client.get(APPLICATION, "first", "k0")


def test_a_key_of_another_type_or_arity_is_refused(client: Client) -> None:
    with pytest.raises(KeyMismatch, match="2"):
        client.get(APPLICATION, "pairs", "k0")
    with pytest.raises(KeyMismatch, match="m"):
        client.get(APPLICATION, "pairs", ("k0", "1"))
    with pytest.raises(NullKey, match="m"):
        client.get(APPLICATION, "pairs", ("k0", None))  # type: ignore[arg-type]  # what a careless caller does


def test_a_state_without_entries_is_not_scanned(client: Client) -> None:
    with pytest.raises(Unsupported, match="no entries"):
        client.scan(APPLICATION, "last", "k0")


async def test_gathered_gets_of_a_service_are_each_answered_for_themselves(fed: Fed) -> None:
    keys = [*KEYS, ABSENT] * 20
    async with AsyncClient(fed.service.proxy, timeout=LONG_SECONDS) as client:
        answers = await asyncio.gather(*(client.get(APPLICATION, "last", key) for key in keys))
        entries = await client.scan(APPLICATION, "per_m", "k0")
    assert [of.value.v if of.found else None for of in answers] == [fed.expected.last.get(key) for key in keys]
    assert {entry.map_key: entry.value.v for entry in entries} == fed.expected.per_m["k0"]


def http(fed: Fed, path: str, body: object = None) -> Any:
    """What the proxy answers."""
    # Not through a proxy that the environment names: it is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    data = None if body is None else json.dumps(body).encode()
    with opener.open(f"http://{fed.service.http}/v1/{APPLICATION}/{path}", data, timeout=LONG_SECONDS) as answer:
        return json.load(answer)


def test_the_same_is_read_over_http(fed: Fed) -> None:
    assert http(fed, "last/k0")["value"]["v"] == fed.expected.last["k0"]
    assert not http(fed, f"last/{ABSENT}")["found"]
    answers = http(fed, "last:batchGet", {"keys": KEYS})["answers"]
    found = {key: of["value"]["v"] for key, of in zip(KEYS, answers, strict=True) if of["found"]}
    assert found == fed.expected.last
    entries = http(fed, "per_m/k0?from=-3&to=3")["entries"]
    within = {m: v for m, v in fed.expected.per_m["k0"].items() if -3 <= m < 3}
    assert {of["map_key"]: of["value"]["v"] for of in entries} == within
    assert [of["value"]["v"] for of in http(fed, "log/k0")["entries"]] == fed.expected.log["k0"]


@pytest.fixture
def keyhole(fed: Fed, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Runs `keyhole ARGUMENTS --json`; what it printed."""

    def run(*arguments: str) -> Any:
        code = main([*arguments, "--json"])
        shown = capsys.readouterr()
        assert code == 0, shown.err
        return json.loads(shown.out)

    return run


def test_the_same_is_read_on_the_command_line(fed: Fed, keyhole: Callable[..., Any]) -> None:
    proxy = ["--proxy", fed.service.proxy]
    found, absent = keyhole("get", f"{APPLICATION}/last", "k0", ABSENT, *proxy)
    assert (found["value"]["v"], found["epoch"], absent["found"]) == (fed.expected.last["k0"], EPOCHS, False)
    entries = keyhole("scan", f"{APPLICATION}/per_m", "k0", *proxy)["entries"]
    assert {entry["map_key"]: entry["value"]["v"] for entry in entries} == fed.expected.per_m["k0"]


def test_the_command_line_tells_what_states_there_are_and_who_holds_them(fed: Fed, keyhole: Callable[..., Any]) -> None:
    proxy = ["--proxy", fed.service.proxy]
    assert {of["state"]: of["kind"] for of in keyhole("states", *proxy)} == {
        f"{APPLICATION}/{state}": kind for state, kind in STATES.items()
    }
    (holding,) = keyhole("describe", f"{APPLICATION}/sums", *proxy)["holdings"]
    assert (holding["server"], holding["key_groups"], holding["all_key_groups"]) == ("server-0", 4, 4)
    (server,) = keyhole("status", *proxy)
    assert (server["server"], server["unreachable"]) == ("server-0", None)
    assert {of["state"] for of in server["holdings"] if of["ready"]} == {f"{APPLICATION}/{state}" for state in STATES}


def test_a_job_looks_the_state_up_beside_its_rows(spark: SparkSession, fed: Fed) -> None:
    rows = spark.createDataFrame([(key,) for key in [*KEYS, ABSENT]], "name string")
    found = queryable.lookup(rows, f"{APPLICATION}/last", key="name", proxy=fed.service.proxy).collect()
    assert {row.name: row.last.v for row in found if row.last is not None} == fed.expected.last
    assert len(found) == len(KEYS) + 1


@pytest.mark.parametrize("state", STATES)
def test_a_servers_copy_is_its_changelog_record_by_record(fed: Fed, keyhole: Callable[..., Any], state: str) -> None:
    verdict = keyhole("verify", f"{APPLICATION}/{state}", *fed.kafka, "--proxy", fed.service.proxy)
    assert (verdict["differences"], verdict["unreachable"], verdict["not_compared"]) == ([], {}, [])
    (copy,) = verdict["copies"]
    assert copy["key_groups"] == copy["all_key_groups"]


def test_a_savepoint_has_all_states_at_the_last_epoch(fed: Fed, keyhole: Callable[..., Any], tmp_path: Path) -> None:
    path = str(tmp_path / "savepoint")
    checkpoint = ["--checkpoint", f"{QUERY}={fed.checkpoint}"]
    saved = {
        of["state"]: of for of in keyhole("savepoint", "create", APPLICATION, "--to", path, *checkpoint, *fed.kafka)
    }
    assert {state: of["epoch"] for state, of in saved.items()} == {f"{APPLICATION}/{of}": EPOCHS for of in STATES}
    assert saved[f"{APPLICATION}/sums"]["rows"] == len(fed.expected.values)
    (listed,) = keyhole("savepoint", "list", str(tmp_path), "--check")
    assert (listed["sound"], listed["epochs"]) == (True, {QUERY: EPOCHS})


async def test_the_metrics_tell_of_the_epochs_and_of_the_reads(fed: Fed) -> None:
    of = {"application": APPLICATION, "query": QUERY}
    async with asyncio.timeout(LONG_SECONDS), AsyncClient(fed.service.proxy, timeout=LONG_SECONDS) as client:
        await client.get_many(APPLICATION, "last", KEYS)
        async with exporter_of([fed.service.server], [fed.service.proxy]) as exporter:
            while True:
                await exporter.put_together()
                scraped = await scrape(exporter.address)
                looked_up = scraped.value("keyhole_client_proxy_lookup_keys_total", application=APPLICATION) or 0
                # Whoever has not answered in time is asked again.
                if looked_up >= len(KEYS) and scraped.value("keyhole_state_server_committed_epoch", **of) is not None:
                    break
                await asyncio.sleep(0.05)
    assert scraped.value("keyhole_state_server_committed_epoch", **of) == EPOCHS
