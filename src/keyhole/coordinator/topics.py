"""The changelogs of a query's states: made, or looked at; and whether they hold what was complete."""

from __future__ import annotations

import contextlib
from collections.abc import Collection

import msgspec

from keyhole.changelog.base import Changelog, Partition, TopicRight
from keyhole.changelog.readable import await_readable
from keyhole.changelog.settings import CONTROL, ids_prefix, topic_name, updates_topic_name
from keyhole.clock import Clock
from keyhole.coordinator.new_states import DECLARING
from keyhole.errors import ChangelogRecreated
from keyhole.model.state import StateDescriptor
from keyhole.protocol.control import CompleteRecord
from keyhole.protocol.epoch_of_batch import OnNewCheckpoint
from keyhole.protocol.start import UPDATES, Start


def with_topic(
    changelog: Changelog, descriptor: StateDescriptor, on_new_checkpoint: OnNewCheckpoint, deadline_seconds: float
) -> StateDescriptor:
    """The state with the id of its topic, which is made if there is none.

    Raises:
        ConflictError: See ChangelogAdmin.ensure. Not where the topic was made anew, and so may the state be.
    """
    admin = changelog.admin()
    try:
        topic_id = admin.ensure(descriptor, deadline_seconds)
    except ChangelogRecreated:
        if on_new_checkpoint == "refuse":
            raise
        topic_id = admin.ensure(msgspec.structs.replace(descriptor, topic_id=""), deadline_seconds)
    return msgspec.structs.replace(descriptor, topic_id=topic_id)


def refuse_foreign_records(changelog: Changelog, descriptor: StateDescriptor, deadline_seconds: float) -> None:
    """For a state that is not on record.

    Raises:
        ChangelogRecreated: Its topic holds records all the same.
    """
    with contextlib.closing(changelog.reader()) as reader:
        ends = reader.ends({descriptor.state: range(descriptor.key_groups)}, deadline_seconds)
    if any(ends.values()):
        raise ChangelogRecreated(
            f"topic {descriptor.topic} holds records, but the control topic knows no state {descriptor.state!r}: "
            "they belong to another application of this name, or the control topic was deleted. Delete the "
            "changelog topic if no job feeds it, or choose another application or state name",
            topic=descriptor.topic,
        )


def check_topic(
    changelog: Changelog, descriptor: StateDescriptor, on_new_checkpoint: OnNewCheckpoint, deadline_seconds: float
) -> bool:
    """Whether the state's topic is there, and is the one on record. Nothing is made.

    Args:
        descriptor: Without a topic's id where the state is not on record.

    Raises:
        ConflictError: What `with_topic`, or `refuse_foreign_records`, would refuse.
    """
    admin = changelog.admin()
    try:
        there = admin.check(descriptor, deadline_seconds)
    except ChangelogRecreated:
        if on_new_checkpoint == "refuse":
            raise
        admin.check(msgspec.structs.replace(descriptor, topic_id=""), deadline_seconds)
        return False
    if there and not descriptor.topic_id:
        refuse_foreign_records(changelog, descriptor, deadline_seconds)
    return there


def check_rights(
    changelog: Changelog, application: str, query: str, start: Start, deadline_seconds: float, *, declares: bool
) -> None:
    """Asks Kafka for what a run writes itself: the control topic; without epochs, also the rules in updates topics.

    And tries whether it may do so under the ids of its query. Changelogs are the state servers' to write, and these may
    be other users to Kafka.

    Args:
        declares: It has states that are not on record.

    Raises:
        InvalidConfiguration: Its rules don't let this process write one of these topics, or under such an id.
    """
    written = [topic_name(application, CONTROL)]
    if start.query.spark_query_id == UPDATES:
        written += [updates_topic_name(application, of.state) for of in start.states]
    admin = changelog.admin()
    admin.check_rights(dict.fromkeys(written, TopicRight.WRITE), deadline_seconds)
    queries = (query, DECLARING) if declares else (query,)
    admin.check_ids([ids_prefix(application, of) for of in queries], deadline_seconds)


def check_complete(
    changelog: Changelog,
    complete: CompleteRecord | None,
    states: Collection[str],
    clock: Clock,
    deadline_seconds: float,
) -> None:
    """Compares the changelogs' ends with the last complete epoch's markers.

    What was committed Kafka may still be completing, and is waited for. A broker that died at a bad moment can lose the
    end of a committed transaction (docs/changelog.md, "A known hole in Kafka"); a restore would then quietly give an
    older state.

    Args:
        states: Others are not looked at.

    Raises:
        ChangelogRecreated: Committed records are missing.
    """
    markers = complete.markers if complete is not None else {}
    ends = {
        Partition(name, group): offset + 1
        for name, offsets in markers.items()
        if name in states
        for group, offset in enumerate(offsets)
    }
    lost = await_readable(changelog, ends, clock, deadline_seconds) if ends else []
    if lost:
        names = ", ".join(f"{part.state} key group {part.key_group}" for part in lost[:10])
        raise ChangelogRecreated(
            f"the changelog lacks records that were complete ({names}): the topic was truncated, or a broker lost "
            "them. Restore the topic or a savepoint, or delete the changelog topics and start with "
            'on_new_checkpoint="reset"',
            key_groups=len(lost),
        )
