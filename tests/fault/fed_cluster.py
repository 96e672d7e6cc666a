"""The processes of an episode of the real-time lane: those of any other, with `keyhole feed` in the driver's place."""

from __future__ import annotations

import json
import random
import sys
import threading
from collections.abc import Iterator

import msgspec
from confluent_kafka import Producer

from keyhole.changelog.kafka.record_topics import make_topics
from keyhole.local.processes import Child
from tests.fault.cluster import Cluster
from tests.fault.fed_feeder import FeederSettings
from tests.fault.workload import KEY_GROUPS, SUMS, names
from tests.support.waiting import LONG_SECONDS

TOPIC = "fault-orders"
PARTITIONS = 2
# More records than a feeder sends between two boundaries, and fewer.
_REWOUND = (0, 20, 400)


class FedCluster(Cluster):
    """See Cluster. State SUMS is fed from TOPIC; each start of the feeder, by the seed, is rewound by as many records
    as `rewound` has, in turn.
    """

    rewound = _REWOUND

    def _start_driver(self) -> Child:
        start = next(self._driver_starts)
        if not start:
            make_topics(self.kafka.bootstrap_servers, {TOPIC: PARTITIONS}, LONG_SECONDS)
        words = (
            *("feed", f"{self.application}/{SUMS}", "--topic", TOPIC, "--unchecked", "--key", "k"),
            *("--reduce", "total=sum:amount:bigint", "--reduce", "count=count:k"),
            *("--reduce", "highest=max:amount:bigint", "--key-groups", str(KEY_GROUPS)),
            *("--standbys", str(self.plan.standbys), "--bootstrap-servers", self._through("driver>kafka")),
            *("--servers", ",".join(self._through(f"driver>{server}") for server in (*self.servers, self.spare))),
        )
        rewound = self.rewound[(self.plan.seed + start) % len(self.rewound)]
        settings = FeederSettings(words, str(self.steps), rewound)
        own = {"FAULT_FEED": msgspec.json.encode(settings).decode(), "KEYHOLE_JOB_SERVER_WAIT_SECONDS": "1"}
        command = [sys.executable, "-P", "-m", "tests.fault.fed_feeder"]
        return Child("driver", command, self.directory / "driver.log", self._environ | own | self._further("driver"))


def records(seed: int) -> Iterator[dict[str, object]]:
    """The records of the source, each with its key and amount, for ever; number n goes to partition n % PARTITIONS."""
    draw = random.Random(f"{seed} {TOPIC}")
    keys = names(SUMS)
    while True:
        yield {"k": draw.choice(keys), "amount": draw.randrange(1, 1000)}


class Source:
    """Writes the source's records into Kafka, from `__init__` to `close`, on a thread of its own.

    Attributes:
        sent: How many, so far.
    """

    def __init__(self, bootstrap_servers: str, seed: int, per_second: int) -> None:
        # For as long as Kafka is away, nothing is given up, and nothing sent twice.
        settings = {"bootstrap.servers": bootstrap_servers, "enable.idempotence": True, "message.timeout.ms": 0}
        self._producer = Producer({**settings, "log_level": 0})
        self._records = records(seed)
        self._pause_seconds = 10 / per_second
        self._closed = threading.Event()
        self.sent = 0
        self._thread = threading.Thread(target=self._run, name="fault-source", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closed.wait(self._pause_seconds):
            for _ in range(10):
                value = json.dumps(next(self._records)).encode()
                self._producer.produce(TOPIC, value, partition=self.sent % PARTITIONS)
                self.sent += 1
            self._producer.poll(0)

    def close(self) -> None:
        """Returns once all is in Kafka. Idempotent."""
        self._closed.set()
        self._thread.join()
        assert self._producer.flush(LONG_SECONDS) == 0, "Kafka has not taken all records of the source"
