"""By which sources topics feed a state: the rows of one topic count under the names that they had first. Pure.

    J4x1    `keyhole feed` of the topic with the id J4x1
    J4x1.web, J4x1.shop    a real-time query, of which two branches read that topic

An owner knows a row by its source. So a topic that comes under another name would have each of its records counted once
more. The control topic has all names under which a topic has ever fed a state. Each run adds its own under its fence,
before it sends anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from keyhole.errors import StateConflict
from keyhole.model.state import StateDescriptor

FEED_AGAIN = "drop the query (keyhole drop), and feed it from the start"
"""What to do where the updates topic is another one, or lost updates that were not applied. A drop deletes it too."""

_OF_BRANCH = "."


class StateOnRecord(NamedTuple):
    """A state that is on record.

    Attributes:
        sources: By which topics have fed it; empty: an earlier release has recorded it, which did not say.
    """

    descriptor: StateDescriptor
    sources: tuple[str, ...]


def source_of_branch(topic_id: str, name: str) -> str:
    """Under which the rows of a branch of a real-time query stand in updates. Those of `keyhole feed`: the topic's id.

    Args:
        topic_id: Kafka's, which has no full stop.
    """
    return f"{topic_id}{_OF_BRANCH}{name}"


def topic_id_of(source: str) -> str:
    """Kafka's id of the topic that a source reads; of a program's own writes its random name."""
    return source.partition(_OF_BRANCH)[0]


def admitted(state: str, known: Iterable[str], wanted: Mapping[str, str]) -> tuple[str, ...]:
    """All sources of a state, once a run of these may feed it.

    A run may have fewer names of a topic than there were, or some beside all of them: a branch that goes, or one that
    comes. A new name in the place of another one is no branch: all that the topic has would count under both.

    Args:
        known: Those that it had so far.
        wanted: Those of the run, each with the name of its topic.

    Raises:
        StateConflict: A topic has a new name without one that it had.
    """
    had = dict.fromkeys(known)
    for source, topic in wanted.items():
        left = [one for one in had if topic_id_of(one) == topic_id_of(source) and one not in wanted]
        if source not in had and left:
            raise StateConflict(
                f"topic {topic} feeds state {state!r} already, {lane_of(left[0])}: {lane_of(source)} each of its "
                f"records would count once more. Go on with the first; or drop the state (keyhole drop) and feed it "
                "from the start; or feed a state of another name",
                state=state,
                topic=topic,
            )
    return (*had, *(one for one in wanted if one not in had))


def unrecorded(known: Iterable[str], wanted: Mapping[str, str]) -> dict[str, str]:
    """Those of the wanted sources whose topics are not on record."""
    topics = set(map(topic_id_of, known))
    return {source: topic for source, topic in wanted.items() if topic_id_of(source) not in topics}


def lane_of(source: str) -> str:
    """Which lane feeds by it, for messages."""
    _, branch, name = source.partition(_OF_BRANCH)
    return f"by a real-time query, as the rows {name!r}" if branch else "by keyhole feed"
