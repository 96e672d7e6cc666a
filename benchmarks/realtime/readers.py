"""The reader: a process that looks for the newest probe again and again, and says when it saw each for the first time.

It prints `begun` once it can see, and ends with one line of JSON: once it has seen the last probe, or when its time is
over.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time

import msgspec
from confluent_kafka import Consumer, TopicPartition

from benchmarks.realtime.events import PROBE
from benchmarks.realtime.figures import Sighting
from keyhole import AsyncClient
from keyhole.errors import KeyholeError
from keyhole.rpc.server import run

_AGAIN_SECONDS = 0.05
_MOST_RECORDS = 1_000
_ASK_SECONDS = 30.0


class _Reading(msgspec.Struct):
    sensor: str
    number: int


async def answers(proxy: str, path: str, until: int, seconds: float, pause: float) -> list[Sighting]:
    """Of a state, through the proxy: one lookup after the other.

    Args:
        path: application/state.
        until: The last probe's number.
        pause: In seconds, between an answer and the next lookup.
    """
    application, state = path.split("/")
    seen: list[Sighting] = []
    newest = -1
    ends = time.monotonic() + seconds
    async with AsyncClient(proxy) as client:
        while newest < until and time.monotonic() < ends:
            try:
                answer = await client.get(application, state, PROBE)
            except KeyholeError:  # what is not there yet, or away, will be seen late
                await asyncio.sleep(_AGAIN_SECONDS)
                continue
            now = time.monotonic_ns()
            if answer.found and answer.value.number > newest:
                if newest < 0:
                    print("begun", flush=True)
                newest = answer.value.number
                seen.append((newest, now))
            await asyncio.sleep(pause)
    return seen


def records(bootstrap_servers: str, topic: str, until: int, seconds: float) -> list[Sighting]:
    """Of the topic itself: a consumer that reads and decodes, and nothing else."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "none", "fetch.wait.max.ms": 100})
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), _ASK_SECONDS)
    # From the last one on, so that it is seen when it has begun.
    consumer.assign([TopicPartition(topic, 0, end - 1)])
    decode = msgspec.json.Decoder(_Reading).decode
    seen: list[Sighting] = []
    begun, newest = False, -1
    ends = time.monotonic() + seconds
    while newest < until and time.monotonic() < ends:
        first = consumer.poll(0.1)
        if first is None:
            continue
        for message in (first, *consumer.consume(_MOST_RECORDS, 0)):
            if message.error() is not None:
                continue
            reading = decode(message.value() or b"")
            if reading.sensor == PROBE:
                newest = reading.number
                seen.append((newest, time.monotonic_ns()))
        if not begun:
            print("begun", flush=True)
            begun = True
    consumer.close()
    return seen


def main() -> None:
    """Prints one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("of", choices=["answers", "records"])
    parser.add_argument("address", help="of the proxy, or of Kafka")
    parser.add_argument("name", help="application/state, or the topic")
    parser.add_argument("--until", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--pause-ms", type=float, required=True)
    of = parser.parse_args()
    if of.of == "answers":
        seen = run(answers(of.address, of.name, of.until, of.seconds, of.pause_ms / 1000))
    else:
        seen = records(of.address, of.name, of.until, of.seconds)
    print(json.dumps({"seen": seen}))


if __name__ == "__main__":
    main()
