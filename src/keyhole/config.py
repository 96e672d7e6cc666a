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
from keyhole.security.credentials import Credentials
from keyhole.spelling import with_the_nearest

DEFAULT_PROXY_PORT = 7400
DEFAULT_STATE_SERVER_PORT = 7410
DEFAULT_EXPORTER_PORT = 7420
LOCAL, CLUSTER = "local", "cluster"
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")

_MAX_PORT = 65_535
_MOST = "most"
"""In the metadata of a whole number's field: what it may be at most."""

_CHOICES = {
    "_LOG_LEVEL": LOG_LEVELS,
    "_TLS": ("off", "on"),
    "_TLS_CLIENT_CERTIFICATES": ("required", "off"),
    "_PLAINTEXT": ("allow",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerSettings:
    """What whoever calls others has. All files are read again when they change.

    Attributes:
        tls: "on": it speaks TLS with others, and so do its ports.
        tls_certificate: The file of its certificate (PEM), and those up to the authority; shown to all.
        tls_key: The file of its key (PEM, without a password).
        tls_ca: The file of the authorities whose certificates of others count; none: those of the operating system.
        tls_server_name: The name that the servers' certificates have, where they are found by their addresses.
        plaintext: "allow": it may send tokens, and listen, without TLS also where others than this machine reach it.
        token_file: The file of the bearer token that it shows to others.
    """

    PREFIX: ClassVar[str]

    tls: str = "off"
    tls_certificate: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    tls_server_name: str = ""
    plaintext: str = ""
    token_file: str = ""

    @property
    def credentials(self) -> Credentials:
        """What it brings to others."""
        return Credentials(
            tls=self.tls == "on",
            tls_ca=self.tls_ca,
            tls_certificate=self.tls_certificate,
            tls_key=self.tls_key,
            tls_server_name=self.tls_server_name,
            token_file=self.token_file,
            plaintext=self.plaintext,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings(CallerSettings):
    """What a deployable that others call has beside that.

    Attributes:
        tls_client_certificates: "off": callers need no certificate, also where `tls_ca` is given.
        policy: The file of who may do what (TOML); none: everybody who can connect may do everything.
        tokens: The file of the hashes of the bearer tokens that callers may bring (TOML).
        jwks: Of those who bring a JWT: the keys that sign them, a file or an https URL.
        issuer: Of those who bring a JWT: who must have issued it.
        audience: Of those who bring a JWT: whom it must be meant for.
    """

    tls_client_certificates: str = "required"
    policy: str = ""
    tokens: str = ""
    jwks: str = ""
    issuer: str = ""
    audience: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CliConfig(CallerSettings):
    """The command line's readers: `keyhole states`, `get` and the like."""

    PREFIX: ClassVar[str] = "KEYHOLE_CLI_"


@dataclass(frozen=True, slots=True)
class StateServerConfig(SecuritySettings):
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
        kafka_wait_seconds: How long it looks for Kafka at its start before it ends with an error.
        role: "owner": a job's coordinator gives it key groups. "replica": it follows the states of `applications`, and
            serves them whether or not their jobs run.
        applications: What a replica follows.
        replica_group: Replicas with the same name share an application's key groups among themselves; each group holds
            all of them once.
        linger_seconds: How long a replica still follows what it has passed on to another one.
        metrics: host:port of its own /metrics; empty: none.
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
    kafka_wait_seconds: float = 60.0
    role: str = "owner"
    applications: tuple[str, ...] = ()
    replica_group: str = "replicas"
    linger_seconds: float = 60.0
    metrics: str = ""
    log_level: str = "INFO"


@dataclass(frozen=True, slots=True)
class ClientProxyConfig(SecuritySettings):
    """A client proxy.

    Attributes:
        servers: Where the state servers are, as keyhole.discovery spells it.
        default_timeout_seconds: The deadline of requests that bring none.
        hop_timeout_seconds: A server that is silent for so long is not waited for alone: another copy is asked as well.
        drain_seconds: How long SIGTERM waits for what is under way.
        metrics: host:port of its own /metrics; empty: none.
        http: host:port of reads over HTTP and JSON; empty: none.
    """

    PREFIX: ClassVar[str] = "KEYHOLE_CLIENT_PROXY_"

    servers: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = DEFAULT_PROXY_PORT
    default_timeout_seconds: float = 5.0
    hop_timeout_seconds: float = 0.1
    drain_seconds: float = 5.0
    metrics: str = ""
    http: str = ""
    log_level: str = "INFO"


@dataclass(frozen=True, slots=True)
class MetricsExporterConfig(SecuritySettings):
    """A metrics exporter. At least one of `servers`, `proxies` and `coordinators` is needed.

    Attributes:
        servers: Where the state servers are: see keyhole.discovery.
        proxies: The same of the client proxies.
        coordinators: The same of the jobs' `Stats`.
        bootstrap_servers: Kafka, for source lag and the changelogs' sizes; empty: these are left out.
        interval_seconds: How often each process is asked.
        timeout_seconds: How long it may take to answer.
        forget_seconds: For how long the last answer of one that answers no more is exposed.
        kafka_interval_seconds: How often Kafka is asked.
    """

    PREFIX: ClassVar[str] = "KEYHOLE_METRICS_EXPORTER_"

    servers: tuple[str, ...] = ()
    proxies: tuple[str, ...] = ()
    coordinators: tuple[str, ...] = ()
    bootstrap_servers: str = ""
    host: str = "127.0.0.1"
    port: int = DEFAULT_EXPORTER_PORT
    interval_seconds: float = 5.0
    timeout_seconds: float = 2.0
    forget_seconds: float = 60.0
    kafka_interval_seconds: float = 30.0
    log_level: str = "INFO"


@dataclass(frozen=True, slots=True)
class JobConfig(SecuritySettings):
    """What a streaming job must know to make its states queryable.

    Attributes:
        bootstrap_servers: Kafka, host:port; `?settings=/path` behind it names a file of how it is spoken to.
        application: The job's stable name.
        servers: Where the state servers are, as keyhole.discovery spells it; with {executor} or {host} in an entry: one
            beside each of Spark's executors.
        epoch_deadline_seconds: How long one epoch may take, lost servers and restores included, before the query ends.
        server_wait_seconds: How long a run waits at its start for the servers that don't answer yet, once one does.
        proxy: host:port of a client proxy; only for jobs that read states.
        stats: host:port on which the driver tells its figures to the metrics exporter; empty: on none.
        metrics: host:port of its own /metrics; empty: none.
    """

    PREFIX: ClassVar[str] = "KEYHOLE_JOB_"

    application: str
    servers: tuple[str, ...]
    bootstrap_servers: str
    epoch_deadline_seconds: float = 300.0
    server_wait_seconds: float = 5.0
    kafka_deadline_seconds: float = 30.0
    proxy: str = f"127.0.0.1:{DEFAULT_PROXY_PORT}"
    stats: str = ""
    metrics: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicJobConfig:
    """What each of the jobs here has beside JobConfig: they all read one topic.

    Attributes:
        topic: Where its records are.
        checkpoint: Spark's checkpoint location.
        directory: For what Spark writes beside it.
        jars: Spark's Kafka connector, by path.
        max_offsets_per_trigger: Bounds an epoch, the first one after a long pause above all.
        shuffle_partitions: Of Spark; a divisor of the job's 16 key groups. As many as there are cores for the job: each
            costs a batch time of its own, where Spark keeps state above all. Stays with the checkpoint.
        spark: "local": Spark runs on this machine alone. "cluster": as the spark-defaults.conf in SPARK_CONF_DIR says.
    """

    PREFIX: ClassVar[str]

    topic: str
    checkpoint: str
    directory: Path
    jars: tuple[str, ...] = ()
    max_offsets_per_trigger: int = 50_000
    shuffle_partitions: int = 2
    spark: str = LOCAL
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
        malformed: Which part of the records is no reading; above 0, some of the updates are none either.
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
        too_late: Which part of the events comes 3 to 5 hours late, once 5 hours have gone by: their hour is closed.
        malformed: Which part of the records is no event.
    """

    PREFIX: ClassVar[str] = "KEYHOLE_TWEETS_"

    tweets: int = 1000
    events_per_hour: int = 20_000
    too_late: float = 0.002
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
        blob_seconds: How long a blob is, up to an hour. May change with a new run.
    """

    PREFIX: ClassVar[str] = "KEYHOLE_VITAL_SIGNS_"

    files: Path
    blob_seconds: int = field(default=60, metadata={_MOST: 3_600})
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
        checkpoint: Spark's checkpoint location; the other queries have theirs beside it, as <checkpoint>-rules,
            <checkpoint>-aggregations and <checkpoint>-spent.
        rules_topic: Where the rules are published, in one partition.
        aggregations_topic: Where the aggregations are, likewise.
        history: A folder of Parquet, as Spark reads it, with the payments of before the topic, which the state `spent`
            begins with. Empty: there were none.
    """

    PREFIX: ClassVar[str] = "KEYHOLE_FRAUD_DETECTION_"

    rules_topic: str
    aggregations_topic: str
    history: str = ""
    max_offsets_per_trigger: int = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentsConfig(SourceConfig):
    """The source of the job fraud_detection's payments, rules and aggregations. The rate is that of the payments.

    Attributes:
        rules_topic: Where the rules go.
        aggregations_topic: Where the aggregations go.
        accounts: How many there are.
        speed: How many of the payments' seconds pass in one.
        frauds: Which part of the payments is a small one that a large one follows within a minute.
        malformed: Which part of the payments is broken.
    """

    PREFIX: ClassVar[str] = "KEYHOLE_PAYMENTS_"

    rules_topic: str
    aggregations_topic: str
    rate: int = 100
    accounts: int = 200
    speed: int = 60
    frauds: float = 0.01
    malformed: float = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaConfig:
    """The single-node Kafka of the image `kafka`, for trying out.

    Attributes:
        port: Where clients in its own network come.
        advertise: host:port that they are told to come back to; default: the machine's name and the port.
        outside: host:port that clients outside of its network are told to come back to; empty: there are none.
        outside_port: Where those come.
        directory: Its data and settings.
        heap_megabytes: The Java heap's maximum.
        settings: Of the broker, as key=value, before those it has from us.
        jars: The directory of Kafka's jars.
    """

    PREFIX: ClassVar[str] = "KEYHOLE_KAFKA_"

    port: int = 9092
    advertise: str = ""
    outside: str = ""
    outside_port: int = 9094
    directory: Path = Path("/var/lib/keyhole/kafka")
    heap_megabytes: int = 512
    settings: tuple[str, ...] = ()
    jars: Path = Path("/opt/kafka/libs")


_KINDS = (
    CliConfig,
    StateServerConfig,
    ClientProxyConfig,
    MetricsExporterConfig,
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
    KafkaConfig,
)
_Config = TypeVar("_Config", bound=CallerSettings | TopicJobConfig | SourceConfig | KafkaConfig)


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
    missing = []
    for item in dataclasses.fields(kind):
        variable = kind.PREFIX + item.name.upper()
        if overrides.get(item.name) is not None:
            values[item.name] = overrides[item.name]
        elif variable in environ:
            values[item.name] = _parse(variable, environ[variable], hints[item.name])
            _refuse_impossible(variable, environ[variable], values[item.name], item.metadata.get(_MOST, math.inf))
        elif item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
            missing.append(variable)
    if missing:
        are = "is not set; it has" if len(missing) == 1 else "are not set; they have"
        raise InvalidConfiguration(
            f"{', '.join(missing)} {are} no default (docs/configuration.md)", variable=missing[0]
        )
    return kind(**values)


def job_config() -> JobConfig:
    """The configuration of the streaming job in this process. Raises as `load`."""
    return load(JobConfig, os.environ)


def _refuse_unknown(environ: Mapping[str, str]) -> None:
    known = {kind.PREFIX + item.name.upper() for kind in _KINDS for item in dataclasses.fields(kind)}
    prefixes = tuple(kind.PREFIX for kind in _KINDS)
    unknown = sorted(name for name in environ if name.startswith(prefixes) and name not in known)
    if unknown:
        told = "; ".join(with_the_nearest(name, known) for name in unknown)
        raise InvalidConfiguration(
            f"unknown setting {told}. All settings are in docs/configuration.md", unknown=unknown
        )


def _refuse_impossible(variable: str, text: str, value: object, most: float) -> None:
    """What a value must be follows from its name and its type, alike for every deployable; and from its field."""
    wanted = ""
    choices = next((choices for end, choices in _CHOICES.items() if variable.endswith(end)), ())
    if choices and value not in choices:
        wanted = f"one of {', '.join(choices)}"
    elif variable.endswith("_SPARK") and value not in (LOCAL, CLUSTER):
        wanted = f"{LOCAL} or {CLUSTER}"
    elif variable.endswith("_SERVERS") and not value:
        wanted = "host:port, or several separated by commas"
    elif isinstance(value, float) and not 0 <= value < math.inf:
        wanted = "0 or more, and finite"
    elif isinstance(value, int) and variable.endswith("_PORT") and not 0 <= value <= _MAX_PORT:
        wanted = f"a port from 0 (any free one) to {_MAX_PORT}"
    elif isinstance(value, int) and not variable.endswith("_PORT") and not 1 <= value <= most:
        wanted = "1 or more" if most == math.inf else f"from 1 to {most}"
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
