"""One state: who has it, how fresh each copy is, what is written to it and read of it."""

from __future__ import annotations

from charts.dashboards.model import Dashboard, Kind, Panel, Query, Row, Variable, graph, number
from charts.dashboards.queries import Scope

_IN = Scope("application", "state", "server")
_BAD = {1.0: "red"}

_NUMBERS = Row(
    "Now",
    (
        number("Key groups", "That the state has.", _IN.now("keyhole_cluster_all_key_groups"), width=3),
        number(
            "Without an owner",
            "Nothing is written to them. Right: 0.",
            _IN.now("keyhole_cluster_unowned_key_groups"),
            thresholds=_BAD,
            width=3,
        ),
        number(
            "Nobody answers for",
            "Their readers get UNAVAILABLE. Right: 0.",
            _IN.now("keyhole_cluster_unreadable_key_groups"),
            thresholds=_BAD,
            width=3,
        ),
        number(
            "With a standby",
            "The others are read by nobody while their owner is away.",
            _IN.now("keyhole_cluster_followed_key_groups"),
            width=3,
        ),
        number("Epoch", "What readers get at least.", _IN.now("keyhole_cluster_oldest_epoch"), "none", width=3),
        number(
            "Since the last commit",
            "How long ago that epoch was committed.",
            _IN.now("keyhole_cluster_commit_age_seconds"),
            "s",
            {60.0: "yellow", 300.0: "red"},
            width=3,
        ),
        number(
            "Age of the watermark",
            "Event time that windows may still wait for; only where the job has a watermark.",
            _IN.now("keyhole_cluster_watermark_age_seconds"),
            "s",
            width=3,
        ),
        number(
            "Changelog",
            "Offsets in Kafka from first to last: at most so many records.",
            _IN.now("keyhole_kafka_changelog_records"),
            width=3,
        ),
    ),
)

_BY_COPY = "server role"

_COPIES = Row(
    "Copies",
    (
        Panel(
            "Who has which key groups",
            "How many key groups of each range a server owns or follows.",
            (Query(_IN.now("keyhole_cluster_range_key_groups", "range server role"), "Key groups", "none"),),
            kind=Kind.TABLE,
            columns={"range": "Range", "server": "Server", "role": "Role"},
        ),
        graph(
            "Key groups that can be read",
            "By server, as owner and as standby.",
            Query(_IN.now("keyhole_state_server_readable_key_groups", _BY_COPY), "{{server}} {{role}}"),
            unit="none",
            stacked=True,
        ),
        graph(
            "Key groups that were given",
            "To own or to follow; those that can't be read yet are being restored. Warm: could be owned at once.",
            Query(_IN.now("keyhole_state_server_assigned_key_groups", _BY_COPY), "{{server}} {{role}}"),
            Query(_IN.now("keyhole_state_server_warm_key_groups", "server"), "{{server}} warm"),
            unit="none",
        ),
        graph(
            "Epoch",
            "That a copy's answers stand for. Right: all of them within one or two.",
            Query(_IN.now("keyhole_state_server_copy_epoch", _BY_COPY), "{{server}} {{role}}"),
            unit="none",
        ),
        graph(
            "Since the last commit",
            "Of what a copy answers.",
            Query(_IN.now("keyhole_state_server_commit_age_seconds", _BY_COPY), "{{server}} {{role}}"),
            unit="s",
            thresholds={300.0: "red"},
        ),
        graph(
            "Age of the watermark",
            "Of the epoch that a copy stands for.",
            Query(_IN.now("keyhole_state_server_watermark_age_seconds", _BY_COPY), "{{server}} {{role}}"),
            unit="s",
        ),
        graph(
            "Lag of standbys, epochs",
            "Complete epochs that a copy lacks. Right: 0 or 1.",
            Query(_IN.now("keyhole_state_server_standby_lag_epochs", "server"), "{{server}}"),
            unit="none",
            thresholds={20.0: "red"},
        ),
        graph(
            "Lag of standbys, time",
            "How long ago a copy was whole. Right: a second or two; while there is no coordinator it grows.",
            Query(_IN.now("keyhole_state_server_standby_lag_seconds", "server"), "{{server}}"),
            unit="s",
            thresholds={60.0: "red"},
        ),
        graph(
            "Last commit",
            "When the epoch that a copy stands for was committed.",
            Query(f"{_IN.now('keyhole_state_server_commit_time_seconds', _BY_COPY)} * 1000", "{{server}} {{role}}"),
            unit="dateTimeAsIso",
        ),
    ),
)

