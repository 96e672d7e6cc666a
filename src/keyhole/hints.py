"""msgspec types that any thread may decode to. Pure: msgspec only.

msgspec 0.22 looks at the fields of a type when it is decoded to for the first time, and is interrupted by other threads
meanwhile. Who decodes to it then finds fields without a type, and the process dies of SIGSEGV. Seen twice: in a state
server whose followers read their first markers at once, and in a driver whose two queries staged their first batches at
once.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

_Type = TypeVar("_Type")


def ready(kind: type[_Type]) -> type[_Type]:
    """A class decorator: msgspec looks at the type's fields here and now, before any thread can decode to it.

    What the type is made of must be defined before it.
    """
    msgspec.msgpack.Decoder(kind)
    return kind
