"""The keys of a state that are read most through all processes of a proxy. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from keyhole.encoding.codec import StateCodec
from keyhole.errors import MalformedRequest
from services.client_proxy.http.answers import keys_reader
from services.client_proxy.siblings import ProcessFacts

_MOST_SHOWN = 8


def hottest_json(codec: StateCodec, processes: Iterable[ProcessFacts]) -> dict[str, Any]:
    """`reads`: about how many keys were read lately; `keys`: the hottest first, each with its `share` of them."""
    name = (codec.descriptor.application, codec.descriptor.state)
    total, counted = 0.0, dict[bytes, float]()
    for reads in (reads for facts in processes for reads in facts.reads if (reads.application, reads.state) == name):
        total += reads.sampled
        for of in reads.hottest:
            counted[of.storage_key] = counted.get(of.storage_key, 0.0) + of.reads
    read, keys = keys_reader(codec, integers_as_text=False), []
    for storage_key, count in sorted(counted.items(), key=lambda pair: (-pair[1], pair[0])):
        try:
            key = read(storage_key)
        except MalformedRequest:  # of an earlier state of this name, or of a client that made it up
            continue
        keys.append({**key, "share": min(1.0, count / total)})
    return {"reads": round(total), "keys": keys[:_MOST_SHOWN]}