_STORES = Row(
    "Stores",
    (
        graph(
            "Entries",
            "In each server's store, owned and followed; estimated where many.",
            Query(_IN.now("keyhole_state_server_store_entries", "server"), "{{server}}"),
        ),
        graph(
            "Bytes",
            "That each server's store takes.",
            Query(_IN.now("keyhole_state_server_store_bytes", "server"), "{{server}}"),
            unit="bytes",
        ),
        graph(
            "Part of the limit",
            "What a store takes of the most that one state may take on its server.",
            Query(
                f"{_IN.now('keyhole_state_server_store_bytes', 'server')}"
                f" / {_IN.now('keyhole_state_server_store_limit_bytes', 'server')}",
                "{{server}}",
            ),
            unit="percentunit",
            thresholds={0.9: "red"},
        ),
        graph(
            "Indexes",
            "Rows that each index has, on all servers. Fewer than there are entries: it is being built, or given up.",
            Query(_IN.now("keyhole_state_server_index_entries", "field"), "{{field}}"),
        ),
    ),
)

_WRITING = Row(
    "Writing",
    (
        graph(
            "Rows",
            "Staged by tasks, those of lost attempts included, and committed, in a second.",
            Query(_IN.rate("keyhole_state_server_staged_rows_total", "server"), "{{server}} staged"),
            Query(_IN.rate("keyhole_state_server_committed_rows_total", "server"), "{{server}} committed"),
            unit="wps",
        ),
        graph(
            "Bytes",
            "Keys and values of these rows, in a second.",
            Query(_IN.rate("keyhole_state_server_staged_bytes_total", "server"), "{{server}} staged"),
            Query(_IN.rate("keyhole_state_server_committed_bytes_total", "server"), "{{server}} committed"),
            unit="Bps",
        ),
        graph(
            "What a commit takes",
            "On each server, Kafka included; of all states.",
            Query(_IN.quantile(0.5, "keyhole_state_server_commit_seconds", "server"), "{{server}} p50"),
            Query(_IN.quantile(0.99, "keyhole_state_server_commit_seconds", "server"), "{{server}} p99"),
            unit="s",
        ),
    ),
)

