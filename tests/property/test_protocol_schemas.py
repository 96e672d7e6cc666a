"""A state whose fields change while it lives: whatever fails, and whoever owns it, all ways to read it agree.

Scans, snapshots, watches and mirrors are held to the rows of their epochs, as test_protocol and test_protocol_kinds
hold look-ups and watches. What a row means by the fields that its reader knows is said by a model here. A field that is
added has its default in rows of before, and one that is dropped and added again is another one.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from keyhole.encoding.codec import StateCodec
from keyhole.encoding.envelope import Moment
from keyhole.encoding.row_codec import encode_row
from keyhole.errors import EpochGone, EpochNotReached, NotOwner, NotReady, StateChanged
from keyhole.model.evolution import evolved
from keyhole.model.read import ReadBounds
from keyhole.model.state import KeyColumn, KeyType, StateDescriptor, TtlClock, ValueField, ValueSchema
from services.state_server.read.table import Table
from tests.property.test_protocol import NAMES, Protocol, numbers
from tests.property.test_protocol_kinds import TTL_MS, KindsProtocol
from tests.support.examples import examples
from tests.support.simulated_watches import MirroredGroup
from tests.support.simulation import Rows
from tests.support.states import KEY_GROUPS, descriptor, key

N = ValueField("n", "float")
ADDED = (
    ValueField("count", "int"),
    ValueField("unit", "string", True, msgspec.msgpack.encode("C")),
    ValueField("place", "string"),
)
WIDER = {"float": "double", "int": "bigint"}


class Field(NamedTuple):
    """A field from its being added to its being dropped: `born` tells it from others of its name."""

    born: int
    field: ValueField

    @property
    def default(self) -> Any:
        """What rows of before it have."""
        return msgspec.msgpack.decode(self.field.default) if self.field.default else None


class SchemaChanges(Protocol):
    """Before a subclass of Protocol: its states' fields change."""

    standbys = 1

    def __init__(self) -> None:
        super().__init__()
        self._births = itertools.count()
        fields = (Field(next(self._births), N),)
        # As the job declares them, and by version; what the state is by then.
        self.fields = fields
        self.schemas = {1: fields}
        self.known = self.state
        # With so many batches they were changed last: what no epoch has had is not on record.
        self.changed_at = 0
        # By row as it is stored: its values, by the birth of their field.
        self.means: dict[bytes, Mapping[int, Any]] = {}
        self.mirrored = [MirroredGroup(group, self.world) for group in range(KEY_GROUPS)]
        self.watched = [*self.mirrored]

    def encoded(self, n: float) -> bytes:
        """A row by the schema that is declared."""
        version = self.known.value.version
        values = {"n": n, "count": int(n) + version, "unit": f"unit {version}", "place": None}
        fields = self.schemas[version]
        row = encode_row(version, [values[of.field.name] for of in fields])
        self.means[row] = {of.born: values[of.field.name] for of in fields}
        return row

    # --- what happens ---------------------------------------------------------------------------------------------

    def between_batches(self) -> bool:
        """No batch is under way that would be run again with rows of another schema."""
        return 0 < self.done == len(self.batches)

    @precondition(lambda self: self.between_batches() and self.changed_at < self.done)
    @rule(data=st.data())
    def the_schema_changes(self, data: st.DataObject) -> None:
        """The job is started again with other fields. The next epoch is the first one that has them."""
        fields, changes = list(self.fields), ["reorder"]
        absent = [of for of in ADDED if of.name not in {known.field.name for known in fields}]
        narrow = [at for at, of in enumerate(fields) if of.field.type in WIDER]
        changes += ["add"] * bool(absent) + ["widen"] * bool(narrow) + ["drop"] * (len(fields) > 1)
        change = data.draw(st.sampled_from(changes))
        if change == "add":
            fields.insert(
                data.draw(st.integers(0, len(fields))), Field(next(self._births), data.draw(st.sampled_from(absent)))
            )
        elif change == "widen":
            at = data.draw(st.sampled_from(narrow))
            wider = msgspec.structs.replace(fields[at].field, type=WIDER[fields[at].field.type])
            fields[at] = fields[at]._replace(field=wider)
        elif change == "drop":
            fields = [of for of in fields if of.field.name == "n" or data.draw(st.booleans())]
        else:
            fields = data.draw(st.permutations(fields))
        self.fields, self.changed_at = tuple(fields), self.done
        self.known = evolved(self.known, self.declared(*(of.field for of in fields)))
        self.schemas[self.known.value.version] = self.fields
        self.world.driver_dies()
        self.world.descriptor = self.declared(*(of.field for of in fields))

    @precondition(lambda self: self.between_batches() and self.changed_at < self.done)
    @rule(data=st.data())
    def an_epoch_has_other_fields(self, data: st.DataObject) -> None:
        """While nothing fails, and everybody reads on before it and behind it."""
        self.who_reads_on_has_all()
        self.the_schema_changes(data)
        self.run_the_next_batch_and_nothing_fails(data)
        self.who_reads_on_has_all()

    def who_reads_on_has_all(self) -> None:
        for server in self.world.servers.values():
            for mirrored in self.mirrored:
                self.read_on(mirrored, server, 1_000)

    @precondition(between_batches)
    @rule(data=st.data())
    def a_change_that_can_not_be_is_refused(self, data: st.DataObject) -> None:
        """And the job that is started again as it was goes on."""
        narrower = [ValueField(of.field.name, "string" if of.field.name == "n" else "date") for of in self.fields]
        fields = tuple(of.field for of in self.fields)
        refused = data.draw(
            st.sampled_from(
                [
                    self.declared(*narrower),
                    self.declared(*fields, key=(KeyColumn("k", KeyType.INT),)),
                    self.declared(*fields, order_by="n"),
                ]
            )
        )
        world, wanted = self.world, self.world.descriptor
        for server in world.servers.values():
            server.start()
        world.driver_dies()
        world.descriptor = refused
        try:
            with pytest.raises(StateChanged):
                world.run_epoch(self.done, {})
        finally:
            world.driver_dies()
            world.descriptor = wanted

    def declared(self, *fields: ValueField, **changes: object) -> StateDescriptor:
        """As a job declares it: always version 1."""
        return msgspec.structs.replace(self.state, value=ValueSchema(1, fields), **changes)

    @rule(group=st.integers(0, KEY_GROUPS - 1))
    def who_watches_begins_anew(self, group: int) -> None:
        self.mirrored[group].forget()

    # --- what must hold -------------------------------------------------------------------------------------------

    def expected(self, row: bytes, version: int) -> dict[str, Any]:
        """What a row says to a reader that knows the fields of this version."""
        values = self.means[row]
        return {of.field.name: values.get(of.born, of.default) for of in self.schemas[version]}

    def is_read_as_meant(self, codec: StateCodec, row: bytes) -> None:
        version = codec.descriptor.value.version
        assert codec.decode_row(row).asdict() == self.expected(row, version), f"by version {version}"

    @invariant()
    def a_scan_of_all_keys_has_the_rows_of_its_epoch_by_its_servers_fields(self) -> None:
        """On every copy: of the last epoch, and of each one that is kept, which is what a snapshot reads."""
        self.the_changelog_is_the_epochs_one_after_the_other()
        for table in [table for server in self.world.servers.values() for table in server.tables.values()]:
            for group in range(KEY_GROUPS):
                for as_of in (0, *range(max(1, self.done - 2), self.done + 1)):
                    for epoch, watermark_ms, found in self.scanned(table, group, as_of):
                        assert as_of in (0, epoch)
                        assert found == self.rows_of(epoch, group, watermark_ms), f"not the whole of epoch {epoch}"
                        for row in found.values():
                            self.is_read_as_meant(table.codec, row)

    @staticmethod
    def scanned(table: Table, group: int, as_of: int) -> Iterator[tuple[int, int, dict[bytes, bytes]]]:
        """Its epoch and watermark, and all rows; nothing where that can't be read there."""
        with contextlib.suppress(NotOwner, NotReady, EpochGone, EpochNotReached):
            scanned = table.scan(table.codec.group_range(group), ReadBounds(as_of=as_of))
            source = scanned.source
            found = {name: row for name, row in scanned.entries if row is not None}
            scanned.close()
            yield source.epoch, source.watermark_ms, found

    def rows_of(self, epoch: int, group: int, watermark_ms: int) -> Mapping[bytes, bytes]:
        """What readers see of a key group as of an epoch."""
        return self.of(epoch, group)

    @invariant()
    def a_mirror_equals_a_scan_at_its_epoch_and_does_not_go_back(self) -> None:
        self.the_changelog_is_the_epochs_one_after_the_other()
        for mirrored in self.mirrored:
            group, copy, codec = mirrored.key_group, mirrored.copy, mirrored.codec
            if codec is None or not copy.whole:
                continue
            answers = dict(zip(NAMES[group], copy.answers(NAMES[group]), strict=True))
            (epoch,) = {answer.epoch for answer in answers.values()}
            assert epoch >= mirrored.shown_epoch, "the mirror went back"
            mirrored.shown_epoch = epoch
            watermark_ms = self.watermark_of(epoch)
            version = codec.descriptor.value.version
            expected = {
                name: self.expected(row, version) for name, row in self.rows_of(epoch, group, watermark_ms).items()
            }
            found = {key(name): of.value.asdict() for name, of in answers.items() if of.found}
            assert found == expected, f"not the whole of epoch {epoch}"
            assert {key(entry.key): entry.value.asdict() for entry in copy.keyed_entries()} == found
            assert copy.entries == len(found)

    def watermark_of(self, epoch: int) -> int:
        return 0


