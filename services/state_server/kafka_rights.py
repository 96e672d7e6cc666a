"""Whether Kafka lets this server do its part for a query, asked before a driver takes the query over.

A server may be another user to Kafka than the driver. Where it could not write what it is given, the run before would
be fenced, and nobody would follow it.
"""

from __future__ import annotations

from collections.abc import Collection

from keyhole.changelog.base import Changelog, TopicRight
from keyhole.changelog.settings import CONTROL, ids_prefix, topic_name, updates_topic_name
from keyhole.errors import InvalidConfiguration

# For each of three questions: the driver waits a little longer than for all of them.
_ASK_SECONDS = 4.0


def check_rights(server: str, changelog: Changelog, application: str, query: str, states: Collection[str]) -> None:
    """Returns where Kafka lets this process read the query's topics, and write its changelogs under ids of the query.

    Topics that are not there are passed over: nobody can be asked about them. Blocks; nobody is fenced.

    Args:
        server: Its name, for the message.
        states: Of the query.

    Raises:
        InvalidConfiguration: It doesn't; the message names the server, and what to allow.
        KafkaUnreachable: Nobody could be asked.
    """
    written = [topic_name(application, state) for state in states]
    read = [topic_name(application, CONTROL), *written, *(updates_topic_name(application, of) for of in states)]
    admin = changelog.admin()
    try:
        admin.check_rights(dict.fromkeys(written, TopicRight.WRITE), _ASK_SECONDS)
        admin.check_rights(dict.fromkeys(read, TopicRight.READ), _ASK_SECONDS)
        admin.check_ids([ids_prefix(application, query)], _ASK_SECONDS)
    except InvalidConfiguration as error:
        raise InvalidConfiguration(f"of state server {server}: {error.message}", **error.facts) from error
