"""Drops a query for good: the topics of its states, and what the control topic says of it.

    fence       earlier runs can record nothing, and no server can write to a changelog of it any more
    topics      of changelogs and of updates: deleted
    records     forgotten, in one transaction

What finds the topics goes last: who is killed after any step begins again, and does the same. The query's generation
stays on record, as a server that was away still holds it against an older one.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from keyhole.changelog.base import Changelog, TopicRight
from keyhole.changelog.settings import CONTROL, topic_name, updates_topic_name
from keyhole.clock import Clock
from keyhole.coordinator.query_log import OPEN_SECONDS, QueryLog, known
from keyhole.errors import UnknownState
from keyhole.model.state import StateDescriptor
from keyhole.protocol.control import OpenedRecord, QueryControl
from keyhole.protocol.takeover import check_restored


@dataclass(frozen=True)
class Dropping:
    """What goes with a query.

    Attributes:
        states: Those that it feeds.
        topics: Names of their topics, whether or not there are any by now.
    """

    query: str
    states: Sequence[StateDescriptor]
    topics: Sequence[str]


def dropping(application: str, query: str, changelog: Changelog, deadline_seconds: float) -> Dropping:
    """What `drop` would drop. Changes nothing and fences nobody.

    Raises:
        UnknownState: The control topic has nothing of the query.
        SavepointMismatch: The application is being restored.
        KafkaUnreachable: No answer in time.
        ProtocolMismatch: A record that this version can't read.
    """
    with closing(changelog.control(query)) as control:
        return _of(application, query, check_restored(known(control, query, deadline_seconds)))


def check_droppable(application: str, of: Dropping, changelog: Changelog, deadline_seconds: float) -> None:
    """Asks Kafka whether it lets this process do what `drop` does. Changes nothing and fences nobody.

    Raises:
        InvalidConfiguration: It doesn't; topic and operation are named.
        KafkaUnreachable: No answer in time.
    """
    needed = dict.fromkeys(of.topics, TopicRight.DELETE) | {topic_name(application, CONTROL): TopicRight.WRITE}
    changelog.admin().check_rights(needed, deadline_seconds)


def drop(application: str, query: str, changelog: Changelog, clock: Clock, deadline_seconds: float) -> Dropping:
    """Drops a query, all of whose servers have retired it. Blocks; may be repeated, also where it has failed.

    A run that goes on regardless is fenced, and ends with its next epoch.

    Args:
        deadline_seconds: Of each request to Kafka.

    Returns:
        What was dropped.

    Raises:
        Fenced: A run of the query has begun meanwhile. Topics may be gone: then that run ends with ChangelogRecreated.
        EpochFailed: The records may or may not be forgotten.
        InvalidConfiguration: Kafka doesn't let this process do it. Nothing was dropped, and nobody fenced.
        others: As `dropping`.
    """
    # Else a query that never was would be on record as opened.
    planned = dropping(application, query, changelog, deadline_seconds)
    check_droppable(application, planned, changelog, deadline_seconds)
    opened = OpenedRecord(uuid.uuid4().hex, socket.gethostname(), os.getpid())
    with closing(changelog.control(query)) as control:
        log = QueryLog(control, query, opened, clock, deadline_seconds, OPEN_SECONDS)
        found = log.open("")
        admin = changelog.admin()
        for grant in found.grants:
            admin.fence(grant.grant, deadline_seconds)
        of = _of(application, query, found)
        admin.delete(of.topics, deadline_seconds)
        log.append(
            {
                **{f"state/{state.state}": None for state in of.states},
                **{f"{kind}/{query}": None for kind in ("query", "complete", "assignment", "savepoint")},
                **{f"grant/{query}/{grant.grant}": None for grant in found.grants},
            }
        )
        return of


def _of(application: str, query: str, control: QueryControl) -> Dropping:
    states = [of for of in control.states.values() if of.query == query]
    if not states and control.query is None and control.complete is None:
        others = sorted({of.query for of in control.states.values()})
        raise UnknownState(
            f"application {application!r} has no query {query!r} on record; it has: "
            f"{', '.join(map(repr, others)) or 'none'}",
            query=query,
        )
    topics = [topic_name(application, of.state) for of in states]
    topics += [updates_topic_name(application, of.state) for of in states if of.updates_topic_id]
    return Dropping(query, states, topics)