class EvolvingProtocol(SchemaChanges):
    """Rows are upserts and deletions."""

    state = descriptor(value=ValueSchema(1, (N,)))

    def batch(self, values: Mapping[str, float | None]) -> Rows:
        return {key(name): None if n is None else self.encoded(n) for name, n in values.items()}


class ExpiringEvolvingProtocol(SchemaChanges, KindsProtocol):
    """The same, and rows expire by the watermark."""

    state = descriptor(value=ValueSchema(1, (N,)), ttl_ms=TTL_MS, ttl_clock=TtlClock.EVENT_TIME, index=("n",))
    values = st.none() | numbers

    def rows(self, key: str, of: float | None) -> Iterator[tuple[bytes, bytes | None]]:  # type: ignore[override]
        yield self.world.codec.prefix(key), None if of is None else self.encoded(of)

    def rows_of(self, epoch: int, group: int, watermark_ms: int) -> Mapping[bytes, bytes]:
        now = Moment(self.world.clock.now_ms(), watermark_ms)
        shown = self.model.shown(self.at(group, epoch).state, now)
        return {name: row for name, ((_, row),) in shown.items()}

    def watermark_of(self, epoch: int) -> int:
        return self.watermark(epoch) if epoch else 0


_SETTINGS = settings(max_examples=examples(40), stateful_step_count=30)

TestEvolvingProtocol = EvolvingProtocol.TestCase
TestExpiringEvolvingProtocol = ExpiringEvolvingProtocol.TestCase
TestEvolvingProtocol.settings = TestExpiringEvolvingProtocol.settings = _SETTINGS
