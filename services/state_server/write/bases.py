"""What an epoch's rows of an aggregating state are merged into: the accumulators before it. Host thread only."""

from __future__ import annotations

from collections.abc import Sequence

from keyhole.encoding.envelope import Base, decode_aggregate, lifetime, living
from keyhole.encoding.storage_key import are_storage_keys, group_of
from keyhole.errors import MalformedRequest, NotOwner
from keyhole.rpc.frames import MAX_VALUE_BYTES, value_too_large
from services.state_server.replica.hosted import StateReplica
from services.state_server.write.merging import CommitContext

# Of the accumulators in one answer; more only where one alone is larger.
_BASE_BYTES = 8 << 20


def read_bases(state: StateReplica, context: CommitContext, keys: Sequence[bytes]) -> list[Base | None]:
    """The bases of the first keys, as many as a message may have; None: the key had none.

    Raises:
        MalformedRequest: A key that is no storage key of the state.
        NotOwner: A key group that isn't restored here.
        TooLarge: An accumulator that no message can carry.
    """
    if keys and not are_storage_keys(keys, state.descriptor.key_groups):
        raise MalformedRequest(f"a key whose accumulator is asked for is no storage key of state {state.table.name}")
    if {group_of(key) for key in keys} - state.groups.owned:
        raise NotOwner(f"key groups of state {state.table.name} are asked for and not owned; stage them again")
    lives, bases, size = lifetime(state.descriptor), list[Base | None](), 0
    lives_from = None if lives is None else lives.lives_from(context.moment)
    snapshot = state.store.snapshot()
    try:
        for key in keys:
            stored = snapshot.get(key)
            if stored is not None and lives_from is not None:
                (stored,) = living((stored,), lives_from)
            base = None if stored is None else decode_aggregate(stored).as_of(context.number)
            of_base = 0 if base is None else len(base.accumulator)
            if of_base > MAX_VALUE_BYTES:
                raise value_too_large(state.table.name, of_base, "an accumulator")
            if size and size + of_base > _BASE_BYTES:
                break
            bases.append(base)
            size += of_base
    finally:
        snapshot.close()
    return bases
