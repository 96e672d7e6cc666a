"""Records of a registry's formats, whose bytes something has damaged."""

from __future__ import annotations

from hypothesis import strategies as st

# Of a record: the magic byte and the schema's id, which stay.
_HEAD_BYTES = 5


def damaged(record: bytes, data: st.DataObject) -> bytes:
    """The record with up to three places in it that are cut, longer or other ones."""
    value = bytearray(record)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(_HEAD_BYTES, len(value) - 1))
        value[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
        if len(value) <= _HEAD_BYTES:
            break
    return bytes(value)
