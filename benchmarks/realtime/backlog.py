"""A process that writes updates into a state's updates topic as fast as it can, and says how long it took."""

from __future__ import annotations

import argparse
import json
import random
import time
import uuid

from confluent_kafka import Producer

from keyhole.changelog.settings import updates_topic_name
from keyhole.feed.kafka.recorded import recorded_state
from keyhole.feed.writes import UpdateWrites

_FLUSH_SECONDS = 120


def write(bootstrap_servers: str, path: str, updates: int, keys: int) -> dict[str, object]:
    """Each of a key at random, in a numbering of its own. Returns the rate at which Kafka has taken them.

    Args:
        path: application/state, with the key `sensor` and a number as value.
    """
    application, state = path.split("/")
    of = UpdateWrites(recorded_state(bootstrap_servers, application, state), "unused")
    sensors = [(of.key_group(f"sensor-{number}"), f'["sensor-{number}"]') for number in range(keys)]
    settings = {"linger.ms": 5, "queue.buffering.max.messages": 1_000_000, "queue.buffering.max.kbytes": 1 << 20}
    producer = Producer({"bootstrap.servers": bootstrap_servers, "enable.idempotence": True, **settings})
    topic, source = updates_topic_name(application, state), uuid.uuid4().hex
    began = time.monotonic()
    for number in range(updates):
        # Each key at least once.
        group, key = sensors[number] if number < keys else random.choice(sensors)
        value = f'[1,"{source}",0,{number},0,0,1,{key},null,[1]]'
        while True:
            try:
                producer.produce(topic, value, partition=group)
                break
            except BufferError:
                producer.poll(0.01)
        if number % 1000 == 0:
            producer.poll(0)
    assert producer.flush(_FLUSH_SECONDS) == 0
    return {"written_per_second": round(updates / (time.monotonic() - began))}


def main() -> None:
    """Prints one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap_servers")
    parser.add_argument("path")
    parser.add_argument("--updates", type=int, required=True)
    parser.add_argument("--keys", type=int, required=True)
    of = parser.parse_args()
    print(json.dumps(write(of.bootstrap_servers, of.path, of.updates, of.keys)))


if __name__ == "__main__":
    main()
