"""The Source that an answer names: which server gave it, in which role, and as of which epoch and time."""

from __future__ import annotations

from keyhole.rpc.convert_stamps import put_stamp
from keyhole.v1 import state_pb2
from services.state_server.read.standing import Lease, Standing


class Sources:
    """Of the answers of one server about the states of one query.

    Args:
        lease: Of the query: an owner's answers are as of its last confirmation.
        by_updates: But not of a state that is fed by updates: they are as of what their standing says.
    """

    def __init__(self, server: str, lease: Lease, *, by_updates: bool = False) -> None:
        self._server = server
        self._lease = lease
        self._by_updates = by_updates

    def moment(self) -> object:
        """What goes into an owner's source beside its standing: as long as it is equal, so is the source."""
        return self._lease.confirmed_ms, self._lease.expired

    def owner(self, standing: Standing) -> state_pb2.Source:
        """The source of answers of the owner's copy."""
        as_of_ms = standing.as_of_ms
        if not self._by_updates:
            confirmed_ms = self._lease.confirmed_ms
            as_of_ms = min(as_of_ms, confirmed_ms) if as_of_ms else confirmed_ms  # of an epoch that was asked for
        return self._source(state_pb2.ROLE_OWNER, standing, as_of_ms=as_of_ms, unconfirmed=self._lease.expired)

    def standby(self, standing: Standing) -> state_pb2.Source:
        """The source of answers of the standby's copy."""
        return self._source(state_pb2.ROLE_STANDBY, standing, as_of_ms=standing.as_of_ms, unconfirmed=False)

    def _source(
        self, role: state_pb2.Role.ValueType, standing: Standing, *, as_of_ms: int, unconfirmed: bool
    ) -> state_pb2.Source:
        source = state_pb2.Source(
            server=self._server,
            role=role,
            assignment_version=standing.assignment_version,
            unconfirmed=unconfirmed,
            as_of_ms=as_of_ms,
            lag_epochs=standing.lag_epochs,
        )
        put_stamp(standing.stamp, source)
        return source
