"""The read path: from the clients' frames through the proxies to the state servers."""

from __future__ import annotations

from charts.dashboards.model import Dashboard, Kind, Panel, Query, Row, Variable, graph
from charts.dashboards.queries import Scope

_IN = Scope("application", "proxy", "server")
_STATE = "application state"
_OF_STATE = "{{application}}/{{state}}"
_QUANTILES = ((0.5, "p50"), (0.99, "p99"), (0.999, "p99.9"))


def _quantiles(metric: str) -> tuple[Query, ...]:
    return tuple(Query(_IN.quantile(quantile, metric), name) for quantile, name in _QUANTILES)


_PROXIES = Row(
    "Client proxies",
    (
        graph(
            "Keys read",
            "In a second.",
            Query(_IN.rate("keyhole_client_proxy_lookup_keys_total", _STATE), _OF_STATE),
            unit="ops",
        ),
        graph(
            "What a frame of lookups takes",
            "From its arrival to its answer; of all applications.",
            *_quantiles("keyhole_client_proxy_lookup_seconds"),
            unit="s",
        ),
        Panel(
            "How many frames take how long",
            "The same, as a heat map, of all releases that are chosen together: two humps are two kinds of answers.",
            (Query(_IN.heat("keyhole_client_proxy_lookup_seconds")),),
            "s",
            Kind.HEATMAP,
        ),
        graph(
            "Reads that fail",
            "Keys, or scans, that got no answer, by reason, in a second.",
            Query(_IN.rate("keyhole_client_proxy_failed_reads_total", f"{_STATE} reason"), _OF_STATE + " {{reason}}"),
            unit="ops",
        ),
        graph(
            "Part of the reads that fail",
            "By state, wrong names and wrong keys included.",
            Query(
                f"({_IN.rate('keyhole_client_proxy_failed_reads_total', _STATE)}"
                f" or 0 * {_IN.rate('keyhole_client_proxy_lookup_keys_total', _STATE)})"
                f" / ({_IN.rate('keyhole_client_proxy_lookup_keys_total', _STATE)}"
                f" + {_IN.rate('keyhole_client_proxy_finished_scans_total', _STATE)})",
                _OF_STATE,
            ),
            unit="percentunit",
            thresholds={0.01: "red"},
        ),
        graph(
            "Keys per frame",
            "Of clients, on average. More is cheaper: clients gather what is waiting.",
            Query(_IN.mean("keyhole_client_proxy_frame_keys", "proxy"), "{{proxy}}"),
        ),
        graph(
            "Frames",
            "That keys come in, in a second.",
            Query(_IN.rate("keyhole_client_proxy_lookup_frames_total", "proxy"), "{{proxy}}"),
            unit="ops",
        ),
        graph(
            "Under way",
            "Keys, scans, and lookup streams of clients.",
            Query(_IN.now("keyhole_client_proxy_open_keys", "proxy"), "{{proxy}} keys"),
            Query(_IN.now("keyhole_client_proxy_open_scans", "proxy"), "{{proxy}} scans"),
            Query(_IN.now("keyhole_client_proxy_open_streams", "proxy"), "{{proxy}} streams"),
            Query(_IN.now("keyhole_client_proxy_open_lookup_calls", "proxy"), "{{proxy}} calls"),
            Query(_IN.now("keyhole_state_server_open_lookup_calls", "server"), "{{server}} calls"),
            unit="none",
        ),
        graph(
            "Lookups beyond a limit",
            "Keys, or calls, that were refused, by the limit: of one caller, or of all together.",
            Query(_IN.rate("keyhole_client_proxy_limited_reads_total", "limit"), "proxies: {{limit}}"),
            Query(_IN.rate("keyhole_state_server_limited_reads_total", "limit"), "servers: {{limit}}"),
            unit="ops",
        ),
        graph(
            "Lookups dropped unread",
            "Keys whose deadline had passed before their turn came: there is too little processor time.",
            Query(_IN.rate("keyhole_client_proxy_expired_reads_total", "proxy"), "{{proxy}}"),
            Query(_IN.rate("keyhole_state_server_expired_reads_total", "server"), "{{server}}"),
            unit="ops",
        ),
        graph(
            "Calls refused",
            "Before they were looked at: the caller is not known, may not, or wants too much.",
            Query(_IN.rate("keyhole_client_proxy_refused_calls_total", "refusal"), "proxies: {{refusal}}"),
            Query(_IN.rate("keyhole_state_server_refused_calls_total", "refusal"), "servers: {{refusal}}"),
            Query(_IN.rate("keyhole_job_refused_calls_total", "refusal"), "jobs: {{refusal}}"),
            unit="ops",
        ),
    ),
)

