"""The source: a process that sends readings into a topic at a steady rate, and says when it sent each probe.

    {"sensor": "sensor-17", "number": 4711}

A probe is a reading of a sensor of its own, `fresh`, whose number grows by one. The process ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import time

from confluent_kafka import Producer

from keyhole.changelog.kafka.record_topics import make_topics

SENSORS = 1_000
PROBE = "fresh"
"""As benchmark.Reader has it, in benchmarks/flink."""

PROBES_PER_SECOND = 100
# At once: the next one comes a millisecond later, or with the next event where these are fewer.
_PAUSE_SECONDS = 0.001
_FLUSH_SECONDS = 60
# Nothing waits for more of its kind, while Kafka keeps up: at most five requests are under way, by idempotence.
_SETTINGS = {"linger.ms": 0, "enable.idempotence": True}


def prepare(bootstrap_servers: str, topic: str) -> None:
    """Makes a topic of one partition, with a reading of each sensor, and the probe's number 0."""
    make_topics(bootstrap_servers, {topic: 1}, _FLUSH_SECONDS)
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for sensor in (*(f"sensor-{number}" for number in range(SENSORS)), PROBE):
        producer.produce(topic, _reading(sensor, 0), partition=0)
    assert producer.flush(_FLUSH_SECONDS) == 0


def probes_of(rate: int, seconds: float) -> int:
    """How many there are among so many events."""
    return -(-int(rate * seconds) // _every(rate))


def _every(rate: int) -> int:
    return max(1, rate // PROBES_PER_SECOND)


def _reading(sensor: str, number: int) -> str:
    return f'{{"sensor":"{sensor}","number":{number}}}'


def send(bootstrap_servers: str, topic: str, rate: int, seconds: float, first: int) -> dict[str, object]:
    """Sends `rate` events a second; every so manieth is a probe.

    Args:
        first: The number of the first probe.

    Returns:
        When each probe was sent, by the monotonic clock, which is one for all processes on Linux; and the rate as it
        was.
    """
    producer = Producer({"bootstrap.servers": bootstrap_servers, **_SETTINGS})
    producer.list_topics(topic, timeout=_FLUSH_SECONDS)  # it is connected
    every, total, count = _every(rate), int(rate * seconds), 0
    sent_ns: list[int] = []
    began = time.monotonic()
    while count < total:
        due = min(total, int((time.monotonic() - began) * rate) + 1)
        for number in range(count, due):
            if number % every:
                _produce(producer, topic, _reading(f"sensor-{random.randrange(SENSORS)}", number))
            else:
                reading = _reading(PROBE, first + len(sent_ns))
                sent_ns.append(time.monotonic_ns())
                _produce(producer, topic, reading)
        count = due
        producer.poll(0)
        time.sleep(_PAUSE_SECONDS)
    assert producer.flush(_FLUSH_SECONDS) == 0
    return {"sent_ns": sent_ns, "events_per_second": round(count / (time.monotonic() - began))}


def _produce(producer: Producer, topic: str, reading: str) -> None:
    while True:
        try:
            producer.produce(topic, reading, partition=0)
            return
        except BufferError:
            producer.poll(0.01)


def main() -> None:
    """Prints one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap_servers")
    parser.add_argument("topic")
    parser.add_argument("--rate", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--first", type=int, required=True)
    of = parser.parse_args()
    print(json.dumps(send(of.bootstrap_servers, of.topic, of.rate, of.seconds, of.first)))


if __name__ == "__main__":
    main()
