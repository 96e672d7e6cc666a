"""`keyhole drop APP QUERY`: a query that is over goes for good, with its states, their topics and its records."""

from __future__ import annotations

import argparse

from keyhole.changelog.kafka.changelog import KafkaChangelog
from keyhole.cli.patience import patience
from keyhole.cli.reads import OutputFormat
from keyhole.cli.retire import Retired, retire_everywhere
from keyhole.clock import SystemClock
from keyhole.coordinator.dropping import Dropping, check_droppable, drop, dropping
from keyhole.security.credentials import Credentials
from keyhole.terminal.json_output import print_json
from keyhole.terminal.written_out import written_out


def run(options: argparse.Namespace, credentials: Credentials, output: OutputFormat) -> int:
    """Exit code 1 where nothing was dropped: `--yes` lacks, or a server could not be asked.

    Raises:
        StillRunning: A server takes a run for alive. Nothing was dropped.
        UnknownState: There is no such query.
        InvalidConfiguration: Kafka doesn't let this user drop it. Nothing was dropped, and nothing forgotten.
        KeyholeError: What else keeps it from being dropped; it may be begun again.
    """
    changelog = KafkaChangelog(options.bootstrap_servers, options.application)
    with patience(f"looking for query {options.query}"):
        planned = dropping(options.application, options.query, changelog, options.timeout)
    if not options.yes:
        return _print_outcome(
            options, output, planned, "nothing was dropped: this would be. Run it again with --yes", {}
        )
    # Before the servers forget it: who may not drop it leaves it as it is.
    check_droppable(options.application, planned, changelog, options.timeout)
    with patience(f"having the servers forget query {options.query}"):
        retired = Retired({}, {}) if options.no_servers else retire_everywhere(options, credentials, need_all=True)
    if retired.away:
        what = (
            "nothing was dropped, as not all servers could be asked. Start them, or name those that there still are "
            "with --servers (none: --no-servers)"
        )
        return _print_outcome(options, output, planned, what, retired.away)
    with patience(f"deleting query {options.query} from Kafka"):
        dropped = drop(options.application, options.query, changelog, SystemClock(), options.timeout)
    _print_outcome(options, output, dropped, "", {})
    return 0


def _print_outcome(
    options: argparse.Namespace, output: OutputFormat, of: Dropping, why_not: str, not_asked: dict[str, str]
) -> int:
    states, topics = [state.state for state in of.states], list(of.topics)
    if output.as_json:
        about = {"application": options.application, "query": of.query, "dropped": not why_not}
        print_json({**about, "states": states, "topics": topics, "not_asked": not_asked})
        return 1
    rows = [{"what": "state", "name": f"{options.application}/{state}"} for state in states]
    rows += [{"what": "topic", "name": topic} for topic in topics]
    output.rows(rows, f"query {of.query}" if why_not else f"dropped with query {of.query}")
    for name, why in not_asked.items():
        print(written_out(f"not asked: {name}: {why}"))
    if why_not:
        print(why_not)
    return 1
