"""The configuration of each deployable: a frozen dataclass, read from `KEYHOLE_*` variables by this module alone."""

from __future__ import annotations

import dataclasses
import math
import os
import socket
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from keyhole.errors import InvalidConfiguration

DEFAULT_PROXY_PORT = 7400
DEFAULT_STATE_SERVER_PORT = 7410
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")

_MAX_PORT = 65_535


@dataclass(frozen=True, slots=True)
class StateServerConfig:
    """A state server.

    Attributes:
        id: Stable name; the same after a restart, so that it takes its key groups back.
        advertise: host:port that others reach it by; default: host and port.
        directory: Where its stores live; unused by the memory store.
        store: "lmdb", "rocksdb", "memory", the name of an installed store, or module:Engine.
        store_limit_bytes: The most that one state may take here.
        stores: A TOML file that says which states are kept in another store, directory or with other limits.
        lease_seconds: Without word from its coordinator for this long, its answers say `unconfirmed`.
        max_staged_bytes: Of rows in memory, of all epochs under way; beyond it, they go to files in `directory`.
        max_spilled_bytes: Of rows in such files; beyond it, staging is refused as overloaded.
        max_restore_seconds_without_progress: How long a restore may stand still before it is an error.
        drain_seconds: How long SIGTERM waits, at most, until others have taken its key groups over.
        role: "owner": a job's coordinator gives it key groups. "replica": it follows the states of `applications`, and
            serves them whether or not their jobs run.
        applications: What a replica follows.
        replica_group: Replicas with the same name share an application's key groups among themselves; each group holds
            all of them once.
        linger_seconds: How long a replica still follows what it has passed on to another one.
    """

    PREFIX: ClassVar[str] = "KEYHOLE_STATE_SERVER_"

    bootstrap_servers: str
    id: str = field(default_factory=socket.gethostname)
    host: str = "127.0.0.1"
    port: int = DEFAULT_STATE_SERVER_PORT
    advertise: str = ""
    directory: Path = Path("keyhole-stores")
    store: str = "lmdb"
    store_limit_bytes: int = 1 << 40
    stores: str = ""
    lease_seconds: float = 3.0
    max_staged_bytes: int = 2 << 30
    max_spilled_bytes: int = 64 << 30
    max_restore_seconds_without_progress: float = 60.0
    drain_seconds: float = 30.0
    role: str = "owner"
    applications: tuple[str, ...] = ()
    replica_group: str = "replicas"
    linger_seconds: float = 60.0
    log_level: str = "INFO"


@dataclass(frozen=True, slots=True)
class ClientProxyConfig:
    """A client proxy.

    Attributes:
        servers: host:port of each state server (static discovery).
        default_timeout_seconds: The deadline of requests that bring none.
        hop_timeout_seconds: A server that is silent for so long is not waited for alone: another copy is asked as well.
        drain_seconds: How long SIGTERM waits for what is under way.
    """

    PREFIX: ClassVar[str] = "KEYHOLE_CLIENT_PROXY_"

    servers: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = DEFAULT_PROXY_PORT
    default_timeout_seconds: float = 5.0
    hop_timeout_seconds: float = 0.1
    drain_seconds: float = 5.0
    log_level: str = "INFO"


@dataclass(frozen=True, slots=True)
class JobConfig:
    """What a streaming job must know to make its states queryable.

    Attributes:
        application: The job's stable name.
        servers: host:port of each state server; with {executor} or {host} in it: one beside each of Spark's executors.
        epoch_deadline_seconds: How long one epoch may take, lost servers and restores included, before the query ends.
        server_wait_seconds: How long a run waits at its start for the servers that don't answer yet, once one does.
        proxy: host:port of a client proxy; only for jobs that read states.
    """

    PREFIX: ClassVar[str] = "KEYHOLE_JOB_"

    application: str
    servers: tuple[str, ...]
    bootstrap_servers: str
    epoch_deadline_seconds: float = 300.0
    server_wait_seconds: float = 5.0
    kafka_deadline_seconds: float = 30.0
    proxy: str = f"127.0.0.1:{DEFAULT_PROXY_PORT}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicJobConfig:
    """What each of the jobs here has beside JobConfig: they all read one topic.

    Attributes:
        topic: Where its records are.
        checkpoint: Spark's checkpoint location.
        directory: For what Spark writes beside it.
        jars: Spark's Kafka connector, by path.
        max_offsets_per_trigger: Bounds an epoch, the first one after a long pause above all.
        shuffle_partitions: Of Spark; a divisor of the job's 64 key groups. As many as there are cores for the job: each
            costs a batch time of its own, where Spark keeps state above all. Stays with the checkpoint.
    """

    PREFIX: ClassVar[str]

    topic: str
    checkpoint: str
    directory: Path
    jars: tuple[str, ...] = ()
    max_offsets_per_trigger: int = 50_000
    shuffle_partitions: int = 2
    log_level: str = "INFO"


