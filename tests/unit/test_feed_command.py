"""What `keyhole feed` is told: the state that it comes to, and what is refused before anything is made."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import threading
from collections.abc import Callable

import msgspec
import pytest

from keyhole.cli import feed
from keyhole.cli.arguments import parser_of_all
from keyhole.cli.feed import feed_config, feed_options, progress
from keyhole.cli.feed_arguments import FORMATS, UNORDERED
from keyhole.cli.main import main
from keyhole.config import JobConfig
from keyhole.coordinator.stats import stats_of
from keyhole.errors import Fenced, InvalidConfiguration, KeyholeError, UnknownState
from keyhole.feed.deleting_records import Unordered
from keyhole.feed.feed_options import FeedOptions, RecordFormat, describe, key_columns, reduced_columns, value_columns
from keyhole.feed.preview import check_records
from keyhole.feed.rates import Rates
from keyhole.feed.record_encoding import JSON
from keyhole.feed.registry.encodings import AvroEncoding, ProtobufEncoding
from keyhole.feed.registry.schemas import RegisteredSchema
from keyhole.feed.rows import SourceRecord
from keyhole.feed.topic_feed import FeedFigures
from keyhole.model.state import StateDescriptor, StateKind
from keyhole.testing.clock import ManualClock
from tests.support.avro_records import framed, record_schema
from tests.support.schema_registry import StandInSource

FEED = ["feed", "shop/totals", "--topic", "orders"]
KEY = ["--key", "customer"]


def options_of(*words: str) -> FeedOptions:
    return feed_options(parser_of_all().parse_args([*FEED, *words]))


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KEYHOLE_JOB_BOOTSTRAP_SERVERS", "KEYHOLE_JOB_SERVERS"):
        monkeypatch.delenv(name, raising=False)


def test_a_sum_by_customer_is_a_reducing_state() -> None:
    value, reducers = reduced_columns(["amount=sum", "price:decimal(9,2)=max"])
    assert options_of(*KEY, "--reduce", "amount=sum", "--reduce", "price:decimal(9,2)=max") == FeedOptions(
        "shop", "totals", key_columns(["customer"]), value, reducers
    )


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ([], StateKind.VALUE),
        (["--order-by", "amount", "--ttl", "2.5"], StateKind.VALUE),
        (["--map-key", "day:date"], StateKind.MAP),
        (["--max-length", "10"], StateKind.LIST),
    ],
    ids=" ".join,
)
def test_rows_are_values_maps_and_lists(words: list[str], kind: StateKind) -> None:
    options = options_of(*KEY, "--value", "amount:double", "--value", "note", *words)
    of = describe(options)
    assert (of.kind, of.query, of.key_groups) == (kind, "totals", 16)
    assert options.value == value_columns(["amount:double", "note"])
    assert options.ttl_ms == (2500 if "--ttl" in words else 0)


def test_formats_are_those_that_a_feeder_reads() -> None:
    assert list(RecordFormat) == list(FORMATS)
    assert list(Unordered) == list(UNORDERED)
    assert options_of(*KEY, "--reduce", "amount=sum", "--format", "debezium").format is RecordFormat.DEBEZIUM


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--value", "amount"], "name the column by which the state is read: --key customer"),
        (KEY, "say what is kept of a key: --reduce amount=sum"),
        ([*KEY, "--value", "amount", "--reduce", "amount=sum"], "give one of the two"),
        ([*KEY, "--reduce", "amount"], "write column=reducer, as amount=sum"),
        ([*KEY, "--reduce", "amount=median"], "median"),
        ([*KEY, "--value", "amount:money"], "money"),
        (["--key", "customer:double", "--value", "amount"], "which can't be a key: take one of"),
        ([*KEY, "--value", "customer"], "column 'customer' is named twice"),
        ([*KEY, "--value", "amount", "--order-by", "price"], "order_by names 'price'"),
        ([*KEY, "--value", "amount", "--topic", "keyhole.shop.totals.updates"], "one of Keyhole's own"),
        ([*KEY, "--reduce", "amount=max", "--format", "debezium"], "max can't follow the changes of a table"),
        ([*KEY, "--value", "amount", "--ttl", "1e308"], "a ttl is at most 31536000000 seconds"),
        ([*KEY, "--value", "amount", "--ttl", "1e12"], "a ttl is at most 31536000000 seconds"),
        ([*KEY, "--value", "amount", "--max-length", "9" * 30], "it is at most"),
        ([*KEY, "--value", "amount", "--topic", "t" * 238], "a name of more than 237 characters"),
        ([*KEY, "--value", "amount", "--format", "avro"], "--format avro needs --registry http://HOST:PORT"),
        ([*KEY, "--value", "amount", "--format", "protobuf"], "--format protobuf needs --registry http://HOST:PORT"),
        (
            [*KEY, "--value", "amount", "--registry", "http://r:1"],
            "--registry is for --format avro, debezium-avro and protobuf",
        ),
        (
            [*KEY, "--reduce", "amount=max", "--format", "debezium-avro", "--registry", "r"],
            "max can't follow the changes",
        ),
        ([*KEY, "--value", "amount"], "give --bootstrap-servers HOST:PORT, or set KEYHOLE_JOB_BOOTSTRAP_SERVERS"),
        ([*KEY, "--value", "amount", "--bootstrap-servers", "k:9092"], "give --servers HOST:PORT, or set"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else None,
)
def test_what_contradicts_itself_or_lacks_is_said_with_what_to_write(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*FEED, *words]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["feed", "--topic", "orders", *KEY],
        ["feed", "shop/totals", *KEY],
        [*FEED, *KEY, "--format", "orc"],
        [*FEED, *KEY, "--key-groups", "0"],
        [*FEED, *KEY, "--standbys", "-1"],
        [*FEED, *KEY, "--ttl", "0"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_exit_code_2(words: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2


def test_options_come_before_the_settings_of_every_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("BOOTSTRAP_SERVERS", "kafka:1"), ("SERVERS", "a:1,b:1"), ("APPLICATION", "another")):
        monkeypatch.setenv(f"KEYHOLE_JOB_{name}", value)
    monkeypatch.setenv("KEYHOLE_JOB_TOKEN_FILE", "/token")
    words = [*FEED, *KEY, "--value", "amount"]
    config = feed_config(parser_of_all().parse_args(words), "shop")
    assert (config.bootstrap_servers, config.servers) == ("kafka:1", ("a:1", "b:1"))
    assert (config.application, config.token_file, config.tls) == ("shop", "/token", "off")
    words += ["--bootstrap-servers", "k:2?settings=/f", "--servers", "dns:s:7410, c:1", "--tls-ca", "/ca"]
    config = feed_config(parser_of_all().parse_args(words), "shop")
    assert (config.bootstrap_servers, config.servers) == ("k:2?settings=/f", ("dns:s:7410", "c:1"))
    assert (config.tls, config.tls_ca) == ("on", "/ca")


class FakeProcess:
    """Is told to end while it is put away; `fails`: what its feed ends with."""

    def __init__(self, fails: KeyholeError | None) -> None:
        self._fails = fails

    def start(self) -> None: ...

    def feed(self, stop: threading.Event, show: Callable[[FeedFigures], None]) -> FeedFigures:
        if self._fails is not None:
            raise self._fails
        return FeedFigures(True, 3)

    def close(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(("fails", "code"), [(None, 0), (Fenced("by run 2"), 1)], ids=repr)
def test_what_it_ended_with_is_told_whoever_is_impatient_meanwhile(
    fails: KeyholeError | None, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(feed, "_looked_at", lambda *given: given[2])
    monkeypatch.setattr(feed, "_process", lambda *_: FakeProcess(fails))
    monkeypatch.setattr("keyhole.logs.configure", lambda _: None)
    monkeypatch.setattr("keyhole.logs.tell_crashes", lambda: None)
    at = ["--bootstrap-servers", "k:1", "--servers", "s:1"]
    assert main([*FEED, *KEY, "--value", "amount", *at]) == code
    said = capsys.readouterr()
    assert "broken off" not in said.out
    assert ("stopped: 3 records read" in said.out) == (code == 0)
    assert ("by run 2" in said.err) == (code == 1)


def test_what_it_reads_and_refuses_is_told_as_a_job_tells_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = stats_of(JobConfig("refusing", ("s:1",), "k:1")).counts
    seen = []

    class Refusing(FakeProcess):
        def feed(self, stop: threading.Event, show: Callable[[FeedFigures], None]) -> FeedFigures:
            seen.append(counts.checked())
            for records, refused in ((5, 1), (5, 1), (9, 4)):
                show(FeedFigures(True, records, refused, "no JSON"))
                seen.append(counts.checked())
            return FeedFigures(True, 11, 6, "no JSON")

        def close(self) -> None: ...

    monkeypatch.setattr(feed, "_looked_at", lambda *given: given[2])
    monkeypatch.setattr(feed, "_process", lambda *_: Refusing(None))
    monkeypatch.setattr("keyhole.logs.configure", lambda _: None)
    monkeypatch.setattr("keyhole.logs.tell_crashes", lambda: None)
    at = ["--bootstrap-servers", "k:1", "--servers", "s:1"]
    assert main(["feed", "refusing/totals", "--topic", "orders", *KEY, "--value", "amount", *at]) == 0
    assert [of["orders"] for of in seen] == [(0, 0), (5, 1), (5, 1), (9, 4)]
    assert counts.checked() == {"orders": (11, 6)}
    assert "11 records read, 6 refused" in capsys.readouterr().out


def test_records_are_looked_at_for_a_new_state_and_one_that_is_there_keeps_its_key_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[str] = []

    def recorded(_: str, application: str, state: str) -> StateDescriptor:
        if state != "there":
            raise UnknownState("no")
        return msgspec.structs.replace(describe(options_of(*KEY, "--value", "a")), key_groups=5)

    def records(_: str, topic: str, partitions: int) -> list[SourceRecord]:
        looked.append(topic)
        assert partitions == 3
        return []

    monkeypatch.setattr(feed, "partitions_of", lambda *given: int(given == ("k:1", given[1], 77)) * 3)
    monkeypatch.setattr(feed, "recorded_state", recorded)
    monkeypatch.setattr(feed, "last_records", records)
    config = JobConfig("shop", ("s:1",), "k:1", kafka_deadline_seconds=77)
    key_groups = []
    for name, words in (("there", []), ("there", ["--key-groups", "7"]), ("new", ["--unchecked"]), ("new", [])):
        options = parser_of_all().parse_args(["feed", f"shop/{name}", "--topic", name, *KEY, "--value", "a", *words])
        chosen = feed_options(options)
        key_groups.append(feed._looked_at(options, config, describe(chosen), chosen, JSON).key_groups)
    assert looked == ["new"]
    assert key_groups == [5, 7, 16, 16], "those on record, where none are asked for; other ones are refused later"


AT = ["--bootstrap-servers", "k:1", "--servers", "s:1"]
OF_AVRO = [*KEY, "--value", "amount", "--format", "avro", "--registry"]


@pytest.mark.parametrize(("record_format", "lacks"), [("avro", "fastavro"), ("protobuf", "grpc_tools")])
def test_a_format_without_what_reads_it_is_refused_with_what_to_install(
    record_format: str, lacks: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == lacks else found(name))
    assert main([*FEED, *KEY, "--value", "amount", "--format", record_format, "--registry", "http://r:1", *AT]) == 1
    assert f"--format {record_format} needs {lacks}: install keyhole-spark[registry]" in capsys.readouterr().err


def test_avro_needs_nothing_of_protobuf(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "grpc_tools" else found(name))
    assert main([*FEED, *OF_AVRO, "r:8081", *AT]) == 1
    assert "--registry takes a URL" in capsys.readouterr().err


def test_a_registry_that_can_t_be_one_is_refused_before_kafka_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FEED, *OF_AVRO, "r:8081", *AT]) == 1
    assert "--registry takes a URL" in capsys.readouterr().err


def test_a_state_is_not_made_of_records_that_a_registry_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    def recorded(*_: str) -> None:
        raise UnknownState("no")

    monkeypatch.setattr(feed, "partitions_of", lambda *_: 1)
    monkeypatch.setattr(feed, "recorded_state", recorded)
    monkeypatch.setattr(feed, "last_records", lambda *_: [SourceRecord(0, 0, None, b"\0\0\0\0\x07")])
    source = StandInSource()
    source.away = True
    options = parser_of_all().parse_args([*FEED, *OF_AVRO, "http://r:1"])
    chosen = feed_options(options)
    with pytest.raises(InvalidConfiguration, match="it is away: check --registry"):
        feed._looked_at(
            options,
            JobConfig("shop", ("s:1",), "k:1"),
            describe(chosen),
            chosen,
            AvroEncoding(source, ManualClock()),
        )


ORDER = {"customer": "c1", "amount": 12.5}


def checked(*values: object, **changes: object) -> None:
    options = options_of(*KEY, "--reduce", "amount=sum")
    records = [
        SourceRecord(0, offset, None, value if isinstance(value, bytes) else json.dumps(value).encode())
        for offset, value in enumerate(values)
    ]
    check_records(records, describe(options), RecordFormat(str(changes.get("format", "json"))), "orders")


def test_records_that_fit_and_a_topic_without_any_pass() -> None:
    checked()
    checked(ORDER)
    checked(b"{", ORDER, {"customer": "c2"})


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([{"custmer": "c1", "amount": 1}], r"has a field customer \(is it custmer\?\)"),
        ([{"customer": "c1", "amuont": 1}], r"has a field amount \(is it amuont\?\)"),
        ([b"{", b"["], "none of the last 2 records of topic 'orders' can be fed, the last one as .* no JSON"),
        ([{"customer": "c1", "amount": "much"}], "none of the last 1 records .* can be fed"),
    ],
)
def test_records_of_which_none_fits_are_refused_with_the_reason(values: list[object], says: str) -> None:
    with pytest.raises(InvalidConfiguration, match=says) as caught:
        checked(*values)
    assert "say --unchecked" in caught.value.message
    assert "c1" not in caught.value.message
    assert "much" not in caught.value.message


def test_the_columns_of_avro_are_looked_for_by_name() -> None:
    options, source = options_of(*OF_AVRO, "http://r:1"), StandInSource()
    schema = record_schema(customer="string", amuont=["null", "double"])
    source.add(7, schema)
    records = [SourceRecord(0, 0, None, framed(7, schema, {"customer": "c1"}))]
    with pytest.raises(InvalidConfiguration, match=r"has a field amount \(is it amuont\?\)"):
        check_records(records, describe(options), options.format, "orders", AvroEncoding(source, ManualClock()))


def test_the_columns_of_protobuf_are_looked_for_by_name() -> None:
    options, source = (
        options_of(*KEY, "--value", "amount", "--format", "protobuf", "--registry", "http://r:1"),
        StandInSource(),
    )
    text = 'syntax = "proto3"; message Order { string customer = 1; string amuont = 2; }'
    source.schemas[7] = RegisteredSchema("PROTOBUF", text)
    records = [SourceRecord(0, 0, None, b"\0\0\0\0\x07\0\x0a\x02c1")]
    with pytest.raises(InvalidConfiguration, match=r"has a field amount \(is it amuont\?\)"):
        check_records(records, describe(options), options.format, "orders", ProtobufEncoding(source, ManualClock()))


def test_json_rows_are_no_changes_of_a_table() -> None:
    with pytest.raises(InvalidConfiguration, match="Check --format"):
        checked(ORDER, format="debezium")


def test_the_rate_is_of_the_last_few_seconds() -> None:
    rates = Rates()
    assert rates.note(0.0, 100) == 0.0
    assert rates.note(1.0, 300) == 200.0
    for second in range(2, 20):
        last = rates.note(float(second), 300)
    assert last == 0.0


def test_how_far_a_feed_is_in_words() -> None:
    assert progress(FeedFigures(), 0.0) == "waiting for Kafka"
    assert progress(FeedFigures(waits_for="the schema registry"), 0.0) == "waiting for the schema registry"
    assert progress(FeedFigures(True, 1234), 1000.4) == "1,000 rows/s, 1,234 in all"
    figures = FeedFigures(True, 1234, 2, "the record's value is no JSON object", 5678)
    assert progress(figures, 0.0) == (
        "0 rows/s, 5,678 behind, 1,234 in all, 2 refused, the last one as the record's value is no JSON object"
    )


@pytest.mark.parametrize("words", [[], ["--strict"]])
def test_a_feed_is_strict_where_that_was_asked_for(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, object]] = []
    monkeypatch.setattr(feed, "TopicFeed", lambda *_, **more: made.append(more))
    stack = ["--bootstrap-servers", "kafka:9092", "--servers", "server:7410"]
    options = parser_of_all().parse_args([*FEED, *KEY, "--value", "amount:double", *stack, *words])
    chosen = feed_options(options)
    descriptor, config = describe(chosen), feed_config(options, chosen.application)
    process = feed._process(options, config, descriptor, chosen, JSON, ManualClock())
    process._feed_of(descriptor, "")
    assert [more["strict"] for more in made] == [bool(words)]
