"""Puts a state together on this server: its store, what readers ask, and what writes it. The one place for it."""

from __future__ import annotations

from keyhole.encoding.indexed_fields import indexed_fields
from keyhole.encoding.row_codec import check_usable
from keyhole.model.state import StateDescriptor
from keyhole.stores.indexed import IndexedStore
from services.state_server.host_settings import HostSettings
from services.state_server.read.standing import Lease
from services.state_server.read.table import Table
from services.state_server.replica.hosted import StateReplica
from services.state_server.write.fed_state import FedState


def open_state(application: str, descriptor: StateDescriptor, settings: HostSettings, lease: Lease) -> StateReplica:
    """Opens the state's store, and takes up where that is. Blocks; on the host's thread. All key groups are ABSENT.

    Args:
        application: The query's: under its name the store is found again, and destroyed.
        lease: The query's: by it the answers of the state's table are confirmed.

    Raises:
        ValueMismatch: The descriptor can't be used; nothing of it is on disk.
        KeyholeError: The store can't be opened, or fails right then. It is closed: it can be tried again.
    """
    check_usable(descriptor)
    indexed_fields(descriptor)
    store = settings.engine.open(application, descriptor.state, descriptor.topic_id)
    try:
        indexes = IndexedStore(store, descriptor)
        state = StateReplica.open(descriptor, indexes, Table(settings.server, descriptor, indexes, lease))
    except BaseException:
        store.close()  # or whoever tries it again would find it open
        raise
    state.indexes = indexes
    if descriptor.updates_topic_id:
        state.applied = FedState(state, settings.clock)
    return state
