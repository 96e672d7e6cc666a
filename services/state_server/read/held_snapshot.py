"""A snapshot that several readers share: the last one that lets go of it closes it."""

from __future__ import annotations

from keyhole.stores.base import Snapshot


class HeldSnapshot:
    """A snapshot that is closed when nobody holds it any more: a scan may outlive the epoch that it reads."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._holders = 1

    def hold(self) -> HeldSnapshot:
        """Takes a share in it: it stays open until as many have called `release`."""
        self._holders += 1
        return self

    def release(self) -> None:
        """Gives a share back; the last one closes the snapshot."""
        self._holders -= 1
        if not self._holders:
            self.snapshot.close()

    def over(self, stored: Snapshot) -> HeldSnapshot:
        """This share in another form: a snapshot that this one is made of, and that is closed with it."""
        return _Share(stored, self)


class _Share(HeldSnapshot):
    """A share in a snapshot, of which only a part is looked at."""

    def __init__(self, stored: Snapshot, of: HeldSnapshot) -> None:
        super().__init__(stored)
        self._of = of

    def release(self) -> None:
        """Gives the share in the whole back."""
        self._of.release()
