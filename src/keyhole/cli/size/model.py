"""From a load and the constants to cores, memory, disk and bytes, in Keyhole and in Redis. Pure."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from keyhole.changelog.settings import MIN_COMPACTION_LAG_MS, SEGMENT_BYTES, SEGMENT_MS
from keyhole.cli.size.constants import Constants
from keyhole.model.state import DEFAULT_KEY_GROUPS

_MICRO = 1e-6
_MIB = 2**20
_GIB = 2**30
_MONTH_SECONDS = 30 * 86_400
_DIRTY = 2.0
"""Kafka compacts once half of a log is superseded (min.cleanable.dirty.ratio), so it may hold as much again."""


@dataclass(frozen=True)
class Workload:
    """What is asked of a state. Rates are by the second, over all its readers and writers.

    Attributes:
        updates: Records that the job takes in; those of one key in one batch become one row.
        written_keys: That a batch's updates fall on, each as often as the others.
        standbys: Copies beside the owner's.
        changelog_copies: Of each record in Kafka: the topic's replication factor.
        redis_replicas: Copies beside the primary's.
        in_memory: The share of each copy that memory is wanted for.
        store: lmdb or rocksdb.
        busy: The share of a core that is planned to be used.
    """

    keys: float
    updates: float
    reads: float
    written_keys: float
    standbys: int = 1
    changelog_copies: int = 3
    redis_replicas: int = 1
    key_bytes: float = 16.0
    value_bytes: float = 40.0
    batch_seconds: float = 10.0
    key_groups: int = DEFAULT_KEY_GROUPS
    in_memory: float = 1.0
    store: str = "lmdb"
    busy: float = 0.7

    @property
    def row_bytes(self) -> float:
        """A key and its value."""
        return self.key_bytes + self.value_bytes

    @property
    def rows_of_batch(self) -> float:
        """Different keys among a batch's updates, where each of `written_keys` is as likely as the others."""
        return -self.written_keys * math.expm1(-self.updates * self.batch_seconds / self.written_keys)

    @property
    def rows(self) -> float:
        """How many are written each second."""
        return self.rows_of_batch / self.batch_seconds


@dataclass(frozen=True)
class Prices:
    """Of a month, in whatever currency; None: not asked for. Of traffic: of each GiB sent."""

    core: float | None = None
    memory_gib: float | None = None
    disk_gib: float | None = None
    traffic_gib: float | None = None


@dataclass(frozen=True)
class SideNeeds:
    """Of one side, all copies counted. Bytes a second of the network are those of all hops together.

    Attributes:
        writer_cores: Fully used, as the next ones: what the job's executors spend on handing rows over.
        copies_cores: Of standbys, or of Redis's replicas.
        cores: All, at the share that is planned to be used.
        servers: State servers, or Redis's processes; each has one core's worth of Python, or its one thread.
        proxies: 0 where nothing is read.
    """

    writer_cores: float
    owner_cores: float
    copies_cores: float
    kafka_cores: float
    proxy_cores: float
    cores: float
    servers: int
    proxies: int
    memory_bytes: float
    disk_bytes: float
    kafka_disk_bytes: float
    kafka_bytes_per_second: float
    network_bytes_per_second: float

    def month(self, prices: Prices) -> float | None:
        """What it costs, by what has a price; None: nothing has."""
        parts = (
            (self.cores, prices.core),
            (self.memory_bytes / _GIB, prices.memory_gib),
            ((self.disk_bytes + self.kafka_disk_bytes) / _GIB, prices.disk_gib),
            (self.network_bytes_per_second * _MONTH_SECONDS / _GIB, prices.traffic_gib),
        )
        known = [amount * price for amount, price in parts if price is not None]
        return sum(known) if known else None


