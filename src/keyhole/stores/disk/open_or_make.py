"""Opening a store on disk, whichever engine it is of: what is there is used, or emptied where it is not ours or not
whole. The changelog has all of it."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from keyhole.stores.disk.identity import POSITION_BYTES, Identity, NotUsableError

_log = logging.getLogger(__name__)

_Opened = TypeVar("_Opened")


def open_or_make(
    path: Path,
    identity: Identity,
    *,
    there: bool,
    open_existing: Callable[[], _Opened],
    create: Callable[[], _Opened],
) -> _Opened:
    """The store at `path`, made if absent, emptied (and logged) where it is damaged or of another changelog.

    Args:
        there: Whether `path` has a store's files.
        open_existing: Opens them. Raises NotUsableError where they must be emptied; whatever it has opened is closed
            then. StoreFormat and all else that it raises leaves them untouched.
        create: Makes a store where there is nothing, in one step: after a crash there is either no identity, which is
            emptied by the next call, or a whole store.
    """
    if there:
        try:
            return open_existing()
        except NotUsableError as reason:
            _log.warning(
                "emptied a store; it is rebuilt from the changelog",
                extra={"store_path": str(path), "state": identity.state, "why": str(reason)},
            )
    # Also where a crash left a directory and no data.
    shutil.rmtree(path, ignore_errors=True)
    return create()


def check_positions(encoded: Iterable[bytes]) -> None:
    """Whether each is a position, by its length. Raises NotUsableError where one isn't."""
    if any(len(position) != POSITION_BYTES for position in encoded):
        raise NotUsableError("damaged: a position is not one")
