"""LMDB's errors as Keyhole's: which of them are about room, and what the operator can do."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from keyhole.errors import Overloaded, StoreFull
from keyhole.stores.disk.store_directory import disk_error

# Snapshots of one store that may be open at a time. A server keeps one or two per reader; a slot takes 64 bytes.
MAX_READERS = 1024
_OF_THE_MACHINE = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.EIO,
        errno.EDQUOT,
        errno.EFBIG,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENODEV,
    }
)


@contextmanager
def errors_translated(path: Path, limit_bytes: int) -> Iterator[None]:
    """Raises LMDB's and the operating system's errors about room as what they mean to the operator.

    Raises:
        StoreFull: The map's limit, the disk or the address space is used up, or the disk fails.
        Overloaded: Too many snapshots are open.
    """
    try:
        yield
    except (lmdb.MapFullError, lmdb.TxnFullError) as error:
        raise StoreFull(
            f"no page is free in the store at {path}, whose limit is {limit_bytes} bytes: old snapshots keep pages; it "
            "may work again when they are closed. If not, restart the server with a higher "
            "KEYHOLE_STATE_SERVER_STORE_LIMIT_BYTES. Nothing was changed",
            path=path,
            limit_bytes=limit_bytes,
        ) from error
    except lmdb.PanicError as error:
        raise StoreFull(
            f"the disk failed while the store at {path} was written; see the system's log, then restart the server",
            path=path,
        ) from error
    except lmdb.MemoryError as error:
        raise StoreFull(
            f"no address space for the store at {path}, whose limit is {limit_bytes} bytes; lower "
            "KEYHOLE_STATE_SERVER_STORE_LIMIT_BYTES, or lift the process's limit (ulimit -v)",
            path=path,
            limit_bytes=limit_bytes,
        ) from error
    except lmdb.ReadersFullError as error:
        raise Overloaded(f"{MAX_READERS} snapshots of a store are open; ask again") from error
    except lmdb.DiskError as error:  # py-lmdb's name for ENOSPC
        raise disk_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), path) from error
    except lmdb.Error as error:
        if error.code in _OF_THE_MACHINE:
            raise disk_error(OSError(error.code, os.strerror(error.code)), path) from error
        raise
    except OSError as error:
        raise disk_error(error, path) from error
