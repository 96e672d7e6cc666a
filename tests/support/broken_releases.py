"""For each alert: what a release shows that has what it is for, and what a healthy one beside it would hide it by."""

from __future__ import annotations

from typing import NamedTuple

from tests.support.promtool import Labels

STATE = {"application": "app", "state": "s"}
_COPY = {"server": "a", **STATE}
_QUERY = {"application": "app", "query": "q"}
_FAILED = {**_QUERY, "reason": "EPOCH_FAILED"}
_READS = {"proxy": "p:1", **STATE}
EXPORTER = {"job": "keyhole-metrics-exporter"}


class Shown(NamedTuple):
    """A series of both releases, each with its course, in promtool's notation; a minute from one value to the next."""

    metric: str
    labels: Labels
    healthy: str
    broken: str


class Case(NamedTuple):
    """When an alert is to fire, and which labels it has besides severity and the release's."""

    alert: str
    labels: Labels
    series: tuple[Shown, ...]
    minutes: int = 20


CASES = (
    Case(
        "KeyholeKeyGroupsWithoutOwner",
        STATE,
        (Shown("keyhole_cluster_unowned_key_groups", STATE, "0x40", "4x40"),),
    ),
    Case(
        "KeyholeKeyGroupsUnreadable",
        STATE,
        (Shown("keyhole_cluster_unreadable_key_groups", STATE, "0x40", "4x40"),),
    ),
    # The healthy one has read all of its source; of the broken one the exporter has not heard from Kafka for long.
    Case(
        "KeyholeStateStale",
        STATE,
        (
            Shown("keyhole_cluster_commit_age_seconds", STATE, "0+60x40", "0+60x40"),
            Shown("keyhole_kafka_source_lag_records", {**_QUERY, "topic": "t"}, "0x40", "0x40"),
            Shown("keyhole_exporter_kafka_up", {}, "1x40", "0x40"),
        ),
    ),
    Case(
        "KeyholeStateStale",
        STATE,
        (
            Shown("keyhole_cluster_commit_age_seconds", STATE, "0+60x40", "0+60x40"),
            Shown("keyhole_state_server_updates_lag_seconds", _COPY, "0x40", "_x40"),
        ),
    ),
    # In the healthy one no epochs are committed: that is another alert's.
    Case(
        "KeyholeWatermarkStale",
        STATE,
        (
            Shown("keyhole_cluster_watermark_age_seconds", STATE, "10+60x40", "10+60x40"),
            Shown("keyhole_cluster_commit_age_seconds", STATE, "600+60x40", "1x40"),
        ),
    ),
    # In the healthy one the query has ended, and no copy is behind its owners.
    Case(
        "KeyholeStandbyLag",
        _COPY,
        (
            Shown("keyhole_state_server_standby_lag_seconds", _COPY, "0+60x40", "0+60x40"),
            Shown("keyhole_cluster_staleness_seconds", STATE, "0+60x40", "1x40"),
            Shown("keyhole_state_server_lease_age_seconds", {"server": "o", **_QUERY}, "1x40", "1x40"),
        ),
    ),
    # In the healthy one there is no coordinator, so nobody can tell.
    Case(
        "KeyholeStandbyLag",
        _COPY,
        (
            Shown("keyhole_state_server_standby_lag_epochs", _COPY, "30x40", "30x40"),
            Shown("keyhole_state_server_lease_age_seconds", {"server": "o", **_QUERY}, "0+60x40", "1x40"),
        ),
    ),
    Case(
        "KeyholeRestoreStuck",
        _COPY,
        (
            Shown("keyhole_state_server_restoring_key_groups", _COPY, "8x40", "8x40"),
            Shown("keyhole_state_server_restored_records", _COPY, "0+1000x40", "0 5x40"),
            Shown("keyhole_state_server_to_restore_records", _COPY, "5x40", "5x40"),
        ),
    ),
    # The healthy one catches up with its updates.
    Case(
        "KeyholeRestoreStuck",
        _COPY,
        (
            Shown("keyhole_state_server_restoring_key_groups", _COPY, "8x40", "8x40"),
            Shown("keyhole_state_server_restored_records", _COPY, "5x40", "5x40"),
            Shown("keyhole_state_server_to_restore_records", _COPY, "5x40", "5x40"),
            Shown("keyhole_state_server_applied_updates_total", _COPY, "0+60x40", "9x40"),
            Shown("keyhole_state_server_repeated_updates_total", _COPY, "0x40", "0x40"),
        ),
    ),
    Case(
        "KeyholeReadErrorRate",
        STATE,
        (
            Shown("keyhole_client_proxy_failed_reads_total", {**_READS, "reason": "NO_SERVER"}, "0x40", "0+60x40"),
            Shown("keyhole_client_proxy_lookup_keys_total", _READS, "0+600000x40", "0+600x40"),
            Shown("keyhole_client_proxy_finished_scans_total", _READS, "0x40", "0x40"),
        ),
    ),
    Case(
        "KeyholeDiskNearlyFull",
        {"server": "a"},
        (
            Shown("keyhole_state_server_disk_free_bytes", {"server": "a"}, "900x40", "50x40"),
            Shown("keyhole_state_server_disk_bytes", {"server": "a"}, "1000x40", "1000x40"),
        ),
    ),
    Case(
        "KeyholeStoreNearlyFull",
        _COPY,
        (
            Shown("keyhole_state_server_store_bytes", _COPY, "950x40", "950x40"),
            Shown("keyhole_state_server_store_limit_bytes", {"server": "a"}, "100000x40", "1000x40"),
        ),
    ),
    # The same failure was long ago in the healthy one.
    Case(
        "KeyholeEpochFailures",
        _FAILED,
        (Shown("keyhole_job_failed_epochs_total", _FAILED, "5x60", "_x30 1x30"),),
        minutes=35,
    ),
    Case(
        "KeyholeEpochFailures",
        _FAILED,
        (Shown("keyhole_job_failed_epochs_total", _FAILED, "5x60", "1x30 2x30"),),
        minutes=35,
    ),
    Case(
        "KeyholeQueryRestarts",
        _QUERY,
        (Shown("keyhole_job_run_generation", _QUERY, "9x40", "1 2 3 4 5x40"),),
    ),
    Case(
        "KeyholeCommitFailures",
        {"server": "a", **_FAILED},
        (Shown("keyhole_state_server_failed_commits_total", {"server": "a", **_FAILED}, "5x60", "_x30 1x30"),),
        minutes=33,
    ),
    Case(
        "KeyholeCommitFailures",
        {"server": "a", **_FAILED},
        (Shown("keyhole_state_server_failed_commits_total", {"server": "a", **_FAILED}, "5x60", "1x30 2x30"),),
        minutes=33,
    ),
    Case(
        "KeyholeRejectedRecords",
        {"application": "app", "topic": "t"},
        (
            Shown("keyhole_job_rejected_records_total", {"application": "app", "topic": "t"}, "0x40", "0+60x40"),
            Shown("keyhole_job_checked_records_total", {"application": "app", "topic": "t"}, "0+60000x40", "0+60x40"),
        ),
    ),
    Case(
        "KeyholeUpdatesLag",
        _COPY,
        (Shown("keyhole_state_server_updates_lag_seconds", _COPY, "0x40", "0+60x40"),),
    ),
    Case(
        "KeyholeUpdatesRefused",
        STATE,
        (
            Shown("keyhole_state_server_refused_updates_total", _COPY, "0x40", "0+60x40"),
            Shown("keyhole_state_server_applied_updates_total", _COPY, "0+60000x40", "0x40"),
        ),
    ),
    Case(
        "KeyholeUpdatesAssumed",
        _COPY,
        (Shown("keyhole_state_server_assumed_updates_total", _COPY, "9x40", "0x15 700x40"),),
    ),
    Case(
        "KeyholeContainerKilled",
        {"container": "driver"},
        (
            Shown(
                "keyhole_exporter_ended_containers_total",
                {"container": "driver", "cause": "memory"},
                "3x40",
                "0x15 1x40",
            ),
        ),
    ),
    Case("KeyholeKafkaUnreachable", {}, (Shown("keyhole_exporter_kafka_up", {}, "1x40", "0x40"),)),
    Case(
        "KeyholeTargetDown",
        {"component": "state_server", "target": "a:7410"},
        (Shown("keyhole_exporter_up", {"component": "state_server", "target": "a:7410"}, "1x40", "0x40"),),
    ),
    Case(
        "KeyholeExporterStale",
        {},
        (Shown("keyhole_exporter_view_age_seconds", EXPORTER, "1x40", "0+60x40"),),
    ),
    # It can't be scraped any more.
    Case(
        "KeyholeExporterStale",
        {},
        (
            Shown("keyhole_exporter_view_age_seconds", EXPORTER, "1x40", "1x5 stale"),
            Shown("up", EXPORTER, "1x40", "1x5 0x40"),
        ),
    ),
)
