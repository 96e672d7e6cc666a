"""Everything at a glance: is it all right, how fresh is it, how much is written and read, and by whom."""

from __future__ import annotations

from charts.dashboards.model import Dashboard, Kind, Panel, Query, Row, Variable, graph, number
from charts.dashboards.queries import Scope, together

_IN = Scope("application")
_STATE = "application state"
_QUERY = "application query"
_BAD = {1.0: "red"}
_UP = _IN.now("keyhole_exporter_up", "component target")

_ALERTS = Row(
    "Is it all right?",
    (
        number(
            "Key groups without an owner",
            "Nothing is written to them. Right: 0, but for seconds when servers come and go.",
            _IN.now("keyhole_cluster_unowned_key_groups"),
            thresholds=_BAD,
        ),
        number(
            "Key groups nobody answers for",
            "Their readers get UNAVAILABLE. Right: 0.",
            _IN.now("keyhole_cluster_unreadable_key_groups"),
            thresholds=_BAD,
        ),
        number(
            "Key groups with several owners",
            "Several servers say that they own them; only one can write. Right: 0, but for seconds.",
            _IN.now("keyhole_cluster_contested_key_groups"),
            thresholds=_BAD,
        ),
        number(
            "Being restored",
            "Key groups that an owner still reads from the changelog.",
            _IN.now("keyhole_cluster_restoring_key_groups"),
            thresholds={1.0: "yellow"},
        ),
        number(
            "Longest since a commit",
            "How long ago the last epoch of the state that is furthest behind was committed.",
            _IN.now("keyhole_cluster_commit_age_seconds"),
            "s",
            {60.0: "yellow", 300.0: "red"},
        ),
        number(
            "Reads that fail",
            "Of all keys and scans through the proxies, wrong names and wrong keys included.",
            f"({_IN.rate('keyhole_client_proxy_failed_reads_total')}"
            f" or 0 * {_IN.rate('keyhole_client_proxy_lookup_keys_total')})"
            f" / ({_IN.rate('keyhole_client_proxy_lookup_keys_total')}"
            f" + {_IN.rate('keyhole_client_proxy_finished_scans_total')})",
            "percentunit",
            {0.001: "yellow", 0.01: "red"},
        ),
        number(
            "Processes that don't answer",
            "State servers, proxies and jobs that are discovered, and silent to the exporter.",
            f"{together('count', f'{_UP} == 0')} or 0 * {together('count', _UP)}",
            thresholds=_BAD,
        ),
        number(
            "Kafka",
            "1: the exporter reached it when it last asked.",
            _IN.now("keyhole_exporter_kafka_up", how="max"),
            thresholds={0.0: "red", 1.0: "green"},
        ),
        number(
            "Fullest disk",
            "Of the state servers.",
            together(
                "max",
                f"1 - {_IN.now('keyhole_state_server_disk_free_bytes', 'server')}"
                f" / {_IN.now('keyhole_state_server_disk_bytes', 'server')}",
            ),
            "percentunit",
            {0.8: "yellow", 0.9: "red"},
        ),
        number(
            "Age of these figures",
            "When the exporter last put together what all processes say.",
            _IN.now("keyhole_exporter_view_age_seconds"),
            "s",
            {10.0: "yellow", 30.0: "red"},
        ),
        number("States", "That there are.", _IN.now("keyhole_cluster_known_states")),
        number(
            "Keys read",
            "In a second, through all proxies.",
            _IN.rate("keyhole_client_proxy_lookup_keys_total"),
            "ops",
        ),
    ),
)

