"""The configuration of Keyhole's own deployables, of jobs, and of the Kafka for trying out."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from keyhole.security.security_settings import CallerSettings, SecuritySettings

DEFAULT_PROXY_PORT = 7400
# By custom: a proxy answers over HTTP only where `http` is set.
DEFAULT_HTTP_PORT = 7402
DEFAULT_STATE_SERVER_PORT = 7410
DEFAULT_EXPORTER_PORT = 7420
LEAST = "least"
"""In a field's metadata: what it must be at least, where that is not 1 although 0 is not the default. A number that may
have a point can be 0 all the same.
"""
MOST = "most"
"""In a field's metadata: what a number may be at most."""
PROXY_VARIABLE = "KEYHOLE_PROXY"
"""Which client proxies the command line asks, where `--proxy` is not given."""


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
        max_spilled_bytes: Of rows in these files; beyond it, staging is refused as overloaded.
        max_uncommitted_bytes: Of updates in memory that are applied and not committed, of all states; beyond it,
            they are not read until some are committed.
        max_restore_seconds_without_progress: How long a restore may stand still before it is an error.
        drain_seconds: How long SIGTERM waits, at most, until others have taken its key groups over.
        kafka_wait_seconds: How long it looks for Kafka at its start before it ends with an error.
        role: "owner": a job's coordinator gives it key groups. "replica": it follows the states of `applications`, and
            serves them whether or not their jobs run.
        applications: What a replica follows.
        replica_group: Replicas with the same name share an application's key groups among themselves; each group holds
            all of them once.
        linger_seconds: How long a replica still follows what it has passed on to another one.
        max_scans: Scans under way of all callers; one more is refused as overloaded.
        max_caller_scans: The same of one caller; 0: as many as of all.
        max_scan_rows: That one scan may give; beyond it, it is refused as too large. 0: any number.
        max_scan_bytes: The same of the bytes of keys and values.
        max_scan_seconds: The same of its time, from its first call on.
        max_lookup_calls: Lookup streams and calls of Get and GetMany under way, of all callers; one more is refused as
            overloaded. 0: any number, here and in what follows.
        max_caller_lookup_calls: The same of one caller.
        max_lookup_keys_per_second: Keys that are looked up, of all callers; beyond it, lookups are refused as
            overloaded.
        max_caller_lookup_keys_per_second: The same of one caller.
        metrics: host:port of its own /metrics; empty: none.
        lookups: host:port of its lookup port, where it answers lookups without gRPC; empty: it has none.
        reader_processes: How many answer there, with equal shares of the limits of lookups. 0: one per core.
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
    max_uncommitted_bytes: int = 512 << 20
    max_restore_seconds_without_progress: float = 60.0
    drain_seconds: float = 30.0
    kafka_wait_seconds: float = 60.0
    role: str = "owner"
    applications: tuple[str, ...] = ()
    replica_group: str = "replicas"
    linger_seconds: float = 60.0
    max_scans: int = 64
    max_caller_scans: int = 0
    max_scan_rows: int = 0
    max_scan_bytes: int = 0
    max_scan_seconds: float = 0.0
    max_lookup_calls: int = field(default=16_384, metadata={LEAST: 0})
    max_caller_lookup_calls: int = field(default=4_096, metadata={LEAST: 0})
    max_lookup_keys_per_second: int = 0
    max_caller_lookup_keys_per_second: int = 0
    metrics: str = ""
    lookups: str = ""
    reader_processes: int = field(default=1, metadata={LEAST: 0, MOST: 256})
    log_level: str = "INFO"