_ROUTING = Row(
    "Routing",
    (
        graph(
            "Routes that were right",
            "Of the keys that were sent, those that the first copy has answered. Right: near 1.",
            Query(
                f"{_IN.rate('keyhole_client_proxy_route_hit_keys_total', _STATE)}"
                f" / ({_IN.rate('keyhole_client_proxy_route_hit_keys_total', _STATE)}"
                f" + {_IN.rate('keyhole_client_proxy_route_missed_keys_total', _STATE)})",
                _OF_STATE,
            ),
            unit="percentunit",
        ),
        graph(
            "Keys sent again",
            "To another copy, or once more, in a second.",
            Query(_IN.rate("keyhole_client_proxy_route_missed_keys_total", _STATE), _OF_STATE),
            unit="ops",
        ),
        graph(
            "Key groups without an owner",
            "As each proxy knows it.",
            Query(_IN.now("keyhole_client_proxy_unrouted_key_groups", f"proxy {_STATE}"), "{{proxy}} " + _OF_STATE),
            unit="none",
            thresholds={1.0: "red"},
        ),
        graph(
            "State servers",
            "As the proxies see them: reached, silent for now, or lost. Added up over the proxies.",
            Query(_IN.now("keyhole_client_proxy_known_servers", "status"), "{{status}}"),
            unit="none",
        ),
        graph(
            "Calls to silent servers",
            "Those that were silent for the hop deadline, in a second; another copy is asked then.",
            Query(_IN.rate("keyhole_client_proxy_silent_calls_total", "proxy"), "{{proxy}}"),
            unit="ops",
        ),
        graph(
            "Hedged keys",
            "Asked of another copy, too, as their server was slow, and answered by that one first, in a second.",
            Query(_IN.rate("keyhole_client_proxy_hedged_keys_total", "proxy"), "hedged: {{proxy}}"),
            Query(_IN.rate("keyhole_client_proxy_hedge_answered_keys_total", "proxy"), "answered first: {{proxy}}"),
            unit="ops",
        ),
    ),
)

_SERVERS = Row(
    "State servers",
    (
        graph(
            "Keys read",
            "In a second.",
            Query(_IN.rate("keyhole_state_server_lookup_keys_total", "server"), "{{server}}"),
            unit="ops",
        ),
        graph(
            "What a frame of lookups takes",
            "In the servers, of all applications. What the proxies take beyond it is theirs, and the network's.",
            *_quantiles("keyhole_state_server_lookup_seconds"),
            unit="s",
        ),
        graph(
            "Keys per frame",
            "Of proxies, on average.",
            Query(_IN.mean("keyhole_state_server_frame_keys", "server"), "{{server}}"),
        ),
        graph(
            "Frames",
            "In a second.",
            Query(_IN.rate("keyhole_state_server_lookup_frames_total", "server"), "{{server}}"),
            unit="ops",
        ),
        graph(
            "Reader processes",
            "Where a server has several: how many answer lookups, and the frames that they had to leave to its own.",
            Query(_IN.now("keyhole_state_server_reader_processes", "server"), "{{server}} processes"),
            Query(_IN.rate("keyhole_state_server_passed_on_frames_total", "server"), "{{server}} frames a second"),
            unit="none",
        ),
        graph(
            "Reads refused",
            "By reason, in a second. NOT_OWNER and NOT_READY are asked of another copy.",
            Query(_IN.rate("keyhole_state_server_failed_reads_total", "server reason"), "{{server}} {{reason}}"),
            unit="ops",
        ),
        graph(
            "Processor time",
            "Processors in use, of those who answer reads.",
            Query(_IN.rate("keyhole_state_server_cpu_seconds_total", "server"), "{{server}}"),
            Query(_IN.rate("keyhole_client_proxy_cpu_seconds_total", "proxy"), "{{proxy}}"),
            unit="none",
        ),
    ),
)

_SCANS = Row(
    "Scans",
    (
        graph(
            "Scans",
            "That have ended, in a second; in the proxies and in the servers.",
            Query(_IN.rate("keyhole_client_proxy_finished_scans_total", _STATE), f"{_OF_STATE} proxies"),
            Query(_IN.rate("keyhole_state_server_finished_scans_total", _STATE), f"{_OF_STATE} servers"),
            unit="ops",
        ),
        graph(
            "Entries scanned",
            "In a second.",
            Query(_IN.rate("keyhole_client_proxy_scanned_entries_total", _STATE), _OF_STATE),
            unit="ops",
        ),
        graph(
            "What a scan takes",
            "Its reader's pauses included: half of them, and 99 of 100, are at most so long.",
            Query(_IN.quantile(0.5, "keyhole_client_proxy_scan_seconds"), "proxies p50"),
            Query(_IN.quantile(0.99, "keyhole_client_proxy_scan_seconds"), "proxies p99"),
            Query(_IN.quantile(0.5, "keyhole_state_server_scan_seconds"), "servers p50"),
            Query(_IN.quantile(0.99, "keyhole_state_server_scan_seconds"), "servers p99"),
            unit="s",
        ),
        graph(
            "Scans under way",
            "In the servers. Each keeps an old epoch readable, and its space in the store.",
            Query(_IN.now("keyhole_state_server_open_scans", "server"), "{{server}}"),
            unit="none",
        ),
        graph(
            "Watches under way",
            "In the servers; and those that were let go in a second, as they took changes too slowly.",
            Query(_IN.now("keyhole_state_server_open_watches", "server"), "{{server}}"),
            Query(_IN.rate("keyhole_state_server_let_go_watches_total", _STATE), _OF_STATE + " let go"),
            unit="none",
        ),
        graph(
            "Changes kept for watches",
            "Of the last epochs, in the servers' memory; at most 16 MiB of a state.",
            Query(_IN.now("keyhole_state_server_watched_bytes", f"server {_STATE}"), "{{server}} " + _OF_STATE),
            unit="bytes",
        ),
    ),
)

DASHBOARD = Dashboard(
    "reads",
    "Keyhole / Read path",
    "From the clients' frames through the proxies to the state servers: how many, how long, what fails and why.",
    (
        Variable("application", "Application", "keyhole_cluster_all_key_groups"),
        Variable("proxy", "Client proxy", "keyhole_client_proxy_start_time_seconds"),
        Variable("server", "State server", "keyhole_state_server_ready"),
    ),
    (_PROXIES, _ROUTING, _SERVERS, _SCANS),
)
