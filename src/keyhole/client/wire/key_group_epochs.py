"""At which epoch each key group of a state can be read now: a lookup of one key in each, whatever its value."""

from __future__ import annotations

from keyhole.client.wire.lookups import LookupBatch
from keyhole.encoding.codec import StateCodec
from keyhole.encoding.storage_key import prefix_of

# Behind the key group: no matter which key it is.
_ANY_KEY = b"\0"


class KeyGroupBatch(LookupBatch):
    """Lookups whose keys are numbers of key groups. Each answer's source says at which epoch that one is."""

    def encode(self, codec: StateCodec) -> tuple[list[bytes], LookupBatch | None]:
        """A storage key of each key group. None is refused."""
        return [prefix_of(group) + _ANY_KEY for group in self.groups], None

    @property
    def groups(self) -> list[int]:
        """The numbers of the key groups."""
        return [group for group in self.keys if isinstance(group, int)]