def in_keyhole(load: Workload, by: Constants) -> SideNeeds:
    """Owners, standbys, the changelog's copies, and proxies."""
    partitions = _partitions(load)
    owner = _owner_micros(load, by)
    standby = load.standbys * (load.rows * by.standby_us_per_row + partitions * by.standby_us_per_partition)
    kafka = load.changelog_copies * (load.rows * by.kafka_us_per_row + partitions * by.kafka_us_per_partition)
    kafka += load.standbys * load.rows * by.kafka_us_per_row_followed
    writer, proxy = load.rows * by.writer_us_per_row, load.reads * by.proxy_us_per_read
    servers = max(1 + load.standbys, _processes(owner + standby, load.busy))
    proxies = _processes(proxy, load.busy) if load.reads else 0
    stored = (1 + load.standbys) * load.keys * _stored_bytes(load, by)
    logged = load.row_bytes * by.changelog_bytes_per_byte
    logged_per_second = load.rows * logged
    kept = load.keys * _DIRTY * logged + logged_per_second * MIN_COMPACTION_LAG_MS / 1000
    # The active segments.
    kept += min(logged_per_second * SEGMENT_MS / 1000, SEGMENT_BYTES * load.key_groups)
    # To the owner, to Kafka, from broker to broker, to each standby; and two hops of a read.
    sent = load.rows * (load.row_bytes + logged * (load.changelog_copies + load.standbys))
    sent += 2 * load.reads * (load.row_bytes + by.frame_bytes_per_read)
    return SideNeeds(
        writer_cores=writer * _MICRO,
        owner_cores=owner * _MICRO,
        copies_cores=standby * _MICRO,
        kafka_cores=kafka * _MICRO,
        proxy_cores=proxy * _MICRO,
        cores=(writer + owner + standby + kafka + proxy) * _MICRO / load.busy,
        servers=servers,
        proxies=proxies,
        memory_bytes=stored * load.in_memory + (servers * by.server_mib + proxies * by.proxy_mib) * _MIB,
        disk_bytes=stored,
        kafka_disk_bytes=load.changelog_copies * kept,
        kafka_bytes_per_second=load.changelog_copies * logged_per_second,
        network_bytes_per_second=sent,
    )


def least_key_groups(load: Workload, by: Constants) -> int:
    """So many that their owners can be spread over enough servers: one key group has one owner, which is one core's
    worth. More key groups take more of the owners' time, too.
    """
    # All of a batch's rows may be of different key groups; or each of the groups is written to.
    spread = dataclasses.replace(load, key_groups=math.ceil(load.rows_of_batch))
    of_one_group = by.owner_us_per_partition / load.batch_seconds * _MICRO / load.busy
    least = _processes(_owner_micros(spread, by), load.busy)
    if of_one_group < 1:
        none = dataclasses.replace(load, key_groups=0)
        least = min(least, _processes(_owner_micros(none, by) / (1 - of_one_group), load.busy))
    return least


def in_redis(load: Workload, by: Constants) -> SideNeeds:
    """A SET for each row and a GET for each read, in pipelines; replicas take each write, and answer nothing."""
    writer, replicas = load.rows * by.redis_writer_us_per_row, load.redis_replicas
    primary = load.rows * by.redis_us_per_row + load.reads * by.redis_us_per_read
    copies = replicas * load.rows * by.redis_us_per_row
    stored = by.redis_bytes_per_key + by.redis_bytes_per_byte * load.row_bytes
    primaries = _processes(primary, load.busy)
    return SideNeeds(
        writer_cores=writer * _MICRO,
        owner_cores=primary * _MICRO,
        copies_cores=copies * _MICRO,
        kafka_cores=0.0,
        proxy_cores=0.0,
        cores=(writer + primary + copies) * _MICRO / load.busy,
        servers=primaries * (1 + replicas),
        proxies=0,
        memory_bytes=(1 + replicas) * load.keys * stored,
        disk_bytes=0.0,
        kafka_disk_bytes=0.0,
        kafka_bytes_per_second=0.0,
        network_bytes_per_second=load.row_bytes * (load.rows * (1 + replicas) + load.reads),
    )


def _partitions(load: Workload) -> float:
    """That are written to, each second."""
    return min(load.key_groups, load.rows_of_batch) / load.batch_seconds


def _owner_micros(load: Workload, by: Constants) -> float:
    """Of each second, over all owners."""
    written = load.rows * by.owner_us_per_row + _partitions(load) * by.owner_us_per_partition
    return written + load.reads * by.server_us_per_read


def _stored_bytes(load: Workload, by: Constants) -> float:
    """What the store of one copy takes for a key."""
    if load.store == "rocksdb":
        return by.rocksdb_bytes_per_key + by.rocksdb_bytes_per_byte * load.row_bytes
    return by.lmdb_bytes_per_key + by.lmdb_bytes_per_byte * load.row_bytes


def _processes(micros: float, busy: float) -> int:
    """That share so many microseconds a second; at least one."""
    return max(1, math.ceil(micros * _MICRO / busy))