@dataclass(frozen=True, slots=True)
class ClientProxyConfig(SecuritySettings):
    """A client proxy.

    Attributes:
        servers: Where the state servers are, as keyhole.discovery spells it.
        applications: Those that are to be there: a read of one that no server has heard of yet fails with NO_SERVER,
            which may be tried again, in place of UNKNOWN_APPLICATION. So does one of a state that may still come: for a
            minute after such an application has begun, and while a server was not reached yet.
        default_timeout_seconds: The deadline of requests that bring none.
        hop_timeout_seconds: A server that is silent for so long is not waited for alone: another copy is asked as well.
        hedge_quantile: Another copy is asked as well once a server has taken longer than so many of its answers do,
            as 0.95; 0: only once it is silent.
        drain_seconds: How long SIGTERM waits for what is under way.
        processes: How many serve on its ports, with equal shares of the limits of callers. 0: one per core.
        max_scans: Scans under way of all callers; one more is refused as overloaded.
        max_caller_scans: The same of one caller; 0: as many as of all.
        max_scan_rows: That one scan may give; beyond it, it is refused as too large. 0: any number.
        max_scan_bytes: The same of the bytes of keys and values.
        max_scan_seconds: The same of its time, from its first call on.
        max_lookup_calls: Lookup streams, other calls that look keys up, and reads over HTTP under way, of all callers;
            one more is refused as overloaded. 0: any number, here and in what follows.
        max_caller_lookup_calls: The same of one caller.
        max_lookup_keys: Keys that are being looked up, of all callers; beyond it, lookups are refused as overloaded.
        max_caller_lookup_keys: The same of one caller: half of what may wait for one server.
        max_lookup_keys_per_second: Keys that are looked up, of all callers; beyond it, lookups are refused as
            overloaded.
        max_caller_lookup_keys_per_second: The same of one caller.
        metrics: host:port of its own /metrics; empty: none.
        http: host:port of reads over HTTP and JSON; empty: none.
        http_origins: The origins (https://app.example.com) whose web pages may read these; empty: none of another one.
        http_hosts: The names by which these may be called; addresses and localhost always may.
        console: "on": the port of `http` has the console as well, under /console/; "off": it doesn't.
    """

    PREFIX: ClassVar[str] = "KEYHOLE_CLIENT_PROXY_"

    servers: tuple[str, ...]
    applications: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = DEFAULT_PROXY_PORT
    default_timeout_seconds: float = 5.0
    hop_timeout_seconds: float = 0.1
    hedge_quantile: float = field(default=0.0, metadata={LEAST: 0.5, MOST: 0.999})
    drain_seconds: float = 5.0
    processes: int = field(default=1, metadata={LEAST: 0, MOST: 256})
    max_scans: int = 256
    max_caller_scans: int = 0
    max_scan_rows: int = 0
    max_scan_bytes: int = 0
    max_scan_seconds: float = 0.0
    max_lookup_calls: int = field(default=16_384, metadata={LEAST: 0})
    max_caller_lookup_calls: int = field(default=4_096, metadata={LEAST: 0})
    max_lookup_keys: int = field(default=262_144, metadata={LEAST: 0})
    max_caller_lookup_keys: int = field(default=32_768, metadata={LEAST: 0})
    max_lookup_keys_per_second: int = 0
    max_caller_lookup_keys_per_second: int = 0
    metrics: str = ""
    http: str = ""
    http_origins: tuple[str, ...] = ()
    http_hosts: tuple[str, ...] = ()
    console: str = "on"
    log_level: str = "INFO"


@dataclass(frozen=True, slots=True)
class MetricsExporterConfig(SecuritySettings):
    """A metrics exporter. At least one of `servers`, `proxies` and `coordinators` is needed.

    Attributes:
        servers: Where the state servers are: see keyhole.discovery.
        proxies: The same of the client proxies.
        coordinators: The same of the jobs' `Stats`.
        pods: A label selector: it counts the ends of these pods' containers, as Kubernetes tells of them, in the
            namespace that it runs in; empty: of no pods.
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
    pods: str = ""
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
        stats: host:port on which the metrics exporter asks the driver for its figures; empty: on none.
        metrics: host:port of its own /metrics; empty: none.
        driver_group: Drivers of the application with this name stand by for each other: one leads, and each other one
            waits, with Spark up, until that is gone; empty: this one waits for nobody.
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
    driver_group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaConfig:
    """The single-node Kafka of the image `kafka`, for trying out.

    Attributes:
        port: Where clients in its own network come.
        advertise: host:port that the broker gives clients to come back to; default: the machine's name and the port.
        outside: The same for clients outside of its network; empty: there are none.
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
