"""What Kafka must let a feeder do beside what its run needs, asked before anything is taken from one that feeds."""

from __future__ import annotations

from keyhole.changelog.base import TopicRight
from keyhole.changelog.kafka.clients import Deadline
from keyhole.changelog.kafka.rights import check_group, check_rights
from keyhole.changelog.settings import dead_letter_topic


def check_feeder(bootstrap_servers: str, source: str, lease: str, deadline_seconds: float) -> None:
    """Returns where Kafka lets the caller read the source, keep its positions, and write dead letters. Blocks.

    Its transactional.id begins as all of its query do, which the run tries. Where there are no dead letters yet nobody
    can be asked about them.

    Args:
        lease: Its name, which the group has, too.

    Raises:
        InvalidConfiguration: It doesn't; the message says what to allow.
        KafkaUnreachable: Nobody could be asked.
    """
    deadline = Deadline(deadline_seconds)
    needed = {source: TopicRight.READ, dead_letter_topic(source): TopicRight.WRITE}
    check_rights(bootstrap_servers, needed, deadline.left)
    check_group(bootstrap_servers, lease, deadline.left)
