"""What Kafka says that the caller may do with a topic, as it is told by brokers with rules and without."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from confluent_kafka import Uuid
from confluent_kafka.admin import AclOperation, TopicDescription

from keyhole.changelog.kafka.rights import withheld

READ, WRITE = AclOperation.READ, AclOperation.WRITE


@pytest.mark.parametrize(
    ("allowed", "lacks"),
    [
        # By a broker of others, that does not say.
        (None, []),
        ([], []),
        # By one without an authorizer: all that there are of topics.
        ([READ, WRITE, AclOperation.CREATE, AclOperation.DESCRIBE, AclOperation.DELETE], []),
        ([AclOperation.ALL], []),
        ([READ, AclOperation.DESCRIBE], ["WRITE"]),
        ([AclOperation.DESCRIBE], ["READ", "WRITE"]),
    ],
)
def test_what_is_withheld_is_what_kafka_names_others_beside(
    allowed: Sequence[AclOperation] | None, lacks: Sequence[str]
) -> None:
    found = TopicDescription("topic", Uuid(1, 2), False, [], allowed)
    assert withheld(found, [READ, WRITE]) == lacks
