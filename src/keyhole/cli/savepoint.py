"""`keyhole savepoint create | list | restore`."""

from __future__ import annotations

import argparse
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

from keyhole.changelog.kafka.changelog import KafkaChangelog
from keyhole.cli.patience import patience
from keyhole.cli.reads import OutputFormat
from keyhole.clock import SystemClock
from keyhole.feed.kafka.source import KafkaSource
from keyhole.savepoint.create import CreateSettings
from keyhole.savepoint.create import create as create_savepoint
from keyhole.savepoint.folder import Folder
from keyhole.savepoint.listing import Listed, listing, load
from keyhole.savepoint.manifest import Savepoint
from keyhole.savepoint.moved_lane import QueriedTopic, source_topic_of
from keyhole.savepoint.restore_application import plan_of
from keyhole.savepoint.restore_application import restore as restore_savepoint
from keyhole.savepoint.restore_plan import Plan, RestoreOptions


def create(options: argparse.Namespace, output: OutputFormat) -> int:
    """Takes a savepoint, and prints what is in it."""
    target = Folder(options.to)
    with patience(f"saving the states of {options.application}"):
        savepoint = create_savepoint(
            options.application,
            KafkaChangelog(options.bootstrap_servers, options.application),
            target,
            {query: Folder(path) for query, path in options.checkpoint.items()},
            SystemClock(),
            CreateSettings(
                kafka_deadline_seconds=options.timeout, compaction_lag_ms=round(1000 * options.compaction_lag)
            ),
        )
    output.rows([_state_row(savepoint, options.to, number) for number in range(len(savepoint.states))], "saved")
    if savepoint.skipped_queries and not output.as_json:
        print(f"left out, as no epoch of theirs is complete: {', '.join(savepoint.skipped_queries)}")
    if savepoint.fed_queries and not output.as_json:
        print(f"left out, as their states are fed by updates: {', '.join(savepoint.fed_queries)}")
    return 0


def _state_row(savepoint: Savepoint, path: str, number: int) -> dict[str, Any]:
    state = savepoint.states[number]
    (query,) = (query for query in savepoint.queries if query.query == state.descriptor.query)
    return {
        "path": path,
        "state": f"{savepoint.application}/{state.descriptor.state}",
        "query": query.query,
        "epoch": query.complete.epoch,
        "rows": state.rows,
        "bytes": sum(file.bytes for file in state.files),
        "checkpoint": query.checkpoint is not None,
    }


def list_(options: argparse.Namespace, output: OutputFormat) -> int:
    """All in a folder; exit code 1 where one of them is not sound."""
    with patience(f"reading the savepoints in {options.path}"):
        found = listing(Folder(options.path), checksums=options.check)
    output.rows([_listed_row(each) for each in found], options.path)
    return 1 if any(each.problem for each in found) else 0


def _listed_row(listed: Listed) -> dict[str, Any]:
    about: dict[str, Any] = dict.fromkeys(("application", "epochs", "created", "bytes"))
    if listed.savepoint is not None:
        about = {
            "application": listed.savepoint.application,
            "epochs": {query.query: query.complete.epoch for query in listed.savepoint.queries},
            "created": datetime.fromtimestamp(listed.savepoint.created_ms / 1000, UTC).isoformat(timespec="seconds"),
            "bytes": listed.bytes,
        }
    return {"path": listed.path, **about, "sound": not listed.problem, "problem": listed.problem or None}


def restore(options: argparse.Namespace, output: OutputFormat) -> int:
    """Makes an application of a savepoint, and prints what it has."""
    source = Folder(options.path)
    chosen = RestoreOptions(
        application=options.application or "",
        key_groups=options.key_groups,
        states=options.rename,
        queries=options.rename_query,
        checkpoints=options.checkpoint,
        real_time=_source_topics(source, options),
    )
    _, plan = plan_of(source, chosen)
    changelog = KafkaChangelog(options.bootstrap_servers, plan.application)
    with patience(f"restoring the states of {plan.application}"):
        resumed = restore_savepoint(source, plan, changelog, SystemClock(), options.timeout)
    if resumed and not output.as_json:
        print("took up a restore that was broken off")
    output.rows([_restored_row(plan, number) for number in range(len(plan.states))], "restored")
    return 0


def _source_topics(folder: Folder, options: argparse.Namespace) -> dict[str, QueriedTopic]:
    """By query that goes on in real time, the topic that it reads, as Kafka has it. Raises KeyholeError."""
    if not options.real_time:
        return {}
    savepoint, found = load(folder), {}
    for query in options.real_time:
        with closing(KafkaSource(options.bootstrap_servers, source_topic_of(savepoint, query))) as source:
            described = source.describe()
        found[query] = QueriedTopic(described.topic_id, described.starts)
    return found


def _restored_row(plan: Plan, number: int) -> dict[str, Any]:
    state = plan.states[number]
    (query,) = (query for query in plan.queries if query.query == state.descriptor.query)
    return {
        "state": f"{plan.application}/{state.descriptor.state}",
        "key_groups": state.descriptor.key_groups,
        "rows": state.saved.rows,
        "query": query.query,
        "next_epoch": query.stamp.epoch + 1,
        "next_batch": query.saved.batch + 1 if query.feed is None else None,
        "checkpoint": query.checkpoint or None,
    }