@dataclass(frozen=True, slots=True, kw_only=True)
class TemperatureMonitorConfig(TopicJobConfig):
    """The job temperature_monitor.

    Attributes:
        thresholds_topic: Of the updates of thresholds, of one partition. Their query's checkpoint is beside the
            other one, with `-thresholds` behind its name.
    """

    PREFIX: ClassVar[str] = "KEYHOLE_TEMPERATURE_MONITOR_"

    thresholds_topic: str
    max_offsets_per_trigger: int = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TweetImpressionsConfig(TopicJobConfig):
    """The job tweet_impressions."""

    PREFIX: ClassVar[str] = "KEYHOLE_TWEET_IMPRESSIONS_"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConfig:
    """What each of the jobs' sources has.

    Attributes:
        rate: Records per second.
    """

    PREFIX: ClassVar[str]

    topic: str
    bootstrap_servers: str
    rate: int = 1000
    log_level: str = "INFO"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingsConfig(SourceConfig):
    """The source of the job temperature_monitor's readings. The rate is the synthetic fleet's.

    Attributes:
        thresholds_topic: Of the updates of thresholds.
        sensors: Of the synthetic fleet.
        malformed: Which part of the records is no reading.
    """

    PREFIX: ClassVar[str] = "KEYHOLE_READINGS_"

    thresholds_topic: str
    sensors: int = 1000
    malformed: float = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class TweetsConfig(SourceConfig):
    """The source of the job tweet_impressions' events.

    Attributes:
        tweets: How many there are.
        events_per_hour: Of event time; at the rate of 1000, 20,000 make an hour pass in 20 s.
        malformed: Which part of the records is no event.
    """

    PREFIX: ClassVar[str] = "KEYHOLE_TWEETS_"

    tweets: int = 1000
    events_per_hour: int = 20_000
    malformed: float = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenSignalsConfig(TopicJobConfig):
    """The job golden_signals."""

    PREFIX: ClassVar[str] = "KEYHOLE_GOLDEN_SIGNALS_"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestsConfig(SourceConfig):
    """The source of the job golden_signals' request log.

    Attributes:
        malformed: Which part of the log's records is broken.
    """

    PREFIX: ClassVar[str] = "KEYHOLE_REQUESTS_"

    malformed: float = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class VitalSignsConfig(TopicJobConfig):
    """The job vital_signs.

    Attributes:
        files: The folder of the closed blobs' files; all of Spark's executors must reach it.
    """

    PREFIX: ClassVar[str] = "KEYHOLE_VITAL_SIGNS_"

    files: Path
    max_offsets_per_trigger: int = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunksConfig(SourceConfig):
    """The source of the job vital_signs' chunks. The rate is each signal's samples per second, from 1 to 500.

    Attributes:
        patients: A signal, and so a chunk per second, of each.
        speed: How many of the signals' seconds pass in one.
        malformed: Which part of the records is no chunk.
    """

    PREFIX: ClassVar[str] = "KEYHOLE_CHUNKS_"

    rate: int = 200
    patients: int = 20
    speed: int = 10
    malformed: float = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class FraudDetectionConfig(TopicJobConfig):
    """The job fraud_detection.

    Attributes:
        checkpoint: Spark's checkpoint location; the queries of rules and aggregations have theirs beside it, as
            <checkpoint>-rules and <checkpoint>-aggregations.
        rules_topic: Where the rules are published, in one partition.
        aggregations_topic: Where the aggregations are, likewise.
    """

    PREFIX: ClassVar[str] = "KEYHOLE_FRAUD_DETECTION_"

    rules_topic: str
    aggregations_topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentsConfig(SourceConfig):
    """The source of the job fraud_detection's payments, rules and aggregations. The rate is that of the payments.

    Attributes:
        rules_topic: Where the rules go.
        aggregations_topic: Where the aggregations go.
        accounts: How many there are.
        speed: How many of the payments' seconds pass in one.
        malformed: Which part of the payments is broken.
    """

    PREFIX: ClassVar[str] = "KEYHOLE_PAYMENTS_"

    rules_topic: str
    aggregations_topic: str
    rate: int = 100
    accounts: int = 200
    speed: int = 60
    malformed: float = 0.001


