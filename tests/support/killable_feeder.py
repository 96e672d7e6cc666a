"""A feeder in a process of its own: `python -m tests.support.killable_feeder KAFKA APPLICATION TOPIC`."""

from __future__ import annotations

import sys
import threading

from keyhole.clock import SystemClock
from keyhole.errors import Fenced
from keyhole.feed.feed_options import FeedOptions, RecordFormat, describe, key_columns, value_columns
from keyhole.feed.topic_feed import TopicFeed
from keyhole.model.state import StateDescriptor

KEY_GROUPS = 4


def descriptor_of(application: str) -> StateDescriptor:
    """The state that it feeds: key id, a string; value n, a bigint."""
    return describe(
        FeedOptions(application, "s", key_columns(["id"]), value_columns(["n:bigint"]), key_groups=KEY_GROUPS)
    )


def feed_of(kafka: str, application: str, topic: str) -> TopicFeed:
    """What it runs, with boundaries that come often."""
    return TopicFeed(kafka, descriptor_of(application), topic, RecordFormat.JSON, SystemClock(), boundary_seconds=0.2)


if __name__ == "__main__":
    try:
        feed_of(*sys.argv[1:]).run(threading.Event())
    except Fenced:
        sys.exit(3)