_UPDATES = Row(
    "Updates: of a state that is fed without batches",
    (
        graph(
            "Lag, time",
            "How long ago an owner had applied all updates that there were; it looks each second. Right: 1 s or less.",
            Query(_IN.now("keyhole_state_server_updates_lag_seconds", "server"), "{{server}}"),
            unit="s",
            thresholds={30.0: "red"},
        ),
        graph(
            "Until readers see it",
            "From Kafka's timestamp of an update until readers saw it, by two machines' clocks.",
            Query(_IN.quantile(0.5, "keyhole_state_server_update_seconds", "server"), "{{server}} p50"),
            Query(_IN.quantile(0.99, "keyhole_state_server_update_seconds", "server"), "{{server}} p99"),
            unit="s",
        ),
        graph(
            "Lag, updates",
            "That the logs of its key groups had, when it looked last, and that are not applied.",
            Query(_IN.now("keyhole_state_server_unapplied_updates", "server"), "{{server}}"),
        ),
        graph(
            "Applied",
            "In a second. Repeated: sent again, they change nothing. Refused: for the dead letters.",
            Query(_IN.rate("keyhole_state_server_applied_updates_total", "server"), "{{server}} applied"),
            Query(_IN.rate("keyhole_state_server_repeated_updates_total", "server"), "{{server}} repeated"),
            Query(_IN.rate("keyhole_state_server_refused_updates_total", "server"), "{{server}} refused"),
            unit="wps",
        ),
        graph(
            "Not committed",
            "Rows that are shown, and dead letters, that wait in memory for a commit, which comes each 250 ms.",
            Query(_IN.now("keyhole_state_server_uncommitted_rows", "server"), "{{server}}"),
        ),
        graph(
            "Not committed, bytes",
            "Keys and values of these.",
            Query(_IN.now("keyhole_state_server_uncommitted_bytes", "server"), "{{server}}"),
            unit="bytes",
        ),
        graph(
            "Reading is paused",
            "1: too much waits for a commit, so no updates are read.",
            Query(_IN.now("keyhole_state_server_updates_paused", "server"), "{{server}}"),
            unit="none",
            thresholds=_BAD,
        ),
        graph(
            "Key groups that stand still",
            "Stopped: their updates are gone, or can't be applied. Waiting: for a newer descriptor. Right: 0.",
            Query(_IN.now("keyhole_state_server_stopped_key_groups", "server"), "{{server}} stopped"),
            Query(_IN.now("keyhole_state_server_waiting_key_groups", "server"), "{{server}} waiting"),
            unit="none",
            thresholds=_BAD,
        ),
        graph(
            "Numbers given up",
            "Of rows, in a second: a row that was refused by Kafka and is sent again may be lost below them. Right: 0.",
            Query(_IN.rate("keyhole_state_server_assumed_updates_total", "server"), "{{server}}"),
            thresholds={0.001: "red"},
        ),
    ),
)

_READING = Row(
    "Reading",
    (
        graph(
            "Keys read",
            "In a second: through the proxies, and as they come to each server.",
            Query(_IN.rate("keyhole_client_proxy_lookup_keys_total"), "through proxies"),
            Query(_IN.rate("keyhole_state_server_lookup_keys_total", "server"), "{{server}}"),
            unit="ops",
        ),
        graph(
            "Reads that fail in the proxies",
            "By reason: what clients get.",
            Query(_IN.rate("keyhole_client_proxy_failed_reads_total", "reason"), "{{reason}}"),
            unit="ops",
        ),
        graph(
            "Reads that servers refuse",
            "By reason. A proxy asks another copy then: not all of them reach a client.",
            Query(_IN.rate("keyhole_state_server_failed_reads_total", "reason"), "{{reason}}"),
            unit="ops",
        ),
        graph(
            "Scans",
            "That have ended, in a second.",
            Query(_IN.rate("keyhole_state_server_finished_scans_total", "server"), "{{server}}"),
            unit="ops",
        ),
        graph(
            "Scans by an index",
            "Of these, those that looked rows up by the index of a field.",
            Query(_IN.rate("keyhole_state_server_indexed_scans_total", "field"), "{{field}}"),
            unit="ops",
        ),
        graph(
            "Entries scanned",
            "In a second.",
            Query(_IN.rate("keyhole_state_server_scanned_entries_total", "server"), "{{server}}"),
            unit="ops",
        ),
        graph(
            "Bytes scanned",
            "Keys and values of these, in a second.",
            Query(_IN.rate("keyhole_state_server_scanned_bytes_total", "server"), "{{server}}"),
            unit="Bps",
        ),
    ),
)

DASHBOARD = Dashboard(
    "state",
    "Keyhole / One state",
    "Who has a state, how fresh each copy is, what is written to it and read of it.",
    (
        Variable("application", "Application", "keyhole_cluster_all_key_groups", single=True),
        Variable("state", "State", "keyhole_cluster_all_key_groups", single=True, within=("application",)),
        Variable("server", "State server", "keyhole_state_server_ready"),
    ),
    (_NUMBERS, _COPIES, _STORES, _WRITING, _UPDATES, _READING),
)