_KINDS = (
    StateServerConfig,
    ClientProxyConfig,
    JobConfig,
    TemperatureMonitorConfig,
    ReadingsConfig,
    TweetImpressionsConfig,
    TweetsConfig,
    GoldenSignalsConfig,
    RequestsConfig,
    VitalSignsConfig,
    ChunksConfig,
    FraudDetectionConfig,
    PaymentsConfig,
)
_Config = TypeVar("_Config", bound=StateServerConfig | ClientProxyConfig | JobConfig | TopicJobConfig | SourceConfig)


def load(kind: type[_Config], environ: Mapping[str, str], **overrides: object) -> _Config:
    """Reads a configuration; `overrides` (from a command line) come before the environment, None counts as absent.

    Raises:
        InvalidConfiguration: A name that no deployable knows, a missing or a malformed value; the message names the
            variable.
    """
    _refuse_unknown(environ)
    hints = typing.get_type_hints(kind)
    # The values are checked one by one against the hints; the type checker can't follow that through **values.
    values: dict[str, Any] = {}
    for item in dataclasses.fields(kind):
        variable = kind.PREFIX + item.name.upper()
        if overrides.get(item.name) is not None:
            values[item.name] = overrides[item.name]
        elif variable in environ:
            values[item.name] = _parse(variable, environ[variable], hints[item.name])
            _refuse_impossible(variable, environ[variable], values[item.name])
        elif item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
            raise InvalidConfiguration(f"{variable} is not set; it has no default", variable=variable)
    return kind(**values)


def job_config() -> JobConfig:
    """The configuration of the streaming job in this process. Raises as `load`."""
    return load(JobConfig, os.environ)


def _refuse_unknown(environ: Mapping[str, str]) -> None:
    known = {kind.PREFIX + item.name.upper() for kind in _KINDS for item in dataclasses.fields(kind)}
    prefixes = tuple(kind.PREFIX for kind in _KINDS)
    unknown = sorted(name for name in environ if name.startswith(prefixes) and name not in known)
    if unknown:
        raise InvalidConfiguration(
            f"unknown setting {', '.join(unknown)}; the settings are {', '.join(sorted(known))}", unknown=unknown
        )


def _refuse_impossible(variable: str, text: str, value: object) -> None:
    """What a value must be follows from its name and its type, alike for every deployable."""
    wanted = ""
    if variable.endswith("_LOG_LEVEL") and value not in LOG_LEVELS:
        wanted = f"one of {', '.join(LOG_LEVELS)}"
    elif variable.endswith("_SERVERS") and not value:
        wanted = "host:port, or several separated by commas"
    elif isinstance(value, float) and not 0 <= value < math.inf:
        wanted = "0 or more, and finite"
    elif isinstance(value, int) and variable.endswith("_PORT") and not 0 <= value <= _MAX_PORT:
        wanted = f"a port from 0 (any free one) to {_MAX_PORT}"
    elif isinstance(value, int) and not variable.endswith("_PORT") and value < 1:
        wanted = "1 or more"
    if wanted:
        raise InvalidConfiguration(f"{variable} is {text!r}; it must be {wanted}", variable=variable)


def _parse(variable: str, text: str, hint: object) -> object:
    if isinstance(hint, types.GenericAlias):  # tuple[str, ...]
        return tuple(part.strip() for part in text.split(",") if part.strip())
    try:
        if hint is int:
            return int(text)
        if hint is float:
            return float(text)
        if hint is Path or hint is str:
            return hint(text)
    except ValueError as error:
        raise InvalidConfiguration(
            f"{variable} is {text!r}; it must be {'a whole number' if hint is int else 'a number'}", variable=variable
        ) from error
    raise TypeError(f"no parser for {hint}")