_STATES = Row(
    "States",
    (
        Panel(
            "States",
            "Entries and bytes are those of all copies: the owners' and the standbys'.",
            (
                Query(_IN.now("keyhole_cluster_all_key_groups", _STATE), "Key groups"),
                Query(_IN.now("keyhole_cluster_unowned_key_groups", _STATE), "Without owner"),
                Query(_IN.now("keyhole_cluster_followed_key_groups", _STATE), "With standby"),
                Query(_IN.now("keyhole_cluster_oldest_epoch", _STATE), "Epoch", "none"),
                Query(_IN.now("keyhole_cluster_commit_age_seconds", _STATE), "Since the last commit", "s"),
                Query(_IN.now("keyhole_cluster_standby_lag_epochs", _STATE), "Standby lag", "none"),
                Query(_IN.now("keyhole_state_server_store_entries", _STATE), "Entries"),
                Query(_IN.now("keyhole_state_server_store_bytes", _STATE), "Bytes", "bytes"),
            ),
            kind=Kind.TABLE,
            width=24,
            columns={"application": "Application", "state": "State"},
        ),
        graph(
            "Since the last commit",
            "How long ago the epoch that readers get was committed. Right: a few seconds while there is input.",
            Query(_IN.now("keyhole_cluster_commit_age_seconds", _STATE), "{{application}}/{{state}}"),
            unit="s",
            width=6,
            thresholds={300.0: "red"},
        ),
        graph(
            "Age of the watermark",
            "Event time that windows may still wait for. It depends on the data; growing by 1 s a second: it stands.",
            Query(_IN.now("keyhole_cluster_watermark_age_seconds", _STATE), "{{application}}/{{state}}"),
            unit="s",
            width=6,
        ),
        graph(
            "Age of what is read",
            "How long ago what readers get was all that was complete. Right: seconds, also while there is no input.",
            Query(_IN.now("keyhole_cluster_staleness_seconds", _STATE), "{{application}}/{{state}}"),
            unit="s",
            width=6,
        ),
        graph(
            "Lag of standbys",
            "Complete epochs that the furthest standby lacks. Right: 0 or 1.",
            Query(_IN.now("keyhole_cluster_standby_lag_epochs", _STATE), "{{application}}/{{state}}"),
            unit="none",
            width=6,
            thresholds={20.0: "red"},
        ),
    ),
)

_WRITING = Row(
    "Writing",
    (
        graph(
            "Rows committed",
            "By the owners, in a second.",
            Query(_IN.rate("keyhole_state_server_committed_rows_total", _STATE), "{{application}}/{{state}}"),
            unit="wps",
        ),
        graph(
            "What an epoch takes",
            "From a batch's arrival at the sink to its end: half of them, and 99 of 100, are at most so long.",
            Query(_IN.quantile(0.5, "keyhole_job_epoch_seconds", _QUERY), "{{application}} {{query}} p50"),
            Query(_IN.quantile(0.99, "keyhole_job_epoch_seconds", _QUERY), "{{application}} {{query}} p99"),
            unit="s",
        ),
        graph(
            "Epochs given up",
            "By reason, in a second. Right: none; the query ends, or begins again.",
            Query(
                _IN.rate("keyhole_job_failed_epochs_total", f"{_QUERY} reason"), "{{application}} {{query}} {{reason}}"
            ),
            unit="ops",
        ),
        graph(
            "What a batch takes in Spark",
            "All of it, Keyhole's part included, on average.",
            Query(_IN.mean("keyhole_spark_batch_seconds", _QUERY), "{{application}} {{query}}"),
            unit="s",
        ),
        graph(
            "Where a batch's time goes",
            "Seconds of each second that Spark spends in each of its phases. addBatch has Keyhole's part.",
            Query(_IN.rate("keyhole_spark_phase_seconds_total", "phase", phase='!="triggerExecution"'), "{{phase}}"),
            unit="percentunit",
            stacked=True,
        ),
        graph(
            "Rows read, and lag in Kafka",
            "What Spark reads in a second, how many records of each topic the job looks at, how many of these it can't "
            "take (dead letters), and how many records of its sources it has not read yet.",
            Query(_IN.rate("keyhole_spark_input_rows_total", _QUERY), "{{application}} {{query}} rows/s"),
            Query(_IN.rate("keyhole_job_checked_records_total", "application topic"), "{{topic}} looked at/s"),
            Query(_IN.rate("keyhole_job_rejected_records_total", "application topic"), "{{topic}} rejected/s"),
            Query(
                _IN.now("keyhole_kafka_source_lag_records", "application query topic"), "{{query}} {{topic}} not read"
            ),
        ),
        graph(
            "Input and its processing",
            "Rows a second that came and that Spark could take, in the last batch. Right: the second is higher.",
            Query(_IN.now("keyhole_spark_input_rows_per_second", _QUERY), "{{application}} {{query}} came"),
            Query(_IN.now("keyhole_spark_processed_rows_per_second", _QUERY), "{{application}} {{query}} can be taken"),
            unit="wps",
        ),
        graph(
            "Spark's own state",
            "Rows that stateful operators keep, and their memory.",
            Query(_IN.now("keyhole_spark_state_rows", _QUERY), "{{application}} {{query}} rows"),
            Query(_IN.now("keyhole_spark_state_memory_bytes", _QUERY), "{{application}} {{query}} bytes"),
        ),
        graph(
            "Changelogs",
            "Offsets from first to last, of all partitions: at most so many records.",
            Query(_IN.now("keyhole_kafka_changelog_records", _STATE), "{{application}}/{{state}}"),
        ),
    ),
)

