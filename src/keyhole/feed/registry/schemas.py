"""What decodes the records of a schema, by the schema's id: asked for once, and for good, as ids never change. Pure.

An id that the registry does not know may be one that it does not know *yet*: a producer has registered it with another
instance a moment ago. So it is asked again for a while before records are given up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, TypeVar

from keyhole.clock import Clock
from keyhole.errors import MalformedRequest
from keyhole.feed.record_encoding import RegistryAway

Decoder = TypeVar("Decoder")

PATIENCE_SECONDS = 5.0
"""So long an unknown id is asked for."""
UNKNOWN_SECONDS = 60.0
"""So long it is refused unasked from then on."""


class SchemaUnknown(Exception):
    """The registry answers that it has no such schema."""


class RegisteredSchema(NamedTuple):
    """A schema as a registry has it.

    Attributes:
        kind: "AVRO", "PROTOBUF" or "JSON".
        text: Of the schema.
        references: Names and texts of the schemas that it refers to; each stands behind those that it refers to itself.
    """

    kind: str
    text: str
    references: tuple[tuple[str, str], ...] = ()


class SchemaSource(Protocol):
    """A schema registry, as far as readers ask it. Thread-safe."""

    def schema(self, number: int) -> RegisteredSchema:
        """The schema of this id.

        Raises:
            SchemaUnknown: It has none.
            RegistryAway: It does not answer, or refuses to.
        """


class Schemas(Generic[Decoder]):
    """What decodes the records of each schema. Thread-safe.

    Args:
        make: Makes it of a schema. Raises MalformedRequest: the schema is none that can be used.
    """

    def __init__(self, source: SchemaSource, make: Callable[[RegisteredSchema], Decoder], clock: Clock) -> None:
        self._source = source
        self._make = make
        self._clock = clock
        self._made: dict[int, Decoder] = {}
        self._unusable: dict[int, str] = {}
        # When each of these ids was found to be unknown first.
        self._unknown: dict[int, float] = {}

    def of(self, number: int) -> Decoder:
        """What decodes records of this schema.

        Raises:
            MalformedRequest: There is no such schema, or it can't be used.
            RegistryAway: The registry does not answer; or it has no such schema yet, and may have it in a moment.
        """
        made = self._made.get(number)
        return made if made is not None else self._found(number)

    def _found(self, number: int) -> Decoder:
        if (why := self._unusable.get(number)) is not None:
            raise MalformedRequest(why)
        now = self._clock.monotonic()
        unknown_for = now - self._unknown.get(number, now)
        if unknown_for > UNKNOWN_SECONDS:
            del self._unknown[number]
        elif unknown_for > PATIENCE_SECONDS:
            raise self._no_such(number)
        try:
            registered = self._source.schema(number)
        except SchemaUnknown:
            since = self._unknown.setdefault(number, now)
            if now - since > PATIENCE_SECONDS:
                raise self._no_such(number) from None
            raise RegistryAway(f"the schema registry has no schema of id {number} (yet)") from None
        self._unknown.pop(number, None)
        try:
            made = self._made[number] = self._make(registered)
        except MalformedRequest as error:
            why = self._unusable[number] = f"schema {number} can't be used: {error.message}"
            raise MalformedRequest(why) from None
        return made

    def _no_such(self, number: int) -> MalformedRequest:
        return MalformedRequest(f"the schema registry has no schema of id {number}, which the record names")
