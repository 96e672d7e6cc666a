"""What happens when something was lost: owners, restores, epochs run again, and the disks."""

from __future__ import annotations

from charts.dashboards.model import Dashboard, Query, Row, Variable, graph, number
from charts.dashboards.queries import Scope

_IN = Scope("application", "server")
_STATE = "application state"
_OF_STATE = "{{application}}/{{state}}"
_QUERY = "application query"
_OF_QUERY = "{{application}} {{query}}"
_BAD = {1.0: "red"}

_OWNERS = Row(
    "Owners",
    (
        graph(
            "Key groups without an owner",
            "Nothing is written to them.",
            Query(_IN.now("keyhole_cluster_unowned_key_groups", _STATE), _OF_STATE),
            unit="none",
            thresholds=_BAD,
        ),
        graph(
            "Key groups nobody answers for",
            "Their readers get UNAVAILABLE.",
            Query(_IN.now("keyhole_cluster_unreadable_key_groups", _STATE), _OF_STATE),
            unit="none",
            thresholds=_BAD,
        ),
        graph(
            "Key groups with several owners",
            "For seconds after an owner was taken for lost: the old one is fenced and can't write.",
            Query(_IN.now("keyhole_cluster_contested_key_groups", _STATE), _OF_STATE),
            unit="none",
            thresholds=_BAD,
        ),
        graph(
            "Servers that are ready",
            "1: it has key groups, and all of them can be read. Draining: it waits until others have them.",
            Query(_IN.now("keyhole_state_server_ready", "server"), "{{server}} ready"),
            Query(_IN.now("keyhole_state_server_draining", "server"), "{{server}} draining"),
            unit="none",
        ),
        graph(
            "Since the coordinator was heard of",
            "After 3 s, answers of an owner say that they are unconfirmed.",
            Query(_IN.now("keyhole_state_server_lease_age_seconds", f"server {_QUERY}"), "{{server}} " + _OF_QUERY),
            unit="s",
            thresholds={3.0: "red"},
        ),
        graph(
            "Running since",
            "A step: the process has started again.",
            Query(f"time() - {_IN.now('keyhole_state_server_start_time_seconds', 'server')}", "{{server}}"),
            Query(f"time() - {_IN.now('keyhole_client_proxy_start_time_seconds', 'proxy')}", "{{proxy}}"),
            Query(f"time() - {_IN.now('keyhole_job_start_time_seconds', 'application')}", "{{application}}"),
            Query(f"time() - {_IN.now('keyhole_exporter_start_time_seconds')}", "exporter"),
            unit="s",
        ),
    ),
)

_RESTORES = Row(
    "Restores and standbys",
    (
        graph(
            "Key groups being restored",
            "That an owner is to own and can't answer for yet.",
            Query(_IN.now("keyhole_state_server_restoring_key_groups", f"server {_STATE}"), "{{server}} " + _OF_STATE),
            unit="none",
            stacked=True,
        ),
        graph(
            "Of the last restore, done",
            "Changelog records that it has read, of those that it has to. 1: it is done.",
            Query(
                f"{_IN.now('keyhole_state_server_restored_records', f'server {_STATE}')}"
                f" / ({_IN.now('keyhole_state_server_to_restore_records', f'server {_STATE}')} > 0)",
                "{{server}} " + _OF_STATE,
            ),
            unit="percentunit",
        ),
        graph(
            "By state",
            "Key groups that are being restored, and those with at least one standby.",
            Query(_IN.now("keyhole_cluster_restoring_key_groups", _STATE), f"{_OF_STATE} restoring"),
            Query(_IN.now("keyhole_cluster_followed_key_groups", _STATE), f"{_OF_STATE} with standby"),
            unit="none",
        ),
        graph(
            "Warm key groups",
            "Followed ones that could be owned at once.",
            Query(_IN.now("keyhole_state_server_warm_key_groups", "server"), "{{server}}"),
            unit="none",
            stacked=True,
        ),
        graph(
            "Lag of standbys",
            "How long ago a copy was whole, at most.",
            Query(_IN.now("keyhole_state_server_standby_lag_seconds", "server"), "{{server}}"),
            unit="s",
            thresholds={60.0: "red"},
        ),
        graph(
            "States held",
            "Of how many states a server holds key groups.",
            Query(_IN.now("keyhole_state_server_held_states", "server"), "{{server}}"),
            unit="none",
        ),
    ),
)

