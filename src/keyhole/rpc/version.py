"""Which version of the protocol between Keyhole's own processes this is. Readers aren't concerned."""

from __future__ import annotations

from keyhole.errors import ProtocolMismatch

PROTOCOL_VERSION = 3
"""Grows with every change after which an older process would misunderstand a newer one, or the other way round."""


def check(theirs: int, who: str) -> None:
    """Passes where `who` speaks this version; raises ProtocolMismatch where not. 0: it is from before there were
    any.
    """
    if theirs == PROTOCOL_VERSION:
        return
    older = f"{who} speaks version {theirs}" if theirs else f"{who} speaks a version before 1"
    behind = "there" if theirs < PROTOCOL_VERSION else "here"
    raise ProtocolMismatch(
        f"{older} of Keyhole's protocol, and this process version {PROTOCOL_VERSION}: their images are of different "
        f"releases. Run the same release everywhere: update Keyhole {behind}",
        theirs=theirs,
        ours=PROTOCOL_VERSION,
    )
