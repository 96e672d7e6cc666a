"""What an append to a long list costs, as a ratio to a short one: `python -m benchmarks.lists`. Prints JSON.

Both stores have as many elements in all: a few lists that are appended to, of the length in question, and others. An
epoch appends to each of the few; measured is what the server does for it: merging with what is stored, and the store's
write, durable when it returns. The two stores take turns, so that whatever else the machine does hits both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.envelope import Moment
from keyhole.encoding.key_codec import encode_integer
from keyhole.encoding.row_codec import encode_row
from keyhole.model.epoch import START, Position
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, StateKind, ValueField, ValueSchema
from keyhole.stores.base import Advance, Batch, Store, StoreLimits
from keyhole.stores.lmdb.engine import LmdbEngine
from services.state_server.write.merge import changes, merge_of
from services.state_server.write.merging import CommitContext, StoredValues

LISTS = 10
ROW = encode_row(1, ["x" * 40])
LOADED_AT_ONCE = 200_000

# Kinds of lists: without limits; with as many elements as they may have; with elements that expire, none of them yet.

PLAIN, LIMITED, EXPIRING = "plain", "max_length", "ttl"


@dataclass
class Measured:
    """One state: lists of some length, and others beside them."""

    of: StateDescriptor
    store: Store
    epochs: int = 0

    def __post_init__(self) -> None:
        self.codec = StateCodec(self.of)
        self.merge = merge_of(self.of)

    def load(self, names: Sequence[str], length: int) -> None:
        stamp = (1 << 62).to_bytes(8, "big") if self.of.ttl_ms else b""
        elements = sorted(
            (self.codec.prefix(name) + encode_integer(at, 8), stamp + ROW) for name in names for at in range(length)
        )
        for start in range(0, len(elements), LOADED_AT_ONCE):
            self._apply(elements[start : start + LOADED_AT_ONCE], [])

    def append(self, names: Sequence[str], elements: int) -> tuple[float, float]:
        """Seconds of merging, and of writing, an epoch that appends so many to each list."""
        rows: StoredValues = {
            self.codec.prefix(name) + encode_integer(at, 8): ROW for name in names for at in range(elements)
        }
        began = time.perf_counter()
        snapshot = self.store.snapshot()
        context = CommitContext(self.epochs + 1, Moment(1, 1), Moment(1, 1))
        written = changes(rows, snapshot, 0, self.merge, context, replace=False)
        snapshot.close()
        merged = time.perf_counter()
        self._apply([(key, row) for key, row in written if row is not None], [k for k, row in written if row is None])
        return merged - began, time.perf_counter() - merged

    def _apply(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes]) -> None:
        before, self.epochs = self.epochs, self.epochs + 1
        self.store.apply(Batch(puts, deletes, {0: Advance(_position(before), _position(self.epochs))}))


def _position(epoch: int) -> Position:
    return Position(epoch, epoch, 1, 1) if epoch else START


def descriptor(name: str, kind: str, length: int) -> StateDescriptor:
    return StateDescriptor(
        "benchmark",
        name,
        "query",
        StateKind.LIST,
        1,
        (KeyColumn("k", KeyType.STRING),),
        ValueSchema(1, (ValueField("v", "string"),)),
        ttl_ms=1000 if kind == EXPIRING else 0,
        max_length=length if kind == LIMITED else 0,
    )


def stores(engine: LmdbEngine, kind: str, lengths: Sequence[int]) -> Iterator[Measured]:
    total = LISTS * max(lengths)
    for length in lengths:
        name = f"{kind}-{length}"
        made = Measured(descriptor(name, kind, length), engine.open("benchmark", name, "topic"))
        made.load(measured_names(), length)
        # Of 100 elements each, standing among the others.
        made.load([f"list-{number:06}-other" for number in range((total - LISTS * length) // 100)], 100)
        yield made


def measured_names() -> list[str]:
    return [f"list-{number * 997:06}" for number in range(LISTS)]


def figures(engine: LmdbEngine, kind: str, lengths: Sequence[int], elements: int, epochs: int) -> dict[str, object]:
    both = list(stores(engine, kind, lengths))
    seconds: dict[int, list[tuple[float, float]]] = {length: [] for length in lengths}
    for _ in range(epochs):
        for length, measured in zip(lengths, both, strict=True):
            seconds[length].append(measured.append(measured_names(), elements))
    medians = {
        length: [statistics.median(parts) for parts in zip(*of[epochs // 10 :], strict=True)]
        for length, of in seconds.items()
    }
    short, long = medians[lengths[0]], medians[lengths[-1]]
    return {
        "elements_per_epoch": LISTS * elements,
        "microseconds_per_element_by_length": {
            length: {
                "merging": round(of[0] / LISTS / elements * 1e6, 2),
                "writing": round(of[1] / LISTS / elements * 1e6, 2),
            }
            for length, of in medians.items()
        },
        "ratio_merging": round(long[0] / short[0], 2),
        "ratio": round(sum(long) / sum(short), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs=2, default=[10, 100_000])
    parser.add_argument("--elements", type=int, default=10, help="appended to each of the lists in an epoch")
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument(
        "--directory", type=Path, help="below which the stores are made; default: the temporary directory"
    )
    arguments = parser.parse_args()
    sys.setswitchinterval(0.0001)
    found = {}
    for kind in (PLAIN, LIMITED, EXPIRING):
        with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
            engine = LmdbEngine(StoreLimits(Path(directory)))
            try:
                found[kind] = figures(engine, kind, arguments.lengths, arguments.elements, arguments.epochs)
            finally:
                engine.close()
    print(json.dumps({"lists": LISTS, "lengths": arguments.lengths, **found}, indent=2))


if __name__ == "__main__":
    main()