_READING = Row(
    "Reading",
    (
        graph(
            "Keys read",
            "Through the proxies, in a second.",
            Query(_IN.rate("keyhole_client_proxy_lookup_keys_total", _STATE), "{{application}}/{{state}}"),
            unit="ops",
        ),
        graph(
            "What a frame of lookups takes in a proxy",
            "From its arrival to its answer; of all applications.",
            Query(_IN.quantile(0.5, "keyhole_client_proxy_lookup_seconds"), "p50"),
            Query(_IN.quantile(0.99, "keyhole_client_proxy_lookup_seconds"), "p99"),
            Query(_IN.quantile(0.999, "keyhole_client_proxy_lookup_seconds"), "p99.9"),
            unit="s",
        ),
        graph(
            "Reads that fail",
            "By reason, in a second.",
            Query(_IN.rate("keyhole_client_proxy_failed_reads_total", "reason"), "{{reason}}"),
            unit="ops",
        ),
    ),
)

_COMPONENTS = ("state_server", "client_proxy", "job")
_OWN = {"state_server": "server", "client_proxy": "proxy", "job": "application"}


def _by_process(metric: str, counter: bool) -> tuple[Query, ...]:
    read = _IN.rate if counter else _IN.now
    named = [Query(read(f"keyhole_{one}_{metric}", _OWN[one]), f"{{{{{_OWN[one]}}}}}") for one in _COMPONENTS]
    return (*named, Query(read(f"keyhole_exporter_{metric}"), "exporter"))


_PROCESSES = Row(
    "Processes",
    (
        graph(
            "Processes that answer",
            "To the exporter, by component.",
            Query(_IN.now("keyhole_exporter_up", "component", how="sum"), "{{component}}"),
            Query(_IN.now("keyhole_exporter_discovered_targets", "component"), "{{component}} discovered"),
            unit="none",
        ),
        graph(
            "Processor time",
            "Processors in use, user and system.",
            *_by_process("cpu_seconds_total", counter=True),
            unit="none",
        ),
        graph("Memory", "That is in RAM.", *_by_process("resident_memory_bytes", counter=False), unit="bytes"),
        Panel(
            "Versions",
            "How many processes of each component run each version.",
            tuple(
                Query(_IN.now(f"keyhole_{one}_build_info", "version"), title)
                for one, title in zip(
                    (*_COMPONENTS, "exporter"), ("State servers", "Proxies", "Jobs", "Exporters"), strict=True
                )
            ),
            "none",
            Kind.TABLE,
            width=12,
            height=6,
            columns={"version": "Version"},
        ),
        Panel(
            "How the exporter asks",
            "How long each process took to answer, last, how old its answer is, and how often it failed to answer.",
            (
                Query(_IN.now("keyhole_exporter_ask_seconds", "component target"), "Took", "s"),
                Query(_IN.now("keyhole_exporter_answer_age_seconds", "component target"), "Age", "s"),
                Query(_IN.count("keyhole_exporter_failed_asks_total", "component target"), "Failed", "none"),
            ),
            kind=Kind.TABLE,
            width=12,
            height=6,
            columns={"component": "Component", "target": "Process"},
        ),
        Panel(
            "Containers that have ended",
            "Of the release's pods on Kubernetes, in an hour: killed for memory, or ended with an error.",
            (
                Query(
                    f"{_IN.increase('keyhole_exporter_ended_containers_total', '1h', 'container cause')} > 0",
                    "{{container}}: {{cause}}",
                    "none",
                ),
            ),
            width=24,
            height=6,
        ),
    ),
)

DASHBOARD = Dashboard(
    "overview",
    "Keyhole / Overview",
    "Is everything all right, how fresh is it, how much is written and read, and by which processes.",
    (Variable("application", "Application", "keyhole_cluster_all_key_groups"),),
    (_ALERTS, _STATES, _WRITING, _READING, _PROCESSES),
)