_EPOCHS = Row(
    "Epochs",
    (
        graph(
            "Complete epoch",
            "By the coordinator, and the last one that each server has staged and committed. Right: close together.",
            Query(_IN.now("keyhole_job_complete_epoch", _QUERY), _OF_QUERY),
            Query(_IN.now("keyhole_state_server_staged_epoch", "server query"), "{{server}} {{query}} staged"),
            Query(_IN.now("keyhole_state_server_committed_epoch", "server query"), "{{server}} {{query}} committed"),
            unit="none",
        ),
        graph(
            "Since the last commit",
            "Of a complete epoch, as the coordinator knows it.",
            Query(_IN.now("keyhole_job_commit_age_seconds", _QUERY), _OF_QUERY),
            unit="s",
            thresholds={300.0: "red"},
        ),
        graph(
            "Rounds per epoch",
            "More than 1: servers were lost meanwhile, and the batch was staged again.",
            Query(
                f"{_IN.rate('keyhole_job_epoch_rounds_total', _QUERY)}"
                f" / {_IN.rate('keyhole_job_complete_epochs_total', _QUERY)}",
                _OF_QUERY,
            ),
        ),
        graph(
            "Where an epoch's time goes",
            "Seconds of each second that the coordinator spends in each of its phases.",
            Query(_IN.rate("keyhole_job_phase_seconds_total", "phase"), "{{phase}}"),
            unit="percentunit",
            stacked=True,
        ),
        graph(
            "Epochs committed, and replayed",
            "In a second. Replayed: an earlier run had committed them already, in whole or in part.",
            Query(_IN.rate("keyhole_job_complete_epochs_total", _QUERY), f"{_OF_QUERY} complete"),
            Query(_IN.rate("keyhole_job_replayed_epochs_total", _QUERY), f"{_OF_QUERY} replayed"),
            Query(_IN.rate("keyhole_state_server_committed_epochs_total", "server"), "{{server}} committed"),
            Query(_IN.rate("keyhole_state_server_replayed_epochs_total", "server"), "{{server}} replayed"),
            unit="ops",
        ),
        graph(
            "What fails",
            "Epochs that were given up, and commits that are tried again, by reason, in a second.",
            Query(_IN.rate("keyhole_job_failed_epochs_total", f"{_QUERY} reason"), _OF_QUERY + " {{reason}}"),
            Query(
                _IN.rate("keyhole_state_server_failed_commits_total", "server query reason"),
                "{{server}} {{query}} {{reason}}",
            ),
            unit="ops",
        ),
        graph(
            "Runs and assignments",
            "The generation grows with every start of the query, the version whenever key groups move.",
            Query(_IN.now("keyhole_job_run_generation", _QUERY), f"{_OF_QUERY} generation"),
            Query(_IN.now("keyhole_job_assignment_version", _QUERY), f"{_OF_QUERY} assignment"),
            unit="none",
        ),
        graph(
            "Servers that may write",
            "As the coordinator has it; and how often one had to be given another grant, or replaced.",
            Query(_IN.now("keyhole_job_member_servers", _QUERY), _OF_QUERY),
            Query(f"{_IN.rate('keyhole_job_distrusted_servers_total', _QUERY)} * 60", f"{_OF_QUERY} distrusted/min"),
            unit="none",
        ),
        number(
            "Fenced runs",
            "A newer run has taken the query over, and the old driver is still there.",
            _IN.now("keyhole_job_fenced", how="sum"),
            thresholds=_BAD,
        ),
    ),
)

_SPARK = Row(
    "Spark",
    (
        graph(
            "Batches",
            "That Spark has run, in a second.",
            Query(_IN.rate("keyhole_spark_run_batches_total", _QUERY), _OF_QUERY),
            unit="ops",
        ),
        graph(
            "Batch number",
            "Spark's id of the last batch. It goes on after a restart.",
            Query(_IN.now("keyhole_spark_batch_number", _QUERY), _OF_QUERY),
            unit="none",
        ),
        graph(
            "Age of the watermark",
            "As Spark has it. Growing by 1 s a second: it stands.",
            Query(_IN.now("keyhole_spark_watermark_age_seconds", _QUERY), _OF_QUERY),
            unit="s",
        ),
        graph(
            "Rows of Spark's own state",
            "Written, and dropped because they came after the watermark, in a second.",
            Query(_IN.rate("keyhole_spark_state_updated_rows_total", _QUERY), f"{_OF_QUERY} written"),
            Query(_IN.rate("keyhole_spark_state_dropped_rows_total", _QUERY), f"{_OF_QUERY} dropped"),
            unit="wps",
        ),
        graph(
            "Committing Spark's own state",
            "Seconds of each second, tasks added up.",
            Query(_IN.rate("keyhole_spark_state_commit_seconds_total", _QUERY), _OF_QUERY),
            unit="percentunit",
        ),
    ),
)

_DISKS = Row(
    "Disks",
    (
        graph(
            "Full",
            "Of the file system that a server's stores are on. When it is full, nothing can be committed.",
            Query(
                f"1 - {_IN.now('keyhole_state_server_disk_free_bytes', 'server')}"
                f" / {_IN.now('keyhole_state_server_disk_bytes', 'server')}",
                "{{server}}",
            ),
            unit="percentunit",
            thresholds={0.9: "red"},
        ),
        graph(
            "Stores",
            "What a server's stores take of it, together.",
            Query(_IN.now("keyhole_state_server_disk_used_bytes", "server"), "{{server}}"),
            unit="bytes",
        ),
        graph(
            "Staged rows",
            "That are not committed yet, in memory and on disk.",
            Query(_IN.now("keyhole_state_server_staging_bytes", "server where"), "{{server}} {{where}}"),
            unit="bytes",
            stacked=True,
        ),
        graph(
            "The exporter's look at Kafka",
            "Age of what it says of source lag and changelogs. Growing: Kafka is not reached.",
            Query(_IN.now("keyhole_exporter_kafka_age_seconds", how="max"), "age"),
            unit="s",
        ),
        graph(
            "The exporter itself",
            "What a scrape takes, and how often processes fail to answer, in a second.",
            Query(_IN.now("keyhole_exporter_scrape_seconds", how="max"), "scrape"),
            Query(_IN.rate("keyhole_exporter_failed_asks_total", "component"), "{{component}} failed to answer"),
        ),
        graph(
            "Unknown metrics",
            "Left out by the exporter: processes of another version.",
            Query(_IN.now("keyhole_exporter_unknown_metrics", "component"), "{{component}}"),
            unit="none",
        ),
    ),
)

DASHBOARD = Dashboard(
    "recovery",
    "Keyhole / Recovery",
    "Owners, restores and standbys, epochs that are run again, and the disks: what happens when something was lost.",
    (
        Variable("application", "Application", "keyhole_cluster_all_key_groups"),
        Variable("server", "State server", "keyhole_state_server_ready"),
    ),
    (_OWNERS, _RESTORES, _EPOCHS, _SPARK, _DISKS),
)
