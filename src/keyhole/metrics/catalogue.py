"""The one catalogue of all metrics. Pure: names, types, labels, units and bounds; what counts them is elsewhere.

A name is `keyhole_<component>_<what>_<unit>`, and counters end with `_total` after that; what is 0 or 1 has no unit.
Every process exposes what it says of itself under `Stats` (gRPC), and on its own /metrics if that is switched on. The
exporter exposes the same for all processes, and what only shows from all of them together (`keyhole_cluster_...`).
docs/metrics.md is made of this file; dashboards and alerts are checked against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from keyhole.metrics.labels import PHASES
from keyhole.metrics.metric import Component, Metric, Together, counter, gauge, histogram

_CALL_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
_EPOCH_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_UPDATE_SECONDS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
_FRAME_KEYS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 4096.0, 16384.0)

_SERVER, _PROXY, _JOB, _EXPORTER = tuple(Component)
_MAX, _MIN = Together.MAX, Together.MIN


def _process(component: Component, label: str) -> tuple[Metric, ...]:
    """What every process says of itself."""
    return (
        gauge(component, "build", "info", f"{label} version".strip(), "1; which version runs."),
        # Of several processes with one label, as a driver and the one that stands by, the younger one's.
        gauge(component, "start_time", "seconds", label, "When the process started: seconds since 1970.", _MAX),
        counter(component, "cpu", "seconds", label, "Processor time of the process, user and system."),
        gauge(component, "resident_memory", "bytes", label, "Memory of the process that is in RAM."),
    )


def _refused(component: Component, label: str) -> Metric:
    what = "Calls refused before they were looked at: the caller is not known, may not, or wants too much."
    return counter(component, "refused", "calls", f"{label} refusal", what)


def _admission(component: Component, label: str) -> tuple[Metric, ...]:
    """What became of lookups at the entrance."""
    limited = "Keys, or calls, that were refused because more would be beyond a limit, by that."
    expired = "Keys that were dropped unread: their deadline had passed before their lookup was begun."
    calls = "Lookup streams, and other calls that look keys up, under way."
    return (
        counter(component, "limited", "reads", f"{label} limit", limited),
        counter(component, "expired", "reads", label, expired),
        gauge(component, "open_lookup", "calls", label, calls),
    )


_STATE = "server application state"
_COPY = "server application state role"
_HOST = "server application query"

_STATE_SERVER = (
    *_process(_SERVER, "server"),
    _refused(_SERVER, "server"),
    gauge(_SERVER, "ready", "", "server", "1: it has key groups, and all of them can be read."),
    gauge(_SERVER, "draining", "", "server", "1: its key groups are to go to others (SIGTERM, `keyhole drain`)."),
    # What it holds.
    gauge(_SERVER, "held", "states", "server", "Of how many states it holds key groups."),
    gauge(_SERVER, "assigned", "key_groups", _COPY, "Key groups that it was given, to own or to follow."),
    gauge(_SERVER, "readable", "key_groups", _COPY, "Key groups that it answers for now."),
    gauge(_SERVER, "warm", "key_groups", _STATE, "Followed key groups that could be owned at once."),
    gauge(_SERVER, "store", "entries", _STATE, "Entries in its store, owned and followed; estimated where many."),
    gauge(_SERVER, "store", "bytes", _STATE, "Bytes that its store takes, indexes included."),
    gauge(_SERVER, "index", "entries", f"{_STATE} field", "Rows that an index in its store has."),
    # How fresh that is.
    gauge(_SERVER, "copy", "epoch", _COPY, "The epoch that its answers stand for.", _MIN),
    gauge(_SERVER, "commit_time", "seconds", _COPY, "When its answers' epoch was committed: seconds since 1970.", _MIN),
    gauge(_SERVER, "commit_age", "seconds", _COPY, "How long ago its answers' epoch was committed.", _MAX),
    gauge(_SERVER, "watermark_age", "seconds", _COPY, "Age of its answers' watermark, where there is one.", _MAX),
    gauge(_SERVER, "standby_lag", "epochs", _STATE, "Complete epochs that a followed key group lacks, at most.", _MAX),
    gauge(_SERVER, "standby_lag", "seconds", _STATE, "How long ago a followed copy was whole, at most.", _MAX),
    gauge(_SERVER, "lease_age", "seconds", _HOST, "How long ago its coordinator was heard of.", _MAX),
    # Restoring.
    gauge(_SERVER, "restoring", "key_groups", _STATE, "Key groups that it is to own and can't answer for yet."),
    gauge(_SERVER, "restored", "records", _STATE, "Changelog records read by the last restore so far."),
    gauge(_SERVER, "to_restore", "records", _STATE, "Changelog records that the last restore has to read."),
    # Writing.
    counter(_SERVER, "staged", "rows", _STATE, "Rows that tasks have staged, those of lost attempts included."),
    counter(_SERVER, "staged", "bytes", _STATE, "Bytes of staged rows, keys and values."),
    counter(_SERVER, "committed", "rows", _STATE, "Rows that were committed."),
    counter(_SERVER, "committed", "bytes", _STATE, "Bytes of committed rows, keys and values."),
    gauge(_SERVER, "staged", "epoch", _HOST, "The last epoch that rows were staged of.", _MAX),
    gauge(_SERVER, "committed", "epoch", _HOST, "The last epoch that it has committed.", _MAX),
    counter(_SERVER, "committed", "epochs", _HOST, "Epochs that it has committed."),
    counter(_SERVER, "replayed", "epochs", _HOST, "Committed epochs that an earlier run had committed already."),
    counter(_SERVER, "failed", "commits", f"{_HOST} reason", "Commits that failed; they are tried again."),
    histogram(_SERVER, "commit", "seconds", "server", "What a commit takes here, Kafka included.", _EPOCH_SECONDS),
    gauge(_SERVER, "staging", "bytes", "server where", "Staged rows that are not committed yet."),
    # States that are fed by updates.
    gauge(_SERVER, "unapplied", "updates", _STATE, "Updates that its logs had, when it looked last, and lacks."),
    gauge(
        _SERVER,
        "updates_lag",
        "seconds",
        _STATE,
        "How long ago an owned key group had applied all updates that there were, at most: its age, as max_staleness "
        "has it. A second or less where all is applied. Only where the state is fed by updates.",
        _MAX,
    ),
    histogram(
        _SERVER,
        "update",
        "seconds",
        _STATE,
        "From Kafka's timestamp of an update until readers saw it, by the broker's and the server's clocks. Not of "
        "those that a new owner reads before it answers.",
        _UPDATE_SECONDS,
    ),
    gauge(_SERVER, "updates_paused", "", _STATE, "1: no updates are read before what is applied is committed.", _MAX),
    gauge(_SERVER, "uncommitted", "rows", _STATE, "Rows and dead letters that wait in memory for a commit."),
    gauge(_SERVER, "uncommitted", "bytes", _STATE, "Bytes of these, keys and values."),
    gauge(_SERVER, "stopped", "key_groups", _STATE, "Owned ones whose updates are gone, or can't be applied."),
    gauge(_SERVER, "waiting", "key_groups", _STATE, "Owned ones whose updates are of a schema that is not known yet."),
    counter(_SERVER, "applied", "updates", _STATE, "Updates that were applied; some again, after a restore."),
    counter(_SERVER, "repeated", "updates", _STATE, "Updates that had counted before, and changed nothing."),
    counter(_SERVER, "refused", "updates", _STATE, "Records of the updates topic that went to the dead letters."),
    counter(
        _SERVER,
        "assumed",
        "updates",
        _STATE,
        "Numbers of rows that were given up, with all below them, for lack of boundaries. Right: 0.",
    ),
    # Reading.
    counter(_SERVER, "lookup", "keys", _STATE, "Keys that were looked up."),
    counter(_SERVER, "lookup", "frames", _STATE, "Requests that the looked-up keys came in."),
    counter(_SERVER, "failed", "reads", f"{_STATE} reason", "Keys, or scans, that were refused."),
    *_admission(_SERVER, "server"),
    gauge(_SERVER, "reader", "processes", "server", "How many processes answer lookups now."),
    counter(_SERVER, "passed_on", "frames", "server", "Frames that readers had to leave to the server's own process."),
    histogram(_SERVER, "lookup", "seconds", "server", "What a frame of lookups takes here.", _CALL_SECONDS),
    histogram(_SERVER, "frame", "keys", "server", "Keys per frame of lookups.", _FRAME_KEYS),
    counter(_SERVER, "finished", "scans", _STATE, "Scans that have ended, however."),
    counter(
        _SERVER,
        "indexed",
        "scans",
        f"{_STATE} field",
        "Scans, and first rows of watches, that were looked up by an index.",
    ),
    counter(_SERVER, "scanned", "entries", _STATE, "Entries that scans have sent."),
    counter(_SERVER, "scanned", "bytes", _STATE, "Bytes of scanned entries, keys and values."),
    gauge(_SERVER, "open", "scans", "server", "Scans under way."),
    gauge(_SERVER, "open", "watches", "server", "Watches under way."),
    gauge(_SERVER, "watched", "bytes", _STATE, "Of the last epochs' changes, which are kept for those who watch."),
    counter(_SERVER, "let_go", "watches", _STATE, "Watches that were ended because they took changes too slowly."),
    histogram(_SERVER, "scan", "seconds", "server", "What a scan takes, its reader's pauses included.", _CALL_SECONDS),
    # The disk.
    gauge(_SERVER, "disk", "bytes", "server", "Size of the file system that its stores are on."),
    gauge(_SERVER, "disk_free", "bytes", "server", "Free bytes of that file system, for this process."),
    gauge(_SERVER, "disk_used", "bytes", "server", "Bytes of that file system that its stores take, together."),
    gauge(_SERVER, "store_limit", "bytes", "server", "The most that one state's store may take, by its settings."),
)

_PROXY_STATE = "proxy application state"

_CLIENT_PROXY = (
    *_process(_PROXY, "proxy"),
    _refused(_PROXY, "proxy"),
    counter(_PROXY, "lookup", "keys", _PROXY_STATE, "Keys that were looked up."),
    counter(_PROXY, "lookup", "frames", _PROXY_STATE, "Requests that the looked-up keys came in."),
    counter(
        _PROXY,
        "failed",
        "reads",
        f"{_PROXY_STATE} reason",
        "Keys, or scans, that got no answer, but for those beyond a limit of one caller.",
    ),
    *_admission(_PROXY, "proxy"),
    counter(_PROXY, "route_hit", "keys", _PROXY_STATE, "Keys that the first copy they were sent to has answered."),
    counter(_PROXY, "route_missed", "keys", _PROXY_STATE, "Keys that had to be sent to another copy, or again."),
    histogram(_PROXY, "lookup", "seconds", "proxy", "From a frame's arrival to its answer.", _CALL_SECONDS),
    histogram(_PROXY, "frame", "keys", "proxy", "Keys per frame of lookups, as clients send them.", _FRAME_KEYS),
    gauge(_PROXY, "open", "keys", "proxy", "Keys under way."),
    gauge(_PROXY, "open", "streams", "proxy", "Lookup streams of clients."),
    counter(_PROXY, "finished", "scans", _PROXY_STATE, "Scans that have ended, however."),
    counter(_PROXY, "scanned", "entries", _PROXY_STATE, "Entries that scans have sent."),
    gauge(_PROXY, "open", "scans", "proxy", "Scans under way."),
    histogram(_PROXY, "scan", "seconds", "proxy", "What a scan takes, its reader's pauses included.", _CALL_SECONDS),
    gauge(_PROXY, "known", "servers", "proxy status", "State servers discovered, by how it stands with them."),
    counter(_PROXY, "silent", "calls", "proxy", "Calls to a server that was silent for the hop deadline."),
    counter(_PROXY, "hedged", "keys", "proxy", "Keys that were asked of another copy, too, as their server was slow."),
    counter(_PROXY, "hedge_answered", "keys", "proxy", "Those of them that the other copy has answered first."),
    gauge(_PROXY, "unrouted", "key_groups", _PROXY_STATE, "Key groups without an owner, as this proxy knows it."),
)

_QUERY = "application query"

_JOB_METRICS = (
    *_process(_JOB, "application"),
    _refused(_JOB, "application"),
    counter(
        _JOB,
        "checked",
        "records",
        "application topic",
        "Records that the job has looked at, rejected ones included, as of the last complete epoch. Counted as those "
        "are: of the same topics, from 0 on with each start, and again where a batch or task is run again.",
    ),
    counter(
        _JOB,
        "rejected",
        "records",
        "application topic",
        "Records that the job could not take, and put into the dead-letter topic, as of the last complete epoch. No "
        "exact number: it begins at 0 with each start, and a batch or task that is run again counts its own again. "
        "The exact one is that of the dead letters' distinct headers.",
    ),
    # The coordinator.
    gauge(_JOB, "complete", "epoch", _QUERY, "The last epoch that is complete on all servers.", _MAX),
    counter(_JOB, "complete", "epochs", _QUERY, "Epochs that were completed."),
    counter(_JOB, "replayed", "epochs", _QUERY, "Completed epochs that an earlier run had committed in part."),
    counter(_JOB, "epoch", "rounds", _QUERY, "Rounds that completed epochs took; more than epochs: servers were lost."),
    counter(_JOB, "failed", "epochs", f"{_QUERY} reason", "Epochs that were given up; the query ends, or tries again."),
    histogram(_JOB, "epoch", "seconds", _QUERY, "From a batch's arrival at the sink to its end.", _EPOCH_SECONDS),
    counter(_JOB, "phase", "seconds", f"{_QUERY} phase", f"Time that epochs took, by phase: {', '.join(PHASES)}."),
    gauge(_JOB, "commit_age", "seconds", _QUERY, "How long ago the last complete epoch was committed.", _MAX),
    gauge(_JOB, "run", "generation", _QUERY, "The run's generation: it grows with every start.", _MAX),
    gauge(_JOB, "assignment", "version", _QUERY, "The assignment's version; it grows whenever key groups move.", _MAX),
    gauge(_JOB, "member", "servers", _QUERY, "State servers that may write now."),
    counter(_JOB, "distrusted", "servers", _QUERY, "How often a server had to be given another grant, or replaced."),
    gauge(_JOB, "fenced", "", _QUERY, "1: a newer run has taken the query over.", _MAX),
    # Spark's own progress.
    counter(_JOB, "run", "batches", _QUERY, "Batches that Spark has run.", prefix="spark"),
    gauge(_JOB, "batch", "number", _QUERY, "Spark's id of the last batch.", _MAX, prefix="spark"),
    histogram(_JOB, "batch", "seconds", _QUERY, "What a batch takes.", _EPOCH_SECONDS, prefix="spark"),
    counter(
        _JOB, "phase", "seconds", f"{_QUERY} phase", "Time that batches took, by Spark's own phases.", prefix="spark"
    ),
    counter(_JOB, "input", "rows", _QUERY, "Rows that Spark has read.", prefix="spark"),
    gauge(_JOB, "input", "rows_per_second", _QUERY, "The rate at which rows came, last.", prefix="spark"),
    gauge(_JOB, "processed", "rows_per_second", _QUERY, "The rate at which Spark took rows, last.", prefix="spark"),
    gauge(_JOB, "watermark_age", "seconds", _QUERY, "Age of the query's watermark.", _MAX, prefix="spark"),
    gauge(_JOB, "state", "rows", _QUERY, "Rows that Spark keeps as state of its own.", prefix="spark"),
    gauge(_JOB, "state_memory", "bytes", _QUERY, "Memory of Spark's own state.", prefix="spark"),
    counter(_JOB, "state_updated", "rows", _QUERY, "Rows of Spark's own state that were written.", prefix="spark"),
    counter(_JOB, "state_dropped", "rows", _QUERY, "Rows that came after the watermark.", prefix="spark"),
    counter(
        _JOB,
        "state_commit",
        "seconds",
        _QUERY,
        "What committing Spark's own state takes, tasks added up.",
        prefix="spark",
    ),
)

_BY_STATE = "application state"

_EXPORTER_METRICS = (
    *_process(_EXPORTER, ""),
    gauge(_EXPORTER, "up", "", "component target", "1: the target answered when it was last asked."),
    gauge(_EXPORTER, "answer_age", "seconds", "component target", "Age of what is exposed of the target.", _MAX),
    gauge(_EXPORTER, "ask", "seconds", "component target", "How long the target took to answer, last.", _MAX),
    counter(_EXPORTER, "failed", "asks", "component target", "How often the target did not answer in time, or at all."),
    gauge(_EXPORTER, "discovered", "targets", "component", "How many targets are discovered."),
    gauge(_EXPORTER, "unknown", "metrics", "component", "Metrics that are left out: of another version."),
    gauge(_EXPORTER, "scrape", "seconds", "", "What the last scrape took."),
    gauge(_EXPORTER, "view_age", "seconds", "", "How long ago the answers were last put together."),
    counter(
        _EXPORTER,
        "ended",
        "containers",
        "container cause",
        "Containers of the release's pods that have ended otherwise than in order, since the exporter watches.",
    ),
    gauge(_EXPORTER, "kafka_up", "", "", "1: Kafka answered when it was last asked."),
    gauge(_EXPORTER, "kafka_age", "seconds", "", "Age of what is exposed of Kafka."),
    # What shows from all answers together.
    gauge(_EXPORTER, "known", "states", "", "States that there are.", prefix="cluster"),
    gauge(_EXPORTER, "all", "key_groups", _BY_STATE, "Key groups that the state has.", prefix="cluster"),
    gauge(_EXPORTER, "unowned", "key_groups", _BY_STATE, "Key groups that no server owns.", prefix="cluster"),
    gauge(_EXPORTER, "unreadable", "key_groups", _BY_STATE, "Key groups that nobody answers for.", prefix="cluster"),
    gauge(_EXPORTER, "contested", "key_groups", _BY_STATE, "Key groups that several say they own.", prefix="cluster"),
    gauge(_EXPORTER, "followed", "key_groups", _BY_STATE, "Key groups with at least one standby.", prefix="cluster"),
    gauge(_EXPORTER, "restoring", "key_groups", _BY_STATE, "Key groups that are being restored.", prefix="cluster"),
    gauge(
        _EXPORTER,
        "range",
        "key_groups",
        f"{_STATE} role range",
        "How many of a range of key groups a server owns, or follows.",
        prefix="cluster",
    ),
    gauge(_EXPORTER, "oldest", "epoch", _BY_STATE, "The epoch that readers get at least.", _MIN, prefix="cluster"),
    gauge(
        _EXPORTER,
        "commit_age",
        "seconds",
        _BY_STATE,
        "How long ago the epoch that readers get was committed, at most.",
        _MAX,
        prefix="cluster",
    ),
    gauge(
        _EXPORTER,
        "watermark_age",
        "seconds",
        _BY_STATE,
        "Age of the watermark of what readers get, at most.",
        _MAX,
        prefix="cluster",
    ),
    gauge(
        _EXPORTER,
        "staleness",
        "seconds",
        _BY_STATE,
        "How long ago what readers get was whole, at most.",
        _MAX,
        prefix="cluster",
    ),
    gauge(
        _EXPORTER,
        "standby_lag",
        "epochs",
        _BY_STATE,
        "Complete epochs that a standby lacks, at most.",
        _MAX,
        prefix="cluster",
    ),
    # Kafka.
    gauge(
        _EXPORTER,
        "source_lag",
        "records",
        "application query topic",
        "Records of the source's topic behind Spark's last batch; one in real time reads them within its batch.",
        prefix="kafka",
    ),
    gauge(
        _EXPORTER,
        "changelog",
        "records",
        _BY_STATE,
        "Offsets in the state's changelog, from first to last: at most so many records, compaction has removed some. "
        "Its bytes are in Kafka's own metrics (kafka.log, Size): its client for Python can't ask for them.",
        prefix="kafka",
    ),
)

CATALOGUE: tuple[Metric, ...] = (*_STATE_SERVER, *_CLIENT_PROXY, *_JOB_METRICS, *_EXPORTER_METRICS)

BY_NAME: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in CATALOGUE})


def of(component: Component) -> tuple[Metric, ...]:
    """What a component says of itself."""
    return tuple(metric for metric in CATALOGUE if metric.component is component)
