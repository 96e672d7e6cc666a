"""`python -m keyhole.local.kafka_training ARCHIVE JAVA JAR...`: runs a broker for a moment, so that its JVM writes the
classes that it needs for it to an archive. See keyhole.class_archive; keyhole.local.class_archives calls it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from keyhole.changelog.kafka.admin import KafkaAdmin
from keyhole.changelog.kafka.record_topics import make_topics
from keyhole.class_archive import writing
from keyhole.errors import KeyholeError
from keyhole.local.java import MINIMUM_VERSION, Java
from keyhole.local.kafka import LocalKafka

_KAFKA_SECONDS = 60.0
_STOP_SECONDS = 300


def main(arguments: list[str]) -> int:
    """Returns the process's exit code."""
    archive, java, *jars = map(Path, arguments)
    kafka = LocalKafka(archive.parent / "kafka", jars, Java(java, MINIMUM_VERSION), options=writing(archive))
    try:
        kafka.start()
        make_topics(kafka.bootstrap_servers, {"training": 1}, _KAFKA_SECONDS)
        KafkaAdmin(kafka.bootstrap_servers, "training").fence("training", _KAFKA_SECONDS)
    except KeyholeError as error:
        print(error.message, file=sys.stderr)  # noqa: T201 - for the log of whoever runs it
        return 1
    finally:
        # It writes the archive before it has ended.
        kafka.stop(_STOP_SECONDS)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
