"""Configuration comes from KEYHOLE_* alone, and a mistake in it is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.fraud_detection.config import PaymentsConfig
from jobs.temperature_monitor.config import ReadingsConfig, TemperatureMonitorConfig
from jobs.tweet_impressions.config import TweetsConfig
from jobs.vital_signs.chunks import HIGHEST_HZ
from jobs.vital_signs.config import ChunksConfig, VitalSignsConfig
from keyhole.config import ClientProxyConfig, JobConfig, SourceConfig, StateServerConfig, TopicJobConfig, load
from keyhole.errors import InvalidConfiguration


def test_values_are_parsed_to_the_types_of_their_fields() -> None:
    environ = {
        "KEYHOLE_STATE_SERVER_BOOTSTRAP_SERVERS": "kafka:9092",
        "KEYHOLE_STATE_SERVER_PORT": "7777",
        "KEYHOLE_STATE_SERVER_DIRECTORY": "/data",
        "KEYHOLE_STATE_SERVER_LEASE_SECONDS": "1.5",
    }
    config = load(StateServerConfig, environ)
    assert (config.bootstrap_servers, config.port, config.lease_seconds) == ("kafka:9092", 7777, 1.5)
    assert config.directory == Path("/data")
    assert config.host == "127.0.0.1"


def test_lists_are_separated_by_commas() -> None:
    config = load(ClientProxyConfig, {"KEYHOLE_CLIENT_PROXY_SERVERS": "a:1, b:2,"})
    assert config.servers == ("a:1", "b:2")


def test_the_command_line_comes_before_the_environment_and_none_counts_as_absent() -> None:
    environ = {"KEYHOLE_CLIENT_PROXY_SERVERS": "a:1", "KEYHOLE_CLIENT_PROXY_PORT": "1"}
    config = load(ClientProxyConfig, environ, port=2, servers=None)
    assert (config.port, config.servers) == (2, ("a:1",))


def test_all_missing_values_are_named_at_once() -> None:
    both = "KEYHOLE_JOB_APPLICATION, KEYHOLE_JOB_BOOTSTRAP_SERVERS are not set; they have no default"
    with pytest.raises(InvalidConfiguration, match=both):
        load(JobConfig, {"KEYHOLE_JOB_SERVERS": "a:1"})
    with pytest.raises(InvalidConfiguration, match="KEYHOLE_CLIENT_PROXY_SERVERS is not set; it has no default"):
        load(ClientProxyConfig, {})


@pytest.mark.parametrize(
    ("variable", "text", "wanted"),
    [
        ("KEYHOLE_CLIENT_PROXY_PORT", "7400x", "a whole number"),
        ("KEYHOLE_CLIENT_PROXY_DRAIN_SECONDS", "soon", "a number"),
        ("KEYHOLE_CLIENT_PROXY_PORT", "65536", "a port from 0"),
        ("KEYHOLE_CLIENT_PROXY_PORT", "-1", "a port from 0"),
        ("KEYHOLE_CLIENT_PROXY_DRAIN_SECONDS", "-0.1", "0 or more"),
        ("KEYHOLE_CLIENT_PROXY_DEFAULT_TIMEOUT_SECONDS", "inf", "0 or more, and finite"),
        ("KEYHOLE_CLIENT_PROXY_DEFAULT_TIMEOUT_SECONDS", "nan", "0 or more, and finite"),
        ("KEYHOLE_CLIENT_PROXY_HEDGE_QUANTILE", "0.49", "0, or from 0.5 to 0.999"),
        ("KEYHOLE_CLIENT_PROXY_HEDGE_QUANTILE", "95", "0, or from 0.5 to 0.999"),
        ("KEYHOLE_CLIENT_PROXY_HEDGE_QUANTILE", "nan", "0, or from 0.5 to 0.999"),
        ("KEYHOLE_CLIENT_PROXY_LOG_LEVEL", "LOUD", "one of DEBUG, INFO, WARNING, ERROR"),
        ("KEYHOLE_CLIENT_PROXY_SERVERS", " , ", "host:port"),
    ],
)
def test_a_malformed_value_is_named_with_what_it_must_be(variable: str, text: str, wanted: str) -> None:
    with pytest.raises(InvalidConfiguration, match=f"{variable} is '{text}'; it must be {wanted}"):
        load(ClientProxyConfig, {"KEYHOLE_CLIENT_PROXY_SERVERS": "a:1", variable: text})


@pytest.mark.parametrize("quantile", ["0", "0.5", "0.95", "0.999"])
def test_a_number_with_a_least_one_may_be_none(quantile: str) -> None:
    environ = {"KEYHOLE_CLIENT_PROXY_SERVERS": "a:1", "KEYHOLE_CLIENT_PROXY_HEDGE_QUANTILE": quantile}
    assert load(ClientProxyConfig, environ).hedge_quantile == float(quantile)


def test_a_number_of_things_is_at_least_one() -> None:
    environ = {"KEYHOLE_READINGS_TOPIC": "t", "KEYHOLE_READINGS_BOOTSTRAP_SERVERS": "k:1", "KEYHOLE_READINGS_RATE": "0"}
    with pytest.raises(InvalidConfiguration, match="KEYHOLE_READINGS_RATE is '0'; it must be 1 or more"):
        load(ReadingsConfig, environ)


def test_a_limit_of_lookups_is_none_where_0_says_so_and_has_a_default_otherwise() -> None:
    variable, servers = "KEYHOLE_CLIENT_PROXY_MAX_LOOKUP_KEYS", {"KEYHOLE_CLIENT_PROXY_SERVERS": "a:1"}
    assert load(ClientProxyConfig, servers).max_lookup_keys == 262_144
    assert load(ClientProxyConfig, {**servers, variable: "0"}).max_lookup_keys == 0
    with pytest.raises(InvalidConfiguration, match=f"{variable} is '-1'; it must be 0 or more"):
        load(ClientProxyConfig, {**servers, variable: "-1"})


@pytest.mark.parametrize("cap", ["MAX_CALLER_SCANS", "MAX_SCAN_ROWS", "MAX_SCAN_BYTES", "MAX_SCAN_SECONDS"])
def test_a_cap_that_is_none_by_default_is_none_where_0_says_so(cap: str) -> None:
    variable, servers = f"KEYHOLE_CLIENT_PROXY_{cap}", {"KEYHOLE_CLIENT_PROXY_SERVERS": "a:1"}
    assert load(ClientProxyConfig, {**servers, variable: "0"}) == load(ClientProxyConfig, servers)
    with pytest.raises(InvalidConfiguration, match=f"{variable} is '-1'; it must be 0 or more"):
        load(ClientProxyConfig, {**servers, variable: "-1"})


def test_a_folder_in_an_object_store_is_refused_where_files_are_written_as_such() -> None:
    """It would be a folder `s3a:` beside the process."""
    needed = {f"KEYHOLE_VITAL_SIGNS_{name}": "x" for name in ("TOPIC", "CHECKPOINT", "FILES")}
    with pytest.raises(
        InvalidConfiguration, match="DIRECTORY is 's3a://signals/spark'; it must be a path of this machine's"
    ):
        load(VitalSignsConfig, needed | {"KEYHOLE_VITAL_SIGNS_DIRECTORY": "s3a://signals/spark"})


@pytest.mark.parametrize("seconds", ["0", "3601"])
def test_a_blob_is_a_second_to_an_hour(seconds: str) -> None:
    needed = {f"KEYHOLE_VITAL_SIGNS_{name}": "x" for name in ("TOPIC", "CHECKPOINT", "DIRECTORY", "FILES")}
    environ = needed | {"KEYHOLE_VITAL_SIGNS_BLOB_SECONDS": seconds}
    with pytest.raises(InvalidConfiguration, match=f"BLOB_SECONDS is '{seconds}'; it must be from 1 to 3600"):
        load(VitalSignsConfig, environ)
    assert load(VitalSignsConfig, needed | {"KEYHOLE_VITAL_SIGNS_BLOB_SECONDS": "3600"}).blob_seconds == 3_600


def test_an_unknown_name_is_refused_also_for_another_deployable() -> None:
    environ = {"KEYHOLE_CLIENT_PROXY_SERVERS": "a:1", "KEYHOLE_STATE_SERVER_PROT": "1"}
    with pytest.raises(InvalidConfiguration, match="unknown setting KEYHOLE_STATE_SERVER_PROT"):
        load(ClientProxyConfig, environ)


def test_an_unknown_name_is_refused_with_the_nearest_ones_and_not_with_all_there_are() -> None:
    environ = {"KEYHOLE_JOB_SERVER": "a:1", "KEYHOLE_JOB_NOTHING_OF_THE_KIND": "x"}
    with pytest.raises(InvalidConfiguration) as caught:
        load(JobConfig, environ)
    assert "KEYHOLE_JOB_SERVER (is it KEYHOLE_JOB_SERVERS" in caught.value.message
    assert "KEYHOLE_JOB_NOTHING_OF_THE_KIND" in caught.value.message
    assert len(caught.value.message) < 400


def test_names_of_others_are_none_of_its_business() -> None:
    load(ClientProxyConfig, {"KEYHOLE_CLIENT_PROXY_SERVERS": "a:1", "KEYHOLE_BASE_IMAGE": "x", "PATH": "/bin"})


_NEEDED = {
    TemperatureMonitorConfig: {"TOPIC": "a", "THRESHOLDS_TOPIC": "b", "CHECKPOINT": "c", "DIRECTORY": "d"},
    ReadingsConfig: {"TOPIC": "a", "THRESHOLDS_TOPIC": "b", "BOOTSTRAP_SERVERS": "k:1"},
    PaymentsConfig: {"TOPIC": "a", "RULES_TOPIC": "b", "AGGREGATIONS_TOPIC": "c", "BOOTSTRAP_SERVERS": "k:1"},
    TweetsConfig: {"TOPIC": "a", "BOOTSTRAP_SERVERS": "k:1"},
    ChunksConfig: {"TOPIC": "a", "BOOTSTRAP_SERVERS": "k:1"},
}


@pytest.mark.parametrize(
    ("kind", "name", "text", "wanted"),
    [
        (TemperatureMonitorConfig, "REALTIME_BATCH_SECONDS", "4", "is '4'; it must be 5 or more"),
        (TemperatureMonitorConfig, "TOPIC", "a b", "is 'a b'; it must be a topic's name"),
        (TemperatureMonitorConfig, "TOPIC", "", "is ''; it must be a topic's name"),
        (
            TemperatureMonitorConfig,
            "THRESHOLDS_TOPIC",
            "a",
            "_TOPIC and .*_THRESHOLDS_TOPIC are both 'a'; each",
        ),
        (TemperatureMonitorConfig, "CHECKPOINT", "", "is ''; it must be said: it has no default"),
        (TemperatureMonitorConfig, "DIRECTORY", " ", "is ' '; it must be said: it has no default"),
        (ReadingsConfig, "MALFORMED", "1.01", "is '1.01'; it must be from 0 to 1"),
        (PaymentsConfig, "FRAUDS", "2", "is '2'; it must be from 0 to 1"),
        (PaymentsConfig, "AGGREGATIONS_TOPIC", "b", "_RULES_TOPIC and .*_AGGREGATIONS_TOPIC are both 'b'"),
        (TweetsConfig, "TOO_LATE", "nan", "is 'nan'; it must be from 0 to 1"),
        (ChunksConfig, "RATE", "501", "is '501'; it must be from 1 to 500"),
    ],
)
def test_a_setting_of_a_job_or_its_source_that_can_not_be_is_refused_by_its_name(
    kind: type[TopicJobConfig | SourceConfig], name: str, text: str, wanted: str
) -> None:
    """What was taken led to a job whose records were all dead letters, or that ended in Spark's words."""
    given = {kind.PREFIX + one: of for one, of in _NEEDED[kind].items()}
    assert load(kind, given).topic == "a"
    with pytest.raises(InvalidConfiguration, match=f"{name}.* {wanted}|{wanted}"):
        load(kind, {**given, kind.PREFIX + name: text})


def test_a_source_sends_no_chunk_that_the_job_does_not_take() -> None:
    given = {ChunksConfig.PREFIX + one: of for one, of in _NEEDED[ChunksConfig].items()}
    assert load(ChunksConfig, {**given, "KEYHOLE_CHUNKS_RATE": str(HIGHEST_HZ)}).rate == HIGHEST_HZ
    with pytest.raises(InvalidConfiguration):
        load(ChunksConfig, {**given, "KEYHOLE_CHUNKS_RATE": str(HIGHEST_HZ + 1)})
