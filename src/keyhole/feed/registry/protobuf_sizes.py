"""What a Protobuf message would take of memory, reckoned from its bytes before it is made. Pure.

    message Order { repeated Line lines = 1; }    b"\\x0a\\0" * 1000: a thousand lines of all fields that Line has

Two bytes make a message, with a place for each field of its type. Most records are so short that they can't come to
too much, whatever they are; of others the bytes are walked through, and each message in them counts.
"""

from __future__ import annotations

from typing import NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from keyhole.feed.registry.allowance import ITEM_BYTES, MOST_BYTES, Allowance, record_bytes

_VARINT, _FIXED64, _LENGTH, _BEGIN, _END, _FIXED32 = range(6)
_MOST_DEPTH = 100
_SLOT_BYTES = 16
"""Of a field in the message that the library makes; the dictionary of the values comes beside it."""
_MOST_SHIFT = 63

_WIDTHS = {
    **dict.fromkeys((FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FIXED64, FieldDescriptor.TYPE_SFIXED64), 8),
    **dict.fromkeys((FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_FIXED32, FieldDescriptor.TYPE_SFIXED32), 4),
}
_HIGH = bytes(range(0x80, 0x100))


class _MessageLayout(NamedTuple):
    """A type of message.

    Attributes:
        size: What a message of it takes without what is in it.
        inner: Its fields that are messages, by their numbers.
        packed: Its fields of which many may stand behind one another, by their numbers: bytes of each; 0: it varies.
    """

    size: int
    inner: dict[int, _MessageLayout]
    packed: dict[int, int]


_UNKNOWN = _MessageLayout(0, {}, {})


class Layouts:
    """A type of message, and those within it. Thread-safe."""

    def __init__(self, of: Descriptor) -> None:
        made: dict[str, _MessageLayout] = {}
        self._root = _layout(of, made)
        # A message takes two bytes at least, any other value one.
        largest = max(layout.size for layout in made.values())
        self._per_byte = max(ITEM_BYTES, (largest + ITEM_BYTES + 1) // 2)

    def check(self, data: bytes, start: int, allowance: Allowance) -> None:
        """Passes where the message that begins there has allowance.

        Raises:
            MalformedRequest: It has none.
            ValueError, IndexError: It is no message.
        """
        if self.most(len(data) - start) > MOST_BYTES:
            self.walk(data, start, allowance)

    def most(self, size: int) -> int:
        """To how much a message of so many bytes may come, whatever they are."""
        return self._root.size + size * self._per_byte

    def walk(self, data: bytes, start: int, allowance: Allowance) -> None:
        """The same, by each value of the message."""
        allowance.take(self._root.size)
        _walk(data, start, len(data), self._root, allowance, 0)


def _layout(of: Descriptor, made: dict[str, _MessageLayout]) -> _MessageLayout:
    found = made.get(of.full_name)
    if found is not None:
        return found
    lists = sum(field.is_repeated for field in of.fields)
    size = record_bytes(len(of.fields)) + _SLOT_BYTES * len(of.fields) + ITEM_BYTES * lists
    layout = made[of.full_name] = _MessageLayout(size, {}, {})
    for field in of.fields:
        if field.message_type is not None:
            layout.inner[field.number] = _layout(field.message_type, made)
        elif field.is_repeated and field.type not in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
            layout.packed[field.number] = _WIDTHS.get(field.type, 0)
    return layout


def _walk(data: bytes, at: int, end: int, of: _MessageLayout, allowance: Allowance, depth: int) -> int:
    """To the end of a message, or of a group, which may come before it."""
    if depth > _MOST_DEPTH:
        raise ValueError("nested too deep")
    while at < end:
        tag, at = varint(data, at)
        number, kind = tag >> 3, tag & 7
        allowance.take(ITEM_BYTES)
        if kind == _VARINT:
            _, at = varint(data, at)
        elif kind == _LENGTH:
            size, at = varint(data, at)
            if at + size > end:
                raise ValueError("more bytes than there are")
            if (inner := of.inner.get(number)) is not None:
                allowance.take(inner.size)
                _walk(data, at, at + size, inner, allowance, depth + 1)
            elif (width := of.packed.get(number)) is not None:
                allowance.take(ITEM_BYTES * (size // width if width else _numbers(data[at : at + size])))
            at += size
        elif kind == _BEGIN:
            inner = of.inner.get(number, _UNKNOWN)
            allowance.take(inner.size)
            at = _walk(data, at, end, inner, allowance, depth + 1)
        elif kind == _END:
            return at
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError("no such kind of value")
    return at


def _numbers(packed: bytes) -> int:
    """How many there are: each ends with a byte below 128."""
    return len(packed.translate(None, _HIGH))


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that stands there, and where it ends. Raises ValueError, IndexError: there is none."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        if shift == _MOST_SHIFT:
            raise ValueError("more than 64 bits")
        shift += 7
